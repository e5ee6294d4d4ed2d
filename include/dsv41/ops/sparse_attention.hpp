// SPDX-License-Identifier: MIT
//
// Op: one latent KV head shared by all query heads, over the sliding window and the selected entries, with a sink.
#pragma once

#include <string_view>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Softmax attention of the query at position p = first_position + t over window rows max(first_visible, p - window + 1) .. p and its
/// selected entries; K = V; a learned logit per head joins the denominator only.
///
/// Shapes:  q, out [tokens, heads, width] f32; ring [slots, width] of format window or f32, the row of position p in slot
///          p % slots, slots >= window + tokens - 1; entries [capacity, width] of format entry or f32; ids [tokens, topk] i32
///          ascending, counts [tokens] i32 (all three empty: window only); sink [heads] f32.
/// Layout:  unit inner stride; out may not alias q, ring or entries.
/// Rules:   slots of a query: 0.. the window rows, oldest first; `window`.. the entries. Every 64 slots share a running maximum;
///          logits and denominator float32, in slot order. An id outside [0, capacity) leaves its slot empty; a count beyond topk
///          is an error at sync(). Deployed: each probability is rounded to bfloat16 for the product with the values, not in the
///          denominator; the result is rounded to bfloat16.
/// Match:   norm<1e-5>.
/// Source:  architecture.md 3 and 9.
struct SparseAttention {
  static constexpr std::string_view name = "sparse_attention";
  In<float, 3> q;
  CacheRows ring;     // read
  CacheRows entries;  // read
  In<std::int32_t, 2> ids;
  In<std::int32_t, 1> counts;
  In<float, 1> sink;
  Out<float, 3> out;
  std::int64_t first_position = 0;
  std::int64_t first_visible = 0;  ///< the oldest position in the ring; rows before it are no slots
  std::int64_t window = 0;
  Numeric numeric = Numeric::exact;

  void check() const {
    const std::int64_t tokens = q.extent(0), width = q.extent(2);
    expect_unit_stride(name, "q", q);
    expect(name, "ring", ring, CacheFormat::window, window + tokens - 1, width);
    expect(name, first_visible >= 0 && first_visible <= first_position, "first_visible", "0 to first_position",
           first_visible);
    expect(name, "sink", sink, {q.extent(1)});
    expect(name, "out", out, q.extents());
    if (counts.empty()) return;
    expect(name, "entries", entries, CacheFormat::entry, 0, width);
    expect(name, "ids", ids, {tokens, ids.extent(1)});
    expect(name, "counts", counts, {tokens});
  }
};

}  // namespace dsv41::ops
