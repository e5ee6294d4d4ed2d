// SPDX-License-Identifier: MIT
//
// Reference of ops::Rope.
#pragma once

#include <cstdint>

#include "dsv41/numerics/rope.hpp"
#include "dsv41/ops/rope.hpp"

namespace dsv41::ref {

inline void run(const ops::Rope& op) {
  for (std::int64_t t = 0; t < op.x.extent(0); ++t) {
    for (std::int64_t h = 0; h < op.x.extent(1); ++h) {
      numerics::rotate_row(op.numeric, op.quantiser, op.frequencies.data(), op.frequencies.extent(0), op.positions[t],
                           op.inverse, op.x.extent(2), op.x.row(t).row(h).data());
    }
  }
}

}  // namespace dsv41::ref
