// SPDX-License-Identifier: MIT
//
// speculative PART [COUNT [TOKENS]]: what drafting does to the demo's text, and what it is worth on this machine. Not a unit test: figures
// are printed, times as ratios of one run. PART:
//   equal     COUNT held-out prompts (200) of TOKENS new tokens (256): greedy text with drafts is the plain one, token for token, and every
//             row of logits bit for bit. Fails at the first difference.
//   rounds    COUNT prompts (16) of TOKENS new tokens (128): tokens a round by temperature and verification, forwards of the target a
//             token. Fails where single greedy requests take too many.
//   schedule  COUNT repeats (3) of TOKENS new tokens a request (96): tokens per second of each policy over those of plain decoding.
//             Fails where a greedy text is not that of plain decoding.
//   all       the three, as they are by default.
// A fourth argument names another model folder than the demo; without a tokenizer its prompts are random tokens.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/modules/dspark/cost_table.hpp"
#include "dsv41/modules/dspark/scheduler.hpp"
#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/generator.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "dsv41/runtime/profiler.hpp"
#include "dsv41/runtime/sampler.hpp"
#include "support/random.hpp"
#include "support/temp_folder.hpp"

namespace {

using namespace dsv41;
using runtime::Engine;
using runtime::Generator;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kShortest = 5, kLongest = 100;  // tokens of a prompt

struct Demo {
  explicit Demo(const std::string& path) : folder(runtime::ModelFolder::open(path)) {}

  runtime::ModelFolder folder;
  std::int64_t draft = folder.checkpoint.config().draft.block, vocab = folder.checkpoint.config().vocab;

  /// Equidistant pieces of the held-out text, of lengths that vary; without a tokenizer, of random tokens.
  std::vector<Ids> prompts(std::int64_t count) const {
    test::Random random(1);
    Ids ids(folder.tokenizer ? 0 : 4096);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random.below(vocab));
    if (folder.tokenizer)
      ids = folder.tokenizer->encode(test::read_file(std::string(DSV41_DEMO_DIR) + "/heldout.txt"), false);
    std::vector<Ids> out;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t length = kShortest + 37 * i % (kLongest - kShortest + 1);  // 37 has no divisor in common
      const auto first = ids.begin() + i * (std::ssize(ids) - kLongest) / count;
      out.emplace_back(first, first + length);
    }
    return out;
  }
};

[[noreturn]] void fail(const std::string& what) {
  throw Error(Errc::internal, what);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double over(std::int64_t a, std::int64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

// Part equal.

/// What a request wrote: ids, and the row of logits that each was chosen from.
struct Text {
  std::size_t prompt = 0;
  Ids ids;
  std::vector<float> rows;  // [ids, vocab]
};

/// Greedy texts of some prompts, `slots` at a time. They join one a step, and the next joins when one has left. done(text) once each.
template <class Done>
void write_texts(Engine& engine, Generator& generator, const std::vector<Ids>& prompts,
                 std::span<const std::size_t> chosen, std::int64_t tokens, std::size_t slots, const Done& done) {
  std::map<std::int64_t, Text> running;
  std::size_t next = 0;
  while (next < chosen.size() || !running.empty()) {
    if (next < chosen.size() && running.size() < slots) {
      const std::size_t prompt = chosen[next++];
      const std::int64_t id = generator.add(engine.open_session(), {.max_tokens = tokens}, prompts[prompt]);
      running[id].prompt = prompt;
    }
    for (const runtime::Emission& e : generator.step()) {
      Text& text = running.at(e.request);
      const In<float, 2> rows = generator.session(e.request).logits();
      if (e.finish == runtime::Finish::failed || rows.extent(0) != std::ssize(e.tokens))
        fail("prompt " + std::to_string(text.prompt) + ": no row of logits for each token: " + std::string(e.error));
      text.ids.insert(text.ids.end(), e.tokens.begin(), e.tokens.end());
      for (std::int64_t i = 0; i < rows.extent(0); ++i)
        text.rows.insert(text.rows.end(), rows.row(i).data(), rows.row(i).data() + rows.extent(1));
      if (e.finish == runtime::Finish::none) continue;
      generator.remove(e.request);
      done(text);
      running.erase(e.request);
    }
  }
}

/// Ends the program unless `rows` choose the text's ids and are its rows, bit for bit.
void expect_same(const char* name, const std::vector<Ids>& prompts, const Text& text, std::int64_t tokens,
                 In<float, 2> rows) {
  const auto differs = [&](std::int64_t i, const std::string& what) {
    fail("prompt " + std::to_string(text.prompt) + ", position " +
         std::to_string(std::ssize(prompts[text.prompt]) + i) + ": against " + name + ": " + what);
  };
  const std::int64_t vocab = rows.extent(1), count = std::ssize(text.ids);
  if (count != tokens || rows.extent(0) != tokens)
    differs(count, std::to_string(count) + " tokens, " + std::to_string(rows.extent(0)) + " there");
  for (std::int64_t i = 0; i < count; ++i) {
    const In<float, 1> mine(text.rows.data() + i * vocab, {vocab}), other(rows.row(i).data(), {vocab});
    const std::int32_t id = text.ids[static_cast<std::size_t>(i)], best = runtime::argmax(other);
    if (id != best) differs(i, "token " + std::to_string(id) + ", " + std::to_string(best) + " there");
    for (std::int64_t v = 0; v < vocab; ++v) {
      if (std::memcmp(&mine[v], &other[v], sizeof(float)) == 0) continue;
      std::ostringstream values;
      values << std::hexfloat << "logit of " << v << " is " << mine[v] << ", " << other[v] << " there";
      differs(i, values.str());
    }
  }
}

/// Costs that no machine was asked for: with them drafts pay, so that `delayed` does not pause, and its budget varies.
CostTable made_up_costs() {
  return CostTable({{1, 1}, {8, 1.2}, {16, 1.6}, {24, 2.2}, {32, 3}, {48, 4}}, 0, {{1, 0.05}});
}

/// Two proofs of one statement. Every text is read again by a session that is fed prompt and text at once, all its rows asked for: row for
/// row what a plain session gives, since results do not depend on how tokens are cut into calls (Session::append; proven by
/// tests/model/test_step.cpp and tests/runtime/test_session_machine.cpp). Every kAloneEvery-th is also decoded anew, token by token, on an
/// engine without a drafter.
void equal(const Demo& demo, std::int64_t count, std::int64_t tokens) {
  constexpr std::size_t kSlots = 8, kAloneEvery = 7;
  constexpr double kWorth = 1.3;  // tokens a round: fewer would be plain decoding but for the name
  const std::int64_t context = kLongest + tokens;
  const std::vector<Ids> prompts = demo.prompts(count);
  // Few rows a step, so that prompts are cut and drafts left out where the batch is full.
  Engine drafting(demo.folder, {.max_context = context, .max_rows = 48, .draft = demo.draft});
  Engine plain(demo.folder, {.max_context = context, .max_rows = context});
  runtime::Session reader = plain.open_session();
  const auto row_views = [&](const std::vector<float>& rows) {
    return In<float, 2>(rows.data(), {std::ssize(rows) / demo.vocab, demo.vocab});
  };

  std::cout
      << "greedy text with drafts against the plain one: policy, prompts, tokens, of these token by token, tokens "
         "a round, drafts verified, accepted\n";
  constexpr std::array kPolicies = {"fixed:5", "threshold:0.5", "fixed:5", "delayed"};
  for (std::size_t p = 0; p < kPolicies.size(); ++p) {
    std::vector<std::size_t> chosen;
    for (std::size_t i = p; i < prompts.size(); i += kPolicies.size()) chosen.push_back(i);
    Generator generator(drafting, {.policy = parse_draft_policy(kPolicies[p]), .costs = made_up_costs()});
    std::int64_t compared = 0, alone = 0;
    const std::size_t slots = std::min(kSlots, (chosen.size() + 1) / 2);  // so that some join late
    write_texts(drafting, generator, prompts, chosen, tokens, slots, [&](const Text& text) {
      Ids all = prompts[text.prompt];
      all.insert(all.end(), text.ids.begin(), text.ids.end() - 1);
      reader.rewind(0);
      reader.append({.ids = all, .logit_rows = std::ssize(text.ids)});
      expect_same("all at once", prompts, text, tokens, reader.logits());
      compared += std::ssize(text.ids);
      if (text.prompt % kAloneEvery != 0) return;
      Generator off(plain, {});
      const std::size_t prompt = text.prompt;
      write_texts(plain, off, prompts, {&prompt, 1}, tokens, 1, [&](const Text& one) {
        expect_same("token by token", prompts, text, tokens, row_views(one.rows));
        alone += std::ssize(one.ids);
      });
    });
    const runtime::GeneratorStats& stats = generator.stats();
    std::cout << "| " << kPolicies[p] << " | " << chosen.size() << " | " << compared << " | " << alone << " | "
              << over(stats.emitted, stats.rounds) << " | " << stats.verified << " | " << stats.accepted << " |"
              << std::endl;
    if (over(stats.emitted, stats.rounds) < kWorth || stats.accepted == stats.verified)
      fail(std::string(kPolicies[p]) + ": too few drafts were accepted, or none rejected, to show anything");
  }
}

// Parts rounds and schedule.

/// Sessions that hold a prompt and its logits, to be forked by every run.
std::vector<runtime::Session> start_sessions(Engine& engine, const std::vector<Ids>& prompts) {
  std::vector<runtime::Session> out;
  for (const Ids& ids : prompts) {
    out.push_back(engine.open_session());
    out.back().append({.ids = ids});
  }
  return out;
}

/// Requests that ran to their ends.
struct Run {
  std::vector<Ids> texts;
  std::int64_t emitted = 0;             // in rounds: each text's first token is its prompt's
  std::int64_t steps = 0, drafted = 0;  // steps with rounds, and those in which drafts were at hand
  double seconds = 0;

  double rate() const { return static_cast<double>(emitted) / seconds; }
};

/// `slots` at a time; the next joins when one has left. The i-th has seed `options.sampler.seed` + i.
Run run(Generator& generator, std::span<const runtime::Session> starts, std::int64_t slots,
        runtime::RequestOptions options) {
  Run out{.texts = std::vector<Ids>(starts.size())};
  const std::int64_t before = generator.stats().emitted;
  std::map<std::int64_t, std::size_t> running;
  std::size_t next = 0;
  const double start = now();
  while (next < starts.size() || !running.empty()) {
    while (next < starts.size() && std::ssize(running) < slots) {
      running[generator.add(starts[next].fork(), options)] = next;
      ++next, ++options.sampler.seed;
    }
    for (const runtime::Emission& e : generator.step()) {
      if (e.finish == runtime::Finish::failed) fail(std::string(e.error));
      Ids& text = out.texts[running.at(e.request)];
      text.insert(text.end(), e.tokens.begin(), e.tokens.end());
      if (e.finish == runtime::Finish::none) continue;
      generator.remove(e.request);
      running.erase(e.request);
    }
    out.steps += generator.last().rounds.empty() ? 0 : 1;
    out.drafted += generator.last().drafting ? 1 : 0;
  }
  out.seconds = now() - start;
  out.emitted = generator.stats().emitted - before;
  return out;
}

void expect_texts(std::string_view policy, const Run& mine, const Run& plain) {
  if (mine.texts != plain.texts) fail(std::string(policy) + ": a greedy text is not that of plain decoding");
}

/// A block of the demo's own length for each request, and what it saves.
void rounds(const Demo& demo, std::int64_t count, std::int64_t tokens) {
  constexpr double kFewerForwards = 2;  // of single greedy requests, at least
  struct Setting {
    const char* name;
    double temperature;
    Verification verification;
  };
  constexpr std::array kSettings = {Setting{"0", 0, Verification::greedy},
                                    Setting{"1, rejection", 1, Verification::rejection},
                                    Setting{"1, block", 1, Verification::block}};
  const std::vector<Ids> prompts = demo.prompts(count);
  Engine drafting(demo.folder, {.max_context = kLongest + tokens, .draft = demo.draft});
  Engine plain(demo.folder, {.max_context = kLongest + tokens});
  const std::vector<runtime::Session> starts = start_sessions(drafting, prompts),
                                      plain_starts = start_sessions(plain, prompts);
  std::cout << "fixed:" << demo.draft
            << " against plain decoding: temperature and verification, batch, tokens a round, share of rounds "
               "that accept drafts 1 to "
            << demo.draft << ", forwards a token plain, with drafts, times fewer, tokens per second over plain\n";
  for (const Setting& setting : kSettings) {
    for (const std::int64_t batch : {1, 8}) {
      Generator on(drafting,
                   {.policy = {.kind = DraftPolicy::Kind::fixed, .drafts = static_cast<std::int32_t>(demo.draft)}});
      Generator off(plain, {});
      const runtime::RequestOptions options{
          .sampler = {.temperature = setting.temperature}, .verification = setting.verification, .max_tokens = tokens};
      const Run mine = run(on, starts, batch, options), other = run(off, plain_starts, batch, options);
      if (setting.temperature == 0) expect_texts("rounds", mine, other);
      const runtime::GeneratorStats &s = on.stats(), &p = off.stats();
      const double forwards = over(s.target_forwards, s.emitted), plain_forwards = over(p.target_forwards, p.emitted);
      const double fewer = plain_forwards / forwards;
      std::cout << "| " << setting.name << " | " << batch << " | " << over(s.emitted, s.rounds) << " |";
      for (std::size_t k = 0; k < s.accepted_at.size(); ++k)
        std::cout << ' ' << over(s.accepted_at[k], s.verified_at[k]);
      std::cout << " | " << plain_forwards << " | " << forwards << " | " << fewer << " | " << mine.rate() / other.rate()
                << " |" << std::endl;
      if (batch != 1) continue;
      if (p.target_forwards != p.emitted) fail("plain decoding took other than one forward a token");
      if (setting.temperature == 0 && fewer < kFewerForwards)
        fail("single greedy requests take " + std::to_string(fewer) + " times fewer forwards, expected at least " +
             std::to_string(kFewerForwards));
    }
  }
}

/// One policy on an engine, for all repeats of a batch and temperature: what it learns and where it pauses lasts.
struct Contender {
  const char* name;
  const std::vector<runtime::Session>* starts;
  Generator generator;
  std::vector<double> gains = {};       // one a repeat: tokens per second over those of the first contender
  std::int64_t steps = 0, drafted = 0;  // as in Run
};

void print(const char* what, const CostCurve& curve) {
  std::cout << what;
  for (const CostPoint& point : curve.points()) std::cout << ' ' << point.size << ": " << point.ms;
}

/// What every policy makes of the same requests, in turn within each repeat. Plain decoding runs on an engine without a drafter; beside
/// the policies stands plain decoding that keeps the drafter's context, which is what `auto` (delayed, its temperatures learnt, its costs
/// measured) can come down to. The first repeat is not counted: in it `auto` begins to learn.
void schedule(const Demo& demo, std::int64_t repeats, std::int64_t tokens) {
  struct Setting {
    std::int64_t batch, shorter;  // requests at once, and how many times fewer tokens each writes
  };
  constexpr std::array kSettings = {Setting{1, 1}, Setting{4, 2}, Setting{16, 3}};
  constexpr std::array kFixed = {"fixed:1", "fixed:2", "fixed:3", "fixed:4", "fixed:5"};
  constexpr std::int64_t kStarts = 16;
  const std::vector<Ids> prompts = demo.prompts(kStarts);
  Engine drafting(demo.folder, {.max_context = kLongest + tokens, .draft = demo.draft});
  Engine plain(demo.folder, {.max_context = kLongest + tokens});
  const std::vector<runtime::Session> starts = start_sessions(drafting, prompts);
  const std::vector<runtime::Session> plain_starts = start_sessions(plain, prompts);
  std::cout << "tokens per second over plain decoding, medians of " << repeats
            << " repeats: temperature, batch, plain with a drafter, fixed:1 to fixed:5, auto, what auto expected of "
               "itself, auto over "
               "the best of all; auto's tokens a round, drafts verified a round, share of steps that draft\n";
  for (const Setting& setting : kSettings) {
    const auto size = static_cast<std::size_t>(setting.batch);
    const CostTable costs = runtime::profile_costs(drafting, {.max_requests = setting.batch});
    print("ms of a step by rows:", costs.verify());
    print("; of drafting by requests:", costs.draft());
    std::cout << '\n';
    for (const double temperature : {0.0, 1.0}) {
      std::vector<Contender> contenders;
      const auto enter = [&](const char* name, const char* policy) {
        contenders.push_back(
            {name, &starts,
             Generator(drafting, {.policy = parse_draft_policy(policy), .costs = costs, .calibrate_online = true})});
      };
      contenders.push_back({"off", &plain_starts, Generator(plain, {})});
      enter("off with a drafter", "off");
      for (const char* policy : kFixed) enter(policy, policy);
      enter("auto", "delayed");
      for (std::int64_t repeat = 0; repeat <= repeats; ++repeat) {
        const auto first = size * static_cast<std::size_t>(repeat) % kStarts;
        const runtime::RequestOptions options{
            .sampler = {.temperature = temperature, .seed = static_cast<std::uint64_t>(repeat * kStarts)},
            .max_tokens = std::max<std::int64_t>(2, tokens / setting.shorter)};
        Run off;
        for (Contender& c : contenders) {
          Run mine = run(c.generator, std::span(*c.starts).subspan(first, size), setting.batch, options);
          if (c.starts == &plain_starts) off = mine;
          if (temperature == 0) expect_texts(c.name, mine, off);
          c.steps += mine.steps, c.drafted += mine.drafted;
          if (repeat > 0) c.gains.push_back(mine.rate() / off.rate());
        }
      }
      double best = 0;
      std::cout << "| " << temperature << " | " << setting.batch << " |";
      for (std::size_t i = 0; i < contenders.size(); ++i) {
        const double gain = median(contenders[i].gains);
        best = std::max(best, gain);
        if (i > 0) std::cout << ' ' << gain << (i == 1 || i >= kFixed.size() + 1 ? " |" : "");
      }
      const Contender& own = contenders.back();
      const runtime::GeneratorStats& stats = own.generator.stats();
      std::cout << ' ' << stats.predicted_gain().value_or(0) << " | " << median(own.gains) / best << " | "
                << over(stats.emitted, stats.rounds) << " | " << over(stats.verified, stats.rounds) << " | "
                << over(own.drafted, own.steps) << " |" << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) try {
  struct Part {
    std::string_view name;
    std::int64_t count, tokens;
    void (*run)(const Demo&, std::int64_t, std::int64_t);
  };
  constexpr std::array kParts = {Part{"equal", 200, 256, equal}, Part{"rounds", 16, 128, rounds},
                                 Part{"schedule", 3, 96, schedule}};
  const std::string_view wanted = argc > 1 ? argv[1] : "all";
  constexpr std::int64_t kFewest = 8;  // so that some round has room for a whole block
  const Demo demo(argc > 4 ? argv[4] : DSV41_DEMO_DIR);
  std::cout << std::setprecision(3);
  bool known = false;
  for (const Part& part : kParts) {
    if (wanted != part.name && wanted != "all") continue;
    known = true;
    const std::int64_t count = argc > 2 ? std::atoll(argv[2]) : part.count,
                       tokens = argc > 3 ? std::atoll(argv[3]) : part.tokens;
    if (count < 1 || tokens < kFewest || (wanted == "all" && argc > 2))
      throw Error(Errc::invalid_argument,
                  "expected equal, rounds or schedule with a COUNT of at least 1 and TOKENS of at least 8, or all");
    part.run(demo, count, tokens);
  }
  if (!known)
    throw Error(Errc::invalid_argument, "no part '" + std::string(wanted) + "': equal, rounds, schedule or all");
  return std::cout.flush() ? 0 : 1;
} catch (const Error& e) {
  std::cerr << "speculative: " << e.what() << '\n';
  return 1;
}
