// SPDX-License-Identifier: MIT
//
// Formulas of one element on rows, with the bits of numerics/elementary.hpp. Private to src/cpu.
#pragma once

#include <cstdint>

#include "cpu/context.hpp"
#include "dsv41/core/numeric.hpp"

namespace dsv41::cpu {

/// gate[i] = numerics::weighted_swiglu(numeric, weight, gate[i], up[i], limit)
void weighted_swiglu(Target target, Numeric numeric, float weight, float limit, float* gate, const float* up,
                     std::int64_t count) noexcept;

/// x[i] = numerics::bf16_round(x[i])
void round_row(Target target, float* x, std::int64_t count) noexcept;

}  // namespace dsv41::cpu
