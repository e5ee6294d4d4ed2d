// SPDX-License-Identifier: MIT
//
// Reference of ops::IndexSelect.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "dsv41/numerics/index_score.hpp"
#include "dsv41/numerics/packed.hpp"
#include "dsv41/numerics/reduce.hpp"
#include "dsv41/numerics/topk.hpp"
#include "dsv41/ops/index_select.hpp"
#include "dsv41/ref/packed_query.hpp"

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

/// One unpacked key, the products of a run, and the tables of a query.
inline std::size_t workspace_floats(const ops::IndexSelect& op) {
  const std::int64_t heads = op.q.extent(1), width = op.q.extent(2);
  const std::int64_t tables =
      PackedQuery::packs(op.keys.format, width) ? PackedQuery::workspace_floats(heads, width) : 0;
  return static_cast<std::size_t>(width + heads * kIndexRun + tables);
}

/// products[h * kIndexRun + i] = q_h . key (first + i); `key`: room for one.
inline void unpacked_products(In<float, 2> q, const CacheRows& keys, std::int64_t first, std::int64_t count, float* key,
                              float* products) {
  for (std::int64_t i = 0; i < count; ++i) {
    numerics::load_row(keys, first + i, key);
    for (std::int64_t h = 0; h < q.extent(0); ++h)
      products[h * kIndexRun + i] = static_cast<float>(numerics::dot(q.row(h).data(), key, q.extent(1)));
  }
}

/// `workspace`: workspace_floats(op) floats. Keys are scored in runs of at most kIndexRun that lie in one page.
inline void run(const ops::IndexSelect& op, float* workspace) {
  const std::int64_t heads = op.q.extent(1), width = op.q.extent(2);
  float* key = workspace;
  float* products = key + width;
  for (std::int64_t t = 0; t < op.q.extent(0); ++t) {
    const std::int64_t visible = (op.first_position + t + 1) / op.ratio;
    const In<float, 2> q = op.q.row(t);
    std::optional<PackedQuery> packed;
    float* scores = op.scores.row(t % op.scores.extent(0)).data();
    const auto score = [scores](std::int32_t e) { return scores[e]; };
    op.counts[t] = keep_best(op.ids.row(t), score, [&](auto& best) {
      auto offer_range = [&](std::int64_t first, std::int64_t last) {
        last = std::min(last, visible);
        if (!packed && last > first && PackedQuery::packs(op.keys.format, width))
          packed.emplace(q, products + heads * kIndexRun);  // only for a query that has keys to score
        for (std::int64_t e = std::max<std::int64_t>(first, 0), count; e < last; e += count) {
          count = std::min({kIndexRun, last - e, op.keys.page_rows - e % op.keys.page_rows});
          const std::byte* rows = op.keys.row(e);
          if (packed && packed->ready() && packed->exact(rows, count)) {
            packed->products(rows, count, products);
          } else {
            unpacked_products(q, op.keys, e, count, key, products);
          }
          numerics::index_scores(op.numeric, products, heads, kIndexRun, count, op.weights.row(t).data(),
                                 op.weight_scale, scores + e);
          for (std::int64_t i = 0; i < count; ++i) best.offer(static_cast<std::int32_t>(e + i));
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
