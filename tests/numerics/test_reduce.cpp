// SPDX-License-Identifier: MIT
//
// The fixed order of sums: lanes of eight, whatever the length.
#include "dsv41/numerics/reduce.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using namespace dsv41::numerics;

TEST_CASE("a sum adds term i to lane i % 8 and the lanes in ascending order, for every length") {
  dsv41::test::Random random(6);
  std::vector<double> terms(67);
  for (double& t : terms) t = static_cast<double>(random.normal(1e6)) + static_cast<double>(random.normal(1e-9));
  for (std::int64_t count = 0; count <= 67; ++count) {
    double lanes[8] = {}, want = 0;
    for (std::int64_t i = 0; i < count; ++i) lanes[i % 8] += terms[static_cast<std::size_t>(i)];
    for (double lane : lanes) want += lane;
    CHECK(sum(count, [&](std::int64_t i) { return terms[static_cast<std::size_t>(i)]; }) == want);
  }
}

TEST_CASE("a dot product of a million floats is good to double") {
  dsv41::test::Random random(7);
  const std::vector<float> a = random.normals(1000000), b = random.normals(1000000);
  long double want = 0;
  for (std::size_t i = 0; i < a.size(); ++i) want += static_cast<long double>(a[i]) * static_cast<long double>(b[i]);
  CHECK(std::fabs(dot(a.data(), b.data(), 1000000) - static_cast<double>(want)) < 1e-9);
}

TEST_CASE("products are exact: a huge pair that cancels leaves the small one") {
  const float a[3] = {1e20f, 1, -1e20f}, b[3] = {1e-10f, 1, 1e-10f};
  CHECK(dot(a, b, 3) == 1.0);
}

TEST_CASE("the largest element passes over NaN, keeps to its stride, and of nothing is -infinity") {
  const float nan = std::nanf(""), x[] = {nan, 9, -3, 9, nan, 9, -2};
  CHECK(largest(x, 7) == 9.0f);
  CHECK(largest(x, 4, 2) == -2.0f);
  CHECK(largest(x, 1) == -HUGE_VALF);
  CHECK(largest(x, 0) == -HUGE_VALF);
}
