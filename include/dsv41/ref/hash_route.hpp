// SPDX-License-Identifier: MIT
//
// Reference of ops::HashRoute.
#pragma once

#include <cstdint>

#include "dsv41/numerics/route.hpp"
#include "dsv41/ops/hash_route.hpp"

namespace dsv41::ref {

inline void run(const ops::HashRoute& op) {
  const std::int64_t experts = op.logits.extent(1), topk = op.ids.extent(1);
  for (std::int64_t t = 0; t < op.logits.extent(0); ++t) {
    float* const scores = op.logits.row(t).data();
    std::int32_t* const ids = op.ids.row(t).data();
    numerics::route_scores(op.score, op.gate_temp, scores, experts);
    numerics::route_look_up(op.table.row(op.token_ids[t]).data(), experts, topk, ids);
    numerics::route_weights(scores, ids, topk, op.normalise, op.scale, op.weights.row(t).data());
  }
}

}  // namespace dsv41::ref
