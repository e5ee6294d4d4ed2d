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
  const std::int64_t width = op.kv.extent(1);
  std::int64_t group = 0;
  for (std::int64_t t = 0; t < op.kv.extent(0); ++t) {
    const std::int64_t position = op.first_position + t, slot = position % op.carry_kv.extent(0);
    std::copy_n(op.kv.row(t).data(), width, op.carry_kv.row(slot).data());
    std::copy_n(op.gate.row(t).data(), width, op.carry_gate.row(slot).data());
    if ((position + 1) % op.ratio != 0) continue;
    const Out<float, 2> kv = op.carry_kv.rows(slot + 1 - op.ratio, op.ratio),
                        gate = op.carry_gate.rows(slot + 1 - op.ratio, op.ratio);
    for (std::int64_t c = 0; c < width; ++c) {
      op.latent(group, c) =
          numerics::pool(op.numeric, kv.data() + c, kv.stride(0), gate.data() + c, gate.stride(0), op.ratio);
    }
    ++group;
  }
}

}  // namespace dsv41::ref
