// SPDX-License-Identifier: MIT
//
// Op: rotary positions on the trailing channels, forward or inverse, with the index query's quantiser behind it.
#pragma once

#include <string_view>

#include "dsv41/core/numeric.hpp"
#include "dsv41/numerics/quantisers.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Rotates the trailing 2 * pairs channels of every head in place, then quantises each head's row.
///
/// Shapes:  x [tokens, heads, width] f32, in place; positions [tokens] i64; frequencies [pairs] f32, 2 * pairs <= width.
/// Rules:   the angle is one float32 product; inverse negates it; deployed: every channel of the result is rounded to bfloat16
///          before the quantiser.
/// Match:   norm<1e-6>; after a quantiser, equal but for values on a rounding boundary.
/// Source:  architecture.md 3, 4 and 6.
struct Rope {
  static constexpr std::string_view name = "rope";
  Out<float, 3> x;
  In<std::int64_t, 1> positions;
  In<float, 1> frequencies;
  bool inverse = false;
  numerics::Quantiser quantiser = numerics::Quantiser::none;
  Numeric numeric = Numeric::exact;

  void check() const {
    expect_unit_stride(name, "x", x);
    expect(name, "positions", positions, {x.extent(0)});
    expect(name, 2 * frequencies.extent(0) <= x.extent(2), "frequencies", "at most half the width",
           frequencies.extent(0));
  }
};

}  // namespace dsv41::ops
