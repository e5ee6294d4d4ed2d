// SPDX-License-Identifier: MIT
//
// Scratch: every buffer between a step's inputs and its logits. Meaningless between steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/modules/csa2/attention.hpp"
#include "dsv41/modules/csa2/compressor.hpp"
#include "dsv41/modules/csa2/indexer.hpp"
#include "dsv41/modules/engram/memory.hpp"
#include "dsv41/modules/moe.hpp"
#include "dsv41/modules/sequence.hpp"

namespace dsv41 {

/// What it is sized for.
struct Limits {
  std::int64_t max_context = 0;  ///< positions of the longest sequence
  std::int64_t max_rows = 0;     ///< rows of a step, over all sequences
  std::int64_t score_rows = 1;   ///< rows of index scores that survive a step; max_rows keeps all, for inspection
};

/// Every buffer of a step, by name.
struct ScratchViews {
  Out<float, 3> streams;   // [rows, hc, dim]          residual streams
  Out<float, 2> mix;       // [rows, (2 + hc) * hc]    pre, post and comb of the last seam
  Out<float, 2> attn_in;   // [rows, dim]
  Out<float, 2> attn_out;  // [rows, dim]
  Out<float, 2> ffn_in;    // [rows, dim]
  Out<float, 2> ffn_out;   // [rows, dim]
  Out<float, 2> taps;      // [rows, taps * dim]       inputs of the draft stages; empty without a drafter
  Out<float, 2> head_in;   // [rows, dim]
  AttentionScratch attn;
  CompressorScratch compressor;
  IndexerScratch indexer;
  Selection selection;
  MoeScratch moe;
  EngramScratch engram;

  void layout(Cursor& cursor, const ModelConfig& c, const Limits& limits) {
    const std::int64_t rows = limits.max_rows;
    cursor.take(streams, {rows, c.hc, c.dim});
    cursor.take(mix, {rows, c.mix_rows()});
    for (Out<float, 2>* x : {&attn_in, &attn_out, &ffn_in, &ffn_out, &head_in}) cursor.take(*x, {rows, c.dim});
    if (c.draft.stages > 0) cursor.take(taps, {rows, static_cast<std::int64_t>(c.draft.tap_layers.size()) * c.dim});
    attn.layout(cursor, c, rows);
    moe.layout(cursor, c.experts, c.topk, rows);
    engram.layout(cursor, c, rows);
    if (c.kv_sources.empty()) return;
    compressor.layout(cursor, c, rows);
    indexer.layout(cursor, c, rows);
    cursor.take(selection.ids, {rows, c.index_topk});
    cursor.take(selection.counts, {rows});
    cursor.take(selection.scores, {limits.score_rows, limits.max_context});
    if (c.candidate_source < 0) return;
    cursor.take(selection.blocks, {rows, c.candidate_blocks});
    cursor.take(selection.block_counts, {rows});
    cursor.take(selection.block_scores,
                {limits.score_rows, (limits.max_context + c.candidate_block - 1) / c.candidate_block});
  }

  /// The same buffers cut to a step of `n` rows.
  ScratchViews first_rows(std::int64_t n) const { return rows(0, n); }

  /// The buffers of rows [first, first + n) of a step.
  ScratchViews rows(std::int64_t first, std::int64_t n) const {
    ScratchViews out = *this;
    out.streams = streams.rows(first, n);
    out.mix = mix.rows(first, n);
    for (Out<float, 2>* x : {&out.attn_in, &out.attn_out, &out.ffn_in, &out.ffn_out, &out.head_in})
      *x = x->rows(first, n);
    if (!taps.empty()) out.taps = taps.rows(first, n);
    out.attn = attn.rows(first, n);
    out.moe = moe.rows(first, n);
    out.engram = engram.rows(first, n);
    if (selection.ids.empty()) return out;
    out.compressor = compressor.rows(first, n);
    out.indexer = indexer.rows(first, n);
    out.selection.ids = selection.ids.rows(first, n);
    out.selection.counts = selection.counts.rows(first, n);
    if (selection.blocks.empty()) return out;
    out.selection.blocks = selection.blocks.rows(first, n);
    out.selection.block_counts = selection.block_counts.rows(first, n);
    return out;  // scores are workspace, not rows of the step
  }
};

template <class B>
class Scratch {
 public:
  Scratch(B& b, const ModelConfig& config, const Limits& limits)
      : arena_(b, [&](Cursor& cursor) { views_.layout(cursor, config, limits); }) {}

  const ScratchViews& views() const { return views_; }
  std::size_t bytes() const { return arena_.bytes(); }

 private:
  ScratchViews views_;
  Arena<B> arena_;
};

}  // namespace dsv41
