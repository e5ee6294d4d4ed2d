// SPDX-License-Identifier: MIT
//
// The drafter's buffers between taps and drafts. Meaningless between rounds, but for the flags that make every row text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/modules/csa2/attention.hpp"
#include "dsv41/modules/moe.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

/// What it is sized for; the backend must be prepared for the larger of the two.
struct DraftLimits {
  std::int64_t context_rows = 0;  ///< rows of taps in a call
  std::int64_t block_rows = 0;    ///< rows of all blocks of a call
};

/// Every buffer, by name.
struct DraftViews {
  Out<float, 2> main_x;  // [context rows, dim]       taps, projected and normed: what every stage reads of the target
  Out<float, 2> context_kv;   // [context rows, head_dim]
  Out<std::uint8_t, 1> text;  // [block rows]              zeros: no row is an image token
  Out<float, 3> streams;      // [block rows, hc, dim]     residual streams
  Out<float, 2> mix;          // [block rows, (2 + hc) * hc]
  Out<float, 2> attn_in;      // [block rows, dim]
  Out<float, 2> attn_out;     // [block rows, dim]
  Out<float, 2> ffn_in;       // [block rows, dim]
  Out<float, 2> ffn_out;      // [block rows, dim]
  Out<float, 2> hidden;       // [block rows, dim]         collapsed, not normed: the confidence head's input
  Out<float, 2> head_in;      // [block rows, dim]         the same normed: the vocabulary head's input
  Out<float, 2> base;         // [block rows, vocab]       logits before the Markov part
  AttentionScratch attn;
  MoeScratch moe;

  void layout(Cursor& cursor, const ModelConfig& c, const DraftLimits& limits) {
    const std::int64_t rows = limits.block_rows;
    cursor.take(main_x, {limits.context_rows, c.dim});
    cursor.take(context_kv, {limits.context_rows, c.head_dim});
    cursor.take(text, {rows});
    cursor.take(streams, {rows, c.hc, c.dim});
    cursor.take(mix, {rows, c.mix_rows()});
    for (Out<float, 2>* x : {&attn_in, &attn_out, &ffn_in, &ffn_out, &hidden, &head_in}) cursor.take(*x, {rows, c.dim});
    cursor.take(base, {rows, c.vocab});
    attn.layout(cursor, c, rows);
    moe.layout(cursor, c.draft.experts, c.draft.topk, rows);
  }

  /// The same buffers cut to `n` block rows; those of the context stay whole.
  DraftViews first_rows(std::int64_t n) const {
    DraftViews out = *this;
    out.text = text.rows(0, n);
    out.streams = streams.rows(0, n);
    for (Out<float, 2>* x :
         {&out.mix, &out.attn_in, &out.attn_out, &out.ffn_in, &out.ffn_out, &out.hidden, &out.head_in, &out.base})
      *x = x->rows(0, n);
    out.attn = attn.rows(0, n);
    out.moe = moe.rows(0, n);
    return out;
  }
};

template <ops::Allocates B>
class DraftScratch {
 public:
  /// Errors: out_of_memory.
  DraftScratch(B& b, const ModelConfig& config, const DraftLimits& limits)
      : arena_(b, [&](Cursor& cursor) { views_.layout(cursor, config, limits); }) {
    const std::vector<std::uint8_t> zeros(static_cast<std::size_t>(limits.block_rows));
    b.upload(views_.text.data(), zeros.data(), zeros.size());
  }

  const DraftViews& views() const { return views_; }
  std::size_t bytes() const { return arena_.bytes(); }

 private:
  DraftViews views_;
  Arena<B> arena_;
};

}  // namespace dsv41
