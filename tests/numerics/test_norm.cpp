// SPDX-License-Identifier: MIT
//
// RMS statistics and norms of one row: tiny eps, zero rows, extreme sizes.
#include "dsv41/numerics/norm.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

std::vector<float> normed(const std::vector<float>& x, const std::vector<float>& w, double eps,
                          Numeric numeric = Numeric::exact) {
  std::vector<float> y(x.size());
  numerics::rms_norm_row(x.data(), w.data(), static_cast<std::int64_t>(x.size()), eps, numeric, y.data());
  return y;
}

}  // namespace

TEST_CASE("B32: the weight multiplies as stored, eps is the config's, and a zero row stays exactly zero") {
  const std::vector<float> ones(4, 1.0f), small(4, 1e-8f), zeros(4, 0.0f);
  CHECK(normed(ones, std::vector<float>(4, 0.03125f), 1e-20)[0] == 0.03125f);
  CHECK(normed(small, ones, 1e-20)[0] == Approx(0.99995).epsilon(1e-6));
  CHECK(normed(small, ones, 1e-6)[0] == Approx(0.00001).epsilon(1e-4));
  for (const float y : normed(zeros, ones, 1e-20)) CHECK((y == 0.0f && !std::signbit(y)));
}

TEST_CASE("a norm equals the formula in double for every length and size of numbers") {
  Random random(4);
  for (const std::int64_t count : {1, 2, 7, 8, 9, 31, 64, 257, 5120}) {
    for (const double size : {1e-15, 1e-3, 1.0, 1e4, 1e18}) {
      const std::vector<float> x = random.normals(count, size), w = random.normals(count);
      Doubles want(x.begin(), x.end());
      const double r = root_mean_square(want, 1e-20);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] = static_cast<double>(w[i]) * want[i] / r;
      CHECK(norm_error(normed(x, w, 1e-20), want) <= kNorm);
    }
  }
}

TEST_CASE("squares that float32 cannot hold do not spoil the statistic") {
  CHECK(normed({3e30f, -3e30f}, {1, 1}, 1e-20) == std::vector<float>{1, -1});
  CHECK(numerics::rms(std::vector<float>{3e-30f}.data(), 1, 0) == 3e-30f);
}

TEST_CASE("class deployed rounds a norm's result to bfloat16") {
  const std::vector<float> x = {1, 2, 3, 5}, w = {1, 1.5f, 1, 1};
  const std::vector<float> exact = normed(x, w, 1e-20), deployed = normed(x, w, 1e-20, Numeric::deployed);
  for (std::size_t i = 0; i < x.size(); ++i)
    CHECK(static_cast<double>(deployed[i]) == to_bf16(static_cast<double>(exact[i])));
}
