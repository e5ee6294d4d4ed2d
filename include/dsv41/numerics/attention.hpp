// SPDX-License-Identifier: MIT
//
// Attention of one head of one query: logits, the softmax that runs over blocks of slots, and the sums of value rows. Blocks are part of
// the model in class `deployed`: they decide which probabilities round alike. Which slot holds what is the contract of
// ops::SparseAttention. Source: architecture.md 3 and 9.
#pragma once

#include <cmath>
#include <cstdint>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/reduce.hpp"

namespace dsv41::numerics {

/// Slots that share a running maximum: slot s belongs to block s / kSoftmaxBlock.
inline constexpr std::int64_t kSoftmaxBlock = 64;

/// q . key / sqrt(width): the wide sum rounded once to float32, then times the scale, which is inverse_root(width).
DSV41_HD inline float attention_logit(const float* q, const float* key, std::int64_t width, float scale) {
  return static_cast<float>(dot(q, key, width)) * scale;
}

/// Maximum and denominator of the slots so far. Sums kept beside it (attention_add) refer to the same maximum.
struct RunningSoftmax {
  float top = -1e30f;  ///< below every logit, and finite: exp(top - next) is 0, never NaN
  float total = 0.0f;  ///< float32, each block summed in slot order and then added

  /// Takes the next block of up to kSoftmaxBlock slots, in slot order: turns its logits into probabilities under the new maximum and
  /// returns the factor by which everything summed before shrinks.
  DSV41_HD float add(float* logits, std::int64_t count) {
    float next = top;
    for (std::int64_t i = 0; i < count; ++i) next = std::fmax(next, logits[i]);
    const float shrink = exp(top - next);
    float sum = 0.0f;
    for (std::int64_t i = 0; i < count; ++i) sum += logits[i] = exp(logits[i] - next);
    total = total * shrink + sum;
    top = next;
    return shrink;
  }

  /// The sink joins here and never the maximum.
  DSV41_HD float denominator(float sink) const { return total + exp(sink - top); }
};

/// out = out * shrink + sum of probability_i * values_i, in slot order, float32. Deployed: each probability is rounded to bfloat16 here,
/// not in the denominator. Channels are independent: any part of the width may be computed alone.
DSV41_HD inline void attention_add(Numeric numeric, float shrink, const float* probabilities,
                                   const float* const* values, std::int64_t count, std::int64_t width, float* out) {
  for (std::int64_t c = 0; c < width; ++c) out[c] *= shrink;
  for (std::int64_t i = 0; i < count; ++i) {
    const float p = activation(numeric, probabilities[i]);
    for (std::int64_t c = 0; c < width; ++c) out[c] += p * values[i][c];
  }
}

/// out / denominator, rounded as the class says, in place.
DSV41_HD inline void attention_finish(Numeric numeric, float denominator, std::int64_t width, float* out) {
  for (std::int64_t c = 0; c < width; ++c) out[c] = activation(numeric, out[c] / denominator);
}

}  // namespace dsv41::numerics
