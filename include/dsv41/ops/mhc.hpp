// SPDX-License-Identifier: MIT
//
// Ops of the residual streams: the parts of a seam (expand, coefficients, collapse) and the single-pass seam that equals them in order.
// comb is stored [from][to]: stream `to` receives comb[from][to] * h_from. Source: architecture.md 2.
#pragma once

#include <string_view>

#include "dsv41/core/config.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Iterations and epsilons shared by the seam ops.
struct MhcRules {
  std::int32_t iters = 0;  ///< Sinkhorn iterations, the first a column pass
  float hc_eps = 0;
  double norm_eps = 0;
  bool constrained =
      true;  ///< false: comb is its logits, neither softmax nor Sinkhorn (unconstrained hyper-connections)
};

/// h'_to = post_to * y + sum over from of comb[from][to] * h_from.
///
/// Shapes:  y [tokens, dim]; mix [tokens, (2 + hc) * hc] = pre | post | comb; streams [tokens, hc, dim], updated.
/// Rules:   one wide sum, rounded once to float32; deployed: rounded to bfloat16.
/// Match:   ulp<1>.
struct MhcExpand {
  static constexpr std::string_view name = "mhc_expand";
  In<float, 2> y;
  In<float, 2> mix;
  Out<float, 3> streams;
  Numeric numeric = Numeric::exact;

  void check() const {
    const std::int64_t tokens = streams.extent(0), hc = streams.extent(1);
    expect(name, "y", y, {tokens, streams.extent(2)});
    expect(name, "mix", mix, {tokens, (2 + hc) * hc});
  }
};

/// The coefficients that a seam reads off the streams: mix = pre | post | comb of (fn z) * (1 / rms(z)), z the flattened streams.
///
/// Shapes:  streams [tokens, hc, dim]; fn [(2 + hc) * hc, hc * dim]; base [(2 + hc) * hc]; scale [3]; mix [tokens, (2 + hc) * hc].
/// Layout:  streams dense, for they are read as rows of hc * dim; the others unit inner stride. mix may not alias streams.
/// Rules:   float32 in both classes; epsilons and order as numerics/mhc.hpp.
/// Match:   norm<1e-6>.
struct MhcCoefficients {
  static constexpr std::string_view name = "mhc_coefficients";
  In<float, 3> streams;
  Matrix fn;
  In<float, 1> base;
  In<float, 1> scale;
  Out<float, 2> mix;
  MhcRules rules;

  void check() const {
    const std::int64_t tokens = streams.extent(0), hc = streams.extent(1), rows = (2 + hc) * hc;
    expect(name, hc >= 1 && hc <= kMaxStreams, "streams", "1 to 8 streams", hc);
    if (!streams.dense()) shape_error(name, "streams", "dense", "strided");
    expect(name, "fn", fn, rows, hc * streams.extent(2));
    expect(name, "base", base, {rows});
    expect(name, "scale", scale, {3});
    expect(name, "mix", mix, {tokens, rows});
  }
};

/// x = sum over streams of pre_j * h_j.
///
/// Shapes:  streams [tokens, hc, dim]; mix [tokens, (2 + hc) * hc], its pre part read; x [tokens, dim].
/// Rules:   one wide sum, rounded once to float32; deployed: rounded to bfloat16.
/// Match:   ulp<1>.
struct MhcCollapse {
  static constexpr std::string_view name = "mhc_collapse";
  In<float, 3> streams;
  In<float, 2> mix;
  Out<float, 2> x;
  Numeric numeric = Numeric::exact;

  void check() const {
    const std::int64_t tokens = streams.extent(0), hc = streams.extent(1);
    expect(name, "mix", mix, {tokens, (2 + hc) * hc});
    expect(name, "x", x, {tokens, streams.extent(2)});
  }
};

/// One seam in a single pass over the streams. Equal, bit for bit, to: MhcExpand(y, mix) unless y is empty; MhcCollapse with the old
/// pre; RmsNorm of that; MhcCoefficients into mix. So a sublayer's input uses the pre of the PREVIOUS seam.
///
/// Shapes:  as the parts; y [tokens, dim] or empty; norm [dim]; mix in and out; input [tokens, dim].
/// Layout:  as the parts: streams dense.
/// Cost:    reads and writes the streams once.
/// Source:  architecture.md 2 (single-pass mHC seam).
struct MhcSeam {
  static constexpr std::string_view name = "mhc_seam";
  In<float, 2> y;
  Out<float, 3> streams;
  Matrix fn;
  In<float, 1> base;
  In<float, 1> scale;
  In<float, 1> norm;
  Out<float, 2> mix;
  Out<float, 2> input;
  MhcRules rules;
  Numeric numeric = Numeric::exact;

  MhcExpand expand() const { return {.y = y, .mix = mix, .streams = streams, .numeric = numeric}; }
  MhcCollapse collapse() const { return {.streams = streams, .mix = mix, .x = input, .numeric = numeric}; }
  MhcCoefficients coefficients() const {
    return {.streams = streams, .fn = fn, .base = base, .scale = scale, .mix = mix, .rules = rules};
  }

  void check() const {
    if (!y.empty()) expand().check();
    collapse().check();
    coefficients().check();
    expect(name, "norm", norm, {streams.extent(2)});
  }
};

/// tap = mean of the streams: the drafter's view of a layer's input (dspark.md 3.1).
///
/// Shapes:  streams [tokens, hc, dim]; tap [tokens, dim] (may be columns of a wider matrix).
/// Rules:   float32 in ascending stream, divided by hc; deployed: rounded to bfloat16.
/// Match:   exact for equal inputs.
struct StreamMean {
  static constexpr std::string_view name = "stream_mean";
  In<float, 3> streams;
  Out<float, 2> tap;
  Numeric numeric = Numeric::exact;

  void check() const { expect(name, "tap", tap, {streams.extent(0), streams.extent(2)}); }
};

}  // namespace dsv41::ops
