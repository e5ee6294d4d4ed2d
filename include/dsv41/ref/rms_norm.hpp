// SPDX-License-Identifier: MIT
//
// Reference of ops::RmsNorm.
#pragma once

#include <cstdint>

#include "dsv41/numerics/norm.hpp"
#include "dsv41/ops/rms_norm.hpp"

namespace dsv41::ref {

inline void run(const ops::RmsNorm& op) {
  for (std::int64_t t = 0; t < op.x.extent(0); ++t) {
    numerics::rms_norm_row(op.x.row(t).data(), op.weight.data(), op.x.extent(1), op.eps, op.numeric,
                           op.y.row(t).data());
  }
}

}  // namespace dsv41::ref
