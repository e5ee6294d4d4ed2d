// SPDX-License-Identifier: MIT
//
// Reference of ops::Embed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv41/numerics/stored.hpp"
#include "dsv41/ops/embed.hpp"

namespace dsv41::ref {

inline void run(const ops::Embed& op) {
  const std::int64_t hc = op.streams.extent(1), dim = op.streams.extent(2);
  std::int64_t image_row = 0;
  for (std::int64_t t = 0; t < op.ids.extent(0); ++t) {
    float* first = op.streams.row(t).data();
    if (op.image[t] != 0 && image_row < op.image_rows.extent(0)) {
      std::copy_n(op.image_rows.row(image_row++).data(), dim, first);
    } else {
      numerics::decode_row(op.table, op.ids[t], 0, dim, first);
    }
    for (std::int64_t j = 1; j < hc; ++j) std::copy_n(first, dim, op.streams.row(t).row(j).data());
    for (std::int64_t j = 0; j < hc; ++j) op.mix(t, j) = j == 0 ? 1.0f : 0.0f;
  }
}

}  // namespace dsv41::ref
