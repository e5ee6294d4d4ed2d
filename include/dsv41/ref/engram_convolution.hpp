// SPDX-License-Identifier: MIT
//
// Reference of ops::EngramConvolution, stream by stream: the call's rows into the ring first, then the sums, channel by channel.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dsv41/numerics/engram_convolution.hpp"
#include "dsv41/numerics/stored.hpp"
#include "dsv41/ops/engram_convolution.hpp"

namespace dsv41::ref {

/// A stream's norm weight, or a channel's kernel.
inline std::size_t workspace_floats(const ops::EngramConvolution& op) {
  return static_cast<std::size_t>(std::max(op.streams.extent(2), op.kernel.cols));
}

inline void run(const ops::EngramConvolution& op, float* workspace) {
  const std::int64_t tokens = op.streams.extent(0), hc = op.streams.extent(1), dim = op.streams.extent(2);
  const std::int64_t slots = op.ring.extent(0), lags = op.kernel.cols;
  for (std::int64_t j = 0; j < hc; ++j) {
    numerics::decode_row(op.norm, j, 0, dim, workspace);
    for (std::int64_t t = 0; t < tokens; ++t) {
      numerics::engram_memory_row(op.numeric, op.gates(t, j), op.value.row(t).data(), workspace, dim, op.eps,
                                  op.ring.row((op.first_position + t) % slots).row(j).data());
    }
    for (std::int64_t c = 0; c < dim; ++c) {
      numerics::decode_row(op.kernel, j * dim + c, 0, lags, workspace);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t p = op.first_position + t, first = std::max<std::int64_t>(0, lags - 1 - p / op.dilation);
        const auto past = [&](std::int64_t i) { return op.ring((p - (lags - 1 - i) * op.dilation) % slots, j, c); };
        float& h = op.streams(t, j, c);
        h = numerics::engram_convolve(op.numeric, h, workspace, first, lags, past);
      }
    }
  }
}

}  // namespace dsv41::ref
