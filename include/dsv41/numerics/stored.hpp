// SPDX-License-Identifier: MIT
//
// Decoding of stored weights: any run of columns of a Matrix row to float32, exactly. Source: checkpoint.md 2.4.
#pragma once

#include <cstdint>

#include "dsv41/core/matrix.hpp"
#include "dsv41/numerics/formats.hpp"

namespace dsv41::numerics {

/// Columns [first, first + count) of `row`, dequantised.
DSV41_HD inline void decode_row(const Matrix& m, std::int64_t row, std::int64_t first, std::int64_t count, float* out) {
  const std::byte* data = m.data + row * m.row_bytes();
  const std::uint8_t* codes = reinterpret_cast<const std::uint8_t*>(data);
  const std::uint8_t* scales =
      m.scales == nullptr ? nullptr
                          : m.scales + (m.format == Format::fp8_tile ? row / kScaleBlock : row) * m.scale_cols();
  switch (m.format) {
    case Format::f32:
      for (std::int64_t i = 0; i < count; ++i) out[i] = load_unaligned<float>(data + (first + i) * 4);
      return;
    case Format::f16:
      for (std::int64_t i = 0; i < count; ++i)
        out[i] = f16_decode(load_unaligned<std::uint16_t>(data + (first + i) * 2));
      return;
    case Format::bf16:
      for (std::int64_t i = 0; i < count; ++i)
        out[i] = bf16_decode(load_unaligned<std::uint16_t>(data + (first + i) * 2));
      return;
    case Format::fp8_tile:
    case Format::fp8_row:
      for (std::int64_t i = 0, c = first; i < count; ++i, ++c) {
        out[i] = e4m3_decode(codes[c]) * e8m0_decode(scales[c / kScaleBlock]);
      }
      return;
    case Format::fp4_row:
      for (std::int64_t i = 0, c = first; i < count; ++i, ++c) {
        const std::uint8_t pair = codes[c / 2];
        out[i] = e2m1_decode(c % 2 ? pair >> 4 : pair & 15) * e8m0_decode(scales[c / kScaleBlock]);
      }
      return;
  }
}

}  // namespace dsv41::numerics
