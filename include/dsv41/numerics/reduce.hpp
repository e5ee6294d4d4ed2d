// SPDX-License-Identifier: MIT
//
// Sums in one fixed order: eight interleaved double lanes, combined in ascending order. A row's result depends on its length only. And
// the largest element, which passes over NaN.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "dsv41/core/hd.hpp"

namespace dsv41::numerics {

inline constexpr std::int64_t kLanes = 8;

/// Sum of term(i) for i in [0, count): term i goes to lane i % 8.
template <class Term>
DSV41_HD inline double sum(std::int64_t count, const Term& term) {
  double lane[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lane[j] += static_cast<double>(term(i + j));
  }
  for (std::int64_t j = 0; i + j < count; ++j) lane[j] += static_cast<double>(term(i + j));
  double total = 0;
  for (double l : lane) total += l;
  return total;
}

DSV41_HD inline double dot(const float* a, const float* b, std::int64_t count) {
  return sum(count, [=](std::int64_t i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
}

/// Largest of x[0], x[stride], .. x[(count - 1) * stride]; NaN is passed over; -infinity when nothing is left.
DSV41_HD inline float largest(const float* x, std::int64_t count, std::int64_t stride = 1) {
  float top = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < count; ++i) top = x[i * stride] > top ? x[i * stride] : top;  // std::fmax is a call
  return top;
}

}  // namespace dsv41::numerics
