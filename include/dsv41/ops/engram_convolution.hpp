// SPDX-License-Identifier: MIT
//
// Op: a short causal convolution over the gated n-gram memory, added to every stream behind EngramGate. A lineage mode: the Engram paper
// has it, V4.1 does not.
#pragma once

#include <cstdint>
#include <string_view>

#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// v_j(p) = RMSNorm_j(gate_j(p) * value(p));
/// h_j(p) += silu(sum over i of kernel_j[i] * v_j(p - (lags - 1 - i) * dilation)), channel by channel.
///
/// Shapes:  value [tokens, dim] f32 (columns of EngramGate's keys_value); gates [tokens, hc] f32; norm [hc, dim]; kernel [hc * dim, lags];
///          ring [slots, hc, dim] f32, updated; streams [tokens, hc, dim] f32, updated; slots >= tokens + (lags - 1) * dilation.
/// Layout:  unit inner stride; ring and streams may not alias each other or inputs.
/// Rules:   token i stands at position first_position + i; v(p) is kept in slot p % slots. Before position 0 there is nothing: the ring is
///          not read there, so it needs no clearing. Any split into calls gives the same bits.
///          The sum is wide, oldest first, rounded once; deployed: v and the streams are rounded to bfloat16.
/// Match:   norm<1e-6>.
/// Source:  architecture.md 7 (paper variant); arXiv 2601.07372: 4 lags, dilation the longest n-gram. Deployed rounding: ours.
struct EngramConvolution {
  static constexpr std::string_view name = "engram_convolution";
  In<float, 2> value;
  In<float, 2> gates;
  Matrix norm;
  Matrix kernel;
  Out<float, 3> ring;
  Out<float, 3> streams;
  std::int64_t first_position = 0;
  std::int64_t dilation = 1;
  double eps = 0;
  Numeric numeric = Numeric::exact;

  /// Earliest position that a token at `position` reads lies this far back.
  std::int64_t reach() const { return (kernel.cols - 1) * dilation; }

  void check() const {
    const std::int64_t tokens = streams.extent(0), hc = streams.extent(1), dim = streams.extent(2);
    expect(name, "value", value, {tokens, dim});
    expect(name, "gates", gates, {tokens, hc});
    expect(name, "norm", norm, hc, dim);
    expect(name, kernel.cols >= 1, "kernel", "at least 1 lag", kernel.cols);
    expect(name, "kernel", kernel, hc * dim, kernel.cols);
    expect_position(name, first_position);
    expect(name, dilation >= 1, "dilation", "at least 1", dilation);
    if (kernel.cols > 1) {  // so that reach() cannot overflow
      expect(name, kernel.cols <= ring.extent(0), "kernel", "no more lags than ring has slots", kernel.cols);
      expect(name, dilation <= ring.extent(0), "dilation", "no more than ring has slots", dilation);
    }
    expect_at_least(name, "ring", ring, {tokens + reach(), hc, dim});
    expect(name, "ring", ring, {ring.extent(0), hc, dim});
  }
};

}  // namespace dsv41::ops
