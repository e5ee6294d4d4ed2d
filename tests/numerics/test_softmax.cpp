// SPDX-License-Identifier: MIT
//
// The plain softmax: shares of a row against double, strides, and rows that hold infinities or nothing.
#include "dsv41/numerics/softmax.hpp"

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

Doubles formula(const std::vector<float>& x) {
  double total = 0;
  for (const float v : x) total += std::exp(static_cast<double>(v));
  Doubles out;
  for (const float v : x) out.push_back(std::exp(static_cast<double>(v)) / total);
  return out;
}

}  // namespace

TEST_CASE("a softmax row has the shares of exp, and its totals are those of a strided row") {
  Random random(1);
  for (const std::int64_t count : {1, 2, 7, 8, 384}) {
    INFO(count);
    const std::vector<float> x = random.normals(count, 2);
    std::vector<float> row = x, spread(x.size() * 3, 99.0f);
    numerics::softmax(row.data(), count);
    CHECK(norm_error(row, formula(x)) <= kNorm);
    for (std::size_t i = 0; i < x.size(); ++i) spread[3 * i] = x[i];
    const numerics::SoftmaxTotals totals = numerics::softmax_totals(spread.data(), count, 3);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(totals.share(x[i]) == row[i]);
  }
}

TEST_CASE("the sum runs in float32 and ascending index") {
  std::vector<float> ascending(200, -17.0f), descending(200, -17.0f);  // exp(-17) is lost beside 1
  ascending[0] = descending[199] = 0;
  CHECK(numerics::softmax_totals(ascending.data(), 200).total == 1.0f);
  CHECK(numerics::softmax_totals(descending.data(), 200).total > 1.0f);
}

TEST_CASE("huge logits stay finite, -infinity has no share, NaN spoils the row") {
  std::vector<float> row = {3e38f, -3e38f, 3e38f, -HUGE_VALF};
  numerics::softmax(row.data(), 4);
  CHECK(row == std::vector<float>{0.5f, 0, 0.5f, 0});
  std::vector<float> spoiled = {1, std::nanf(""), 2};
  numerics::softmax(spoiled.data(), 3);
  for (const float x : spoiled) CHECK(std::isnan(x));
}
