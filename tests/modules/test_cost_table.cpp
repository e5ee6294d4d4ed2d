// SPDX-License-Identifier: MIT
//
// The cost table: dspark.md 8.1 examples 7 and 8, its shape at every size against a second statement, and what is refused.
#include "dsv41/modules/dspark/cost_table.hpp"

#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/random.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

std::vector<double> values(const CostTable& table, std::int64_t first, std::int64_t last) {
  std::vector<double> out;
  for (std::int64_t v = first; v <= last; ++v) out.push_back(table.verify_ms(v));
  return out;
}

/// dspark.md 6.4 in its own order, by linear searches.
double by_the_text(const std::vector<CostPoint>& points, std::int64_t limit, std::int64_t v) {
  std::vector<double> y;
  for (const CostPoint& p : points) y.push_back(y.empty() || p.ms > y.back() ? p.ms : y.back());
  const std::size_t n = points.size();
  if (v > points[n - 1].size) {
    if (n == 1) return y[0];
    const double rise = y[n - 1] - y[n - 2], run = static_cast<double>(points[n - 1].size - points[n - 2].size);
    return y[n - 1] + static_cast<double>(v - points[n - 1].size) * rise / run;
  }
  std::size_t holds = 0;
  while (points[holds].size < v) ++holds;
  if (v <= limit) return y[holds];
  std::size_t first_above = 0;
  while (points[first_above].size <= limit) ++first_above;
  if (holds == first_above) return y[holds];
  const double part = static_cast<double>(v - points[holds - 1].size) /
                      static_cast<double>(points[holds].size - points[holds - 1].size);
  return y[holds - 1] + part * (y[holds] - y[holds - 1]);
}

const std::vector<CostPoint> kDraft = {{1, 1}};

}  // namespace

TEST_CASE("example 7: stairs up to the graph limit") {
  const CostTable table({{1, 10}, {2, 10}, {4, 11}, {8, 16}}, 8, kDraft);
  CHECK(values(table, 2, 8) == std::vector<double>{10, 11, 11, 16, 16, 16, 16});
  CHECK(table.step_ms(2, 4) == 12.0);
  CHECK(table.steps_per_second(2, 4) == 1000.0 / 12.0);
}

TEST_CASE("example 8: running maximum, stairs, flat, lines, slope") {
  const CostTable table({{1, 10}, {2, 9.5}, {4, 12}, {8, 15}, {12, 30}, {16, 38}}, 8, kDraft);
  CHECK(values(table, 0, 20) ==
        std::vector<double>{10, 10, 10, 12, 12, 15, 15, 15, 15, 30, 30, 30, 30, 32, 34, 36, 38, 40, 42, 44, 46});
  CHECK(table.verify().points()[1].ms == 9.5);  // kept as measured
}

TEST_CASE("any table at any size equals the text's rules, and never falls") {
  Random random(71);
  for (int i = 0; i < 500; ++i) {
    std::vector<CostPoint> points;
    std::int64_t size = 0;
    const std::int64_t count = 1 + random.below(6);
    while (static_cast<std::int64_t>(points.size()) < count) {
      points.push_back({size += 1 + random.below(4), static_cast<double>(random.uniform(1, 20))});
    }
    const std::int64_t limit = random.below(size + 4);
    const CostTable table(points, limit, kDraft);
    CAPTURE(i, limit);
    double before = 0;
    for (std::int64_t v = 0; v < size + 8; ++v) {
      REQUIRE(table.verify_ms(v) == Approx(by_the_text(points, limit, v)).epsilon(1e-12));
      REQUIRE(table.verify_ms(v) >= before - 1e-9);
      before = table.verify_ms(v);
    }
  }
}

TEST_CASE("floors: a forward takes something, a drafter may take nothing") {
  const CostTable table({{1, 0}}, 0, {{1, 0}});
  CHECK(table.verify_ms(5) == 1e-6);
  CHECK(table.draft_ms(5) == 0.0);
  CHECK(table.step_ms(5, 5) > 0);
}

TEST_CASE("the draft curve is stairs over requests, with the last slope behind them") {
  const CostTable table({{1, 10}}, 1, {{1, 1}, {4, 2}, {8, 4}});
  std::vector<double> ms;
  for (std::int64_t r = 0; r <= 10; ++r) ms.push_back(table.draft_ms(r));
  CHECK(ms == std::vector<double>{1, 1, 2, 2, 2, 4, 4, 4, 4, 4.5, 5});
}

TEST_CASE("huge sizes and times give no NaN") {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const CostTable table({{1, 0}, {2, 1e308}}, 0, {{1, 0}, {std::int64_t{1} << 40, 1e308}});
  CHECK(table.verify_ms(kMost) == std::numeric_limits<double>::infinity());
  CHECK(table.steps_per_second(kMost, kMost) == 0.0);
}

TEST_CASE("tables that mean nothing are refused, by curve and point") {
  const auto verify = [](std::vector<CostPoint> points, std::int64_t limit = 8) {
    return failure_of([&] { CostTable(points, limit, kDraft); });
  };
  CHECK(verify({}).says("verify: no points"));
  CHECK(verify({{0, 1}}).says("point 0: size is 0, expected 1 to"));
  CHECK(verify({{-5, 1}}).says("size is -5"));
  CHECK(verify({{1, 1}, {1, 2}}).says("point 1: size is 1, expected 2 to"));
  CHECK(verify({{4, 1}, {2, 2}}).says("point 1: size is 2, expected 5 to"));
  CHECK(verify({{std::numeric_limits<std::int64_t>::max(), 1}}).says("point 0: size is 9223372036854775807"));
  CHECK(verify({{1, -1}}).says("point 0: time is -1"));
  CHECK(verify({{1, std::numeric_limits<double>::infinity()}}).says("point 0: time is inf"));
  CHECK(verify({{1, std::numeric_limits<double>::quiet_NaN()}}).code == Errc::invalid_argument);
  CHECK(verify({{1, 1}}, -1).says("graph limit is -1"));
  CHECK(failure_of([] { CostTable({{1, 1}}, 1, {}); }).says("draft: no points"));
  CHECK(failure_of([] { CostTable({{1, 1}}, 1, {{3, 1}, {-1, 1}}); }).says("draft: point 1: size is -1"));
}

TEST_CASE("sizes to measure: what is captured, half as much again, doublings") {
  const auto sizes = [](std::vector<std::int64_t> captured, std::int64_t limit) {
    return sizes_to_measure(captured, limit);
  };
  CHECK(sizes({1, 2, 4, 8}, 100) == std::vector<std::int64_t>{1, 2, 4, 8, 12, 16, 32, 64});
  CHECK(sizes({8}, 10) == std::vector<std::int64_t>{8, 10});
  CHECK(sizes({8}, 16) == std::vector<std::int64_t>{8, 12, 16});
  CHECK(sizes({8}, 8) == std::vector<std::int64_t>{8});
  CHECK(sizes({1}, 4) == std::vector<std::int64_t>{1, 2, 4});
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  CHECK(sizes({kMost - 1}, kMost) == std::vector<std::int64_t>{kMost - 1, kMost});
  CHECK(failure_of([&] { sizes({}, 8); }).code == Errc::invalid_argument);
  CHECK(failure_of([&] { sizes({2, 2}, 8); }).code == Errc::invalid_argument);
  CHECK(failure_of([&] { sizes({0, 2}, 8); }).code == Errc::invalid_argument);
  CHECK(failure_of([&] { sizes({9}, 8); }).says("at most the limit 8"));
}

TEST_CASE("repeated measurements become one point a size: their median") {
  const std::vector<CostPoint> samples = {{4, 9}, {2, 5}, {4, 1}, {2, 3}, {4, 2}, {1, 7}};
  CHECK(median_points(samples) == std::vector<CostPoint>{{1, 7}, {2, 4}, {4, 2}});
  CHECK(median_points({}).empty());
}

TEST_CASE("a sample that is no number is refused before anything is sorted by it") {
  const auto failure = [](double ms) {
    std::vector<CostPoint> samples;
    for (int i = 0; i < 40; ++i) samples.push_back({1 + i % 2, i % 5 == 3 ? ms : 40.0 - i});
    return failure_of([&] { median_points(samples); });
  };
  for (const double ms : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CHECK(failure(ms).code == Errc::invalid_argument);
    CHECK(failure(ms).says("sample 3 of size 2 took"));
  }
}
