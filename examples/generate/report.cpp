// SPDX-License-Identifier: MIT
//
// Figures as text.
#include "report.hpp"

#include <cmath>

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
  Object& add(std::string_view key, double value) { return raw(key, std::isfinite(value) ? fixed(value, 6) : "null"); }
  std::string text() const { return text_ + "\n}\n"; }

 private:
  Object& raw(std::string_view key, const std::string& value) {
    text_ += (text_.size() > 1 ? ",\n  " : "\n  ") + json_string(key) + ": " + value;
    return *this;
  }
  std::string text_ = "{";
};

Object common(const std::string& model, const Options& options, const Figures& f) {
  Object out;
  out.add("model", std::string_view(model)).add("backend", std::string_view(options.backend));
  out.add("numeric_class", std::string_view(f.numeric_class));
  out.add("threads", options.threads).add("seed", options.sampler.seed);
  out.add("prompt_tokens", f.prompt_tokens).add("generated_tokens", f.generated_tokens).add("position", f.positions);
  out.add("load_s", f.load_s).add("prefill_s", f.prefill_s).add("decode_s", f.decode_s);
  return out;
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
         "/s)";
}

std::string perplexity_line(const Perplexity& result) {
  return "bits_per_byte " + fixed(result.bits_per_byte(), 4) + "  tokens " + std::to_string(result.tokens) +
         "  bytes " + std::to_string(result.bytes) + "\n";
}

std::string stats_json(const std::string& model, const Options& options, const Figures& f) {
  Object out = common(model, options, f);
  out.add("prefill", std::string_view(f.prefill));
  if (!f.prefill_note.empty()) out.add("prefill_note", std::string_view(f.prefill_note));
  return out.add("rows_per_layer", f.rows_per_layer)
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
      .add("stop", f.stop)
      .text();
}

std::string stats_json(const std::string& model, const Options& options, double load_s, const Perplexity& result) {
  Figures f;
  f.numeric_class = dsv41::numeric_name(options.numeric);
  f.prompt_tokens = result.tokens;
  f.load_s = load_s + result.load_s;
  f.prefill_s = result.seconds;
  return common(model, options, f)
      .add("bits_per_byte", result.bits_per_byte())
      .add("bits", result.bits)
      .add("predicted_tokens", result.predicted)
      .add("bytes", result.bytes)
      .add("prefill_tokens_per_s", rate(result.tokens, result.seconds))
      .text();
}

}  // namespace generate
