// SPDX-License-Identifier: MIT
//
// Op: matrix product with a stored weight, whole or in groups.
#pragma once

#include <cstdint>
#include <string_view>

#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// What class `deployed` does around a product; class `exact` computes all three alike (architecture.md 9).
enum class LinearRole : std::uint8_t {
  hidden,       ///< FP8 and FP4 weights take an E4M3-quantised input; the output is rounded to bfloat16
  plain_input,  ///< never quantises its input (wo_a); the output is rounded to bfloat16
  float32,      ///< neither: router, mHC coefficients, pooled projections, heads
};

/// y = x W^T; with groups > 1 the input and output are cut into equal groups and each group meets its own rows of W.
///
/// Shapes:  x [tokens, groups * in] f32; w [out, in]; y [tokens, out]; out % groups == 0; output o reads group o / (out / groups).
/// Layout:  unit inner stride; y may not alias x.
/// Rules:   sums are wide and rounded once to float32; a row's result does not depend on the other rows. Deployed: see LinearRole.
/// Match:   norm<1e-6>.
/// Cost:    reads the weight once a call and x once an output tile.
/// Source:  architecture.md 3 (grouped output projection) and 9.
struct Linear {
  static constexpr std::string_view name = "linear";
  In<float, 2> x;
  Matrix w;
  Out<float, 2> y;
  std::int64_t groups = 1;
  LinearRole role = LinearRole::hidden;
  Numeric numeric = Numeric::exact;

  bool quantises_input() const {
    return numeric == Numeric::deployed && role == LinearRole::hidden && is_quantised(w.format);
  }
  bool rounds_output() const { return numeric == Numeric::deployed && role != LinearRole::float32; }

  void check() const {
    expect(name, groups > 0 && w.rows % groups == 0, "groups", "a divisor of the output width", groups);
    expect(name, "x", x, {x.extent(0), groups * w.cols});
    expect(name, "y", y, {x.extent(0), w.rows});
  }
};

}  // namespace dsv41::ops
