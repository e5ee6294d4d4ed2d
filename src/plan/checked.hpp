// SPDX-License-Identifier: MIT
//
// Sums and products of sizes: a valid config bounds each tensor, not what many of them add up to. Private to src/plan.
#pragma once

#include <cstdint>

#include "dsv41/core/error.hpp"

namespace dsv41::plan {

[[noreturn]] inline void too_large() {
  throw Error(Errc::unsupported, "plan: the config's sizes add up to more than 2^63 - 1, expected less");
}

/// a + b. Errors: unsupported.
inline std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (__builtin_add_overflow(a, b, &out)) too_large();
  return out;
}

/// a * b. Errors: unsupported.
inline std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) too_large();
  return out;
}

}  // namespace dsv41::plan
