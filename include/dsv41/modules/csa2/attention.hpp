// SPDX-License-Identifier: MIT
//
// Attention over one latent KV head: projections, the window ring, and the mix of window and selected entries. Rows 3, 4a, 5b and D3 of
// docs/token_path.md; compressor and indexer run between the projections and attend(). A draft stage takes the parts one by one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/modules/sequence.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

struct AttentionScratch {
  Out<float, 2> qr;       // [rows, q_rank]   normed query latent, shared with the indexer
  Out<float, 2> q;        // [rows, heads * head_dim]  rotated
  Out<float, 2> kv;       // [rows, head_dim]
  Out<float, 2> mixed;    // [rows, heads * head_dim]  sum of probabilities times KV
  Out<float, 2> grouped;  // [rows, o_groups * o_rank]

  void layout(Cursor& cursor, const ModelConfig& c, std::int64_t rows) {
    cursor.take(qr, {rows, c.q_rank});
    cursor.take(q, {rows, c.heads * c.head_dim});
    cursor.take(kv, {rows, c.head_dim});
    cursor.take(mixed, {rows, c.heads * c.head_dim});
    cursor.take(grouped, {rows, c.o_groups * c.o_rank});
  }

  AttentionScratch rows(std::int64_t first, std::int64_t n) const {
    return {qr.rows(first, n), q.rows(first, n), kv.rows(first, n), mixed.rows(first, n), grouped.rows(first, n)};
  }
};

class Attention {
 public:
  /// `frequencies` [rope_dim / 2] of this layer's kind, in the backend's memory.
  Attention(const ModelConfig& config, const AttentionWeights& weights, In<float, 1> frequencies, Numeric numeric)
      : weights_(weights),
        frequencies_(frequencies),
        heads_(config.heads),
        head_dim_(config.head_dim),
        groups_(config.o_groups),
        window_(config.window),
        eps_(config.norm_eps),
        numeric_(numeric) {}

  /// x [rows, dim] -> kv [rows, head_dim] (normed, not yet rotated).
  template <ops::Backend B>
  void project_kv(B& b, In<float, 2> x, Out<float, 2> kv) const noexcept {
    b.run(ops::Linear{.x = x, .w = weights_.wkv, .y = kv, .numeric = numeric_});
    b.run(ops::RmsNorm{.x = kv, .weight = weights_.kv_norm, .y = kv, .eps = eps_, .numeric = numeric_});
  }

  /// x [rows, dim] -> t.qr, t.q (rotated).
  template <ops::Backend B>
  void project_queries(B& b, In<float, 2> x, In<std::int64_t, 1> positions, const AttentionScratch& t) const noexcept {
    b.run(ops::Linear{.x = x, .w = weights_.wq_a, .y = t.qr, .numeric = numeric_});
    b.run(ops::RmsNorm{.x = t.qr, .weight = weights_.q_norm, .y = t.qr, .eps = eps_, .numeric = numeric_});
    b.run(ops::Linear{.x = t.qr, .w = weights_.wq_b, .y = t.q, .numeric = numeric_});
    b.run(ops::Rope{.x = by_head(t.q), .positions = positions, .frequencies = frequencies_, .numeric = numeric_});
  }

  /// kv [rows, head_dim] of consecutive positions, normed -> a window ring: the last rows, as many as it keeps.
  template <ops::Backend B>
  void remember(B& b, Out<float, 2> kv, std::int64_t first_position, const CacheRows& ring) const noexcept {
    const std::int64_t rows = kv.extent(0), kept = std::min(rows, ring.rows), first = first_position + rows - kept;
    b.run(ops::CacheAppend{.rows = kv.rows(rows - kept, kept),
                           .frequencies = frequencies_,
                           .cache = ring,
                           .first_position = first,
                           .first_slot = first % ring.rows,
                           .numeric = numeric_});
  }

  /// t.kv of the segment's rows -> its window ring of `layer`.
  template <ops::Backend B>
  void remember(B& b, const Segment& s, std::size_t layer, const AttentionScratch& t) const noexcept {
    remember(b, t.kv.rows(s.first_row, s.rows), s.first_position, s.state->rings[layer]);
  }

  /// t.kv -> each sequence's window ring of `layer`; t.q over the window and, where `source` >= 0, the selected entries of that source
  /// -> y [rows, dim]. Window rows before position `first_visible` are not seen.
  ///
  /// A ring has `window` slots or more, in any number. A row takes the slot of the row ring.rows positions before it, which the queries
  /// of window - 1 positions behind that one still read. So rows go in and are attended piece by piece, ring.rows - window + 1 at a time.
  template <ops::Backend B>
  void attend(B& b, const Batch& batch, std::size_t layer, std::int32_t source, const Selection& selection,
              const AttentionScratch& t, Out<float, 2> y, std::int64_t first_visible = 0) const noexcept {
    for (const Segment& s : batch.segments) {
      const std::int64_t most = s.state->rings[layer].rows - window_ + 1;
      DSV41_DCHECK(most > 0);
      for (std::int64_t done = 0; done < s.rows; done += most) {
        const Segment piece{.state = s.state,
                            .first_row = s.first_row + done,
                            .rows = std::min(most, s.rows - done),
                            .first_position = s.first_position + done};
        remember(b, piece, layer, t);
        mix(b, piece, layer, source, selection, t, first_visible);
      }
    }
    project_mixed(b, batch.positions, t, y);
  }

  /// t.kv of draft blocks becomes what their rows see of each other: rotated and through the window's quantiser, where it lies.
  template <ops::Backend B>
  void place_blocks(B& b, In<std::int64_t, 1> positions, const AttentionScratch& t) const noexcept {
    b.run(ops::Rope{.x = t.kv.template reshaped<3>({t.kv.extent(0), 1, head_dim_}),
                    .positions = positions,
                    .frequencies = frequencies_,
                    .quantiser = numerics::Quantiser::window_fp8,
                    .numeric = numeric_});
  }

  /// t.q of one draft block, t cut to its rows, over the ring's rows of positions [first_visible, first_position) and the block itself
  /// (dspark.md 3.5) -> t.mixed, still rotated. The block does not enter the ring.
  template <ops::Backend B>
  void mix_block(B& b, const CacheRows& ring, std::int64_t first_position, std::int64_t first_visible,
                 const AttentionScratch& t) const noexcept {
    b.run(ops::BlockAttention{.q = by_head(t.q),
                              .ring = ring,
                              .block = t.kv,
                              .sink = weights_.sink,
                              .out = by_head(t.mixed),
                              .first_position = first_position,
                              .first_visible = first_visible,
                              .window = window_,
                              .numeric = numeric_});
  }

  /// t.mixed of all rows -> y [rows, dim].
  template <ops::Backend B>
  void project_mixed(B& b, In<std::int64_t, 1> positions, const AttentionScratch& t, Out<float, 2> y) const noexcept {
    b.run(ops::Rope{.x = by_head(t.mixed),
                    .positions = positions,
                    .frequencies = frequencies_,
                    .inverse = true,
                    .numeric = numeric_});
    b.run(ops::Linear{.x = t.mixed,
                      .w = weights_.wo_a,
                      .y = t.grouped,
                      .groups = groups_,
                      .role = ops::LinearRole::plain_input,
                      .numeric = numeric_});
    b.run(ops::Linear{.x = t.grouped, .w = weights_.wo_b, .y = y, .numeric = numeric_});
  }

 private:
  /// t.q of the segment's rows over what its caches hold -> t.mixed, still rotated.
  template <ops::Backend B>
  void mix(B& b, const Segment& s, std::size_t layer, std::int32_t source, const Selection& selection,
           const AttentionScratch& t, std::int64_t first_visible) const noexcept {
    ops::SparseAttention op{.q = by_head(t.q).rows(s.first_row, s.rows),
                            .ring = s.state->rings[layer],
                            .sink = weights_.sink,
                            .out = by_head(t.mixed).rows(s.first_row, s.rows),
                            .first_position = s.first_position,
                            .first_visible = first_visible,
                            .window = window_,
                            .numeric = numeric_};
    if (source >= 0) {
      op.entries = s.state->sources[static_cast<std::size_t>(source)].entries;
      op.ids = selection.ids.rows(s.first_row, s.rows);
      op.counts = selection.counts.rows(s.first_row, s.rows);
    }
    b.run(op);
  }

  Out<float, 3> by_head(Out<float, 2> rows) const { return rows.reshaped<3>({rows.extent(0), heads_, head_dim_}); }

  AttentionWeights weights_;
  In<float, 1> frequencies_;
  std::int64_t heads_, head_dim_, groups_, window_;
  double eps_;
  Numeric numeric_;
};

}  // namespace dsv41
