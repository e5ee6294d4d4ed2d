// SPDX-License-Identifier: MIT
//
// Rotary positions: the frequency table of a layer kind, and the rotation of one row's trailing channels. Adjacent pairs (2i, 2i+1)
// are complex numbers. Source: architecture.md 3.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "dsv41/core/config.hpp"
#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/quantisers.hpp"

namespace dsv41::numerics {

/// Writes rope_dim / 2 frequencies. The power is rounded to float32 before the float32 reciprocal. `yarn` null: plain base.
inline void rope_frequencies(double theta, std::int64_t rope_dim, const YarnConfig* yarn, float* out) {
  const std::int64_t pairs = rope_dim / 2;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope_dim);
    out[i] = 1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
  }
  if (yarn == nullptr || yarn->original_positions == 0) return;
  constexpr double kPi = 3.14159265358979323846;
  auto turn = [&](double beta) {
    return static_cast<double>(rope_dim) * std::log(static_cast<double>(yarn->original_positions) / (beta * 2 * kPi)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(turn(yarn->beta_fast)), 0.0);
  double high = std::min(std::ceil(turn(yarn->beta_slow)), static_cast<double>(rope_dim - 1));
  if (high == low) high += 0.001;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    const float share = std::fmin(std::fmax(ramp, 0.0f), 1.0f);
    out[i] = out[i] / static_cast<float>(yarn->factor) * share + out[i] * (1.0f - share);
  }
}

/// Cosine and sine of the angle of `position`: one float32 product, then functions accurate to float32.
DSV41_HD inline void rope_angle(std::int64_t position, float frequency, float* cosine, float* sine) {
  const float angle = static_cast<float>(position) * frequency;
  *cosine = static_cast<float>(std::cos(static_cast<double>(angle)));
  *sine = static_cast<float>(std::sin(static_cast<double>(angle)));
}

/// Multiplies the pair by (cosine + i sine), rounded as the class says.
DSV41_HD inline void rotate_pair(Numeric numeric, float cosine, float sine, float* pair) {
  const float even = pair[0], odd = pair[1];
  pair[0] = activation(numeric, even * cosine - odd * sine);
  pair[1] = activation(numeric, even * sine + odd * cosine);
}

/// Cosines and sines [pairs] of a position; `inverse`: of the negative angles.
DSV41_HD inline void rope_angles(const float* frequencies, std::int64_t pairs, std::int64_t position, bool inverse,
                                 float* cosines, float* sines) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    rope_angle(position, frequencies[i], cosines + i, sines + i);
    if (inverse) sines[i] = -sines[i];
  }
}

/// One row in place: its trailing 2 * pairs channels rotated by the angles, every channel rounded as the class says, then the row
/// quantised: rotation comes before the quantiser.
DSV41_HD inline void rotate_row(Numeric numeric, Quantiser quantiser, const float* cosines, const float* sines,
                                std::int64_t pairs, std::int64_t width, float* x) {
  const std::int64_t plain = width - 2 * pairs;
  if (numeric == Numeric::deployed) {
    for (std::int64_t i = 0; i < plain; ++i) x[i] = bf16_round(x[i]);
  }
  for (std::int64_t i = 0; i < pairs; ++i) rotate_pair(numeric, cosines[i], sines[i], x + plain + 2 * i);
  quantise_row(quantiser, x, width);
}

}  // namespace dsv41::numerics
