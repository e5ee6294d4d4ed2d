// SPDX-License-Identifier: MIT
//
// Packing and unpacking of a cache's rows. The values are those of the quantisers, by the same lines (quantisers.hpp): unpacking what was
// packed gives the bits of quantise_row. The layout is core/cache_rows.hpp's. Source: architecture.md 6, serving.md 2.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/numerics/quantisers.hpp"

namespace dsv41::numerics {

/// Writes the row_bytes(format, width) bytes of `row`, at any address.
DSV41_HD inline void pack_row(CacheFormat format, const float* x, std::int64_t width, std::byte* row) {
  const CacheFormat stored = stored_format(format, width);
  if (stored == CacheFormat::f32) {
    std::memcpy(row, x, static_cast<std::size_t>(value_bytes(stored, width)));
    return;
  }
  const Quantiser q = quantiser_of(stored);
  const std::int64_t block = cache_block(stored);
  std::uint8_t* codes = reinterpret_cast<std::uint8_t*>(row);
  std::uint8_t* scales = codes + value_bytes(stored, width);
  for (std::int64_t b = 0; b < width / block; ++b) {
    scales[b] = scale_encode(q, largest_magnitude(x + b * block, block));
    const float scale = scale_decode(q, scales[b]);
    for (std::int64_t c = b * block; c < (b + 1) * block; ++c) {
      const std::uint8_t code = value_encode(q, x[c], scale);
      if (stored == CacheFormat::window) {
        codes[c] = code;
      } else {  // the even channel comes first and clears the byte
        codes[c / 2] = static_cast<std::uint8_t>(c % 2 == 0 ? code : codes[c / 2] | code << 4);
      }
    }
  }
}

/// Channels [first, first + count) of a packed row.
DSV41_HD inline void unpack_row(CacheFormat format, std::int64_t width, const std::byte* row, std::int64_t first,
                                std::int64_t count, float* out) {
  const CacheFormat stored = stored_format(format, width);
  if (stored == CacheFormat::f32) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = load_unaligned<float>(row + value_bytes(stored, first + i));
    return;
  }
  const Quantiser q = quantiser_of(stored);
  const std::int64_t block = cache_block(stored);
  const std::uint8_t* codes = reinterpret_cast<const std::uint8_t*>(row);
  const std::uint8_t* scales = codes + value_bytes(stored, width);
  for (std::int64_t i = 0, c = first; i < count; ++i, ++c) {
    const std::uint8_t byte = codes[stored == CacheFormat::window ? c : c / 2];
    const int code = stored == CacheFormat::window ? byte : c % 2 ? byte >> 4 : byte & 15;
    out[i] = value_decode(q, static_cast<std::uint8_t>(code)) * scale_decode(q, scales[c / block]);
  }
}

/// Row i of a cache.
DSV41_HD inline void store_row(const CacheRows& cache, std::int64_t i, const float* x) {
  pack_row(cache.format, x, cache.width, cache.row(i));
}
DSV41_HD inline void load_row(const CacheRows& cache, std::int64_t i, float* out) {
  unpack_row(cache.format, cache.width, cache.row(i), 0, cache.width, out);
}

}  // namespace dsv41::numerics
