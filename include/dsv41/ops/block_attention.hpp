// SPDX-License-Identifier: MIT
//
// Op: attention of a draft block: one latent KV head over the context in the ring and over the block's own rows, with a sink.
#pragma once

#include <algorithm>
#include <string_view>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Softmax attention of every query of a block over the same keys: context positions max(first_visible, first_position - window) ..
/// first_position - 1, and all rows of the block. Not causal, and the window stands at the block's start for each of its rows. K = V; a
/// learned logit per head joins the denominator only. The block never enters the ring.
///
/// Shapes:  q, out [tokens, heads, width] f32; ring [slots, width] of format window or f32, the row of position p in slot p % slots,
///          slots >= window; block [tokens, width] f32: the block's KV, rotated and through the window's quantiser; sink [heads] f32.
/// Layout:  unit inner stride; out may not alias q, ring or block.
/// Rules:   slots of a query: the context row of position p is slot p % window, in whatever order that puts them, its slot empty where
///          it is not visible; behind the min(window, first_position) slots of the context the block's rows, in order. Blocks of slots,
///          sums and roundings as SparseAttention.
/// Match:   norm<1e-5>.
/// Source:  dspark.md 3.5; architecture.md 9 (a draft row's slots).
struct BlockAttention {
  static constexpr std::string_view name = "block_attention";
  In<float, 3> q;
  CacheRows ring;  // read
  In<float, 2> block;
  In<float, 1> sink;
  Out<float, 3> out;
  std::int64_t first_position = 0;  ///< of the block's first row
  std::int64_t first_visible = 0;   ///< the oldest position in the ring; rows before it leave their slots empty
  std::int64_t window = 0;
  Numeric numeric = Numeric::exact;

  /// Slots before those of the block.
  std::int64_t context_slots() const { return std::min(window, first_position); }

  void check() const {
    const std::int64_t width = q.extent(2);
    expect_unit_stride(name, "q", q);
    expect(name, window > 0, "window", "at least 1", window);
    expect(name, "ring", ring, CacheFormat::window, window, width);
    expect(name, first_visible >= 0 && first_visible <= first_position, "first_visible", "0 to first_position",
           first_visible);
    expect(name, "block", block, {q.extent(0), width});
    expect(name, "sink", sink, {q.extent(1)});
    expect(name, "out", out, q.extents());
  }
};

}  // namespace dsv41::ops
