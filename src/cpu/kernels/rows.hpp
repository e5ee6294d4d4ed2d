// SPDX-License-Identifier: MIT
//
// Kernels of ops that work on whole rows on a CPU: the norm, the rows of an n-gram table, the gate that adds them to the streams.
#pragma once

#include <cstdint>

#include "cpu/context.hpp"
#include "dsv41/ops/engram_gate.hpp"
#include "dsv41/ops/engram_gather.hpp"
#include "dsv41/ops/rms_norm.hpp"

namespace dsv41::cpu {

/// All rows of the op, as numerics/norm.hpp, bit for bit.
void norm_rows(Target target, const ops::RmsNorm& op) noexcept;

/// Rows [first, end) of all that the op gathers, token by token, then column by column. The table is larger than any cache: rows are asked
/// for some way ahead.
void gather_rows(Target target, const ops::EngramGather& op, std::int64_t first, std::int64_t end) noexcept;

/// q_weight * k_weight of stream j to qk [dim], through `scratch` [dim].
void gate_weights(Target target, const ops::EngramGate& op, std::int64_t j, float* qk, float* scratch) noexcept;

/// Streams [first, end) of all tokens, token by token, as numerics/engram_gate.hpp, bit for bit; qk [hc, dim] as gate_weights() left it.
void gate_streams(Target target, const ops::EngramGate& op, const float* qk, std::int64_t first,
                  std::int64_t end) noexcept;

}  // namespace dsv41::cpu
