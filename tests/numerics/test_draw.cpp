// SPDX-License-Identifier: MIT
//
// argmax, the inverse distribution function and the softmax's parts. Their laws are tested where they are used (sampler, verifier).
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "../support/catch.hpp"
#include "dsv41/numerics/draw.hpp"

using namespace dsv41::numerics;

TEST_CASE("argmax takes the lowest index of the largest value and passes over NaN", "[draw]") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const auto of = [](const std::vector<float>& x) { return argmax(x.data(), static_cast<std::int64_t>(x.size())); };
  CHECK(of({1, 2, 2, 0}) == 1);
  CHECK(of({nan, -3, nan, -2}) == 3);
  CHECK(of({0, inf, inf}) == 1);
  CHECK(of({-0.0f, 0.0f}) == 0);
  CHECK(of({-inf, nan}) == -1);
  CHECK(of({}) == -1);
  const std::vector<double> p{0.25, 0.375, 0.375};
  CHECK(argmax(p.data(), 3) == 1);
}

TEST_CASE("draw is the inverse of the running sum", "[draw]") {
  const auto of = [](const std::vector<double>& p, double u) {
    return draw(p.data(), static_cast<std::int64_t>(p.size()), u);
  };
  const std::vector<double> p{0, 0.25, 0, 0.5, 0.25, 0};
  CHECK(of(p, 0) == 1);
  CHECK(of(p, std::nextafter(0.25, 0)) == 1);
  CHECK(of(p, 0.25) == 3);
  CHECK(of(p, 0.75) == 4);
  CHECK(of(p, 1 - 0x1p-53) == 4);
  CHECK(of({0.5, 0.25, 0}, 0.99) == 1);                                       // a sum that rounding left short
  const auto weight = [](std::int64_t i) { return static_cast<double>(i); };  // 0, 1, 2, 3
  CHECK(draw(4, weight, 0.5 * 6) == 3);
  CHECK(draw(4, weight, std::nextafter(3.0, 0)) == 2);
}

TEST_CASE("weights are relative to the largest logit, which may be infinite", "[draw]") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(softmax_weight(2, 2, 0.5) == 1);
  CHECK(softmax_weight(1, 2, 0.5) == Approx(std::exp(-2)).epsilon(1e-15));
  CHECK(softmax_weight(inf, inf, 1) == 1);
  CHECK(softmax_weight(0, inf, 1) == 0);
  CHECK(softmax_weight(-3e38f, 3e38f, 5e-324) == 0);
  std::vector<double> w{1, 2, 5};
  normalise(w.data(), 3);
  CHECK(w == std::vector<double>{0.125, 0.25, 0.625});
}
