// SPDX-License-Identifier: MIT
//
// The router, one token at a time: logits to scores, scores to chosen experts, chosen experts to weights. float32 in both classes.
// Source: architecture.md 5.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "dsv41/core/config.hpp"
#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/softmax.hpp"
#include "dsv41/numerics/topk.hpp"

namespace dsv41::numerics {

/// Turns a row of logits into scores f(logit / gate_temp), in place.
DSV41_HD inline void route_scores(ScoreFunction function, float gate_temp, float* row, std::int64_t experts) {
  for (std::int64_t e = 0; e < experts; ++e) {
    row[e] /= gate_temp;
    if (function == ScoreFunction::sqrt_softplus) row[e] = std::sqrt(softplus(row[e]));
    if (function == ScoreFunction::sigmoid) row[e] = sigmoid(row[e]);
  }
  if (function == ScoreFunction::softmax) softmax(row, experts);
}

/// Score of a group of experts: the sum of its two largest numbers, float32. NaN is passed over; -infinity or NaN where fewer than two
/// numbers above -infinity are left, so that such a group is never kept.
template <class Score>
DSV41_HD inline float group_score(const Score& score, std::int64_t first, std::int64_t count) {
  float best = -std::numeric_limits<float>::infinity(), second = best;
  for (std::int64_t e = first; e < first + count; ++e) {
    const float s = score(static_cast<std::int32_t>(e));
    if (s > best) {
      second = best, best = s;
    } else if (s > second) {
      second = s;
    }
  }
  return best + second;
}

/// The topk experts of the largest score + bias, best first; -1 where the numbers above -infinity run out. Order and ties: topk.hpp.
/// With groups > 1 (at most kMaxGroups, equal and consecutive) only the experts of the topk_groups groups of the largest group_score
/// are there to choose from.
DSV41_HD inline void route_choose(const float* scores, const float* bias, std::int64_t experts, std::int64_t topk,
                                  std::int32_t* ids, std::int64_t groups = 1, std::int64_t topk_groups = 1) {
  const auto biased = [=](std::int32_t e) { return scores[e] + bias[e]; };
  BestK best(ids, topk, biased);
  const std::int64_t size = experts / groups;
  const auto offer_group = [&](std::int64_t group) {
    for (std::int64_t e = group * size; e < (group + 1) * size; ++e) best.offer(static_cast<std::int32_t>(e));
  };
  if (groups == 1) {
    offer_group(0);
  } else {
    float totals[kMaxGroups];
    std::int32_t kept[kMaxGroups];
    const auto total = [&totals](std::int32_t group) { return totals[group]; };
    BestK best_groups(kept, topk_groups, total);
    for (std::int64_t group = 0; group < groups; ++group) {
      totals[group] = group_score(biased, group * size, size);
      best_groups.offer(static_cast<std::int32_t>(group));
    }
    for (std::int64_t i = 0; i < best_groups.count(); ++i) offer_group(kept[i]);
  }
  for (std::int64_t k = best.finish_best_first(); k < topk; ++k) ids[k] = -1;
}

/// The experts that a row of a hash table names, in its order. An entry that is no expert, or repeats an earlier one of the row, is an
/// empty slot: id -1.
DSV41_HD inline void route_look_up(const std::int32_t* entries, std::int64_t experts, std::int64_t topk,
                                   std::int32_t* ids) {
  for (std::int64_t k = 0; k < topk; ++k) {
    bool usable = entries[k] >= 0 && entries[k] < experts;
    for (std::int64_t before = 0; before < k; ++before) usable = usable && entries[before] != entries[k];
    ids[k] = usable ? entries[k] : -1;
  }
}

/// Weights of the chosen: their scores, without bias, divided by (sum in rank order + 1e-20) when `normalise` and topk > 1, then times
/// scale; 0 for id -1.
DSV41_HD inline void route_weights(const float* scores, const std::int32_t* ids, std::int64_t topk, bool normalise,
                                   float scale, float* weights) {
  float total = 0.0f;
  for (std::int64_t k = 0; k < topk; ++k) total += weights[k] = ids[k] < 0 ? 0.0f : scores[ids[k]];
  const float divisor = normalise && topk > 1 ? total + 1e-20f : 1.0f;
  for (std::int64_t k = 0; k < topk; ++k) weights[k] = weights[k] / divisor * scale;
}

}  // namespace dsv41::numerics
