// SPDX-License-Identifier: MIT
//
// One table of options: its rows say what an option's value is and where it goes; the loop over the arguments knows
// none of them.
#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <set>

#include "command_line.hpp"

namespace generate {

namespace {

std::string some_text(Text name, Text value, const char* what) {
  if (value.empty()) refuse(std::string(name) + ": expected " + what + ", got nothing");
  return std::string(value);
}

std::vector<std::int32_t> id_list(Text name, Text value) {
  std::vector<std::int32_t> ids;
  for (Text piece : split(value, ',')) {
    if (piece.empty()) {
      refuse(std::string(name) + ": nothing at index " + std::to_string(ids.size()) +
             ", expected ids separated by commas");
    }
    ids.push_back(integer<std::int32_t>(name, piece, 0, std::numeric_limits<std::int32_t>::max()));
  }
  return ids;
}

std::pair<std::int64_t, std::int64_t> span(Text name, Text value) {
  const auto parts = split(value, ':');
  if (parts.size() != 2) refuse(std::string(name) + ": expected FIRST:COUNT, got " + quoted(value));
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return {integer<std::int64_t>(name, parts[0], 0, kMost), integer<std::int64_t>(name, parts[1], 1, kMost)};
}

dsv41::Numeric numeric(Text name, Text value) {
  for (dsv41::Numeric n : {dsv41::Numeric::exact, dsv41::Numeric::deployed}) {
    if (value == dsv41::numeric_name(n)) return n;
  }
  refuse(std::string(name) + ": expected exact or deployed, got " + quoted(value));
}

dsv41::Prefill prefill(Text name, Text value) {
  for (dsv41::Prefill p : {dsv41::Prefill::full, dsv41::Prefill::exact, dsv41::Prefill::replay}) {
    if (value == dsv41::prefill_name(p)) return p;
  }
  refuse(std::string(name) + ": expected full, exact or replay, got " + quoted(value));
}

constexpr std::int64_t kMostDraft = 64;  // far beyond what a drafter is right about; every ring gets as much room

constexpr std::pair<Text, std::optional<dsv41::Verification>> kSpeculative[] = {
    {"off", std::nullopt},
    {"greedy", dsv41::Verification::greedy},
    {"rejection", dsv41::Verification::rejection},
    {"block", dsv41::Verification::block}};

std::optional<dsv41::Verification> speculative(Text name, Text value) {
  for (const auto& [known, how] : kSpeculative) {
    if (value == known) return how;
  }
  refuse(std::string(name) + ": expected off, greedy, rejection or block, got " + quoted(value));
}

/// "delayed" is called auto here, for with it confidences are calibrated as the run goes; off is --speculative off.
dsv41::DraftPolicy policy(Text name, Text value) {
  if (value == "auto") return {.kind = dsv41::DraftPolicy::Kind::delayed};
  try {
    if (const dsv41::DraftPolicy parsed = dsv41::parse_draft_policy(value);
        value != "off" && value != "delayed" && parsed.drafts <= kMostDraft)
      return parsed;
  } catch (const dsv41::Error&) {  // names other values
  }
  refuse(std::string(name) + ": expected auto, alg1, fixed:N (N from 0 to " + std::to_string(kMostDraft) +
         ") or threshold:C (C from 0 to 1), got " + quoted(value));
}

std::string backend(Text name, Text value) {
  if (value != "cpu" && value != "ref") refuse(std::string(name) + ": expected cpu or ref, got " + quoted(value));
  return std::string(value);
}

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostParallel = 4096;
constexpr std::uint64_t kMostSeed = std::numeric_limits<std::uint64_t>::max();

const OptionRow<Options> kRows[] = {
    {"--model", true, [](Options& o, Text n, Text v) { o.model = some_text(n, v, "a folder"); }},
    {"--prompt", true, [](Options& o, Text n, Text v) { o.prompt = some_text(n, v, "a text"); }},
    {"--prompt-file", true, [](Options& o, Text n, Text v) { o.prompt_file = some_text(n, v, "a file"); }},
    {"--tokens", true, [](Options& o, Text n, Text v) { o.tokens = id_list(n, v); }},
    {"--chat", false, [](Options& o, Text, Text) { o.chat = true; }},
    {"--system", true, [](Options& o, Text n, Text v) { o.system = some_text(n, v, "a text"); }},
    {"--thinking", false, [](Options& o, Text, Text) { o.thinking = true; }},
    {"--effort", true, [](Options& o, Text n, Text v) { o.effort = integer<std::int32_t>(n, v, 1, 100); }},
    {"--bos", false, [](Options& o, Text, Text) { o.bos = true; }},
    {"--image-span", true, [](Options& o, Text n, Text v) { o.image_span = span(n, v); }},
    {"--max-tokens", true,
     [](Options& o, Text n, Text v) { o.max_tokens = integer<std::int64_t>(n, v, 0, kMostTokens); }},
    {"--temperature", true,
     [](Options& o, Text n, Text v) {
       o.sampler.temperature = decimal(n, v, "a finite number of at least 0", [](double x) { return x >= 0; });
     }},
    {"--top-k", true,
     [](Options& o, Text n, Text v) { o.sampler.top_k = integer<std::int64_t>(n, v, 0, kMostTokens); }},
    {"--top-p", true,
     [](Options& o, Text n, Text v) {
       o.sampler.top_p = decimal(n, v, "a number above 0 and at most 1", [](double x) { return x > 0 && x <= 1; });
     }},
    {"--min-p", true,
     [](Options& o, Text n, Text v) {
       o.sampler.min_p = decimal(n, v, "a number from 0 to 1", [](double x) { return x >= 0 && x <= 1; });
     }},
    {"--seed", true, [](Options& o, Text n, Text v) { o.sampler.seed = integer<std::uint64_t>(n, v, 0, kMostSeed); }},
    {"--backend", true, [](Options& o, Text n, Text v) { o.backend = backend(n, v); }},
    {"--numeric", true, [](Options& o, Text n, Text v) { o.numeric = numeric(n, v); }},
    {"--threads", true, [](Options& o, Text n, Text v) { o.threads = integer<std::int64_t>(n, v, 1, 4096); }},
    {"--weight-bytes", true,
     [](Options& o, Text n, Text v) {
       o.weight_bytes = integer<std::int64_t>(n, v, 1, std::numeric_limits<std::int64_t>::max());
     }},
    {"--prefill", true, [](Options& o, Text n, Text v) { o.prefill = prefill(n, v); }},
    {"--chunk", true, [](Options& o, Text n, Text v) { o.chunk = integer<std::int64_t>(n, v, 1, kMostTokens); }},
    {"--speculative", true, [](Options& o, Text n, Text v) { o.speculative = speculative(n, v); }},
    {"--schedule", true, [](Options& o, Text n, Text v) { o.schedule = v, o.policy = policy(n, v); }},
    {"--draft", true, [](Options& o, Text n, Text v) { o.draft = integer<std::int64_t>(n, v, 1, kMostDraft); }},
    {"--costs", true, [](Options& o, Text n, Text v) { o.costs = some_text(n, v, "a file"); }},
    {"--compare", false, [](Options& o, Text, Text) { o.compare = true; }},
    {"--trace", true, [](Options& o, Text n, Text v) { o.trace = some_text(n, v, "a file"); }},
    {"--batch", true, [](Options& o, Text n, Text v) { o.batch = some_text(n, v, "a file"); }},
    {"--parallel", true,
     [](Options& o, Text n, Text v) { o.parallel = integer<std::int64_t>(n, v, 1, kMostParallel); }},
    {"--restore", true, [](Options& o, Text n, Text v) { o.restore = some_text(n, v, "a file"); }},
    {"--save", true, [](Options& o, Text n, Text v) { o.save = some_text(n, v, "a file"); }},
    {"--rewind", true, [](Options& o, Text n, Text v) { o.rewind = integer<std::int64_t>(n, v, 1, kMostTokens); }},
    {"--perplexity", true, [](Options& o, Text n, Text v) { o.perplexity = some_text(n, v, "a file"); }},
    {"--logits-out", true, [](Options& o, Text n, Text v) { o.logits_out = some_text(n, v, "a file"); }},
    {"--stats", true, [](Options& o, Text n, Text v) { o.stats = some_text(n, v, "a file"); }},
    {"--quiet", false, [](Options& o, Text, Text) { o.quiet = true; }},
    {"--help", false, [](Options& o, Text, Text) { o.help = true; }},
};

using Given = std::set<Text>;

/// Refuses the first option of `others` that was given beside `name`.
void exclude(const Given& given, Text name, std::initializer_list<Text> others) {
  if (!given.contains(name)) return;
  for (Text other : others) {
    if (given.contains(other)) refuse(std::string(name) + " and " + std::string(other) + " exclude each other");
  }
}

void demand(const Given& given, Text name, Text needed) {
  if (given.contains(name) && !given.contains(needed)) {
    refuse(std::string(name) + ": works only with " + std::string(needed));
  }
}

void check_drafting(const Options& o, const Given& given) {
  for (Text name : {"--schedule", "--draft", "--costs", "--compare", "--trace"}) {
    if (o.speculative || !given.contains(name)) continue;
    refuse(std::string(name) + ": works only with --speculative greedy, rejection or block");
  }
  if (o.costs && !o.policy.needs_costs())
    refuse("--costs: works only with --schedule auto or alg1, got " + quoted(o.schedule));
  check_temperature(o, "--temperature");
}

void check_combination(const Options& o, const Given& given) {
  exclude(given, "--prompt", {"--prompt-file", "--tokens"});
  exclude(given, "--prompt-file", {"--tokens"});
  exclude(given, "--chat", {"--tokens", "--bos", "--image-span", "--rewind"});
  exclude(given, "--perplexity",
          {"--prompt", "--prompt-file", "--tokens", "--chat", "--image-span", "--logits-out", "--max-tokens",
           "--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--restore", "--save", "--rewind",
           "--speculative", "--batch"});
  exclude(given, "--batch",
          {"--prompt", "--prompt-file", "--tokens", "--chat", "--bos", "--image-span", "--restore", "--save",
           "--rewind", "--logits-out"});
  for (Text name : {"--system", "--thinking", "--effort"}) demand(given, name, "--chat");
  demand(given, "--effort", "--thinking");
  demand(given, "--parallel", "--batch");
  check_drafting(o, given);
  for (Text name : {"--logits-out", "--perplexity"}) {
    if (o.prefill == dsv41::Prefill::full || !given.contains(name)) continue;
    refuse(std::string(name) + ": needs the logits of every token, and --prefill " +
           std::string(dsv41::prefill_name(o.prefill)) + " skips rows; expected --prefill full");
  }
  if (o.weight_bytes > 0 && o.backend != "cpu")
    refuse("--weight-bytes: works only with --backend cpu, got " + quoted(o.backend));
  if (o.restore && o.image_span && !o.has_prompt())
    refuse("--image-span: with --restore it needs a prompt; a restored session knows its own");
  if (o.converses()) {
    if (o.logits_out) refuse("--logits-out: with --chat it needs --prompt or --prompt-file");
  }
  if ((o.converses() || o.batch) && o.max_tokens == 0)
    refuse(std::string("--max-tokens: a ") + (o.batch ? "batch" : "conversation") + " needs at least 1, got '0'");
}

}  // namespace

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  const auto positional = [](Text argument) {
    refuse("unexpected argument " + quoted(argument) + "; a prompt goes behind --prompt");
  };
  const Given given = parse_arguments(arguments, kRows, positional, options);
  if (options.speculative && !given.contains("--schedule")) options.policy = policy("--schedule", options.schedule);
  if (!options.help) check_combination(options, given);
  return options;
}

std::string_view speculative_name(const std::optional<dsv41::Verification>& how) noexcept {
  for (const auto& [name, known] : kSpeculative) {
    if (how == known) return name;
  }
  return {};
}

bool set_by_key(Options& options, std::string_view key, std::string_view name, std::string_view value) {
  for (Text known : {"max_tokens", "temperature", "top_k", "top_p", "min_p", "seed"}) {
    if (key != known) continue;
    std::string option = "--" + std::string(key);
    std::replace(option.begin(), option.end(), '_', '-');
    for (const OptionRow<Options>& row : kRows) {
      if (row.name == option) row.set(options, name, value);
    }
    return true;
  }
  return false;
}

void check_temperature(const Options& options, std::string_view name) {
  if (options.speculative != dsv41::Verification::greedy || options.sampler.temperature == 0) return;
  char digits[32];
  char* const end = std::to_chars(digits, std::end(digits), options.sampler.temperature).ptr;
  refuse(std::string(name) + ": is " + std::string(digits, end) +
         ", and --speculative greedy keeps the law of temperature 0 only; expected 0, or --speculative rejection or "
         "block");
}

}  // namespace generate
