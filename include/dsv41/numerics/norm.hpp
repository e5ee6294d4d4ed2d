// SPDX-License-Identifier: MIT
//
// RMS statistics and norms of one row. eps comes from the config: the released 1e-20 is far below float32's rounding of the mean, so
// the statistic is formed in double and a zero row stays exactly zero. Source: architecture.md 2.
#pragma once

#include <cmath>
#include <cstdint>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/reduce.hpp"

namespace dsv41::numerics {

/// sqrt(mean(x^2) + eps), from the sum of squares
DSV41_HD inline float rms_of(double squares, std::int64_t count, double eps) {
  return static_cast<float>(std::sqrt(squares / static_cast<double>(count) + eps));
}

/// sqrt(mean(x^2) + eps)
DSV41_HD inline float rms(const float* x, std::int64_t count, double eps) {
  return rms_of(dot(x, x, count), count, eps);
}

/// y = w * (x / rms(x)), rounded as the class says. y may be x.
DSV41_HD inline void rms_norm_row(const float* x, const float* w, std::int64_t count, double eps, Numeric numeric,
                                  float* y) {
  const float r = rms(x, count, eps);
  for (std::int64_t i = 0; i < count; ++i) y[i] = activation(numeric, w[i] * (x[i] / r));
}

}  // namespace dsv41::numerics
