// SPDX-License-Identifier: MIT
//
// Op: adds the gated n-gram memory to every stream.
#pragma once

#include <string_view>

#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// dot_j = sum(h_j q_j k_j key_j) / (rms(h_j) rms(key_j) sqrt(dim));
/// gate_j = sigmoid(sign(dot) sqrt(max(|dot|, 1e-6))), 0 for image tokens;
/// h_j += gate_j * value.
///
/// Shapes:  keys_value [tokens, (hc + 1) * dim] f32: hc keys, then the value; q_weight, k_weight [hc, dim]; image [tokens] u8;
///          streams [tokens, hc, dim] f32, updated; gates [tokens, hc] f32.
/// Rules:   sums wide, gate float32; deployed: the streams are rounded to bfloat16.
/// Match:   norm<1e-6>.
/// Source:  architecture.md 7.
struct EngramGate {
  static constexpr std::string_view name = "engram_gate";
  In<float, 2> keys_value;
  Matrix q_weight;
  Matrix k_weight;
  In<std::uint8_t, 1> image;
  Out<float, 3> streams;
  Out<float, 2> gates;
  double eps = 0;
  Numeric numeric = Numeric::exact;

  void check() const {
    const std::int64_t tokens = streams.extent(0), hc = streams.extent(1), dim = streams.extent(2);
    expect_unit_stride(name, "streams", streams);
    expect(name, "keys_value", keys_value, {tokens, (hc + 1) * dim});
    expect(name, "q_weight", q_weight, hc, dim);
    expect(name, "k_weight", k_weight, hc, dim);
    expect(name, "image", image, {tokens});
    expect(name, "gates", gates, {tokens, hc});
  }
};

}  // namespace dsv41::ops
