// SPDX-License-Identifier: MIT
//
// Reference of ops::EngramGather.
#pragma once

#include <cstdint>

#include "dsv41/numerics/stored.hpp"
#include "dsv41/ops/engram_gather.hpp"

namespace dsv41::ref {

inline void run(const ops::EngramGather& op) {
  const std::int64_t width = op.table.cols;
  for (std::int64_t t = 0; t < op.table_rows.extent(0); ++t) {
    for (std::int64_t c = 0; c < op.table_rows.extent(1); ++c) {
      numerics::decode_row(op.table, op.table_rows(t, c), 0, width, op.out.row(t).data() + c * width);
    }
  }
}

}  // namespace dsv41::ref
