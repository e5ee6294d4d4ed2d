// SPDX-License-Identifier: MIT
//
// One backbone layer: the modules in the order a token meets them. Rows 1b to 9 of docs/token_path.md. A step runs a layer in parts, each
// for rows of its own: a prefill that skips rows enters more of them than it lets answer, and a replay writes no entries twice
// (model/prefill.hpp).
#pragma once

#include <cstdint>
#include <optional>

#include "dsv41/core/schedule.hpp"
#include "dsv41/model/prefill.hpp"
#include "dsv41/model/scratch.hpp"
#include "dsv41/model/step_rows.hpp"
#include "dsv41/modules/csa2/attention.hpp"
#include "dsv41/modules/csa2/compressor.hpp"
#include "dsv41/modules/csa2/indexer.hpp"
#include "dsv41/modules/engram/memory.hpp"
#include "dsv41/modules/mhc.hpp"
#include "dsv41/modules/moe.hpp"

namespace dsv41 {

class Layer {
 public:
  /// `frequencies` are those of the layer's kind; `weights` must outlive the layer.
  Layer(const ModelConfig& config, const LayerPlan& plan, std::size_t index, const LayerWeights& weights,
        In<float, 1> frequencies, Numeric numeric)
      : plan_(plan),
        index_(index),
        dim_(config.dim),
        numeric_(numeric),
        attn_seam_(config, weights.attn_seam, numeric),
        attn_(config, weights.attn, frequencies, numeric),
        ffn_seam_(config, weights.ffn_seam, numeric),
        moe_(config, weights.moe, numeric) {
    if (plan.engram >= 0) engram_.emplace(config, weights.engram, numeric);
    if (plan.kind == LayerKind::full)
      compressor_.emplace(config, weights.attn.compressor, plan.ratio, frequencies, numeric);
    if (plan.kind == LayerKind::full || plan.kind == LayerKind::reindex) {
      indexer_.emplace(config, weights.attn.indexer, plan, frequencies, numeric);
    }
  }

  /// The step's rows that `rows` names, all by default. `pending` [rows of the step, dim] is the output of the sublayer before this
  /// layer that the streams do not hold yet; empty: none. Leaves the layer's own last output in t.ffn_out, for the next seam to add.
  template <ops::Backend B>
  void forward(B& b, const Batch& batch, In<float, 2> pending, const ScratchViews& t,
               const LayerRows& rows = {}) const noexcept {
    const StepRows entering(batch, t, rows.keys), pooled(batch, t, rows.entries), answering(batch, t, rows.queries);
    if (entering.count() > 0) enter(b, entering.batch(), entering.of(pending), entering.scratch());
    if (rows.queries > rows.keys)
      remember(b, entering.batch().segments[0], rows.queries - rows.keys, entering.scratch());
    if (pooled.count() > 0) compress(b, pooled.scratch().attn_in, pooled.batch(), pooled.scratch());
    if (answering.count() > 0) answer(b, answering.batch(), answering.scratch(), rows.first_visible);
  }

  /// The attention sublayer alone: x -> y [rows, dim], with everything it remembers and selects on the way.
  template <ops::Backend B>
  void attend(B& b, In<float, 2> x, const Batch& batch, const ScratchViews& t, Out<float, 2> y) const noexcept {
    attn_.project_kv(b, x, t.attn.kv);
    compress(b, x, batch, t);
    recall(b, x, batch, t, 0, y);
  }

  const Moe& moe() const { return moe_; }

 private:
  /// The rows' streams come up to this layer's attention, and to what its caches are made of.
  template <ops::Backend B>
  void enter(B& b, const Batch& batch, In<float, 2> pending, const ScratchViews& t) const noexcept {
    if (engram_) {
      if (!pending.empty())
        b.run(ops::MhcExpand{.y = pending, .mix = t.mix, .streams = t.streams, .numeric = numeric_});
      pending = {};
      engram_->forward(b, t.engram.table_rows.row(plan_.engram), batch.image, t.engram, t.streams);
    }
    attn_seam_.forward(b, pending, t.streams, t.mix, t.attn_in);
    if (plan_.tap >= 0)
      b.run(ops::StreamMean{.streams = t.streams, .tap = t.taps.columns(plan_.tap * dim_, dim_), .numeric = numeric_});
    attn_.project_kv(b, t.attn_in, t.attn.kv);
  }

  /// The first `count` rows of a segment that enters go into the window ring; none of them answers.
  template <ops::Backend B>
  void remember(B& b, Segment s, std::int64_t count, const ScratchViews& t) const noexcept {
    s.rows = count;
    attn_.remember(b, s, index_, t.attn);
  }

  /// Rows that have entered become entries and index keys, where this layer is a source.
  template <ops::Backend B>
  void compress(B& b, In<float, 2> x, const Batch& batch, const ScratchViews& t) const noexcept {
    if (compressor_) compressor_->forward(b, x, batch.segments, static_cast<std::size_t>(plan_.source), t.compressor);
  }

  /// Attention and experts of rows that have entered.
  template <ops::Backend B>
  void answer(B& b, const Batch& batch, const ScratchViews& t, std::int64_t first_visible) const noexcept {
    recall(b, t.attn_in, batch, t, first_visible, t.attn_out);
    ffn_seam_.forward(b, t.attn_out, t.streams, t.mix, t.ffn_in);
    moe_.forward(b, t.ffn_in, batch.image, t.moe, t.ffn_out);
  }

  template <ops::Backend B>
  void recall(B& b, In<float, 2> x, const Batch& batch, const ScratchViews& t, std::int64_t first_visible,
              Out<float, 2> y) const noexcept {
    attn_.project_queries(b, x, batch.positions, t.attn);
    if (indexer_) indexer_->forward(b, x, t.attn.qr, batch, t.indexer, t.selection);
    attn_.attend(b, batch, index_, plan_.source, t.selection, t.attn, y, first_visible);
  }

  LayerPlan plan_;
  std::size_t index_;
  std::int64_t dim_;
  Numeric numeric_;
  std::optional<EngramMemory> engram_;
  MhcSeam attn_seam_;
  Attention attn_;
  std::optional<Compressor> compressor_;
  std::optional<Indexer> indexer_;
  MhcSeam ffn_seam_;
  Moe moe_;
};

}  // namespace dsv41
