// SPDX-License-Identifier: MIT
//
// Indexer of an index source: which entries each query attends to. Row 5a of docs/token_path.md.
#pragma once

#include "dsv41/core/arena.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/core/schedule.hpp"
#include "dsv41/modules/sequence.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/numerics/elementary.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

struct IndexerScratch {
  Out<float, 2> q;        // [rows, index_heads * index_dim]  rotated, quantised
  Out<float, 2> weights;  // [rows, index_heads]

  void layout(Cursor& cursor, const ModelConfig& c, std::int64_t rows) {
    cursor.take(q, {rows, c.index_heads * c.index_dim});
    cursor.take(weights, {rows, c.index_heads});
  }

  IndexerScratch rows(std::int64_t first, std::int64_t n) const { return {q.rows(first, n), weights.rows(first, n)}; }
};

class Indexer {
 public:
  Indexer(const ModelConfig& config, const IndexerWeights& weights, const LayerPlan& plan, In<float, 1> frequencies,
          Numeric numeric)
      : weights_(weights),
        frequencies_(frequencies),
        source_(static_cast<std::size_t>(plan.source)),
        ratio_(plan.ratio),
        heads_(config.index_heads),
        dim_(config.index_dim),
        block_(config.candidate_block),
        candidates_(plan.publishes_candidates    ? ops::CandidateUse::publish
                    : plan.limited_to_candidates ? ops::CandidateUse::limited
                                                 : ops::CandidateUse::none),
        numeric_(numeric) {}

  /// x [rows, dim] and qr [rows, q_rank] -> the selection, from its own source's keys always (architecture.md 4).
  template <ops::Backend B>
  void forward(B& b, In<float, 2> x, In<float, 2> qr, const Batch& batch, const IndexerScratch& t,
               const Selection& selection) const noexcept {
    b.run(ops::Linear{.x = qr, .w = weights_.wq_b, .y = t.q, .numeric = numeric_});
    const Out<float, 3> q = t.q.reshaped<3>({t.q.extent(0), heads_, dim_});
    b.run(ops::Rope{.x = q,
                    .positions = batch.positions,
                    .frequencies = frequencies_,
                    .quantiser = numerics::Quantiser::index_fp4,
                    .numeric = numeric_});
    b.run(ops::Linear{.x = x, .w = weights_.weights_proj, .y = t.weights, .numeric = numeric_});
    for (const Segment& s : batch.segments) {
      ops::IndexSelect op{.q = q.rows(s.first_row, s.rows),
                          .weights = t.weights.rows(s.first_row, s.rows),
                          .keys = s.state->sources[source_].index_keys,
                          .ids = selection.ids.rows(s.first_row, s.rows),
                          .counts = selection.counts.rows(s.first_row, s.rows),
                          .scores = selection.scores,
                          .block_scores = selection.block_scores,
                          .first_position = s.first_position,
                          .ratio = ratio_,
                          .block = block_,
                          .weight_scale = numerics::inverse_root(heads_ * dim_),
                          .candidates = candidates_,
                          .numeric = numeric_};
      if (candidates_ != ops::CandidateUse::none) {
        op.blocks = selection.blocks.rows(s.first_row, s.rows);
        op.block_counts = selection.block_counts.rows(s.first_row, s.rows);
      }
      b.run(op);
    }
  }

 private:
  IndexerWeights weights_;
  In<float, 1> frequencies_;
  std::size_t source_;
  std::int64_t ratio_, heads_, dim_, block_;
  ops::CandidateUse candidates_;
  Numeric numeric_;
};

}  // namespace dsv41
