// SPDX-License-Identifier: MIT
//
// Rows of a cache in their packed form, addressed through a table of pages. This file is the layout: how long a row is, where its scales
// stand, where row i lies. What the bytes mean is in numerics/packed.hpp. Source: serving.md 2.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dsv41/core/hd.hpp"
#include "dsv41/core/matrix.hpp"
#include "dsv41/core/view.hpp"

namespace dsv41 {

/// What a cache holds. A row is contiguous: its values, then its scales, one byte each. In brackets, bytes of a released row.
enum class CacheFormat : std::uint8_t {
  f32,     ///< float32, no scales
  window,  ///< window KV: E4M3, one E8M0 scale per 32 [512 + 16]
  entry,   ///< compressed KV: E2M1, two a byte (even channel in the low nibble), one E4M3 scale per 16 [256 + 32]
  index,   ///< index keys: E2M1 likewise, one E8M0 scale per 32 [64 + 4]
};

constexpr std::string_view cache_format_name(CacheFormat f) noexcept {
  switch (f) {
    case CacheFormat::f32: return "f32";
    case CacheFormat::window: return "window";
    case CacheFormat::entry: return "entry";
    case CacheFormat::index: return "index";
  }
  return "unknown";
}

/// Channels of an entry that share a scale; everywhere else kScaleBlock do.
inline constexpr std::int64_t kEntryBlock = 16;

/// Channels of a row that share a scale.
DSV41_HD constexpr std::int64_t cache_block(CacheFormat f) noexcept {
  return f == CacheFormat::entry ? kEntryBlock : kScaleBlock;
}

/// How rows of this width are stored: float32 where the width is no multiple of the block (architecture.md 6).
DSV41_HD constexpr CacheFormat stored_format(CacheFormat f, std::int64_t width) noexcept {
  return width % cache_block(f) == 0 ? f : CacheFormat::f32;
}

/// Bytes of a row's values; its scales follow.
DSV41_HD constexpr std::int64_t value_bytes(CacheFormat f, std::int64_t width) noexcept {
  switch (stored_format(f, width)) {
    case CacheFormat::f32: return width * static_cast<std::int64_t>(sizeof(float));
    case CacheFormat::window: return width;
    case CacheFormat::entry:
    case CacheFormat::index: return width / 2;
  }
  return 0;
}

DSV41_HD constexpr std::int64_t row_bytes(CacheFormat f, std::int64_t width) noexcept {
  const bool scaled = stored_format(f, width) != CacheFormat::f32;
  return value_bytes(f, width) + (scaled ? width / cache_block(f) : 0);
}

/// A cache [rows, width]. The table and its pages are in the backend's memory; page i holds rows [i * page_rows, (i + 1) * page_rows),
/// the first of them `offset` bytes into the page, so one page may hold the rows of several caches. Rows are at any byte address.
/// A page whose rows an op neither reads nor writes may be null; using a null page is an error at sync().
struct CacheRows {
  CacheFormat format = CacheFormat::f32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  In<std::byte*, 1> pages;
  std::int64_t page_rows = 1;
  std::int64_t offset = 0;

  DSV41_HD constexpr bool empty() const { return rows == 0; }

  /// First byte of row i.
  DSV41_HD std::byte* row(std::int64_t i) const {
    DSV41_DCHECK(i >= 0 && i < rows);
    return pages[i / page_rows] + (offset + i % page_rows * row_bytes(format, width));
  }
};

}  // namespace dsv41
