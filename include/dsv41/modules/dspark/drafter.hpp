// SPDX-License-Identifier: MIT
//
// DSpark: a small model behind the target that drafts a block of tokens at once, built of the target's own modules. From the taps of
// committed tokens it makes a window of context for each of its stages; a block is the newest token, then noise tokens. Its rows see the
// context and each other; a row's token then leans on the one drafted before it (Markov). Rows D1 to D5 of docs/token_path.md. Source:
// dspark.md 3 and 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/modules/csa2/attention.hpp"
#include "dsv41/modules/dspark/draft_scratch.hpp"
#include "dsv41/modules/dspark/draft_state.hpp"
#include "dsv41/modules/mhc.hpp"
#include "dsv41/modules/moe.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

/// The drafter of one target on any backend. Immutable, like the target's model: sequences live in DraftState, temporaries in DraftScratch.
/// A round is remember() for what was committed, forward(), then next() for each row in turn; between two of these the caller chooses
/// the row's token. Nothing allocates, throws or reads back from the device.
///
/// A result does not depend on the batch it shares, nor context on how it was cut into calls: bit for bit.
class Drafter {
 public:
  /// `frequencies` [rope_dim / 2]: those of the target (Model::window_frequencies), in the backend's memory. Like `weights` of the whole
  /// model they must outlive the drafter: embedding and vocabulary head are the target's.
  ///
  /// Errors: shape_mismatch for a config without draft stages, and for a stage, expert or head that is missing, naming it. The confidence
  ///         head may be empty: next() then gives no z.
  Drafter(const ModelConfig& config, const ModelWeights& weights, In<float, 1> frequencies, Numeric numeric)
      : weights_(&weights), eps_(config.norm_eps), numeric_(numeric) {
    check(config, weights.draft);
    ModelConfig c = config;
    c.experts = config.draft.experts, c.topk = config.draft.topk;
    for (const LayerWeights& stage : weights.draft.stages) {
      stages_.push_back({MhcSeam(c, stage.attn_seam, numeric), Attention(c, stage.attn, frequencies, numeric),
                         MhcSeam(c, stage.ffn_seam, numeric), Moe(c, stage.moe, numeric)});
    }
  }

  /// taps [rows, taps * dim] of a step (ScratchViews::taps), of which `committed` names the rows that stand -> the rings of each stage.
  /// Each state's position is the caller's to move afterwards (DraftState::advance).
  /// Cost: every row given is projected once, and once for each stage; of a long prompt only the last rows, as many as a ring has, matter.
  template <ops::Backend B>
  void remember(B& b, In<float, 2> taps, std::span<const DraftContext> committed, const DraftViews& t) const noexcept {
    const DraftWeights& w = weights_->draft;
    const std::int64_t rows = taps.extent(0);
    const Out<float, 2> main_x = t.main_x.rows(0, rows), kv = t.context_kv.rows(0, rows);
    b.run(ops::Linear{.x = taps, .w = w.main_proj, .y = main_x, .numeric = numeric_});
    norm(b, main_x, w.main_norm, main_x);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      stages_[s].attn.project_kv(b, main_x, kv);
      for (const DraftContext& c : committed)
        stages_[s].attn.remember(b, kv.rows(c.first_row, c.rows), c.state->position, c.state->rings[s]);
    }
  }

  /// Runs the blocks through all stages -> t.hidden and t.base, row i of a block for the token at its position + 1. Rings are read only.
  /// `t` must be cut to the batch's rows (first_rows).
  template <ops::Backend B>
  void forward(B& b, const DraftBatch& batch, const DraftViews& t) const noexcept {
    b.run(ops::Embed{.ids = batch.ids,
                     .image = t.text,
                     .image_rows = {},
                     .table = weights_->embed,
                     .streams = t.streams,
                     .mix = t.mix});
    In<float, 2> pending;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const Stage& stage = stages_[s];
      stage.attn_seam.forward(b, pending, t.streams, t.mix, t.attn_in);
      attend(b, batch, s, t);
      stage.ffn_seam.forward(b, t.attn_out, t.streams, t.mix, t.ffn_in);
      stage.moe.forward(b, t.ffn_in, t.text, t.moe, t.ffn_out);
      pending = t.ffn_out;
    }
    b.run(ops::MhcExpand{.y = pending, .mix = t.mix, .streams = t.streams, .numeric = numeric_});
    b.run(ops::MhcCollapse{.streams = t.streams, .mix = t.mix, .x = t.hidden, .numeric = numeric_});
    norm(b, t.hidden, weights_->draft.norm, t.head_in);
    b.run(ops::Linear{
        .x = t.head_in, .w = weights_->head, .y = t.base, .role = ops::LinearRole::float32, .numeric = numeric_});
  }

  /// Row `row` of every block of the batch just run: tokens [requests] i32 at the rows' own positions (row 0: the anchors, then what was
  /// chosen from the row before) -> logits [requests, vocab] of the next tokens and z [requests], the confidence in them before the
  /// sigmoid (empty without a confidence head). z depends on tokens before the one it judges only.
  /// A request whose drafts have ended goes on with a negative token (draw_draft gives -1): what it gets is of no use, and its mates
  /// draft as they would alone.
  template <ops::Backend B>
  void next(B& b, const DraftBatch& batch, std::int64_t row, In<std::int32_t, 1> tokens, const DraftViews& t,
            Out<float, 2> logits, Out<float, 1> z) const noexcept {
    const DraftWeights& w = weights_->draft;
    b.run(ops::Markov{.tokens = tokens,
                      .embed = w.markov_embed,
                      .head = w.markov_head,
                      .confidence = w.confidence,
                      .base = row_of_each(t.base, row, batch),
                      .hidden = row_of_each(t.hidden, row, batch),
                      .logits = logits,
                      .z = z});
  }

  bool has_confidence() const { return !weights_->draft.confidence.empty(); }

 private:
  struct Stage {
    MhcSeam attn_seam;
    Attention attn;
    MhcSeam ffn_seam;
    Moe moe;
  };

  /// t.attn_in of all blocks -> t.attn_out. Every row of a block sees the same: the window before the block, and the block.
  template <ops::Backend B>
  void attend(B& b, const DraftBatch& batch, std::size_t s, const DraftViews& t) const noexcept {
    const Attention& attn = stages_[s].attn;
    attn.project_kv(b, t.attn_in, t.attn.kv);
    attn.project_queries(b, t.attn_in, batch.positions, t.attn);
    attn.place_blocks(b, batch.positions, t.attn);
    std::int64_t first_row = 0;
    for (const DraftState* state : batch.requests) {
      attn.mix_block(b, state->rings[s], state->position, state->first, t.attn.rows(first_row, batch.block()));
      first_row += batch.block();
    }
    attn.project_mixed(b, batch.positions, t.attn, t.attn_out);
  }

  /// Row `row` of each block of x [requests * block, width]: [requests, width].
  static Out<float, 2> row_of_each(Out<float, 2> x, std::int64_t row, const DraftBatch& batch) {
    const std::int64_t requests = std::ssize(batch.requests), block = batch.block();
    if (requests == 0) return x.rows(0, 0);
    DSV41_DCHECK(row >= 0 && row < block && x.extent(0) == requests * block);
    return {x.data() + row * x.stride(0), {requests, x.extent(1)}, {block * x.stride(0), 1}};
  }

  template <ops::Backend B>
  void norm(B& b, In<float, 2> x, In<float, 1> weight, Out<float, 2> y) const noexcept {
    b.run(ops::RmsNorm{.x = x, .weight = weight, .y = y, .eps = eps_, .numeric = numeric_});
  }

  static void check(const ModelConfig& c, const DraftWeights& w) {
    constexpr std::string_view what = "drafter";
    const DraftConfig& d = c.draft;
    ops::expect(what, d.stages > 0, "number of draft stages", "at least 1", d.stages);
    const auto count = [&](std::string_view of, std::int64_t expected, std::size_t got) {
      if (static_cast<std::int64_t>(got) != expected)
        ops::shape_error(what, of, std::to_string(expected), std::to_string(got));
    };
    count("number of stages in the weights", d.stages, w.stages.size());
    for (std::size_t s = 0; s < w.stages.size(); ++s)
      count("number of experts in stage " + std::to_string(s), d.experts, w.stages[s].moe.experts.size());
    ops::expect(what, "main_proj", w.main_proj, c.dim, static_cast<std::int64_t>(d.tap_layers.size()) * c.dim);
    ops::expect(what, "main_norm", w.main_norm, {c.dim});
    ops::expect(what, "norm", w.norm, {c.dim});
    ops::expect(what, "markov_embed", w.markov_embed, c.vocab, d.markov_rank);
    ops::expect(what, "markov_head", w.markov_head, c.vocab, d.markov_rank);
    if (!w.confidence.empty()) ops::expect(what, "confidence", w.confidence, 1, c.dim + d.markov_rank);
  }

  const ModelWeights* weights_;
  double eps_;
  Numeric numeric_;
  std::vector<Stage> stages_;
};

}  // namespace dsv41
