// SPDX-License-Identifier: MIT
//
// Op: RMS norm with a learned weight.
#pragma once

#include <string_view>

#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// y = weight * x / sqrt(mean(x^2) + eps), row by row.
///
/// Shapes:  x, y [tokens, width] f32; weight [width] f32. y may be x.
/// Rules:   statistics wide, rounded once; deployed: the result is rounded to bfloat16. A zero row gives exact zeros.
/// Match:   norm<1e-6>.
/// Source:  architecture.md 2.
struct RmsNorm {
  static constexpr std::string_view name = "rms_norm";
  In<float, 2> x;
  In<float, 1> weight;
  Out<float, 2> y;
  double eps = 0;
  Numeric numeric = Numeric::exact;

  void check() const {
    expect_unit_stride(name, "x", x);
    expect(name, "weight", weight, {x.extent(1)});
    expect(name, "y", y, x.extents());
  }
};

}  // namespace dsv41::ops
