// SPDX-License-Identifier: MIT
//
// The compressor's pooling of one channel over one group of tokens. Source: architecture.md 3 (compressor) and 9.
#pragma once

#include <cstdint>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/softmax.hpp"

namespace dsv41::numerics {

/// sum over the group's `ratio` tokens of kv_j * softmax(gate)_j; token j's stand at [j * its stride], in ascending position. float32:
/// each probability is divided before it weighs, products are added in ascending position. Deployed: the result is rounded to bfloat16.
DSV41_HD inline float pool(Numeric numeric, const float* kv, std::int64_t kv_stride, const float* gate,
                           std::int64_t gate_stride, std::int64_t ratio) {
  const SoftmaxTotals totals = softmax_totals(gate, ratio, gate_stride);
  float pooled = 0.0f;
  for (std::int64_t j = 0; j < ratio; ++j) pooled += kv[j * kv_stride] * totals.share(gate[j * gate_stride]);
  return activation(numeric, pooled);
}

}  // namespace dsv41::numerics
