// SPDX-License-Identifier: MIT
//
// Op: rows into a cache: rotate, quantise, store. One op serves the window ring, the compressed entries and the index keys.
#pragma once

#include <string_view>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Row i is rotated at position first_position + i * position_stride, packed by the quantiser of the cache's format (none: f32, or a
/// width that is no multiple of its block), and stored in slot (first_slot + i) % capacity.
///
/// Shapes:  rows [n, width] f32, overwritten with what the cache gives back; frequencies [pairs]; cache [capacity, width] of any
///          format; n <= capacity.
/// Layout:  unit inner stride; rows may not alias the cache.
/// Rules:   as Rope.
/// Match:   as Rope; the stored bytes unpack to exactly the values left in rows.
/// Source:  architecture.md 3 (window, compressor) and 6; serving.md 2.2.
struct CacheAppend {
  static constexpr std::string_view name = "cache_append";
  Out<float, 2> rows;
  In<float, 1> frequencies;
  CacheRows cache;
  std::int64_t first_position = 0;
  std::int64_t position_stride = 1;
  std::int64_t first_slot = 0;
  Numeric numeric = Numeric::exact;

  void check() const {
    expect_unit_stride(name, "rows", rows);
    expect_position(name, first_position);
    expect(name, "cache", cache, cache.format, rows.extent(0), rows.extent(1));
    expect(name, 2 * frequencies.extent(0) <= rows.extent(1), "frequencies", "at most half the width",
           frequencies.extent(0));
  }
};

}  // namespace dsv41::ops
