// SPDX-License-Identifier: MIT
//
// Reference of ops::Markov.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dsv41/numerics/reduce.hpp"
#include "dsv41/numerics/stored.hpp"
#include "dsv41/ops/markov.hpp"

namespace dsv41::ref {

/// The tokens' rows of embed, then a row of head or of confidence.
inline std::size_t workspace_floats(const ops::Markov& op) {
  return static_cast<std::size_t>(op.tokens.extent(0) * op.embed.cols + std::max(op.embed.cols, op.confidence.cols));
}

/// `workspace`: workspace_floats(op) floats.
inline void run(const ops::Markov& op, float* workspace) {
  const std::int64_t rows = op.tokens.extent(0), rank = op.embed.cols, dim = op.hidden.extent(1);
  const Out<float, 2> e(workspace, {rows, rank});
  float* const weight = workspace + rows * rank;
  for (std::int64_t t = 0; t < rows; ++t) {
    if (op.tokens[t] < 0) {
      std::fill_n(e.row(t).data(), rank, 0.0f);
    } else {
      numerics::decode_row(op.embed, op.tokens[t], 0, rank, e.row(t).data());
    }
  }
  for (std::int64_t v = 0; v < op.head.rows; ++v) {
    numerics::decode_row(op.head, v, 0, rank, weight);
    for (std::int64_t t = 0; t < rows; ++t)
      op.logits(t, v) = op.base(t, v) + static_cast<float>(numerics::dot(weight, e.row(t).data(), rank));
  }
  if (op.confidence.empty()) return;
  numerics::decode_row(op.confidence, 0, 0, dim + rank, weight);
  for (std::int64_t t = 0; t < rows; ++t) {
    op.z[t] = static_cast<float>(numerics::sum(dim + rank, [&](std::int64_t i) {
      const float x = i < dim ? op.hidden(t, i) : e(t, i - dim);
      return static_cast<double>(x) * static_cast<double>(weight[i]);
    }));
  }
}

}  // namespace dsv41::ref
