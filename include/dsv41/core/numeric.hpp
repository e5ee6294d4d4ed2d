// SPDX-License-Identifier: MIT
//
// The two numeric classes. Every result carries its class; within one class and one backend a token's result does not depend on
// the batch it shares, on threads, or on how the prompt was chunked. Source: architecture.md 9; rules in docs/numerics.md.
#pragma once

#include <cstdint>
#include <string_view>

// Those flags drop checks for NaN and let subnormals vanish (case B41).
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "dsv41 needs IEEE arithmetic: compile without -ffast-math and -ffinite-math-only"
#endif

namespace dsv41 {

enum class Numeric : std::uint8_t {
  exact,  ///< float32 activations and sums, weights dequantised exactly, only the model's own cache quantisers applied
  deployed,  ///< the released code: bfloat16 activations, E4M3 inputs of FP8 and FP4 linears, float32 sums
};

constexpr std::string_view numeric_name(Numeric n) noexcept {
  return n == Numeric::exact ? "exact" : "deployed";
}

}  // namespace dsv41
