// SPDX-License-Identifier: MIT
//
// From a row of logits to a token id. One function turns logits into the distribution that is sampled; a speculative
// round takes the target's probabilities from the same function, and shares the draw with it (numerics/draw.hpp), so no
// second path can drift (case B62).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dsv41/core/view.hpp"

namespace dsv41::runtime {

/// Refuses a row that holds a NaN: nothing that is computed from it means anything. Whoever reads logits asks this.
///
/// Shapes: logits [vocab]. `position` is where the last token that the row has seen stands; -1: not known, not named.
/// Errors: invalid_argument with the position, how many are NaN and the first one's token id.
/// Cost:   one pass, no allocation.
void check_logits(In<float, 1> logits, std::int64_t position = -1);

struct SamplerOptions {
  double temperature = 0;  ///< logits are divided by it; 0 = greedy, and then nothing else matters
  std::int64_t top_k = 0;  ///< keep the k likeliest ids; 0 = all, as any k of at least the vocabulary's size
  double top_p = 1;        ///< keep the shortest prefix, likeliest first, with this share of what top_k left; 1 = all
  double min_p = 0;        ///< keep ids with at least this share of the likeliest id's probability; 0 = all
  std::uint64_t seed = 0;  ///< key of every draw

  /// Errors: invalid_argument unless temperature is finite and >= 0, top_k >= 0, 0 < top_p <= 1, 0 <= min_p <= 1.
  void check() const;
};

/// Filters and samples rows of one vocabulary. Holds scratch memory only: a draw depends on nothing but the options,
/// the row and the position. One thread at a time.
class Sampler {
 public:
  /// Errors: those of SamplerOptions::check; invalid_argument for a vocabulary below 1. Allocates everything it needs.
  Sampler(const SamplerOptions& options, std::int64_t vocab);

  /// Goes on with other options, in the same memory: one sampler can serve many requests. Errors: those of SamplerOptions::check.
  void set_options(const SamplerOptions& options);

  /// The distribution that sample() draws from.
  ///
  /// Shapes:  logits [vocab] f32, before temperature; result [vocab], valid until the next call.
  /// Rules:   float64 throughout. temperature, then top_k, then top_p over what top_k left (renormalised), then min_p;
  ///          the order of the `transformers` library, and what its users' numbers mean. Each filter keeps a prefix of
  ///          the ids ordered by logit descending, ties to the lower id, so the shortest prefix wins and at least the
  ///          likeliest id stays. (min_p before top_p would differ only in the mass that top_p takes its share of.)
  ///          What is left is divided by its sum, summed in ascending id. Greedy: 1 at the largest logit's lowest id.
  ///          Infinite logits share all the mass equally.
  /// Errors:  invalid_argument: another extent than vocab, no logit above -inf, and those of check_logits.
  /// Cost:    one exp per id; with top_k or top_p also a partial sort of what they keep. No allocation.
  std::span<const double> probabilities(In<float, 1> logits);

  /// An id drawn from probabilities(logits) by the inverse distribution function in ascending id.
  ///
  /// Rules:   u = uniform_below_one of the block (seed, position, Purpose::sample); `position` is where the token will
  ///          stand. Equal (options, logits, position) give equal ids, alone or in any batch.
  /// Errors:  those of probabilities(); a NaN is told with the position before `position`, whose logits these are.
  std::int32_t sample(In<float, 1> logits, std::int64_t position);

  const SamplerOptions& options() const noexcept { return options_; }
  std::int64_t vocab() const noexcept { return static_cast<std::int64_t>(weights_.size()); }

 private:
  std::span<const double> law(In<float, 1> logits, std::int64_t position);
  void weigh(In<float, 1> logits, std::int32_t top);
  void filter(In<float, 1> logits);
  void keep_top_k(In<float, 1> logits);
  std::size_t nucleus(In<float, 1> logits);

  SamplerOptions options_;
  std::vector<double> weights_;      // [vocab] exp((logit - max) / temperature), then probabilities
  std::vector<std::int32_t> order_;  // ids with weight, the likeliest sorted to the front as far as needed
};

/// Smallest id with the largest logit. Errors: invalid_argument when no logit is above -inf, and those of check_logits.
std::int32_t argmax(In<float, 1> logits);

}  // namespace dsv41::runtime
