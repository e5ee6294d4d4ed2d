// SPDX-License-Identifier: MIT
//
// Second statements of the model's formulas, in double and in plain words: what tests compare against. Nothing here calls the
// library's numerics; only its enums are shared. Source: architecture.md 6 and 9, checkpoint.md 2.4.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/numerics/quantisers.hpp"

namespace dsv41::test {

using Doubles = std::vector<double>;

/// x to the nearest number of `digits` significant bits whose steps are at least `smallest_step`; ties to the even multiple.
inline double nearest(double x, int digits, double smallest_step) {
  if (x == 0 || !std::isfinite(x)) return x;
  const double step = std::max(std::ldexp(1.0, std::ilogb(x) - digits + 1), smallest_step);
  return std::nearbyint(x / step) * step;
}

inline double to_float(double x) {
  return static_cast<double>(static_cast<float>(x));
}
inline double to_bf16(double x) {
  return nearest(to_float(x), 8, 0x1p-133);
}
inline double to_e4m3(double x) {
  return nearest(x, 4, 0x1p-9);
}
inline double to_e2m1(double x) {
  return nearest(x, 2, 0.5);
}

/// What a stored activation becomes in a class.
inline double as_activation(Numeric numeric, double x) {
  return numeric == Numeric::deployed ? to_bf16(x) : to_float(x);
}

inline double e8m0_value(int code) {
  return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127);
}

inline double e4m3_value(int code) {
  const int exponent = (code / 8) % 16, mantissa = code % 8;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude = exponent == 0 ? mantissa / 512.0 : (1 + mantissa / 8.0) * std::ldexp(1.0, exponent - 7);
  return code >= 128 ? -magnitude : magnitude;
}

inline double e2m1_value(int code) {
  constexpr double kMagnitudes[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return code >= 8 ? -kMagnitudes[code - 8] : kMagnitudes[code];
}

inline double f16_value(int code) {
  const int exponent = (code / 1024) % 32, mantissa = code % 1024;
  const double sign = code >= 32768 ? -1 : 1;
  if (exponent == 31) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

/// 2^ceil(log2 t) without logarithms.
inline double power_of_two_at_least(double t) {
  int exponent = 0;
  return std::frexp(t, &exponent) == 0.5 ? std::ldexp(1.0, exponent - 1) : std::ldexp(1.0, exponent);
}

inline double scale_of(numerics::Quantiser q, double amax) {
  const auto a = static_cast<float>(amax);
  switch (q) {
    case numerics::Quantiser::none: return 1;
    case numerics::Quantiser::window_fp8:
    case numerics::Quantiser::input_fp8:
      return power_of_two_at_least(static_cast<double>(std::max(a, 1e-4f) * (1.0f / 448.0f)));
    case numerics::Quantiser::entry_fp4: return to_e4m3(std::min(to_float(std::max(amax, 6 * 0x1p-9) / 6), 448.0));
    case numerics::Quantiser::index_fp4:
      return power_of_two_at_least(static_cast<double>(std::max(a, 6 * 0x1p-126f) * (1.0f / 6.0f)));
  }
  return 1;
}

/// Whether a row of this width is quantised at all: caches keep rows whose width is no multiple of the block.
inline bool quantises(numerics::Quantiser q, std::int64_t width) {
  if (q == numerics::Quantiser::none) return false;
  return q == numerics::Quantiser::input_fp8 || width % (q == numerics::Quantiser::entry_fp4 ? 16 : 32) == 0;
}

/// A row after a block quantiser and back.
inline Doubles quantised(numerics::Quantiser q, Doubles row) {
  const bool fp4 = q == numerics::Quantiser::entry_fp4 || q == numerics::Quantiser::index_fp4;
  const std::size_t block = q == numerics::Quantiser::entry_fp4 ? 16 : 32;
  if (!quantises(q, static_cast<std::int64_t>(row.size()))) return row;
  for (std::size_t first = 0; first < row.size(); first += block) {
    const std::size_t last = std::min(first + block, row.size());
    double amax = 0;
    for (std::size_t i = first; i < last; ++i) amax = std::max(amax, std::fabs(row[i]));
    const double scale = scale_of(q, amax), limit = fp4 ? 6 : 448;
    for (std::size_t i = first; i < last; ++i) {
      const double v = std::clamp(to_float(row[i] / scale), -limit, limit);
      row[i] = (fp4 ? to_e2m1(v) : to_e4m3(v)) * scale;
    }
  }
  return row;
}

/// The quantiser behind a cache's rows.
inline numerics::Quantiser quantiser_behind(CacheFormat f) {
  using enum numerics::Quantiser;
  return f == CacheFormat::window  ? window_fp8
         : f == CacheFormat::entry ? entry_fp4
         : f == CacheFormat::index ? index_fp4
                                   : none;
}

/// A packed row's values, from the byte layout (serving.md 2.2): all values, then all scales; a width that is no multiple of the block:
/// float32.
inline std::vector<float> unpacked(CacheFormat f, std::int64_t width, const std::uint8_t* row) {
  std::vector<float> out(static_cast<std::size_t>(width));
  if (!quantises(quantiser_behind(f), width)) {
    std::memcpy(out.data(), row, out.size() * sizeof out[0]);
    return out;
  }
  const std::size_t block = f == CacheFormat::entry ? 16 : 32, values = out.size() / (f == CacheFormat::window ? 1 : 2);
  for (std::size_t c = 0; c < out.size(); ++c) {
    const int scale = row[values + c / block];
    const double value = f == CacheFormat::window ? e4m3_value(row[c])
                         : c % 2 == 0             ? e2m1_value(row[c / 2] % 16)
                                                  : e2m1_value(row[c / 2] / 16);
    out[c] = static_cast<float>(value * (f == CacheFormat::entry ? e4m3_value(scale) : e8m0_value(scale)));
  }
  return out;
}

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

inline double root_mean_square(const Doubles& x, double eps) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

/// Rotates the trailing 2 * frequencies.size() channels; the angle is one float32 product.
inline Doubles rotated(Doubles row, std::int64_t position, const std::vector<float>& frequencies, bool inverse) {
  const std::size_t plain = row.size() - 2 * frequencies.size();
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double angle = static_cast<double>(static_cast<float>(position) * frequencies[i]) * (inverse ? -1 : 1);
    const double a = row[plain + 2 * i], b = row[plain + 2 * i + 1];
    const double c = to_float(std::cos(angle)), s = to_float(std::sin(angle));
    row[plain + 2 * i] = a * c - b * s;
    row[plain + 2 * i + 1] = a * s + b * c;
  }
  return row;
}

/// The router's scores in double, of float32 arguments: the softmax's distances from the largest logit are rounded once.
inline Doubles route_scores_of(ScoreFunction score, float gate_temp, Doubles logits) {
  Doubles s;
  double total = 0;
  for (double& x : logits) x = to_float(x / static_cast<double>(gate_temp));
  const double top = logits.empty() ? 0 : *std::max_element(logits.begin(), logits.end());
  for (const double x : logits) total += std::exp(to_float(x - top));
  for (const double x : logits) {
    s.push_back(score == ScoreFunction::sqrt_softplus ? std::sqrt(std::log1p(std::exp(x)))
                : score == ScoreFunction::sigmoid     ? sigmoid(x)
                                                      : std::exp(to_float(x - top)) / total);
  }
  return s;
}

}  // namespace dsv41::test
