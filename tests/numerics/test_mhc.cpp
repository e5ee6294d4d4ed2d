// SPDX-License-Identifier: MIT
//
// mHC coefficients: published numbers, and what a doubly stochastic mix must keep.
#include "dsv41/numerics/mhc.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"
#include "support/random.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr float kEps = 1e-6f;
/// Every divisor carries + eps, so a line of up to 8 entries sums to 1 within 8 * eps, and float32 adds as much again.
constexpr double kStochastic = 2e-5;

/// pre | post | comb of one token from logits, with scale 1 and base 0.
std::vector<float> coefficients(const std::vector<float>& logits, std::int64_t hc, std::int32_t iters) {
  const std::vector<float> base(logits.size(), 0.0f), scale(3, 1.0f);
  std::vector<float> mix(logits.size());
  numerics::mhc_coefficients(logits.data(), base.data(), scale.data(), hc, iters, kEps, mix.data());
  return mix;
}

Doubles random_comb(Random& random, std::int64_t hc, std::int32_t iters, double size) {
  const std::vector<float> mix = coefficients(random.normals((2 + hc) * hc, size), hc, iters);
  return Doubles(mix.begin() + 2 * hc, mix.end());
}

/// Largest distance of a row or column sum from 1.
double unbalance(const Doubles& m, std::int64_t n) {
  double worst = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    double row = 0, column = 0;
    for (std::int64_t j = 0; j < n; ++j)
      row += m[static_cast<std::size_t>(i * n + j)], column += m[static_cast<std::size_t>(j * n + i)];
    worst = std::max({worst, std::fabs(row - 1), std::fabs(column - 1)});
  }
  return worst;
}

Doubles times(const Doubles& a, const Doubles& b, std::int64_t n) {
  Doubles out(a.size());
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t k = 0; k < n; ++k) {
        out[static_cast<std::size_t>(i * n + j)] +=
            a[static_cast<std::size_t>(i * n + k)] * b[static_cast<std::size_t>(k * n + j)];
      }
    }
  }
  return out;
}

/// Largest singular value, by power iteration on m^T m.
double spectral_norm(const Doubles& m, std::int64_t n) {
  Doubles v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 1 + 0.1 * static_cast<double>(i);
  double norm = 0;
  for (int step = 0; step < 300; ++step) {
    Doubles u(v.size()), w(v.size());
    for (std::size_t i = 0; i < v.size(); ++i)
      for (std::size_t j = 0; j < v.size(); ++j) u[i] += m[i * v.size() + j] * v[j];
    for (std::size_t i = 0; i < v.size(); ++i)
      for (std::size_t j = 0; j < v.size(); ++j) w[j] += m[i * v.size() + j] * u[i];
    double length = 0;
    for (double x : w) length += x * x;
    length = std::sqrt(length);
    norm = std::sqrt(length);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = w[i] / length;
  }
  return norm;
}

}  // namespace

TEST_CASE("B43: 20 and 2 iterations from the logits [[0, ln 3], [0, 0]]") {
  std::vector<float> logits(8, 0.0f);
  logits[5] = std::log(3.0f);
  const std::vector<float> long_run = coefficients(logits, 2, 20), short_run = coefficients(logits, 2, 2);
  const double want_long[] = {0.366025, 0.633974, 0.633974, 0.366025},
               want_short[] = {0.363636, 0.631578, 0.636363, 0.368421};
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(static_cast<double>(long_run[4 + i]) == Approx(want_long[i]).margin(2e-6));
    CHECK(static_cast<double>(short_run[4 + i]) == Approx(want_short[i]).margin(2e-6));
  }
}

TEST_CASE("B43: logits of zero give pre 0.500001 and post 1 exactly: eps is on pre only") {
  for (std::int64_t hc = 1; hc <= 8; ++hc) {
    const std::vector<float> mix =
        coefficients(std::vector<float>(static_cast<std::size_t>((2 + hc) * hc), 0.0f), hc, 20);
    for (std::size_t i = 0; i < static_cast<std::size_t>(hc); ++i) {
      CHECK(mix[i] == 0.5f + kEps);
      CHECK(mix[static_cast<std::size_t>(hc) + i] == 1.0f);
    }
  }
}

TEST_CASE("B43: logits of +-80 stay finite and balanced") {
  Random random(8);
  for (std::int64_t hc = 1; hc <= 8; ++hc) {
    std::vector<float> logits(static_cast<std::size_t>((2 + hc) * hc));
    for (float& x : logits) x = random.below(2) == 0 ? 80.0f : -80.0f;
    for (const float x : coefficients(logits, hc, 20)) CHECK((std::isfinite(x) && x >= 0 && x <= 2.00001f));
  }
}

TEST_CASE("one iteration is a softmax over rows, eps, and a column pass") {
  Random random(9);
  const std::int64_t hc = 3;
  const std::vector<float> logits = random.normals(15, 2), mix = coefficients(logits, hc, 1);
  double e[3][3];
  for (std::size_t i = 0; i < 3; ++i) {
    double total = 0;
    for (std::size_t j = 0; j < 3; ++j) total += e[i][j] = std::exp(static_cast<double>(logits[6 + 3 * i + j]));
    for (std::size_t j = 0; j < 3; ++j) e[i][j] = e[i][j] / total + 1e-6;
  }
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      const double column = e[0][j] + e[1][j] + e[2][j] + 1e-6;
      CHECK(static_cast<double>(mix[6 + 3 * i + j]) == Approx(e[i][j] / column).epsilon(1e-6));
    }
  }
}

TEST_CASE("the mix is doubly stochastic for 1 to 8 streams, its spectral norm at most 1, and products stay so") {
  Random random(10);
  for (std::int64_t hc = 1; hc <= 8; ++hc) {
    INFO("hc " << hc);
    for (int round = 0; round < 20; ++round) {
      const Doubles a = random_comb(random, hc, 200, 2), b = random_comb(random, hc, 200, 2);
      CHECK(unbalance(a, hc) <= kStochastic);
      CHECK(spectral_norm(a, hc) <= 1 + kStochastic);
      CHECK(unbalance(times(a, b, hc), hc) <= 2 * kStochastic);
      CHECK(spectral_norm(times(a, b, hc), hc) <= 1 + 2 * kStochastic);
    }
    CHECK(unbalance(random_comb(random, hc, 20, 0.5), hc) <=
          kStochastic);  // the released 20 do for logits of trained size
  }
}

TEST_CASE("mixing conserves the mean of the streams") {
  Random random(11);
  for (std::int64_t hc = 1; hc <= 8; ++hc) {
    const Doubles comb = random_comb(random, hc, 200, 2);
    double before = 0, after = 0, size = 0;
    for (std::int64_t from = 0; from < hc; ++from) {
      const double h = static_cast<double>(random.normal());
      before += h, size += std::fabs(h);
      for (std::int64_t to = 0; to < hc; ++to) after += comb[static_cast<std::size_t>(from * hc + to)] * h;
    }
    CHECK(std::fabs(after - before) <= kStochastic * size);
  }
}

TEST_CASE("products over 80 seams stay doubly stochastic, keep the mean, and never stretch") {
  Random random(13);
  for (const std::int64_t hc : {1, 2, 4, 8}) {
    INFO("hc " << hc);
    Doubles product(static_cast<std::size_t>(hc * hc));
    for (std::int64_t i = 0; i < hc; ++i) product[static_cast<std::size_t>(i * hc + i)] = 1;
    for (int seam = 0; seam < 80; ++seam) product = times(product, random_comb(random, hc, 200, 2), hc);
    CHECK(unbalance(product, hc) <= 80 * kStochastic);
    CHECK(spectral_norm(product, hc) <= 1 + 80 * kStochastic);
  }
}

TEST_CASE("unconstrained, comb is its logits with scale and base, and pre and post are as ever") {
  Random random(14);
  for (std::int64_t hc = 1; hc <= 8; ++hc) {
    const auto rows = static_cast<std::size_t>((2 + hc) * hc), first = static_cast<std::size_t>(2 * hc);
    const std::vector<float> logits = random.normals((2 + hc) * hc, 2), base = random.normals((2 + hc) * hc),
                             scale = {0.5f, 2, -3};
    std::vector<float> free(rows), bound(rows);
    numerics::mhc_coefficients(logits.data(), base.data(), scale.data(), hc, 20, kEps, free.data(), false);
    numerics::mhc_coefficients(logits.data(), base.data(), scale.data(), hc, 20, kEps, bound.data());
    for (std::size_t i = 0; i < first; ++i) CHECK(free[i] == bound[i]);
    for (std::size_t i = first; i < rows; ++i) CHECK(free[i] == logits[i] * -3.0f + base[i]);
  }
}

TEST_CASE("scale and base enter each part with their own entry") {
  const std::vector<float> logits(8, 1.0f), base = {0, 1, 2, 3, 0, 0, 5, 0}, scale = {0.5f, 0.25f, 0};
  std::vector<float> mix(8);
  numerics::mhc_coefficients(logits.data(), base.data(), scale.data(), 2, 1, 0.0f, mix.data());
  const double want[] = {sigmoid(0.5), sigmoid(1.5), 2 * sigmoid(2.25), 2 * sigmoid(3.25)};
  for (std::size_t i = 0; i < 4; ++i) CHECK(static_cast<double>(mix[i]) == Approx(want[i]).epsilon(1e-6));
  CHECK(mix[6] > 1.9f * mix[4]);  // comb[1][0] has the base of 5: almost all of its row's share
}

TEST_CASE("coefficients may overwrite their logits") {
  Random random(12);
  const std::int64_t hc = 4;
  std::vector<float> logits = random.normals(24);
  const std::vector<float> base(24, 0.0f), scale(3, 1.0f), want = coefficients(logits, hc, 20);
  numerics::mhc_coefficients(logits.data(), base.data(), scale.data(), hc, 20, kEps, logits.data());
  CHECK(logits == want);
}
