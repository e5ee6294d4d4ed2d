// SPDX-License-Identifier: MIT
//
// Op: router logits -> chosen experts and their weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dsv41/core/config.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Scores the experts, chooses topk by score + bias, weighs them by the score alone.
///
/// Shapes:  logits [tokens, experts] f32, overwritten by the scores; bias, bias_vl [experts] f32; image [tokens] u8: not zero selects
///          bias_vl; ids [tokens, topk] i32; weights [tokens, topk] f32. ids and weights may not alias inputs.
/// Units:   scores f(logit / gate_temp) dimensionless; scale multiplies after normalisation.
/// Rules:   best (score + bias) first, ties to the lower id, NaN and -infinity never chosen; weights are divided by (their sum
///          in that order + 1e-20) when `normalise` and topk > 1. float32 in both classes.
///          Where a row's scores above -infinity run out, ids are -1 with weight 0.
///          groups > 1 (node-limited, DeepSeek-V3): the experts stand in `groups` equal consecutive groups; a group scores the sum of its
///          two best (score + bias); the best topk_groups groups are kept, ties to the lower group, and no other expert is chosen. A group
///          with fewer than two numbers above -infinity is never kept.
/// Match:   ids exact; weights ulp<4>.
/// Source:  architecture.md 5; the groups: arXiv 2412.19437, section 2.1.2. Released: one group.
struct TopkRoute {
  static constexpr std::string_view name = "topk_route";
  Out<float, 2> logits;
  In<float, 1> bias;
  In<float, 1> bias_vl;
  In<std::uint8_t, 1> image;
  Out<std::int32_t, 2> ids;
  Out<float, 2> weights;
  ScoreFunction score = ScoreFunction::sqrt_softplus;
  float gate_temp = 1;
  float scale = 1;
  bool normalise = true;
  std::int64_t groups = 1;
  std::int64_t topk_groups = 1;

  /// The rules of groups, for whoever builds the op later.
  static void check_groups(std::int64_t experts, std::int64_t topk, std::int64_t groups, std::int64_t topk_groups) {
    expect(name, groups >= 1 && groups <= kMaxGroups && experts % groups == 0, "groups",
           "a divisor of the number of experts, at most 64", groups);
    const std::int64_t size = experts / groups;
    expect(name, groups == 1 || size >= 2, "groups", "at most half the number of experts", groups);
    expect(name, topk_groups >= 1 && topk_groups <= groups, "topk_groups", "between 1 and groups", topk_groups);
    expect(name, topk <= topk_groups * size, "topk_groups", "enough groups for " + std::to_string(topk) + " experts",
           topk_groups);
  }

  void check() const {
    const std::int64_t tokens = logits.extent(0), experts = logits.extent(1), topk = ids.extent(1);
    expect(name, "bias", bias, {experts});
    expect(name, "bias_vl", bias_vl, {experts});
    expect(name, "image", image, {tokens});
    expect(name, topk > 0 && topk <= experts, "ids", "between 1 and the number of experts columns", topk);
    expect(name, "ids", ids, {tokens, topk});
    expect(name, "weights", weights, {tokens, topk});
    check_groups(experts, topk, groups, topk_groups);
  }
};

}  // namespace dsv41::ops
