// SPDX-License-Identifier: MIT
//
// Reference of ops::TopkRoute.
#pragma once

#include <cstdint>

#include "dsv41/numerics/route.hpp"
#include "dsv41/ops/topk_route.hpp"

namespace dsv41::ref {

inline void run(const ops::TopkRoute& op) {
  const std::int64_t experts = op.logits.extent(1), topk = op.ids.extent(1);
  for (std::int64_t t = 0; t < op.logits.extent(0); ++t) {
    float* const scores = op.logits.row(t).data();
    std::int32_t* const ids = op.ids.row(t).data();
    const In<float, 1> bias = op.image[t] != 0 ? op.bias_vl : op.bias;
    numerics::route_scores(op.score, op.gate_temp, scores, experts);
    numerics::route_choose(scores, bias.data(), experts, topk, ids, op.groups, op.topk_groups);
    numerics::route_weights(scores, ids, topk, op.normalise, op.scale, op.weights.row(t).data());
  }
}

}  // namespace dsv41::ref
