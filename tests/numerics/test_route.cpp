// SPDX-License-Identifier: MIT
//
// The router's steps alone: scores of the three functions, the choice, its groups and its table, and the weights' normalisation.
#include "dsv41/numerics/route.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

std::vector<float> scores(ScoreFunction function, float gate_temp, std::vector<float> row) {
  numerics::route_scores(function, gate_temp, row.data(), static_cast<std::int64_t>(row.size()));
  return row;
}

std::vector<float> weights(const std::vector<float>& scores, const std::vector<std::int32_t>& ids, bool normalise,
                           float scale) {
  std::vector<float> out(ids.size(), -1.0f);
  numerics::route_weights(scores.data(), ids.data(), static_cast<std::int64_t>(ids.size()), normalise, scale,
                          out.data());
  return out;
}

}  // namespace

TEST_CASE("scores are the function of logit / gate_temp") {
  const double ln2 = std::log(2.0), e = std::exp(1.0);
  CHECK(worst_ulps(scores(ScoreFunction::sqrt_softplus, 2, {0, 2}), {std::sqrt(ln2), std::sqrt(std::log1p(e))}) <=
        kUlpRoute);
  CHECK(worst_ulps(scores(ScoreFunction::sigmoid, 2, {0, 2}), {0.5, e / (1 + e)}) <= kUlpRoute);
  CHECK(worst_ulps(scores(ScoreFunction::softmax, 2, {0, 2}), {1 / (1 + e), e / (1 + e)}) <= kUlpRoute);
}

TEST_CASE("the choice is by score plus bias, ties to the lower id, and -1 where numbers run out") {
  const std::vector<float> row = {0.5f, 0.25f, std::nanf(""), 0.5f}, bias = {0, 1, 9, 0};
  std::vector<std::int32_t> ids(4, 7);
  numerics::route_choose(row.data(), bias.data(), 4, 4, ids.data());
  CHECK(ids == std::vector<std::int32_t>{1, 0, 3, -1});
}

TEST_CASE("a group scores its two largest numbers; with fewer it is never above -infinity") {
  const float nan = std::nanf(""), high = HUGE_VALF;
  const auto score = [](const std::vector<float>& row) {
    return numerics::group_score([&](std::int32_t e) { return row[static_cast<std::size_t>(e)]; }, 0,
                                 static_cast<std::int64_t>(row.size()));
  };
  CHECK(score({1, 4, 2, 8}) == 12.0f);
  CHECK(score({8, 8, 1}) == 16.0f);
  CHECK(score({nan, 3, nan, -1, -2}) == 2.0f);
  CHECK(score({-5, -3, -4}) == -7.0f);
  CHECK(score({0x1p24f, 1}) == 0x1p24f);  // float32
  for (const std::vector<float>& row : {std::vector<float>{3, nan}, {nan, nan}, {high, nan}, {7, -high}, {5}, {}})
    CHECK_FALSE(score(row) > -high);
}

TEST_CASE("a table row gives its experts in its order; what is no expert, or comes again, leaves an empty slot") {
  const std::vector<std::int32_t> row = {3, 0, 4, -1, 3, 2, std::numeric_limits<std::int32_t>::min()};
  std::vector<std::int32_t> ids(row.size(), 9);
  numerics::route_look_up(row.data(), 4, 7, ids.data());
  CHECK(ids == std::vector<std::int32_t>{3, 0, -1, -1, -1, 2, -1});
}

TEST_CASE("weights are scores without bias over their sum, times the scale; a single choice is not normalised") {
  const std::vector<float> row = {0.5f, 0.25f, 0.25f};
  CHECK(weights(row, {1, 0}, true, 1.5f) == std::vector<float>{0.5f, 1});
  CHECK(weights(row, {1, 0}, false, 1.5f) == std::vector<float>{0.375f, 0.75f});
  CHECK(weights(row, {1}, true, 1.5f) == std::vector<float>{0.375f});
  CHECK(weights(row, {0, -1}, true, 1) == std::vector<float>{1, 0});
  CHECK(weights({0, 0}, {0, 1}, true, 1) == std::vector<float>{0, 0});  // 1e-20 keeps the division defined
}

TEST_CASE("the normalising sum runs in rank order, float32") {
  const std::vector<float> row = {0x1p-24f, 1, 0x1p-24f};
  CHECK(weights(row, {1, 0, 2}, true, 1)[0] == 1.0f);
  CHECK(weights(row, {0, 2, 1}, true, 1)[2] == 1 / (1 + 0x1p-23f));
}
