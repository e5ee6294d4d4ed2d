// SPDX-License-Identifier: MIT
//
// The indexer's score of one entry: the rounding of each part, the order of the heads, and NaN.
#include "dsv41/numerics/index_score.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"

using namespace dsv41;
using namespace dsv41::test;
using numerics::index_score;
using numerics::index_term;

TEST_CASE("a term is weight * scale * relu(product); class deployed rounds all three") {
  CHECK(index_term(Numeric::exact, 3, 4, 0.25f) == 3.0f);
  CHECK(index_term(Numeric::exact, -3, 4, 0.25f) == 0.0f);
  CHECK(index_term(Numeric::exact, 3, -4, 0.25f) == -3.0f);
  const double product = to_bf16(1.00390625 + 0x1p-10), weight = to_bf16(to_float(1.013) * 0.25);
  CHECK(static_cast<double>(index_term(Numeric::deployed, 1.00390625f + 0x1p-10f, 1.013f, 0.25f)) ==
        to_bf16(product * weight));
  // A bfloat16 weight times a scale that is no power of two is rounded again, before the product.
  CHECK(index_term(Numeric::deployed, 1, 1.0234375f, 0.3f) ==
        static_cast<float>(to_bf16(to_float(1.0234375 * to_float(0.3)))));
  CHECK(index_term(Numeric::deployed, 5, 1.0234375f, 0.3f) ==
        static_cast<float>(to_bf16(5 * to_bf16(to_float(1.0234375 * to_float(0.3))))));
}

TEST_CASE("heads are added in ascending order in float32, and rounded at the end only") {
  // q . key of head h is q[h]: 1, then two halves of the last bit of 1. Ascending, each is lost to the even neighbour.
  const std::vector<float> q = {1, 99, 0x1p-24f, 99, 0x1p-24f}, back = {0x1p-24f, 99, 0x1p-24f, 99, 1},
                           weights(3, 1.0f);
  const float key = 1;
  CHECK(index_score(Numeric::exact, q.data(), 3, 2, &key, 1, weights.data(), 1) == 1.0f);
  CHECK(index_score(Numeric::exact, back.data(), 3, 2, &key, 1, weights.data(), 1) == 1.0f + 0x1p-23f);
  // Two bfloat16 halves of a step of 1 add to a whole one: a sum rounded as it grows would lose both.
  const std::vector<float> steps = {1, 0x1p-8f, 0x1p-8f};
  CHECK(index_score(Numeric::deployed, steps.data(), 3, 1, &key, 1, weights.data(), 1) == 1.0f + 0x1p-7f);
}

TEST_CASE("NaN in a query, key or weight makes the score NaN") {
  const float nan = std::nanf(""), one = 1;
  CHECK(std::isnan(index_score(Numeric::exact, &nan, 1, 1, &one, 1, &one, 1)));
  CHECK(std::isnan(index_score(Numeric::exact, &one, 1, 1, &nan, 1, &one, 1)));
  CHECK(std::isnan(index_score(Numeric::exact, &one, 1, 1, &one, 1, &nan, 1)));
}
