// SPDX-License-Identifier: MIT
//
// Ops of whole rows on the CPU: ops::RmsNorm, ops::EngramGather and ops::EngramGate, cut into runs of rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/context.hpp"
#include "cpu/kernels/rows.hpp"

namespace dsv41::cpu {

inline std::size_t workspace_floats(const ops::RmsNorm&, const Context&) {
  return 0;
}

inline void run(const ops::RmsNorm& op, const Context& context, float*) {
  context.each_part(op.x.extent(0), piece_rows(op.x.extent(1)),
                    [&](std::int64_t first, std::int64_t end, std::int64_t) {
                      ops::RmsNorm part = op;
                      part.x = op.x.rows(first, end - first);
                      part.y = op.y.rows(first, end - first);
                      norm_rows(context.target, part);
                    });
}

inline std::size_t workspace_floats(const ops::EngramGather&, const Context&) {
  return 0;
}

/// Rows that several tokens share are read again: from a cache, and decoding one costs less than finding out.
inline void run(const ops::EngramGather& op, const Context& context, float*) {
  context.each_part(
      op.table_rows.size(), piece_rows(op.table.cols),
      [&](std::int64_t first, std::int64_t end, std::int64_t) { gather_rows(context.target, op, first, end); });
}

/// The product of the two weights, and a row for each worker.
inline std::size_t workspace_floats(const ops::EngramGate& op, const Context& context) {
  const std::int64_t rows = op.streams.extent(1) + context.workers.count();
  return static_cast<std::size_t>(rows * op.streams.extent(2));
}

inline void run(const ops::EngramGate& op, const Context& context, float* workspace) {
  const std::int64_t hc = op.streams.extent(1), dim = op.streams.extent(2);
  float *const qk = workspace, *const scratch = qk + hc * dim;
  context.each(hc, [&](std::int64_t j, std::int64_t worker) {
    gate_weights(context.target, op, j, qk + j * dim, scratch + worker * dim);
  });
  context.each_part(
      op.streams.extent(0) * hc, piece_rows(dim),
      [&](std::int64_t first, std::int64_t end, std::int64_t) { gate_streams(context.target, op, qk, first, end); });
}

}  // namespace dsv41::cpu
