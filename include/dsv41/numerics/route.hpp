// SPDX-License-Identifier: MIT
//
// The router, one token at a time: logits to scores, scores to chosen experts, chosen experts to weights. float32 in both classes.
// Source: architecture.md 5.
#pragma once

#include <cmath>
#include <cstdint>

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

/// The topk experts of the largest score + bias, best first; -1 where the numbers above -infinity run out. Order and ties: topk.hpp.
DSV41_HD inline void route_choose(const float* scores, const float* bias, std::int64_t experts, std::int64_t topk,
                                  std::int32_t* ids) {
  const auto biased = [=](std::int32_t e) { return scores[e] + bias[e]; };
  BestK best(ids, topk, biased);
  for (std::int64_t e = 0; e < experts; ++e) best.offer(static_cast<std::int32_t>(e));
  for (std::int64_t k = best.finish_best_first(); k < topk; ++k) ids[k] = -1;
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
