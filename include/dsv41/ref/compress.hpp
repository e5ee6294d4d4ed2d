// SPDX-License-Identifier: MIT
//
// Reference of ops::Compress.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv41/numerics/pool.hpp"
#include "dsv41/ops/compress.hpp"

namespace dsv41::ref {

inline void run(const ops::Compress& op) {
  const std::int64_t width = op.kv.extent(1), ratio = op.carry_kv.extent(0);
  std::int64_t group = 0;
  for (std::int64_t t = 0; t < op.kv.extent(0); ++t) {
    const std::int64_t slot = (op.first_position + t) % ratio;
    std::copy_n(op.kv.row(t).data(), width, op.carry_kv.row(slot).data());
    std::copy_n(op.gate.row(t).data(), width, op.carry_gate.row(slot).data());
    if (slot != ratio - 1) continue;
    for (std::int64_t c = 0; c < width; ++c) {
      op.latent(group, c) = numerics::pool(op.numeric, op.carry_kv.data() + c, op.carry_kv.stride(0),
                                           op.carry_gate.data() + c, op.carry_gate.stride(0), ratio);
    }
    ++group;
  }
}

}  // namespace dsv41::ref
