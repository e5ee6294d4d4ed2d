// SPDX-License-Identifier: MIT
//
// Op: token ids -> chosen experts, by table; router logits -> their weights. A lineage mode: DeepSeek-V4 routes its first layers so.
#pragma once

#include <cstdint>
#include <string_view>

#include "dsv41/core/config.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// The table names each token's experts, the learned scores weigh them.
///
/// Shapes:  logits [tokens, experts] f32, overwritten by the scores; token_ids [tokens] i32 in [0, vocab); table [vocab, topk] i32;
///          ids [tokens, topk] i32; weights [tokens, topk] f32. ids and weights may not alias inputs.
/// Units:   as TopkRoute.
/// Rules:   ids are the row of the token's id, in the table's order; an entry outside [0, experts), or one that repeats an earlier entry
///          of its row, leaves an empty slot: id -1 with weight 0 (SwigluExperts relies on it). Weights as TopkRoute's, from the scores
///          of the row's experts, summed in the table's order. No bias. float32 in both classes. A token id outside the table is an
///          error at sync().
/// Match:   ids exact; weights ulp<4>.
/// Source:  architecture.md 5 (lineage modes). Released V4.1: not used.
struct HashRoute {
  static constexpr std::string_view name = "hash_route";
  Out<float, 2> logits;
  In<std::int32_t, 1> token_ids;
  In<std::int32_t, 2> table;
  Out<std::int32_t, 2> ids;
  Out<float, 2> weights;
  ScoreFunction score = ScoreFunction::sqrt_softplus;
  float gate_temp = 1;
  float scale = 1;
  bool normalise = true;

  void check() const {
    const std::int64_t tokens = logits.extent(0), experts = logits.extent(1), topk = ids.extent(1);
    expect(name, topk > 0 && topk <= experts, "ids", "between 1 and the number of experts columns", topk);
    expect(name, "token_ids", token_ids, {tokens});
    expect(name, "table", table, {table.extent(0), topk});
    expect(name, "ids", ids, {tokens, topk});
    expect(name, "weights", weights, {tokens, topk});
  }
};

}  // namespace dsv41::ops
