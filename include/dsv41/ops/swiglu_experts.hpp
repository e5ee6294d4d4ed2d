// SPDX-License-Identifier: MIT
//
// Op: the routed experts of every token, and the shared one.
#pragma once

#include <span>
#include <string_view>

#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// y = sum over chosen experts e of w2_e(weight * silu(min(w1_e x, L)) * clamp(w3_e x, -L, L)), plus the shared expert with weight 1.
///
/// Shapes:  x, y [tokens, dim] f32; ids [tokens, topk] i32; weights [tokens, topk] f32; experts: one per id; shared: w1 empty = none.
/// Rules:   routed outputs are summed in float32 in ascending expert id, the shared expert last. A negative id is an
///          empty slot, one without an expert an error at sync(); a row names no expert twice.
///          Deployed: products as Linear (hidden); weight * silu * up is rounded once, before w2; each expert's output is rounded,
///          and the whole sum once.
/// Match:   norm<1e-6>.
/// Cost:    each chosen expert's weights are read once a call.
/// Source:  architecture.md 5 and 9.
struct SwigluExperts {
  static constexpr std::string_view name = "swiglu_experts";
  In<float, 2> x;
  In<std::int32_t, 2> ids;
  In<float, 2> weights;
  std::span<const ExpertWeights> experts;
  ExpertWeights shared;
  Out<float, 2> y;
  float limit = 0;
  Numeric numeric = Numeric::exact;

  void check() const {
    const std::int64_t tokens = x.extent(0), dim = x.extent(1);
    expect_unit_stride(name, "x", x);
    expect(name, "ids", ids, {tokens, ids.extent(1)});
    expect(name, "weights", weights, ids.extents());
    expect(name, "y", y, {tokens, dim});
    auto expert = [&](const ExpertWeights& e) {
      expect(name, "w1", e.w1, e.w1.rows, dim);
      expect(name, "w3", e.w3, e.w1.rows, dim);
      expect(name, "w2", e.w2, dim, e.w1.rows);
    };
    for (const ExpertWeights& e : experts) expert(e);
    if (!shared.w1.empty()) expert(shared);
  }
};

}  // namespace dsv41::ops
