// SPDX-License-Identifier: MIT
//
// exp, log1p and what is built from them against long double: the largest error over a dense sweep, and the edges.
#include "dsv41/numerics/elementary.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::numerics;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

/// |got - want| in float32 steps at `want`.
double error_in_ulps(float got, long double want) {
  const int exponent = std::max(std::ilogb(want), -126);
  return static_cast<double>(std::fabs(static_cast<long double>(got) - want) / std::ldexp(1.0L, exponent - 23));
}

/// Largest error over floats of both signs with magnitude in [low, high], every `stride`-th bit pattern.
template <class F, class G>
double largest_error(float low, float high, bool negative, const F& f, const G& want, std::uint32_t stride = 1009) {
  double worst = 0;
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(low); bits <= std::bit_cast<std::uint32_t>(high);
       bits += stride) {
    const float x = negative ? -std::bit_cast<float>(bits) : std::bit_cast<float>(bits);
    worst = std::max(worst, error_in_ulps(f(x), want(static_cast<long double>(x))));
  }
  return worst;
}

// As objects, for the standard library's functions of these names are visible too.
constexpr auto kExp = [](float x) { return numerics::exp(x); };
constexpr auto kLog1p = [](float x) { return numerics::log1p_unit(x); };
constexpr auto kSigmoid = [](float x) { return numerics::sigmoid(x); };
constexpr auto kSoftplus = [](float x) { return numerics::softplus(x); };

long double softplus_l(long double x) {
  return std::max(x, 0.0L) + std::log1p(std::exp(-std::fabs(x)));
}

}  // namespace

// Bounds found by such sweeps over every 61st float: exp 1.004, log1p 1.93, sigmoid 2.39 and softplus 2.57 ulp.
constexpr double kExpUlps = 1.1, kLog1pUlps = 2, kSigmoidUlps = 2.5, kSoftplusUlps = 2.7;

TEST_CASE("exp is within an ulp, a hair more at worst, over its whole range, subnormal results included") {
  const auto want = [](long double x) { return std::exp(x); };
  CHECK(largest_error(1e-9f, 88.72f, false, kExp, want) <= kExpUlps);
  CHECK(largest_error(1e-9f, 103.9f, true, kExp, want) <= kExpUlps);
  CHECK(largest_error(0.25f, 88.72f, false, kExp, want, 97) <= kExpUlps);
  CHECK(largest_error(0.25f, 103.9f, true, kExp, want, 97) <= kExpUlps);
}

TEST_CASE("exp at its edges") {
  CHECK(exp(0.0f) == 1.0f);
  CHECK(exp(-0.0f) == 1.0f);
  CHECK(exp(kInf) == kInf);
  CHECK(exp(-kInf) == 0.0f);
  CHECK(std::isnan(exp(kNan)));
  CHECK(exp(104.0f) == kInf);
  CHECK(exp(-104.0f) == 0.0f);
  CHECK(exp(-105.0f) == 0.0f);
  CHECK(exp(88.73f) == kInf);
  CHECK(std::isfinite(exp(88.72f)));
  CHECK(exp(-103.0f) == 0x1p-149f);  // 1.8e-45 lies nearer to one smallest step than to two
  CHECK(exp(-87.5f) > 0.0f);
  CHECK(exp(-87.5f) < std::numeric_limits<float>::min());
  CHECK(exp(0x1p-149f) == 1.0f);
}

TEST_CASE("exp never decreases across its reduction's borders") {
  for (int n = -149; n < 128; ++n) {
    const float border = (static_cast<float>(n) + 0.5f) * 0.69314718f;
    float x = border;
    for (int i = 0; i < 8; ++i) x = std::nextafter(x, -1e9f);
    float last = exp(x);
    for (int i = 0; i < 16; ++i) {
      x = std::nextafter(x, 1e9f);
      const float next = exp(x);
      // A rounding may fall by a step where the polynomial changes; more would be a seam.
      CHECK((next >= last || test::ulps(next, last) <= 1));
      last = next;
    }
  }
}

TEST_CASE("log1p on [0, 1] is within two ulp") {
  const auto want = [](long double x) { return std::log1p(x); };
  CHECK(largest_error(1e-30f, 1.0f, false, kLog1p, want) <= kLog1pUlps);
  CHECK(largest_error(0.01f, 1.0f, false, kLog1p, want, 61) <= kLog1pUlps);
  CHECK(log1p_unit(0.0f) == 0.0f);
  CHECK(std::isnan(log1p_unit(kNan)));
}

TEST_CASE("sigmoid is within 2.5 ulp, and reaches its limits") {
  const auto want = [](long double x) { return 1 / (1 + std::exp(-x)); };
  CHECK(largest_error(1e-9f, 104.0f, false, kSigmoid, want) <= kSigmoidUlps);
  CHECK(largest_error(1e-9f, 86.0f, true, kSigmoid, want) <= kSigmoidUlps);
  CHECK(sigmoid(0.0f) == 0.5f);
  CHECK(sigmoid(-0.0f) == 0.5f);
  CHECK(sigmoid(kInf) == 1.0f);
  CHECK(sigmoid(-kInf) == 0.0f);
  CHECK(sigmoid(104.0f) == 1.0f);
  CHECK(sigmoid(-104.0f) == 0.0f);
  CHECK(std::isnan(sigmoid(kNan)));
}

TEST_CASE("softplus is within three ulp and its root holds at large |x|") {
  CHECK(largest_error(1e-9f, 104.0f, false, kSoftplus, softplus_l) <= kSoftplusUlps);
  CHECK(largest_error(1e-9f, 86.0f, true, kSoftplus, softplus_l) <= kSoftplusUlps);
  CHECK(softplus(0.0f) == std::log(2.0f));
  CHECK(softplus(kInf) == kInf);
  CHECK(softplus(-kInf) == 0.0f);
  CHECK(std::isnan(softplus(kNan)));
  CHECK(std::sqrt(softplus(50.0f)) == std::sqrt(50.0f));
  CHECK(std::sqrt(softplus(3e38f)) == std::sqrt(3e38f));
  CHECK(error_in_ulps(std::sqrt(softplus(-50.0f)), std::exp(-25.0L)) <= kSoftplusUlps);
  CHECK(std::sqrt(softplus(-200.0f)) == 0.0f);
}

TEST_CASE("B31: the clamp of the gate is one-sided, that of up two-sided, and 0 switches both off") {
  CHECK(clamped_swiglu(12, -15, 10) == Approx(-99.99546).epsilon(1e-6));
  CHECK(clamped_swiglu(-20, 3, 10) == Approx(-1.2367e-7).epsilon(1e-4));
  CHECK(clamped_swiglu(12, 15, 0) == Approx(179.9989).epsilon(1e-6));
  CHECK(clamped_swiglu(1e30f, 1e30f, 10) == Approx(99.99546).epsilon(1e-6));
  CHECK(clamped_swiglu(-1e30f, 1, 10) == 0.0f);
}

TEST_CASE("clamps and relu keep NaN: a fault upstream must not turn into a plausible number") {
  for (const float limit : {0.0f, 10.0f}) {
    CHECK(std::isnan(clamped_swiglu(kNan, 1, limit)));
    CHECK(std::isnan(clamped_swiglu(1, kNan, limit)));
  }
  CHECK(std::isnan(clamp_to(kNan, 6)));
  CHECK(std::isnan(relu(kNan)));
  CHECK(relu(-3.0f) == 0.0f);
  CHECK(relu(3.0f) == 3.0f);
  CHECK(clamp_to(kInf, 6) == 6.0f);
  CHECK(clamp_to(-kInf, 6) == -6.0f);
}

TEST_CASE("an activation keeps float32 in class exact and has 8 significant bits in class deployed") {
  CHECK(activation(Numeric::exact, 1.001f) == 1.001f);
  CHECK(activation(Numeric::deployed, 1.001f) == 1.0f);
}
