// SPDX-License-Identifier: MIT
//
// Reference of ops::CacheAppend.
#pragma once

#include <cstdint>

#include "dsv41/numerics/packed.hpp"
#include "dsv41/numerics/rope.hpp"
#include "dsv41/ops/cache_append.hpp"

namespace dsv41::ref {

inline void run(const ops::CacheAppend& op) {
  const std::int64_t width = op.rows.extent(1);
  for (std::int64_t i = 0; i < op.rows.extent(0); ++i) {
    float* row = op.rows.row(i).data();
    numerics::rotate_row(op.numeric, numerics::Quantiser::none, op.frequencies.data(), op.frequencies.extent(0),
                         op.first_position + i * op.position_stride, false, width, row);
    const std::int64_t slot = (op.first_slot + i) % op.cache.rows;
    numerics::store_row(op.cache, slot, row);
    numerics::load_row(op.cache, slot, row);
  }
}

}  // namespace dsv41::ref
