// SPDX-License-Identifier: MIT
//
// The softmax of a short row, in one order: the largest element, exp of each distance from it, their sum in ascending index, a true
// division. The router, the mHC comb and the compressor's pooling use it; attention's running form is in attention.hpp.
#pragma once

#include <cstdint>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/reduce.hpp"

namespace dsv41::numerics {

/// What the elements of a softmax share.
struct SoftmaxTotals {
  float top;    ///< the largest element
  float total;  ///< sum of exp(x - top)

  /// Probability of the element `x`.
  DSV41_HD float share(float x) const { return exp(x - top) / total; }
};

/// Totals of x[0], x[stride], .. x[(count - 1) * stride]. All float32.
DSV41_HD inline SoftmaxTotals softmax_totals(const float* x, std::int64_t count, std::int64_t stride = 1) {
  SoftmaxTotals t{.top = largest(x, count, stride), .total = 0.0f};
  for (std::int64_t i = 0; i < count; ++i) t.total += exp(x[i * stride] - t.top);
  return t;
}

/// Turns x into its softmax, in place.
DSV41_HD inline void softmax(float* x, std::int64_t count) {
  const SoftmaxTotals totals = softmax_totals(x, count);
  for (std::int64_t i = 0; i < count; ++i) x[i] = totals.share(x[i]);
}

}  // namespace dsv41::numerics
