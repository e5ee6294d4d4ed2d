// SPDX-License-Identifier: MIT
//
// Reference of ops::Linear: each output is one sum in the fixed order of numerics/reduce.hpp, products exact in double. Weights are
// decoded a block at a time and met with a few rows each, so nothing is expanded in memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/quantisers.hpp"
#include "dsv41/numerics/reduce.hpp"
#include "dsv41/numerics/stored.hpp"
#include "dsv41/ops/linear.hpp"

namespace dsv41::ref {

/// Rows that share one decoding of a weight block, and columns of a block.
inline constexpr std::int64_t kRowTile = 16, kColumnTile = 64;
static_assert(kColumnTile % numerics::kLanes == 0, "a column keeps its lane from block to block");

/// Output `o` for `rows` rows of `x` that start at column `first`.
inline void linear_output(const ops::Linear& op, In<float, 2> x, std::int64_t first, std::int64_t o, Out<float, 2> y) {
  float stored[kColumnTile];
  double weight[kColumnTile], lane[kRowTile][numerics::kLanes] = {};
  for (std::int64_t k = 0; k < op.w.cols; k += kColumnTile) {
    const std::int64_t count = std::min(kColumnTile, op.w.cols - k);
    numerics::decode_row(op.w, o, k, count, stored);
    std::copy(stored, stored + count, weight);
    for (std::int64_t t = 0; t < x.extent(0); ++t) {
      const float* in = x.data() + t * x.stride(0) + first + k;
      std::int64_t i = 0;
      for (; i + numerics::kLanes <= count; i += numerics::kLanes) {
        for (std::int64_t j = 0; j < numerics::kLanes; ++j)
          lane[t][j] += static_cast<double>(in[i + j]) * weight[i + j];
      }
      for (std::int64_t j = 0; i + j < count; ++j) lane[t][j] += static_cast<double>(in[i + j]) * weight[i + j];
    }
  }
  for (std::int64_t t = 0; t < x.extent(0); ++t) {
    double total = 0;
    for (double l : lane[t]) total += l;
    const float value = static_cast<float>(total);
    y(t, o) = op.rounds_output() ? numerics::bf16_round(value) : value;
  }
}

/// Floats of workspace that `op` needs.
inline std::size_t workspace_floats(const ops::Linear& op) {
  return op.quantises_input() ? static_cast<std::size_t>(op.x.size()) : 0;
}

inline void run(const ops::Linear& op, float* workspace) {
  In<float, 2> x = op.x;
  if (op.quantises_input()) {
    const Out<float, 2> quantised(workspace, op.x.extents());
    for (std::int64_t t = 0; t < x.extent(0); ++t) {
      float* row = quantised.row(t).data();
      std::copy_n(x.row(t).data(), x.extent(1), row);
      numerics::quantise_row(numerics::Quantiser::input_fp8, row, x.extent(1));
    }
    x = quantised;
  }
  const std::int64_t group = op.w.rows / op.groups;
  for (std::int64_t t = 0; t < x.extent(0); t += kRowTile) {
    const std::int64_t rows = std::min(kRowTile, x.extent(0) - t);
    for (std::int64_t o = 0; o < op.w.rows; ++o) {
      linear_output(op, x.rows(t, rows), o / group * op.w.cols, o, op.y.rows(t, rows));
    }
  }
}

}  // namespace dsv41::ref
