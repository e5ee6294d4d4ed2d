// SPDX-License-Identifier: MIT
//
// The kernel of the residual-stream ops on a CPU: one pass over some channels of some tokens that expands, collapses and projects, each
// where it is asked to. So a seam and its parts run the same instructions.
#pragma once

#include <cstdint>

#include "cpu/context.hpp"
#include "dsv41/core/matrix.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/core/view.hpp"
#include "dsv41/ops/mhc.hpp"

namespace dsv41::cpu {

/// Channels whose products make one part of a projection: what fixes the order of its sum.
inline constexpr std::int64_t kMhcChunk = 128;

constexpr std::int64_t mhc_chunks(std::int64_t dim) noexcept {
  return (dim + kMhcChunk - 1) / kMhcChunk;
}

/// Outputs of fn, in whole fours.
constexpr std::int64_t mhc_outputs(std::int64_t hc) noexcept {
  return ((2 + hc) * hc + 3) / 4 * 4;
}

/// What happens to the streams of some tokens. Views as in ops/mhc.hpp.
struct MhcPass {
  In<float, 3> streams;
  In<float, 2> mix;    // old coefficients, for expand and collapse
  In<float, 2> y;      // expand: unless empty
  Out<float, 3> next;  // with y: the same streams, updated in place
  Out<float, 2> x;     // collapsed streams, unless empty
  Matrix fn;           // projects, unless empty
  Numeric numeric = Numeric::exact;
};

/// What a pass leaves of the projection of some tokens, and of their squares, chunk by chunk.
struct MhcParts {
  float* sums = nullptr;      // [tokens, mhc_chunks(dim), mhc_outputs(hc)]
  double* squares = nullptr;  // [tokens, mhc_chunks(dim)]
};

/// Floats of scratch that mhc_pass() needs.
std::int64_t mhc_scratch(std::int64_t hc) noexcept;

/// Channels [first, end) of all tokens of the pass; first is a multiple of kMhcChunk, and so is end unless it is dim.
///
/// Rules:   expand and collapse as numerics/mhc.hpp, bit for bit. Sums of a chunk: sixteen float32 lanes, channel c to lane c % 16 by fused
///          multiply-add, stream by stream, then the tree of lanes-inl.hpp; squares likewise in eight double lanes.
/// Cost:    reads and writes the streams once, and reads fn once.
void mhc_pass(Target target, const MhcPass& pass, std::int64_t first, std::int64_t end, const MhcParts& parts,
              float* scratch) noexcept;

/// Coefficients from the parts of all tokens of the op: chunks added in ascending order, then as numerics/mhc.hpp.
void mhc_coefficients(Target target, const ops::MhcCoefficients& op, const MhcParts& parts) noexcept;

/// Mean of the streams of all tokens of the op.
void stream_mean(Target target, const ops::StreamMean& op) noexcept;

}  // namespace dsv41::cpu
