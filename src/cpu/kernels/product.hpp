// SPDX-License-Identifier: MIT
//
// Products of rows with stored weights: the kernel of ops::Linear, ops::SwigluExperts, ops::Markov and the projection of the seam on a CPU.
#pragma once

#include <cstdint>

#include "cpu/context.hpp"
#include "dsv41/core/matrix.hpp"

namespace dsv41::cpu {

/// Columns of a row that follow each other in memory, at least.
inline constexpr std::int64_t kChunk = 512;

/// Rows that meet one weight matrix.
///
/// Layout:  x [rows] pointers; a row is padded_cols(w.cols) floats, zeros behind w.cols, in the order of pack_row(), cut into chunks of
///          kChunk columns that begin chunk_stride apart. Where there are many rows, chunk by chunk all rows should follow each other: rows
///          a power of two apart meet in the same lines of a cache. Output o of row t goes to y[t * y_stride + o].
struct Product {
  const float* const* x = nullptr;
  std::int64_t chunk_stride = kChunk;
  std::int64_t rows = 0;
  Matrix w;
  float* y = nullptr;
  std::int64_t y_stride = 0;
};

/// Columns of a packed row: whole scale blocks.
constexpr std::int64_t padded_cols(std::int64_t cols) noexcept {
  return scale_blocks(cols) * kScaleBlock;
}

/// Whether products read rows as they are.
constexpr bool reads_plain(const Matrix& w) noexcept {
  return w.format != Format::fp4_row && w.cols % kScaleBlock == 0;
}

/// A row as products with that format read it, [padded_cols(cols)]: for FP4 weights each block of 32 has its even elements first, as the
/// nibbles come. `quantise`: through Quantiser::input_fp8 on the way (class deployed). to may be from.
void pack_row(Target target, Format format, bool quantise, const float* from, std::int64_t cols, float* to) noexcept;

/// Floats of scratch that outputs() needs for so many rows and columns.
std::int64_t product_scratch(std::int64_t rows, std::int64_t cols) noexcept;

/// Outputs [first, end) of all rows.
///
/// Rules:   sixteen float32 lanes; element k of the packed row is added to lane k % 16 by a fused multiply-add, in ascending order; lanes
///          are summed as a tree, i with i + 8, then i + 4, i + 2, i + 1. So a result depends on neither the instruction set, nor on the
///          rows beside it, nor on how outputs are cut into calls. Weights are decoded exactly.
/// Cost:    reads the weights once for up to a few rows, and once for some dozen rows otherwise.
void outputs(Target target, const Product& product, std::int64_t first, std::int64_t end, float* scratch) noexcept;

}  // namespace dsv41::cpu
