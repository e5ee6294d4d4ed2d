// SPDX-License-Identifier: MIT
//
// Reference of ops::SwigluExperts: expert by expert, the tokens that chose it gathered into one product.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/ops/swiglu_experts.hpp"
#include "dsv41/ref/linear.hpp"

namespace dsv41::ref {

/// Widest hidden layer among the experts.
inline std::int64_t widest(const ops::SwigluExperts& op) {
  std::int64_t ff = op.shared.w1.rows;
  for (const ExpertWeights& e : op.experts) ff = std::max(ff, e.w1.rows);
  return ff;
}

/// Input rows, gate, up and output rows of the tokens of one expert, then a quantised input.
inline std::size_t workspace_floats(const ops::SwigluExperts& op) {
  const std::int64_t tokens = op.x.extent(0), dim = op.x.extent(1), ff = widest(op);
  return static_cast<std::size_t>(tokens * (2 * dim + 2 * ff + std::max(dim, ff)));
}

/// out = w2(weight * swiglu(w1 x, w3 x)) for the gathered rows x; `weight(i)` of row i.
template <class Weight>
void expert_rows(const ops::SwigluExperts& op, const ExpertWeights& e, In<float, 2> x, const Weight& weight,
                 Out<float, 2> out, float* workspace) {
  const std::int64_t rows = x.extent(0), ff = e.w1.rows;
  const Out<float, 2> gate(workspace, {rows, ff}), up(workspace + rows * ff, {rows, ff});
  float* const inner = workspace + 2 * rows * ff;
  run(ops::Linear{.x = x, .w = e.w1, .y = gate, .numeric = op.numeric}, inner);
  run(ops::Linear{.x = x, .w = e.w3, .y = up, .numeric = op.numeric}, inner);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t c = 0; c < ff; ++c)
      gate(i, c) = numerics::weighted_swiglu(op.numeric, weight(i), gate(i, c), up(i, c), op.limit);
  }
  run(ops::Linear{.x = gate, .w = e.w2, .y = out, .numeric = op.numeric}, inner);
}

/// Calls visit(token, slot) for every choice of expert `e`, in token order.
template <class Visit>
void for_each_choice(In<std::int32_t, 2> ids, std::int64_t e, const Visit& visit) {
  for (std::int64_t t = 0; t < ids.extent(0); ++t) {
    for (std::int64_t k = 0; k < ids.extent(1); ++k) {
      if (ids(t, k) == e) visit(t, k);
    }
  }
}

inline void run(const ops::SwigluExperts& op, float* workspace) {
  const std::int64_t tokens = op.x.extent(0), dim = op.x.extent(1);
  const Out<float, 2> gathered(workspace, {tokens, dim}), produced(workspace + tokens * dim, {tokens, dim});
  float* const inner = workspace + 2 * tokens * dim;
  for (std::int64_t t = 0; t < tokens; ++t) std::fill_n(op.y.row(t).data(), dim, 0.0f);
  for (std::size_t e = 0; e < op.experts.size(); ++e) {
    const auto id = static_cast<std::int64_t>(e);
    std::int64_t rows = 0;
    // A token's routing weight rides in the first column of `produced` until its row is computed.
    for_each_choice(op.ids, id, [&](std::int64_t t, std::int64_t k) {
      produced(rows, 0) = op.weights(t, k);
      std::copy_n(op.x.row(t).data(), dim, gathered.row(rows++).data());
    });
    if (rows == 0) continue;
    const Out<float, 2> out = produced.rows(0, rows);
    expert_rows(
        op, op.experts[e], gathered.rows(0, rows), [&](std::int64_t i) { return out(i, 0); }, out, inner);
    rows = 0;
    for_each_choice(op.ids, id, [&](std::int64_t t, std::int64_t) {
      for (std::int64_t c = 0; c < dim; ++c) op.y(t, c) += out(rows, c);
      ++rows;
    });
  }
  if (!op.shared.w1.empty())
    expert_rows(
        op, op.shared, op.x, [](std::int64_t) { return 1.0f; }, produced, inner);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < dim; ++c) {
      const float sum = op.shared.w1.empty() ? op.y(t, c) : op.y(t, c) + produced(t, c);
      op.y(t, c) = numerics::activation(op.numeric, sum);
    }
  }
}

}  // namespace dsv41::ref
