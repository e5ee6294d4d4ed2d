// SPDX-License-Identifier: MIT
//
// Sums and products of sizes: a valid config bounds each tensor, not what many of them add up to; and counts that are none below 0.
// Private to src/plan.
#pragma once

#include <cstdint>
#include <string>

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

/// Errors: invalid_argument for a negative value.
inline void expect_count(const char* who, const char* what, std::int64_t value) {
  if (value >= 0) return;
  throw Error(Errc::invalid_argument,
              std::string(who) + ": " + what + " is " + std::to_string(value) + ", expected at least 0");
}

}  // namespace dsv41::plan
