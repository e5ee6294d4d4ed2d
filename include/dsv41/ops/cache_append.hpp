// SPDX-License-Identifier: MIT
//
// Op: rows into a cache: rotate, quantise, store. One op serves the window ring, the compressed entries and the index keys.
#pragma once

#include <string_view>

#include "dsv41/core/numeric.hpp"
#include "dsv41/numerics/quantisers.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Row i is rotated at position first_position + i * position_stride, quantised, and stored in slot (first_slot + i) % capacity.
///
/// Shapes:  rows [n, width] f32, overwritten; frequencies [pairs]; cache [capacity, width] f32; n <= capacity.
/// Layout:  unit inner stride; rows may not alias cache.
/// Rules:   as Rope; cached values are those a packed cache would give back.
/// Match:   as Rope.
/// Source:  architecture.md 3 (window, compressor) and 6.
struct CacheAppend {
  static constexpr std::string_view name = "cache_append";
  Out<float, 2> rows;
  In<float, 1> frequencies;
  Out<float, 2> cache;
  std::int64_t first_position = 0;
  std::int64_t position_stride = 1;
  std::int64_t first_slot = 0;
  numerics::Quantiser quantiser = numerics::Quantiser::none;
  Numeric numeric = Numeric::exact;

  void check() const {
    expect_unit_stride(name, "rows", rows);
    expect(name, "cache", cache, {cache.extent(0), rows.extent(1)});
    expect_at_least(name, "cache", cache, {rows.extent(0), rows.extent(1)});
    expect(name, 2 * frequencies.extent(0) <= rows.extent(1), "frequencies", "at most half the width",
           frequencies.extent(0));
  }
};

}  // namespace dsv41::ops
