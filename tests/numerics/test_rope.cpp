// SPDX-License-Identifier: MIT
//
// Rotary frequencies against published values, and rotations that undo each other.
#include "dsv41/numerics/rope.hpp"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::numerics;

namespace {

const YarnConfig kReleased{.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_positions = 65536};

std::vector<float> frequencies(double theta, std::int64_t rope_dim, const YarnConfig* yarn) {
  std::vector<float> out(static_cast<std::size_t>(rope_dim / 2));
  rope_frequencies(theta, rope_dim, yarn, out.data());
  return out;
}

}  // namespace

TEST_CASE("B49: YaRN leaves pairs up to 15, divides pairs from 25 on by 16, and ramps between") {
  const std::vector<float> plain = frequencies(160000, 64, nullptr), used = frequencies(160000, 64, &kReleased);
  const auto ratio = [&](std::size_t i) { return static_cast<double>(plain[i]) / static_cast<double>(used[i]); };
  for (std::size_t i = 0; i <= 15; ++i) CHECK(plain[i] == used[i]);
  CHECK(ratio(16) == Approx(1.1034).epsilon(1e-4));
  CHECK(ratio(19) == Approx(1.6).epsilon(1e-5));
  CHECK(ratio(23) == Approx(4.0).epsilon(1e-5));
  for (std::size_t i = 25; i < 32; ++i) CHECK(plain[i] == 16 * used[i]);
}

TEST_CASE("the released frequencies are the published ones, which were computed in double, to a float32 step") {
  const std::vector<float> f = frequencies(160000, 64, &kReleased);
  const std::pair<std::size_t, double> published[] = {{0, 1},
                                                      {15, 3.635538583622384e-3},
                                                      {16, 2.265625e-3},
                                                      {20, 2.9697777826169085e-4},
                                                      {25, 5.372312671356501e-6},
                                                      {31, 5.680529036909976e-7}};
  for (const auto& [pair, want] : published) CHECK(std::fabs(static_cast<double>(f[pair]) - want) <= want * 0x1p-23);
}

TEST_CASE("the power is rounded to float32 before its float32 reciprocal") {
  // Pairs where 1 / power, rounded once, is the other neighbour.
  const std::vector<float> window = frequencies(10000, 64, nullptr), compressed = frequencies(160000, 64, nullptr);
  CHECK(window[5] == 0x1.e5a846p-3f);
  CHECK(window[20] == 0x1.9e7c70p-9f);
  CHECK(compressed[6] == 0x1.b11968p-4f);
  CHECK(compressed[31] == 0x1.30f89ap-17f);
}

TEST_CASE("B49: window layers use the plain base, and positions are not scaled") {
  const std::vector<float> f = frequencies(10000, 64, nullptr);
  float cosine = 0, sine = 0;
  rope_angle(100000, f[1], &cosine, &sine);
  const double angle = 100000 * std::pow(10000.0, -1.0 / 32);
  CHECK(static_cast<double>(f[1]) == Approx(std::pow(10000.0, -1.0 / 32)).epsilon(1e-7));
  CHECK(static_cast<double>(cosine) == Approx(std::cos(angle)).margin(0.01));  // the angle is one float32 product
  CHECK(static_cast<double>(sine) == Approx(std::sin(angle)).margin(0.01));
  CHECK(cosine == static_cast<float>(std::cos(static_cast<double>(100000.0f * f[1]))));
}

TEST_CASE("no YaRN without original positions, and equal ramp ends divide by no zero") {
  const YarnConfig off{};
  CHECK(frequencies(10000, 64, &off) == frequencies(10000, 64, nullptr));
  YarnConfig flat = kReleased;
  flat.beta_fast = flat.beta_slow = 1e9;  // both ends at pair 0
  for (const float f : frequencies(10000, 8, &flat)) CHECK((std::isfinite(f) && f > 0));
}

TEST_CASE("a rotation by the negative angle undoes a rotation to a few ulp") {
  test::Random random(5);
  const std::vector<float> f = frequencies(160000, 64, &kReleased);
  for (const std::int64_t position : {0, 1, 127, 4095, 65536, 1048575}) {
    for (const float frequency : f) {
      const float before[2] = {random.normal(), random.normal()};
      float pair[2] = {before[0], before[1]}, cosine = 0, sine = 0;
      rope_angle(position, frequency, &cosine, &sine);
      rotate_pair(Numeric::exact, cosine, sine, pair);
      rotate_pair(Numeric::exact, cosine, -sine, pair);
      const double size = std::hypot(static_cast<double>(before[0]), static_cast<double>(before[1]));
      CHECK(std::fabs(static_cast<double>(pair[0]) - static_cast<double>(before[0])) <= test::kRotationBack * size);
      CHECK(std::fabs(static_cast<double>(pair[1]) - static_cast<double>(before[1])) <= test::kRotationBack * size);
    }
  }
}

TEST_CASE("position 0 rotates nothing, and a quarter turn swaps the pair") {
  float pair[2] = {3, -5}, cosine = 0, sine = 0;
  rope_angle(0, 0.7f, &cosine, &sine);
  rotate_pair(Numeric::exact, cosine, sine, pair);
  CHECK((pair[0] == 3.0f && pair[1] == -5.0f));
  rotate_pair(Numeric::exact, 0.0f, 1.0f, pair);
  CHECK((pair[0] == 5.0f && pair[1] == 3.0f));
}
