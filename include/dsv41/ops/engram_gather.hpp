// SPDX-License-Identifier: MIT
//
// Op: reads rows of an n-gram table.
#pragma once

#include <string_view>

#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// out = the dequantised table rows of each token, side by side in column order.
///
/// Shapes:  table_rows [tokens, columns] i64 in [0, table.rows); table [rows, width]; out [tokens, columns * width] f32.
/// Rules:   dequantised exactly; an E4M3 value times a power of two is a bfloat16, so both classes read the same. A row outside
///          the table is an error at sync().
/// Match:   exact.
/// Cost:    columns rows of the table a token, at 64-bit offsets.
/// Source:  architecture.md 7.
struct EngramGather {
  static constexpr std::string_view name = "engram_gather";
  In<std::int64_t, 2> table_rows;
  Matrix table;
  Out<float, 2> out;

  void check() const { expect(name, "out", out, {table_rows.extent(0), table_rows.extent(1) * table.cols}); }
};

}  // namespace dsv41::ops
