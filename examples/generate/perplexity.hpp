// SPDX-License-Identifier: MIT
//
// How many bits the model needs for a text.
#pragma once

#include <cstdint>

#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "options.hpp"
#include "terminal.hpp"

namespace generate {

struct Perplexity {
  double bits = 0;
  std::int64_t tokens = 0;     ///< of the text
  std::int64_t predicted = 0;  ///< of those, the ones that cost bits
  std::int64_t bytes = 0;      ///< of the file
  double load_s = 0;           ///< opening the engine
  double seconds = 0;          ///< evaluating
  dsv41::runtime::WeightTier weights;

  double bits_per_byte() const { return bits / static_cast<double>(bytes); }
};

/// Evaluates options.perplexity.
///
/// Rules:  the file is one text, encoded like a --prompt, fed in windows of max_position_embeddings positions that each
///         start anew; with --bos each begins with that token. bits sums -log2 p over the text's tokens except, without
///         --bos, the first of each window, which nothing predicts. Log-softmax and sums are float64.
/// Errors: dsv41::Error io (file, no tokenizer), invalid_argument (empty, ill-formed UTF-8, nothing to predict,
///         logits that are NaN or make no finite bits; the position is one of the window).
/// Cost:   one prefill of the text; max_rows * vocab floats.
Perplexity perplexity(const dsv41::runtime::ModelFolder& folder, const Options& options, Progress& progress);

}  // namespace generate
