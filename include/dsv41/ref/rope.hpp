// SPDX-License-Identifier: MIT
//
// Reference of ops::Rope.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv41/numerics/rope.hpp"
#include "dsv41/ops/rope.hpp"

namespace dsv41::ref {

/// Cosines and sines of one position.
inline std::size_t workspace_floats(const ops::Rope& op) {
  return static_cast<std::size_t>(2 * op.frequencies.extent(0));
}

/// `workspace`: workspace_floats(op) floats. The angles are computed once for all heads.
inline void run(const ops::Rope& op, float* workspace) {
  const std::int64_t pairs = op.frequencies.extent(0);
  float *const cosines = workspace, *const sines = workspace + pairs;
  for (std::int64_t t = 0; t < op.x.extent(0); ++t) {
    numerics::rope_angles(op.frequencies.data(), pairs, op.positions[t], op.inverse, cosines, sines);
    for (std::int64_t h = 0; h < op.x.extent(1); ++h)
      numerics::rotate_row(op.numeric, op.quantiser, cosines, sines, pairs, op.x.extent(2), op.x.row(t).row(h).data());
  }
}

}  // namespace dsv41::ref
