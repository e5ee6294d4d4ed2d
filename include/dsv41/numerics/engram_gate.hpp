// SPDX-License-Identifier: MIT
//
// The Engram gate of one stream of one token: how well its n-gram key agrees with the stream, and the gated sum.
// Source: architecture.md 7.
#pragma once

#include <cmath>
#include <cstdint>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/norm.hpp"
#include "dsv41/numerics/reduce.hpp"

namespace dsv41::numerics {

/// total / norms / sqrt(dim): the end of engram_dot.
DSV41_HD inline float engram_dot_of(double total, float norms, std::int64_t dim) {
  return static_cast<float>(total) / norms * inverse_root(dim);
}

/// sum(h q k key) / (rms(h) rms(key)) / sqrt(dim); q and k are the stream's weight rows. h * (q * k) is rounded to float32 as one factor,
/// its products with the key are summed wide and rounded once; the divisions and the scale are float32.
DSV41_HD inline float engram_dot(const float* h, const float* q, const float* k, const float* key, std::int64_t dim,
                                 double eps) {
  const auto product = [=](std::int64_t i) {
    return static_cast<double>(h[i] * (q[i] * k[i])) * static_cast<double>(key[i]);
  };
  return engram_dot_of(sum(dim, product), rms(h, dim, eps) * rms(key, dim, eps), dim);
}

/// sigmoid(sign(dot) * sqrt(max(|dot|, 1e-6))); +0 gives sigmoid(1e-3).
DSV41_HD inline float engram_gate(float dot) {
  return sigmoid(std::copysign(std::sqrt(std::fmax(std::fabs(dot), 1e-6f)), dot));
}

/// h += gate * value, rounded as the class says.
DSV41_HD inline void engram_add(Numeric numeric, float gate, const float* value, std::int64_t dim, float* h) {
  for (std::int64_t i = 0; i < dim; ++i) h[i] = activation(numeric, h[i] + gate * value[i]);
}

}  // namespace dsv41::numerics
