// SPDX-License-Identifier: MIT
//
// From scores to one index: the largest, or one drawn from a distribution. Plain sampling, the drafter and the verifier share these, so
// that a token which is not drafted is the token that plain decoding gives (case B62).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "dsv41/core/hd.hpp"

namespace dsv41::numerics {

/// Smallest index with the largest of x[0] .. x[count - 1]; NaN is passed over; -1 when nothing is above -infinity.
template <class T>
DSV41_HD constexpr std::int64_t argmax(const T* x, std::int64_t count) noexcept {
  std::int64_t best = -1;
  T top = -std::numeric_limits<T>::infinity();
  for (std::int64_t i = 0; i < count; ++i) {
    if (x[i] > top) {
      best = i;
      top = x[i];
    }
  }
  return best;
}

/// What a logit weighs in the softmax at a temperature above 0, all float64. The largest logit weighs 1 exactly, also when it is infinite;
/// so no sum of weights can be zero, infinite or NaN.
DSV41_HD inline double softmax_weight(float logit, float largest, double temperature) noexcept {
  return logit == largest ? 1.0 : std::exp((static_cast<double>(logit) - static_cast<double>(largest)) / temperature);
}

/// Divides the weights by their sum, summed in ascending index.
DSV41_HD inline void normalise(double* weights, std::int64_t count) noexcept {
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += weights[i];
  for (std::int64_t i = 0; i < count; ++i) weights[i] /= total;
}

/// Inverse distribution function: the smallest index at which the running sum of weight(i), in ascending index, exceeds `share`; the last
/// index with weight when rounding leaves the sum short.
///
/// Rules: share = u * (sum of the weights) with u in [0, 1). An index without weight is never drawn; one must have some.
template <class Weight>
DSV41_HD std::int64_t draw(std::int64_t count, const Weight& weight, double share) noexcept {
  double running = 0;
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double w = weight(i);
    if (!(w > 0)) continue;
    running += w;
    last = i;
    if (share < running) break;
  }
  return last;
}

/// The same over probabilities, whose sum is 1.
DSV41_HD inline std::int64_t draw(const double* probabilities, std::int64_t count, double u) noexcept {
  return draw(
      count, [probabilities](std::int64_t i) { return probabilities[i]; }, u);
}

}  // namespace dsv41::numerics
