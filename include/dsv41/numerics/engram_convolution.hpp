// SPDX-License-Identifier: MIT
//
// The convolution that the Engram paper puts behind its gate: one stream's normed memory, and one channel of the causal sum over its
// past. A lineage mode; V4.1 has none. Source: architecture.md 7 (paper variant); arXiv 2601.07372.
#pragma once

#include <cstdint>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/norm.hpp"

namespace dsv41::numerics {

/// row = RMSNorm(gate * value) with the stream's weight: what the convolution remembers of one position. The product is float32, the norm
/// rounds as every norm. A gate of 0 gives zeros.
DSV41_HD inline void engram_memory_row(Numeric numeric, float gate, const float* value, const float* weight,
                                       std::int64_t dim, double eps, float* row) {
  for (std::int64_t i = 0; i < dim; ++i) row[i] = gate * value[i];
  rms_norm_row(row, weight, dim, eps, numeric, row);
}

/// One channel: h + silu(sum over i of kernel[i] * past(i)), the oldest first and the token's own last. The sum is double, of exact
/// products in this order, rounded once to float32; the result is rounded as the class says. The sum starts at `first`: what lies before
/// it, before the sequence's start, is not asked for.
template <class Past>
DSV41_HD inline float engram_convolve(Numeric numeric, float h, const float* kernel, std::int64_t first,
                                      std::int64_t lags, const Past& past) {
  double total = 0;
  for (std::int64_t i = first; i < lags; ++i) total += static_cast<double>(kernel[i]) * static_cast<double>(past(i));
  return activation(numeric, h + silu(static_cast<float>(total)));
}

}  // namespace dsv41::numerics
