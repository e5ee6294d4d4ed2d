// SPDX-License-Identifier: MIT
//
// Figures as text.
#include "report.hpp"

#include <cmath>
#include <optional>

#include "files.hpp"

namespace generate {

namespace {

double rate(std::int64_t count, double seconds) {
  return count > 0 && seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
}

/// Members in the order they are added.
class Object {
 public:
  Object& add(std::string_view key, std::string_view value) { return raw(key, json_string(value)); }
  Object& add(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
  Object& add(std::string_view key, std::uint64_t value) { return raw(key, std::to_string(value)); }
  Object& add(std::string_view key, const std::vector<std::int64_t>& values) {
    std::string list;
    for (const std::int64_t value : values) list += (list.empty() ? "" : ", ") + std::to_string(value);
    return raw(key, "[" + list + "]");
  }
  Object& add(std::string_view key, std::optional<double> value) { return value ? add(key, *value) : raw(key, "null"); }
  /// An object as a member, on one line.
  Object& add(std::string_view key, const Object& value) {
    std::string text = value.text_ + "}";
    for (std::size_t at = 0; (at = text.find("\n  ", at)) != std::string::npos;)
      text.replace(at, 3, at == 1 ? "" : " ");
    return raw(key, text);
  }
  Object& add(std::string_view key, double value) { return raw(key, std::isfinite(value) ? fixed(value, 6) : "null"); }
  std::string text() const { return text_ + "\n}\n"; }

 private:
  Object& raw(std::string_view key, const std::string& value) {
    text_ += (text_.size() > 1 ? ",\n  " : "\n  ") + json_string(key) + ": " + value;
    return *this;
  }
  std::string text_ = "{";
};

/// What every run says.
Object common(const std::string& model, const Options& options, const std::string& numeric_class) {
  Object out;
  out.add("model", std::string_view(model)).add("backend", std::string_view(options.backend));
  out.add("numeric_class", std::string_view(numeric_class));
  out.add("threads", options.backend == "ref" ? 1
                     : options.threads > 0    ? options.threads
                                              : dsv41::cpu_processors())
      .add("seed", options.sampler.seed);
  return out;
}

Object common(const std::string& model, const Options& options, const Figures& f) {
  Object out = common(model, options, f.numeric_class);
  out.add("prompt_tokens", f.prompt_tokens).add("generated_tokens", f.generated_tokens).add("position", f.positions);
  out.add("load_s", f.load_s).add("prefill_s", f.prefill_s).add("decode_s", f.decode_s);
  return out;
}

double per_round(const dsv41::runtime::GeneratorStats& sums) {
  return static_cast<double>(sums.emitted) / static_cast<double>(sums.rounds);  // NaN where there was none: null
}

void add_drafting(Object& out, const Options& options, const std::optional<Drafting>& drafting) {
  out.add("speculative", speculative_name(options.speculative));
  if (!drafting) return;
  const dsv41::runtime::GeneratorStats& sums = drafting->sums;
  out.add("schedule", std::string_view(options.schedule)).add("draft", drafting->draft);
  out.add("rounds", sums.rounds).add("target_forwards", sums.target_forwards).add("drafted", sums.drafted);
  out.add("verified", sums.verified).add("accepted", sums.accepted).add("emitted_per_round", per_round(sums));
  out.add("verified_by_position", sums.verified_at).add("accepted_by_position", sums.accepted_at);
  out.add("predicted_gain", sums.predicted_gain());
  if (!drafting->compares) return;
  if (!drafting->compare) {
    out.add("compare", std::optional<double>{});
    return;
  }
  const Comparison& compare = *drafting->compare;
  Object times;
  times.add("plain_s", compare.plain.seconds).add("speculative_s", compare.speculative.seconds);
  out.add("compare", times.add("speedup", compare.speedup()));
}

/// ", 12 drafts: 9 verified, 7 accepted, 2.75 tokens a round".
std::string drafting_words(const std::optional<Drafting>& drafting) {
  if (!drafting || drafting->sums.rounds == 0) return "";
  const dsv41::runtime::GeneratorStats& sums = drafting->sums;
  std::string words = ", " + std::to_string(sums.drafted) + " drafts: " + std::to_string(sums.verified) +
                      " verified, " + std::to_string(sums.accepted) + " accepted, " + fixed(per_round(sums)) +
                      " tokens a round";
  if (drafting->compare && std::isfinite(drafting->compare->speedup()))
    words += ", " + fixed(drafting->compare->speedup()) + " times as fast as without";
  return words;
}

void add_weights(Object& out, const dsv41::runtime::WeightTier& w) {
  if (w.limit_bytes == 0) return;
  Object weights;
  weights.add("limit_bytes", w.limit_bytes).add("dense_bytes", w.dense_bytes).add("slot_bytes", w.slot_bytes);
  weights.add("slots", w.slots).add("experts", w.experts).add("hits", w.hits).add("misses", w.misses);
  weights.add("bytes_read", w.bytes_read).add("ahead_bytes", w.ahead_bytes);
  weights.add("ahead_used_bytes", w.ahead_used_bytes).add("reads_ahead", std::int64_t{w.reads_ahead});
  weights.add("direct", std::int64_t{w.direct}).add("stall_s", w.stall_seconds);
  out.add("weights", weights);
}

double per_token(const dsv41::runtime::SessionMemory& memory) {
  return static_cast<double>(memory.page_bytes) / static_cast<double>(memory.page_positions);
}

}  // namespace

std::string summary_line(const Figures& f) {
  std::string line = std::to_string(f.prompt_tokens) + " prompt tokens in " + fixed(f.prefill_s) + " s (" +
                     fixed(rate(f.prompt_tokens, f.prefill_s), 1) + "/s)";
  if (f.prefill != "full") line += ", prefill " + f.prefill;
  if (f.reused_tokens > 0) line += ", " + std::to_string(f.reused_tokens) + " more reused";
  if (!f.prefill_note.empty()) line += ", all layers ran: " + f.prefill_note;
  if (f.generated_tokens == 0) return line;
  return line + ", first token after " + fixed(f.first_token_s) + " s, " + std::to_string(f.generated_tokens) +
         " tokens in " + fixed(f.decode_s) + " s (" + fixed(rate(f.generated_tokens - f.replies, f.decode_s), 1) +
         "/s)" + drafting_words(f.drafting);
}

std::string summary_line(const BatchFigures& f) {
  return std::to_string(f.requests) + " requests, " + std::to_string(f.prompt_tokens) + " prompt tokens and " +
         std::to_string(f.generated_tokens) + " tokens in " + fixed(f.batch_s) + " s (" +
         fixed(rate(f.generated_tokens, f.batch_s), 1) + "/s)" + drafting_words(f.drafting);
}

std::string perplexity_line(const Perplexity& result) {
  return "bits_per_byte " + fixed(result.bits_per_byte(), 4) + "  tokens " + std::to_string(result.tokens) +
         "  bytes " + std::to_string(result.bytes) + "\n";
}

std::string stats_json(const std::string& model, const Options& options, const Figures& f) {
  Object out = common(model, options, f);
  out.add("prefill", std::string_view(f.prefill));
  if (!f.prefill_note.empty()) out.add("prefill_note", std::string_view(f.prefill_note));
  out.add("rows_per_layer", f.rows_per_layer)
      .add("restored_tokens", f.restored_tokens)
      .add("reused_tokens", f.reused_tokens)
      .add("recomputed_tokens", f.recomputed_tokens)
      .add("cache_bytes", f.memory.cache_bytes)
      .add("cache_bytes_per_token", per_token(f.memory))
      .add("window_bytes", f.memory.window_bytes)
      .add("carry_bytes", f.memory.carry_bytes)
      .add("block_bytes", f.memory.block_bytes)
      .add("time_to_first_token_s", f.first_token_s)
      .add("prefill_tokens_per_s", rate(f.prompt_tokens, f.prefill_s))
      .add("decode_tokens_per_s", rate(f.generated_tokens - f.replies, f.decode_s))
      .add("stop", f.stop);
  add_drafting(out, options, f.drafting);
  add_weights(out, f.weights);
  return out.text();
}

std::string stats_json(const std::string& model, const Options& options, double load_s, const Perplexity& result) {
  Figures f;
  f.numeric_class = dsv41::numeric_name(options.numeric);
  f.prompt_tokens = result.tokens;
  f.load_s = load_s + result.load_s;
  f.prefill_s = result.seconds;
  Object out = common(model, options, f);
  out.add("bits_per_byte", result.bits_per_byte())
      .add("bits", result.bits)
      .add("predicted_tokens", result.predicted)
      .add("bytes", result.bytes)
      .add("prefill_tokens_per_s", rate(result.tokens, result.seconds));
  add_weights(out, result.weights);
  return out.text();
}

std::string stats_json(const std::string& model, const Options& options, const BatchFigures& f) {
  Object out = common(model, options, f.numeric_class);
  out.add("requests", f.requests).add("failed", f.failed).add("parallel", options.parallel);
  out.add("prompt_tokens", f.prompt_tokens).add("generated_tokens", f.generated_tokens);
  out.add("load_s", f.load_s).add("batch_s", f.batch_s);
  out.add("tokens_per_s", rate(f.generated_tokens, f.batch_s));
  out.add("decode_tokens_per_s", rate(f.clock.tokens, f.clock.seconds));
  add_drafting(out, options, f.drafting);
  add_weights(out, f.weights);
  return out.text();
}

}  // namespace generate
