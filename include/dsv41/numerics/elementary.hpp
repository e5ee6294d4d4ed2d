// SPDX-License-Identifier: MIT
//
// exp, log1p and what the model builds from them, as fixed sequences of float32 operations: the host's and a device's results are the
// same bits when neither contracts multiply-adds. Each series states its truncation error; the bounds in ulp are those that
// tests/numerics/test_elementary.cpp holds them to.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "dsv41/core/hd.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/numerics/formats.hpp"

namespace dsv41::numerics {

/// exp(x), within 1.1 ulp. Reduces by multiples of ln 2 (its high part, 355 / 512, has nine bits, so n * high is exact); the Taylor
/// polynomial of degree 7 on |r| <= ln(2) / 2 leaves a relative 7.1e-9. Overflows to infinity, underflows through the subnormals to 0.
DSV41_HD inline float exp(float x) {
  if (!(x < 88.75f)) return x > 0 ? std::numeric_limits<float>::infinity() : x;  // large, or NaN
  if (x < -104.0f) return 0.0f;
  const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // adding 1.5 * 2^23 rounds to the nearest integer
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  const std::int32_t k = static_cast<std::int32_t>(n), half = k / 2;  // two factors: 2^k itself may be no normal number
  return p * std::bit_cast<float>((half + 127) << 23) * std::bit_cast<float>((k - half + 127) << 23);
}

/// log(1 + y) for y in [0, 1], within 2 ulp: 2 atanh(s) with |s| <= 0.172; its odd powers up to the eleventh leave a relative 5.1e-11.
DSV41_HD inline float log1p_unit(float y) {
  const bool upper = y > 0.41421356f;
  const float s = upper ? (y - 1.0f) / (y + 3.0f) : y / (y + 2.0f);  // of (1 + y) / 2, or of 1 + y
  const float q = s * s;
  float p = 1.0f / 11.0f;
  p = p * q + 1.0f / 9.0f;
  p = p * q + 1.0f / 7.0f;
  p = p * q + 1.0f / 5.0f;
  p = p * q + 1.0f / 3.0f;
  const float two_atanh = 2.0f * (s + s * q * p);
  return upper ? two_atanh + 0.693147181f : two_atanh;
}

/// 1 / (1 + exp(-x)), within 2.5 ulp.
DSV41_HD inline float sigmoid(float x) {
  return 1.0f / (1.0f + exp(-x));
}

/// x * sigmoid(x)
DSV41_HD inline float silu(float x) {
  return x * sigmoid(x);
}

/// log(1 + exp(x)), within 2.7 ulp and without overflow.
DSV41_HD inline float softplus(float x) {
  return std::fmax(x, 0.0f) + log1p_unit(exp(-std::fabs(x)));
}

/// SwiGLU with the released one-sided clamp of the gate: silu(min(gate, L)) * clamp(up, -L, L); L = 0 is off (architecture.md 5).
DSV41_HD inline float clamped_swiglu(float gate, float up, float limit) {
  if (limit > 0.0f) {
    gate = gate > limit ? limit : gate;  // as clamp_to, NaN stays
    up = clamp_to(up, limit);
  }
  return silu(gate) * up;
}

/// max(x, 0). NaN stays NaN: std::fmax would make it 0, a score that can be selected.
DSV41_HD inline float relu(float x) {
  return x < 0.0f ? 0.0f : x;
}

/// 1 / sqrt(count), formed in double and rounded once: the scale of attention, index scores and the Engram dot.
DSV41_HD inline float inverse_root(std::int64_t count) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(count)));
}

/// What an activation becomes where class `deployed` rounds to bfloat16; class `exact` keeps float32.
DSV41_HD inline float activation(Numeric numeric, float x) {
  return numeric == Numeric::deployed ? bf16_round(x) : x;
}

/// An expert's hidden element: weight * clamped_swiglu, rounded once as the class says.
DSV41_HD inline float weighted_swiglu(Numeric numeric, float weight, float gate, float up, float limit) {
  return activation(numeric, weight * clamped_swiglu(gate, up, limit));
}

}  // namespace dsv41::numerics
