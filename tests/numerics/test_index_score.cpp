// SPDX-License-Identifier: MIT
//
// The indexer's scores: the rounding of each part, the order of the heads, and NaN.
#include "dsv41/numerics/index_score.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"

using namespace dsv41;
using namespace dsv41::test;
using numerics::index_scores;
using numerics::index_term;
using numerics::index_weight;

namespace {

/// The score of one key whose products with the heads these are.
float score(Numeric numeric, const std::vector<float>& products, const std::vector<float>& weights) {
  float out = -1;
  index_scores(numeric, products.data(), static_cast<std::int64_t>(products.size()), 1, 1, weights.data(), 1, &out);
  return out;
}

}  // namespace

TEST_CASE("a term is weight * scale * relu(product); class deployed rounds all three") {
  const auto term = [](Numeric numeric, float product, float weight, float scale) {
    return index_term(numeric, product, index_weight(numeric, weight, scale));
  };
  CHECK(term(Numeric::exact, 3, 4, 0.25f) == 3.0f);
  CHECK(term(Numeric::exact, -3, 4, 0.25f) == 0.0f);
  CHECK(term(Numeric::exact, 3, -4, 0.25f) == -3.0f);
  const double product = to_bf16(1.00390625 + 0x1p-10), weight = to_bf16(to_float(1.013) * 0.25);
  CHECK(static_cast<double>(term(Numeric::deployed, 1.00390625f + 0x1p-10f, 1.013f, 0.25f)) ==
        to_bf16(product * weight));
  // A bfloat16 weight times a scale that is no power of two is rounded again, before the product.
  CHECK(term(Numeric::deployed, 1, 1.0234375f, 0.3f) ==
        static_cast<float>(to_bf16(to_float(1.0234375 * to_float(0.3)))));
  CHECK(term(Numeric::deployed, 5, 1.0234375f, 0.3f) ==
        static_cast<float>(to_bf16(5 * to_bf16(to_float(1.0234375 * to_float(0.3))))));
}

TEST_CASE("heads are added in ascending order in float32, and rounded at the end only") {
  const std::vector<float> weights(3, 1.0f);
  // 1, then two halves of the last bit of 1. Ascending, each is lost to the even neighbour.
  CHECK(score(Numeric::exact, {1, 0x1p-24f, 0x1p-24f}, weights) == 1.0f);
  CHECK(score(Numeric::exact, {0x1p-24f, 0x1p-24f, 1}, weights) == 1.0f + 0x1p-23f);
  // Two bfloat16 halves of a step of 1 add to a whole one: a sum rounded as it grows would lose both.
  CHECK(score(Numeric::deployed, {1, 0x1p-8f, 0x1p-8f}, weights) == 1.0f + 0x1p-7f);
  CHECK(score(Numeric::deployed, {1, 0x1p-8f}, {1, 1}) == 1.0f);
}

TEST_CASE("each key has a score of its own, from its column of the products") {
  const std::vector<float> products = {1, 2, 3, 99, 10, -20, 30, 99}, weights = {2, 0.5f};
  std::vector<float> scores(4, -1.0f);
  index_scores(Numeric::exact, products.data(), 2, 4, 3, weights.data(), 2, scores.data());
  CHECK(scores == std::vector<float>{14, 8, 42, -1});
}

TEST_CASE("NaN in a product or weight makes the score NaN") {
  const float nan = std::nanf("");
  for (const Numeric numeric : {Numeric::exact, Numeric::deployed}) {
    CHECK(std::isnan(score(numeric, {1, nan}, {1, 1})));
    CHECK(std::isnan(score(numeric, {1, 1}, {nan, 1})));
  }
}
