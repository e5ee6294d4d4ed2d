// SPDX-License-Identifier: MIT
//
// Windows of a text through a session, every row's logits scored against the token that follows.
#include "perplexity.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsv41/runtime/engine.hpp"
#include "files.hpp"
#include "numbers.hpp"
#include "prompt.hpp"

namespace generate {

namespace {

using dsv41::runtime::Engine;
using dsv41::runtime::Session;

/// -log2 of the softmax's probability of `id`, which follows the token at `position` of its window.
double bits_of(dsv41::In<float, 1> logits, std::int32_t id, std::int64_t position) {
  dsv41::runtime::check_logits(logits, position);
  double largest = -HUGE_VAL, sum = 0;
  for (std::int64_t i = 0; i < logits.extent(0); ++i) largest = std::fmax(largest, static_cast<double>(logits[i]));
  for (std::int64_t i = 0; i < logits.extent(0); ++i) sum += std::exp(static_cast<double>(logits[i]) - largest);
  const double bits = (std::log(sum) - (static_cast<double>(logits[id]) - largest)) / std::log(2.0);
  if (!std::isfinite(bits)) {
    refuse("logits at position " + std::to_string(position) + ": the largest is " + std::to_string(largest) +
           " and that of token " + std::to_string(id) + " is " + std::to_string(logits[id]) +
           ", expected finite ones; a value overflowed");
  }
  return bits;
}

/// Feeds one window and adds the bits of all its ids but the first.
void score(Session& session, std::span<const std::int32_t> window, std::size_t chunk, Perplexity& out,
           Progress& progress, std::int64_t total) {
  session.rewind(0);
  for (std::size_t first = 0; first + 1 < window.size(); first += chunk) {
    const std::size_t n = std::min(chunk, window.size() - 1 - first);
    progress.count("perplexity: token", out.predicted, total);
    session.append({.ids = window.subspan(first, n), .logit_rows = dsv41::runtime::kAllRows});
    const auto logits = session.logits();
    for (std::size_t i = 0; i < n; ++i) {
      out.bits += bits_of(logits.row(static_cast<std::int64_t>(i)), window[first + i + 1],
                          static_cast<std::int64_t>(first + i));
    }
    out.predicted += static_cast<std::int64_t>(n);
  }
}

}  // namespace

Perplexity perplexity(const dsv41::runtime::ModelFolder& folder, const Options& options, Progress& progress) {
  const std::string source = "--perplexity: " + *options.perplexity;
  const std::string text = read_file("--perplexity", *options.perplexity);
  const std::vector<std::int32_t> ids = encode_text(tokenizer_of(folder, source), source, text);
  const dsv41::ModelConfig& config = folder.checkpoint.config();
  Perplexity out{.tokens = static_cast<std::int64_t>(ids.size()), .bytes = static_cast<std::int64_t>(text.size())};

  const std::int64_t lead = options.bos ? 1 : 0, length = std::min(config.max_positions, out.tokens + lead);
  if (out.tokens + lead < 2) refuse(source + ": has 1 token, expected at least 2 (or --bos)");
  if (length < 2) refuse(source + ": max_position_embeddings is 1, expected at least 2: a window's first is free");
  const double opening = now();
  Engine engine(folder, {.backend = options.backend,
                         .cpu = {.threads = options.threads},
                         .numeric = options.numeric,
                         .max_context = length,
                         .max_rows = options.chunk,
                         .weight_bytes = options.weight_bytes});
  Session session = engine.open_session();
  const auto chunk = static_cast<std::size_t>(std::min(engine.options().max_rows, length));
  const double start = now();
  out.load_s = start - opening;
  std::vector<std::int32_t> window;
  for (std::int64_t first = 0; first < out.tokens; first += length - lead) {
    const std::int64_t last = std::min(out.tokens, first + length - lead);
    window.assign(static_cast<std::size_t>(lead), config.bos);
    window.insert(window.end(), ids.begin() + first, ids.begin() + last);
    score(session, window, chunk, out, progress, out.tokens);
  }
  progress.clear();
  out.seconds = now() - start;
  out.weights = engine.weight_tier();
  return out;
}

}  // namespace generate
