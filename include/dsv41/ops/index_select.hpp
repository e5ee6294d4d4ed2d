// SPDX-License-Identifier: MIT
//
// Op: the indexer: scores the visible entries of a sequence for each query and keeps the best, over all of them or over candidate blocks.
#pragma once

#include <string_view>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

enum class CandidateUse : std::uint8_t {
  none,     ///< select among all visible entries
  publish,  ///< the same, and write the best blocks for later layers
  limited   ///< score and select only inside the published blocks
};

/// score(j) = sum over heads of w_h * relu(q_h . k_j), w = weights * weight_scale; entry j is visible to position p iff
/// j < (p + 1) / ratio.
///
/// Shapes:  q [tokens, heads, width] f32, quantised; weights [tokens, heads] f32; keys [capacity, width] of format index or f32;
///          ids [tokens, topk] i32; counts [tokens] i32; blocks [tokens, kept] i32; block_counts [tokens] i32 (both empty without
///          candidates).
///          scores [s, >= visible] and block_scores [s, >= visible / block] f32 are workspace: row t uses row t % s. With s = tokens
///          every score survives the call; scores of entries outside the candidate blocks are left untouched.
/// Rules:   keeps min(topk, visible) entries: larger score first, then the lower index; NaN never. ids and blocks are ascending.
///          A block scores its largest visible entry; the block of the newest visible entry is always kept, before any other and
///          whatever they score; blocks without a visible entry never are. Fewer than topk entries inside the blocks: only those.
///          A block id without visible entries, negative ones included, gives none.
///          Limited: only pages that hold visible candidate entries are used, only those entries' scores written.
///          Deployed: w, each q.k, each weighted term and the sum are rounded to bfloat16.
/// Match:   ids and blocks exact where scores are not tied in their last bits.
/// Cost:    tokens * visible * heads * width multiply-adds (limited: candidate entries only); no allocation.
/// Source:  architecture.md 4 and 9.
struct IndexSelect {
  static constexpr std::string_view name = "index_select";
  In<float, 3> q;
  In<float, 2> weights;
  CacheRows keys;  // read
  Out<std::int32_t, 2> ids;
  Out<std::int32_t, 1> counts;
  Out<std::int32_t, 2> blocks;
  Out<std::int32_t, 1> block_counts;
  Out<float, 2> scores;
  Out<float, 2> block_scores;
  std::int64_t first_position = 0;
  std::int64_t ratio = 1;
  std::int64_t block = 0;  ///< entries a candidate block
  float weight_scale = 1;
  CandidateUse candidates = CandidateUse::none;
  Numeric numeric = Numeric::exact;

  void check() const {
    expect_position(name, first_position);
    expect(name, ratio > 0, "ratio", "at least 1", ratio);
    const std::int64_t tokens = q.extent(0), visible = (first_position + tokens) / ratio;
    expect_unit_stride(name, "q", q);
    expect(name, "weights", weights, {tokens, q.extent(1)});
    expect(name, "keys", keys, CacheFormat::index, visible, q.extent(2));
    expect(name, "ids", ids, {tokens, ids.extent(1)});
    expect(name, "counts", counts, {tokens});
    expect_at_least(name, "scores", scores, {1, visible});
    if (candidates == CandidateUse::none) return;
    expect(name, block > 0, "block", "a positive size", block);
    expect(name, "blocks", blocks, {tokens, blocks.extent(1)});
    expect(name, "block_counts", block_counts, {tokens});
    if (candidates == CandidateUse::limited) return;
    expect(name, "block_scores", block_scores, {scores.extent(0), block_scores.extent(1)});
    expect_at_least(name, "block_scores", block_scores, {1, (visible + block - 1) / block});
  }
};

}  // namespace dsv41::ops
