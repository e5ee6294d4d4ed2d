// SPDX-License-Identifier: MIT
//
// How close is close: the `Match:` classes of the ops' docstrings, stated once with their reasons.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "dsv41/core/numeric.hpp"

namespace dsv41::test {

/// norm<1e-6>: float32 rounding leaves about 1e-7 of a vector's length; a lost term of a sum of 1000 leaves 3e-2.
inline constexpr double kNorm = 1e-6;
/// Sums kept in float32 (docs/numerics.md, CPU backend): an addition rounds by 6e-8 of a partial sum, which is no larger than the sum of
/// the terms' magnitudes; some hundred of them in a lane, up and down, leave a few times that. A lost term of 1000 leaves 1e-3.
inline constexpr double kTerms = 1e-6;
/// norm<1e-5> (attention): exp of a float32 logit carries the logit's rounding, up to |logit| * 6e-8.
inline constexpr double kNormAttention = 1e-5;
/// ulp<1>: one wide sum, rounded once.
inline constexpr std::int64_t kUlpSeam = 1;
/// ulp<4>: a score (2), its square root, the sum of a few scores and the division.
inline constexpr std::int64_t kUlpRoute = 4;
/// A rotation and its inverse: each of the two rounds two products, a sum, a cosine and a sine, by half a step each.
inline constexpr double kRotationBack = 4 * 0x1p-23;
/// Class `deployed`: a sum that float32 rounds otherwise falls on the other side of a bfloat16 boundary about once in 2^16 / 2^8 values
/// (measured over whole sublayers, tests/golden/README.md: 99.4 % equal; a wrong rounding rule leaves 78 to 94 %). The value then moves
/// by one bfloat16 step, at most 2^-7 of it: 1 % of such values is a norm of 2^-10.3.
inline constexpr double kDeployedEqual = 0.99, kDeployedStep = 0x1p-7, kDeployedNorm = 0x1p-9;

/// |got - want| / |want| over all elements; 0 / 0 is 0. Infinite where the sizes or the non-finite elements differ.
template <class T = float>
double norm_error(const std::vector<T>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return HUGE_VAL;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double g = static_cast<double>(got[i]), w = want[i];
    if (!std::isfinite(g) || !std::isfinite(w)) {
      if (g == w || (std::isnan(g) && std::isnan(w))) continue;
      return HUGE_VAL;
    }
    error += (g - w) * (g - w);
    norm += w * w;
  }
  return error == 0 ? 0 : std::sqrt(error / norm);
}

/// Distance of two floats in steps of float32; NaN equals NaN and is far from everything else.
inline std::int64_t ulps(float a, float b) {
  if (std::isnan(a) || std::isnan(b))
    return std::isnan(a) && std::isnan(b) ? 0 : std::numeric_limits<std::int64_t>::max();
  const auto order = [](float x) {
    const std::int64_t magnitude = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
    return std::signbit(x) ? -magnitude : magnitude;
  };
  return std::abs(order(a) - order(b));
}

inline std::int64_t worst_ulps(const std::vector<float>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return std::numeric_limits<std::int64_t>::max();
  std::int64_t worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, ulps(got[i], static_cast<float>(want[i])));
  return worst;
}

inline double equal_share(const std::vector<float>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return 0;
  std::size_t equal = 0;
  for (std::size_t i = 0; i < got.size(); ++i) equal += static_cast<double>(got[i]) == want[i];
  return got.empty() ? 1 : static_cast<double>(equal) / static_cast<double>(got.size());
}

/// Values rounded in steps (bfloat16 or a block quantiser): all but a few equal, and those a step away. Of so few values that
/// kDeployedEqual allows none, one may differ.
inline void check_rounded(const std::vector<float>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  const double one = got.empty() ? 0 : 1.0 / static_cast<double>(got.size());
  const bool few = one > 1 - kDeployedEqual;
  CHECK(equal_share(got, want) >= (few ? 1 - one : kDeployedEqual));
  CHECK(norm_error(got, want) <= (few ? kDeployedStep : kDeployedNorm));
}

inline void check_close(const std::vector<float>& got, const std::vector<double>& want, Numeric numeric,
                        double tolerance = kNorm) {
  if (numeric == Numeric::deployed) return check_rounded(got, want);
  CHECK(norm_error(got, want) <= tolerance);
}

/// Sums of float32: each within kTerms of what the magnitudes of its terms sum up to.
inline void check_terms(const std::vector<float>& got, const std::vector<double>& want,
                        const std::vector<double>& sizes) {
  REQUIRE(got.size() == want.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
    worst = std::max(worst, error == 0 ? 0 : error / sizes[i]);
  }
  CHECK(worst <= kTerms);
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace dsv41::test
