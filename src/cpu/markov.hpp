// SPDX-License-Identifier: MIT
//
// ops::Markov on the CPU: two products over the rows of the tokens before.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/context.hpp"
#include "cpu/kernels/product.hpp"
#include "cpu/linear.hpp"
#include "dsv41/numerics/stored.hpp"
#include "dsv41/ops/markov.hpp"

namespace dsv41::cpu {

/// The parts of a workspace that a Markov takes.
struct MarkovSpace {
  float* e = nullptr;         // [rows, rank]
  float* both = nullptr;      // [rows, padded dim + rank]  hidden | e, as confidence reads it
  PackedRows packed;          // [rows, rank]  as head reads it
  const float** x = nullptr;  // [2, rows]
  float* scratch = nullptr;   // [workers, each]
  std::int64_t each = 0, piece = 0;

  MarkovSpace(const ops::Markov& op, const Context& context, Cut& cut) {
    const std::int64_t rows = op.tokens.extent(0), rank = op.embed.cols, wide = std::max(rank, op.confidence.cols);
    e = cut.take<float>(rows * rank);
    both = cut.take<float>(rows * padded_cols(op.confidence.cols));
    packed = PackedRows(rows, rank, cut);
    x = cut.take<const float*>(2 * rows);
    piece = piece_outputs(op.head, rows);
    each = rows * piece + product_scratch(rows, wide);
    scratch = cut.take<float>(each * context.workers.count());
  }
};

inline std::size_t workspace_floats(const ops::Markov& op, const Context& context) {
  Cut cut;
  MarkovSpace(op, context, cut);
  return cut.floats();
}

inline void run(const ops::Markov& op, const Context& context, float* workspace) {
  Cut cut(workspace);
  const MarkovSpace space(op, context, cut);
  const std::int64_t rows = op.tokens.extent(0), rank = op.embed.cols;
  const std::int64_t wide = padded_cols(op.confidence.cols);
  for (std::int64_t t = 0; t < rows; ++t) {
    float* const e = space.e + t * rank;
    std::fill_n(e, rank, 0.0f);
    if (op.tokens[t] >= 0) numerics::decode_row(op.embed, op.tokens[t], 0, rank, e);
    space.packed.put(context.target, op.head.format, false, t, 0, rank, e);
    space.x[t] = space.packed.row(t);
    if (op.confidence.empty()) continue;
    float* const both = space.both + t * wide;
    std::copy_n(op.hidden.row(t).data(), op.confidence.cols - rank, both);
    std::copy_n(e, rank, both + op.confidence.cols - rank);
    pack_row(context.target, op.confidence.format, false, both, op.confidence.cols, both);
    space.x[rows + t] = both;
  }
  context.each_part(op.head.rows, space.piece, [&](std::int64_t first, std::int64_t end, std::int64_t worker) {
    const std::int64_t count = end - first;
    float *const y = space.scratch + worker * space.each, *const inner = y + rows * space.piece;
    outputs(context.target,
            {.x = space.x,
             .chunk_stride = space.packed.chunk_stride(),
             .rows = rows,
             .w = op.head,
             .y = y - first,
             .y_stride = count},
            first, end, inner);
    for (std::int64_t t = 0; t < rows; ++t) {
      for (std::int64_t v = first; v < end; ++v) op.logits(t, v) = op.base(t, v) + y[t * count + v - first];
    }
  });
  if (op.confidence.empty()) return;
  outputs(context.target, {.x = space.x + rows, .rows = rows, .w = op.confidence, .y = op.z.data(), .y_stride = 1}, 0,
          1, space.scratch);
}

}  // namespace dsv41::cpu
