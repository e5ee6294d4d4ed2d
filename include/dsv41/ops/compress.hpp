// SPDX-License-Identifier: MIT
//
// Op: pools groups of `ratio` tokens into latents, carrying the open group from call to call.
#pragma once

#include <string_view>

#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Per channel, a softmax of the gate over the group's tokens weighs their projections. Groups are aligned to absolute positions; the
/// tokens of an incomplete group wait in the carry, so any split into calls gives the same latents. The carry is a ring: the row of
/// position p is slot p % slots, and a group never wraps. So a sequence may go back to any position whose group the ring still holds:
/// what comes then overwrites rows at their own positions.
///
/// Shapes:  kv, gate [tokens, width] f32; carry_kv, carry_gate [slots, width] f32, updated, slots a positive multiple of ratio;
///          latent [groups, width] f32 with groups = (first_position + tokens) / ratio - first_position / ratio.
/// Layout:  unit inner stride; kv, gate, the carries and latent may not alias each other.
/// Rules:   float32 in ascending position, each probability divided before it weighs; deployed: the pooled latent is rounded to
///          bfloat16, its inputs are not.
/// Match:   norm<1e-6>.
/// Source:  architecture.md 3 (compressor) and 9.
struct Compress {
  static constexpr std::string_view name = "compress";
  In<float, 2> kv;
  In<float, 2> gate;
  Out<float, 2> carry_kv;
  Out<float, 2> carry_gate;
  Out<float, 2> latent;
  std::int64_t first_position = 0;
  std::int64_t ratio = 0;  ///< tokens of a group
  Numeric numeric = Numeric::exact;

  void check() const {
    const std::int64_t tokens = kv.extent(0), width = kv.extent(1), slots = carry_kv.extent(0);
    expect(name, ratio > 0, "ratio", "at least 1", ratio);
    expect(name, slots > 0 && slots % ratio == 0, "carry_kv", "rows of whole groups", slots);
    expect_position(name, first_position);
    expect_unit_stride(name, "kv", kv);
    expect(name, "gate", gate, {tokens, width});
    expect(name, "carry_kv", carry_kv, {slots, width});
    expect(name, "carry_gate", carry_gate, {slots, width});
    expect(name, "latent", latent, {(first_position + tokens) / ratio - first_position / ratio, width});
  }
};

}  // namespace dsv41::ops
