// SPDX-License-Identifier: MIT
//
// A weight matrix in its stored form: a tagged view of the checkpoint's bytes. The format is read from the file, never assumed,
// and is dispatched on in one place, inside a backend. Elements and scales may lie at any byte address (safetensors does not align).
// Source: checkpoint.md 2.2 and 2.4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dsv41 {

/// How the elements of a stored matrix are encoded.
enum class Format : std::uint8_t {
  f32,       ///< IEEE binary32
  f16,       ///< IEEE binary16
  bf16,      ///< upper half of binary32
  fp8_tile,  ///< E4M3, one E8M0 scale per 32x32 tile: value * scale[row / 32, col / 32]
  fp8_row,   ///< E4M3, one E8M0 scale per row and 32 columns (Engram tables): value * scale[row, col / 32]
  fp4_row,   ///< E2M1, two per byte (even column in the low nibble), one E8M0 scale per row and 32 columns
};

/// Side of a scale block, in elements. One constant for weights and activations (checkpoint.md 3.1).
inline constexpr std::int64_t kScaleBlock = 32;

/// Scale blocks of n elements; the last may be short.
constexpr std::int64_t scale_blocks(std::int64_t n) noexcept {
  return (n + kScaleBlock - 1) / kScaleBlock;
}

constexpr std::string_view format_name(Format f) noexcept {
  switch (f) {
    case Format::f32: return "F32";
    case Format::f16: return "F16";
    case Format::bf16: return "BF16";
    case Format::fp8_tile: return "F8_E4M3 with 32x32 scales";
    case Format::fp8_row: return "F8_E4M3 with row scales";
    case Format::fp4_row: return "FP4 with row scales";
  }
  return "unknown";
}

/// True for the formats whose linears take an E4M3-quantised input in class `deployed` (architecture.md 9).
constexpr bool is_quantised(Format f) noexcept {
  return f == Format::fp8_tile || f == Format::fp8_row || f == Format::fp4_row;
}

/// Stored matrix [rows, cols], row-major, out x in.
struct Matrix {
  Format format = Format::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;                 ///< logical columns: twice the stored bytes of an FP4 row
  const std::byte* data = nullptr;       ///< rows * row_bytes() bytes
  const std::uint8_t* scales = nullptr;  ///< E8M0 bytes, row-major [scale_rows(), scale_cols()]; null for float formats
  std::string_view name;                 ///< the tensor's name in the checkpoint; for messages and traces

  constexpr bool empty() const noexcept { return data == nullptr; }

  constexpr std::int64_t row_bytes() const noexcept {
    switch (format) {
      case Format::f32: return cols * 4;
      case Format::f16:
      case Format::bf16: return cols * 2;
      case Format::fp8_tile:
      case Format::fp8_row: return cols;
      case Format::fp4_row: return cols / 2;
    }
    return 0;
  }

  constexpr std::int64_t scale_rows() const noexcept {
    if (!is_quantised(format)) return 0;
    return format == Format::fp8_tile ? scale_blocks(rows) : rows;
  }

  constexpr std::int64_t scale_cols() const noexcept { return is_quantised(format) ? scale_blocks(cols) : 0; }
};

/// The three matrices of one SwiGLU expert.
struct ExpertWeights {
  Matrix w1;  // [ff, dim]  gate
  Matrix w2;  // [dim, ff]  down
  Matrix w3;  // [ff, dim]  up
};

}  // namespace dsv41
