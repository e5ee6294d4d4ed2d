// SPDX-License-Identifier: MIT
//
// Scores of packed index keys by exact integer sums: the kernel of ops::IndexSelect on a CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/context.hpp"
#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/numeric.hpp"

namespace dsv41::cpu {

/// Keys that are opened and scored together.
inline constexpr std::int64_t kKeyTile = 32;

/// E2M1 values are halves of integers up to 12, their blocks' scales powers of two: q . key over a block is n * unit, |n| <= 32 * 12 * 12.
/// Where the units of all blocks of a query and a key lie within 2^index_spread() of each other, their sum is an integer below 2^24 times
/// the least of them: exact in float32 in any order, so also what numerics::dot rounds to. Other queries and keys are refused.
constexpr std::int64_t index_spread(std::int64_t width) noexcept {
  std::int64_t spread = -1;
  for (std::int64_t most = width * 144; most < 1 << 24; most *= 2) ++spread;
  return spread;
}

/// One query in the kernel's form.
struct IndexQuery {
  std::int64_t heads = 0, width = 0;
  std::uint32_t* values = nullptr;  // [heads, width / 4]: four channels each, signed, in units of half the scale
  std::int32_t* offsets = nullptr;  // [heads, width / 32]: against what the keys' bias adds to n
  float* units = nullptr;           // [heads, width / 32]: a quarter of the scale; 0 where all values are
  float* weights = nullptr;         // [heads]: numerics::index_weight, finite
  std::int64_t spread = 0;          // largest of a head's units over its least, binary orders; negative: refused
};

/// Keys of a tile in the kernel's form.
struct IndexKeys {
  std::uint8_t* values =
      nullptr;              // [width / 8, even and odd, kKeyTile, 4]: channels 8g, 8g + 2, .. of format index, plus 12
  float* units = nullptr;   // [width / 32, kKeyTile]: the scales
  std::int64_t spread = 0;  // as a query's
};

constexpr std::int64_t index_tile_floats(std::int64_t width) noexcept {
  return (width / 4 + width / kScaleBlock) * kKeyTile;
}

/// Fills values, offsets, units and spread from q, heads `stride` apart. The width is a multiple of 32.
void open_query(Target target, const float* q, std::int64_t stride, IndexQuery& query) noexcept;

/// Fills all of keys from kKeyTile rows of format index, which may be the same.
void open_keys(Target target, const std::byte* const* rows, std::int64_t width, IndexKeys& keys) noexcept;

/// numerics::index_scores of kKeyTile keys. The spreads of both, neither refused, are index_spread(width) at most together.
void score_keys(Target target, Numeric numeric, const IndexQuery& query, const IndexKeys& keys, float* scores) noexcept;

/// The first i of [first, end) with x[i] > floor; end: none.
std::int64_t next_above(Target target, const float* x, std::int64_t first, std::int64_t end, float floor) noexcept;

}  // namespace dsv41::cpu
