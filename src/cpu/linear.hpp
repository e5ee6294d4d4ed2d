// SPDX-License-Identifier: MIT
//
// ops::Linear on the CPU: rows packed as the kernel reads them, outputs cut into pieces. PackedRows and the pieces serve the experts too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/context.hpp"
#include "cpu/kernels/elementary.hpp"
#include "cpu/kernels/product.hpp"
#include "dsv41/ops/linear.hpp"

namespace dsv41::cpu {

/// Outputs of a piece: whole scale blocks, so that a piece of hidden values can be quantised where it was made. A piece is long enough for
/// reading ahead to pay, and there are enough of them to keep some workers busy to the end.
inline std::int64_t piece_outputs(const Matrix& w, std::int64_t rows) {
  constexpr std::int64_t kBytes = 32 * 1024, kMostBytes = 256 * 1024, kProducts = 1 << 21, kPieces = 24;
  const std::int64_t row = std::max<std::int64_t>(w.row_bytes(), 1);
  const std::int64_t by_bytes = std::clamp(w.rows * row / kPieces, kBytes, kMostBytes) / row;
  const std::int64_t by_products = kProducts / std::max<std::int64_t>(w.cols * rows, 1);
  return std::max<std::int64_t>(std::min(by_bytes, by_products) / kScaleBlock, 1) * kScaleBlock;
}

/// Rows in the form that products read, [rows, cols] with the chunks of product.hpp: few rows one after the other, many chunk by chunk.
class PackedRows {
 public:
  PackedRows() = default;
  PackedRows(std::int64_t rows, std::int64_t cols, Cut& cut)
      : row_stride_(rows > kFew ? kChunk : chunks(cols) * kChunk),
        chunk_stride_(rows > kFew ? rows * kChunk : kChunk),
        data_(cut.take<float>(rows * chunks(cols) * kChunk)) {}

  const float* row(std::int64_t t) const { return data_ + t * row_stride_; }
  std::int64_t chunk_stride() const { return chunk_stride_; }

  /// Columns [first, first + count) of row t, whole scale blocks but the last, from `from`.
  void put(Target target, Format format, bool quantise, std::int64_t t, std::int64_t first, std::int64_t count,
           const float* from) const {
    for (std::int64_t k = 0, some; k < count; k += some) {
      const std::int64_t column = first + k;
      some = std::min(kChunk - column % kChunk, count - k);
      pack_row(target, format, quantise, from + k, some,
               data_ + t * row_stride_ + column / kChunk * chunk_stride_ + column % kChunk);
    }
  }

  /// Whether rows of these may be read where they are: few, or in lines of their own that do not meet in a cache.
  static bool serves(In<float, 2> x, std::int64_t cols) {
    if (x.extent(0) <= kFew) return true;
    const bool aligned = reinterpret_cast<std::uintptr_t>(x.data()) % 64 == 0 && x.stride(0) % 16 == 0;
    return aligned && cols <= kChunk;
  }

 private:
  static constexpr std::int64_t kFew = 4;
  static std::int64_t chunks(std::int64_t cols) { return (cols + kChunk - 1) / kChunk; }

  std::int64_t row_stride_ = 0, chunk_stride_ = 0;
  float* data_ = nullptr;
};

/// Rows of a piece where there are many: a block of them stays in the second-level cache while outputs go by.
inline constexpr std::int64_t kPieceRows = 192;

/// The parts of a workspace that a Linear takes.
struct LinearSpace {
  const float** x = nullptr;  // [groups, rows]
  bool packs = false;         // or rows are read as they are
  PackedRows packed;          // [rows * groups, w.cols]: group by group
  float* scratch = nullptr;   // [workers, each]
  std::int64_t each = 0;

  LinearSpace(const ops::Linear& op, const Context& context, Cut& cut) {
    const std::int64_t rows = op.x.extent(0);
    x = cut.take<const float*>(rows * op.groups);
    packs = op.quantises_input() || !reads_plain(op.w) || !PackedRows::serves(op.x, op.w.cols);
    if (packs) packed = PackedRows(rows * op.groups, op.w.cols, cut);
    each = product_scratch(rows, op.w.cols);
    scratch = cut.take<float>(each * context.workers.count());
  }
};

inline std::size_t workspace_floats(const ops::Linear& op, const Context& context) {
  Cut cut;
  LinearSpace(op, context, cut);
  return cut.floats();
}

inline void run(const ops::Linear& op, const Context& context, float* workspace) {
  Cut cut(workspace);
  const LinearSpace space(op, context, cut);
  const std::int64_t rows = op.x.extent(0), cols = op.w.cols, group = op.w.rows / op.groups;
  if (rows == 0 || op.w.rows == 0) return;
  if (space.packs) {
    context.each_part(rows * op.groups, piece_rows(cols), [&](std::int64_t first, std::int64_t end, std::int64_t) {
      for (std::int64_t i = first; i < end; ++i) {
        space.packed.put(context.target, op.w.format, op.quantises_input(), i, 0, cols,
                         op.x.row(i % rows).data() + i / rows * cols);
      }
    });
  }
  for (std::int64_t i = 0; i < rows * op.groups; ++i)
    space.x[i] = space.packs ? space.packed.row(i) : op.x.row(i % rows).data() + i / rows * cols;
  const std::int64_t some = std::min(rows, kPieceRows), row_parts = (rows + some - 1) / some;
  const std::int64_t outputs_each = std::min(piece_outputs(op.w, some), group),
                     parts = (group + outputs_each - 1) / outputs_each;
  context.each(op.groups * parts * row_parts, [&](std::int64_t piece, std::int64_t worker) {
    const std::int64_t part = piece % parts, g = piece / parts % op.groups, t = piece / parts / op.groups * some;
    const std::int64_t count = std::min(some, rows - t);
    const std::int64_t first = g * group + part * outputs_each, end = std::min((g + 1) * group, first + outputs_each);
    const Out<float, 2> y = op.y.rows(t, count);
    outputs(context.target,
            {.x = space.x + g * rows + t,
             .chunk_stride = space.packs ? space.packed.chunk_stride() : kChunk,
             .rows = count,
             .w = op.w,
             .y = y.data(),
             .y_stride = y.stride(0)},
            first, end, space.scratch + worker * space.each);
    if (!op.rounds_output()) return;
    for (std::int64_t i = 0; i < count; ++i) round_row(context.target, y.row(i).data() + first, end - first);
  });
}

}  // namespace dsv41::cpu
