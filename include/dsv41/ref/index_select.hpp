// SPDX-License-Identifier: MIT
//
// Reference of ops::IndexSelect.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dsv41/numerics/index_score.hpp"
#include "dsv41/numerics/packed.hpp"
#include "dsv41/numerics/reduce.hpp"
#include "dsv41/numerics/topk.hpp"
#include "dsv41/ops/index_select.hpp"

namespace dsv41::ref {

/// Writes the ascending ids of the best `ids.extent(0)` among those that `offer_all(best)` offers; returns their number.
template <class Score, class OfferAll>
std::int32_t keep_best(Out<std::int32_t, 1> ids, const Score& score, const OfferAll& offer_all) {
  numerics::BestK<Score> best(ids.data(), ids.extent(0), score);
  offer_all(best);
  std::sort(ids.data(), ids.data() + best.count());
  return static_cast<std::int32_t>(best.count());
}

/// The newest block has a slot of its own: no score, not even +infinity, displaces it.
inline void publish_blocks(const ops::IndexSelect& op, std::int64_t t, std::int64_t visible, const float* scores) {
  const Out<std::int32_t, 1> kept = op.blocks.row(t);
  const std::int64_t blocks = (visible + op.block - 1) / op.block, newest = blocks - 1;
  op.block_counts[t] = 0;
  if (blocks == 0 || kept.extent(0) == 0) return;
  float* tops = op.block_scores.row(t % op.block_scores.extent(0)).data();
  for (std::int64_t b = 0; b < newest; ++b) tops[b] = numerics::largest(scores + b * op.block, op.block);
  const auto score = [tops](std::int32_t b) { return tops[b]; };
  const std::int32_t others = keep_best(kept.rows(0, kept.extent(0) - 1), score, [&](auto& best) {
    for (std::int64_t b = 0; b < newest; ++b) best.offer(static_cast<std::int32_t>(b));
  });
  kept[others] = static_cast<std::int32_t>(newest);  // the largest id: the list stays ascending
  op.block_counts[t] = others + 1;
}

/// One decoded key.
inline std::size_t workspace_floats(const ops::IndexSelect& op) {
  return static_cast<std::size_t>(op.q.extent(2));
}

/// `key`: workspace_floats(op) floats.
inline void run(const ops::IndexSelect& op, float* key) {
  for (std::int64_t t = 0; t < op.q.extent(0); ++t) {
    const std::int64_t visible = (op.first_position + t + 1) / op.ratio;
    const In<float, 2> q = op.q.row(t);
    float* scores = op.scores.row(t % op.scores.extent(0)).data();
    const auto score = [scores](std::int32_t e) { return scores[e]; };
    op.counts[t] = keep_best(op.ids.row(t), score, [&](auto& best) {
      auto offer_range = [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t e = std::max<std::int64_t>(first, 0); e < std::min(last, visible); ++e) {
          numerics::load_row(op.keys, e, key);
          scores[e] = numerics::index_score(op.numeric, q.data(), q.extent(0), q.stride(0), key, q.extent(1),
                                            op.weights.row(t).data(), op.weight_scale);
          best.offer(static_cast<std::int32_t>(e));
        }
      };
      if (op.candidates != ops::CandidateUse::limited) return offer_range(0, visible);
      for (std::int64_t i = 0; i < op.block_counts[t]; ++i)
        offer_range(op.blocks(t, i) * op.block, (op.blocks(t, i) + 1) * op.block);
    });
    if (op.candidates == ops::CandidateUse::publish) publish_blocks(op, t, visible, scores);
  }
}

}  // namespace dsv41::ref
