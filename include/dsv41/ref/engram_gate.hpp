// SPDX-License-Identifier: MIT
//
// Reference of ops::EngramGate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv41/numerics/engram_gate.hpp"
#include "dsv41/numerics/stored.hpp"
#include "dsv41/ops/engram_gate.hpp"

namespace dsv41::ref {

/// The two weight rows of one stream.
inline std::size_t workspace_floats(const ops::EngramGate& op) {
  return static_cast<std::size_t>(2 * op.streams.extent(2));
}

inline void run(const ops::EngramGate& op, float* workspace) {
  const std::int64_t hc = op.streams.extent(1), dim = op.streams.extent(2);
  float *const q = workspace, *const k = workspace + dim;
  for (std::int64_t j = 0; j < hc; ++j) {
    numerics::decode_row(op.q_weight, j, 0, dim, q);
    numerics::decode_row(op.k_weight, j, 0, dim, k);
    for (std::int64_t t = 0; t < op.streams.extent(0); ++t) {
      float* const h = op.streams.row(t).row(j).data();
      const float* const key = op.keys_value.row(t).data() + j * dim;
      const float* const value = op.keys_value.row(t).data() + hc * dim;
      const float dot = numerics::engram_dot(h, q, k, key, dim, op.eps);
      const float gate = op.image[t] != 0 ? 0.0f : numerics::engram_gate(dot);
      op.gates(t, j) = gate;
      numerics::engram_add(op.numeric, gate, value, dim, h);
    }
  }
}

}  // namespace dsv41::ref
