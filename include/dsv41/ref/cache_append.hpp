// SPDX-License-Identifier: MIT
//
// Reference of ops::CacheAppend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv41/numerics/packed.hpp"
#include "dsv41/numerics/rope.hpp"
#include "dsv41/ops/cache_append.hpp"

namespace dsv41::ref {

/// Cosines and sines of one position.
inline std::size_t workspace_floats(const ops::CacheAppend& op) {
  return static_cast<std::size_t>(2 * op.frequencies.extent(0));
}

/// `workspace`: workspace_floats(op) floats.
inline void run(const ops::CacheAppend& op, float* workspace) {
  const std::int64_t width = op.rows.extent(1), pairs = op.frequencies.extent(0);
  float *const cosines = workspace, *const sines = workspace + pairs;
  for (std::int64_t i = 0; i < op.rows.extent(0); ++i) {
    float* row = op.rows.row(i).data();
    numerics::rope_angles(op.frequencies.data(), pairs, op.first_position + i * op.position_stride, false, cosines,
                          sines);
    numerics::rotate_row(op.numeric, numerics::Quantiser::none, cosines, sines, pairs, width, row);
    const std::int64_t slot = (op.first_slot + i) % op.cache.rows;
    numerics::store_row(op.cache, slot, row);
    numerics::load_row(op.cache, slot, row);
  }
}

}  // namespace dsv41::ref
