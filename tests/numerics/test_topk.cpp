// SPDX-License-Identifier: MIT
//
// The order of scores and the bounded heap: against a full sort, whatever the order of arrival.
#include "dsv41/numerics/topk.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "support/catch.hpp"
#include "support/random.hpp"

using namespace dsv41::numerics;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

/// The best k of the scores, best first, offered in the order given.
std::vector<std::int32_t> best(const std::vector<float>& scores, std::int64_t k,
                               const std::vector<std::int32_t>& arrival) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(k) + 1, -7);
  const auto score = [&](std::int32_t i) { return scores[static_cast<std::size_t>(i)]; };
  BestK kept(ids.data(), k, score);
  for (const std::int32_t i : arrival) kept.offer(i);
  CHECK(ids.back() == -7);  // nothing behind the limit
  ids.resize(static_cast<std::size_t>(kept.finish_best_first()));
  return ids;
}

std::vector<std::int32_t> in_order(std::size_t count) {
  std::vector<std::int32_t> out(count);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

std::vector<std::int32_t> best(const std::vector<float>& scores, std::int64_t k) {
  return best(scores, k, in_order(scores.size()));
}

/// The same by sorting everything.
std::vector<std::int32_t> sorted(const std::vector<float>& scores, std::size_t k) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (!std::isnan(scores[i]) && scores[i] != -kInf) ids.push_back(static_cast<std::int32_t>(i));
  }
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  ids.resize(std::min(k, ids.size()));
  return ids;
}

void shuffle(dsv41::test::Random& random, std::vector<std::int32_t>& list) {
  for (std::size_t i = list.size(); i > 1; --i)
    std::swap(list[i - 1], list[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
}

}  // namespace

TEST_CASE("the kept set and its order do not depend on the order of arrival") {
  dsv41::test::Random random(13);
  for (const std::int64_t count : {1, 2, 7, 64, 257}) {
    std::vector<float> scores(static_cast<std::size_t>(count));
    for (float& s : scores) s = static_cast<float>(random.below(9) - 4);  // many ties
    for (const std::int64_t k : {0, 1, 3, 64, 300}) {
      const std::vector<std::int32_t> want = sorted(scores, static_cast<std::size_t>(k));
      std::vector<std::int32_t> arrival = in_order(scores.size());
      for (int round = 0; round < 5; ++round) {
        CHECK(best(scores, k, arrival) == want);
        shuffle(random, arrival);
      }
    }
  }
}

TEST_CASE("ties go to the lower index, and -0 equals +0") {
  CHECK(best({0.0f, -0.0f, 0.0f, -0.0f}, 2) == std::vector<std::int32_t>{0, 1});
  CHECK(best({-0.0f, 0.0f}, 1) == std::vector<std::int32_t>{0});
  CHECK(best({1, 2, 2, 2, 1}, 2, {4, 3, 2, 1, 0}) == std::vector<std::int32_t>{1, 2});
  CHECK(ranks_before(-0.0f, 3, 0.0f, 4));
  CHECK_FALSE(ranks_before(0.0f, 4, -0.0f, 3));
}

TEST_CASE("NaN and -infinity are never kept, +infinity is") {
  CHECK(best({kNan, -kInf, 1, kInf, kNan, -kInf}, 6) == std::vector<std::int32_t>{3, 2});
  CHECK(best({kNan, kNan, -kInf}, 2).empty());
  CHECK(best({std::numeric_limits<float>::lowest(), -kInf}, 2) == std::vector<std::int32_t>{0});
}

TEST_CASE("no room keeps nothing, and room for more keeps all") {
  CHECK(best({1, 2, 3}, 0).empty());
  CHECK(best({}, 4).empty());
  CHECK(best({1, 3, 2}, 100) == std::vector<std::int32_t>{1, 2, 0});
}

TEST_CASE("a million scores, with and without ties") {
  dsv41::test::Random random(14);
  std::vector<float> scores(1000000);
  for (float& s : scores) s = random.normal();
  CHECK(best(scores, 512) == sorted(scores, 512));
  for (float& s : scores) s = std::round(s * 4);
  CHECK(best(scores, 2048) == sorted(scores, 2048));
}
