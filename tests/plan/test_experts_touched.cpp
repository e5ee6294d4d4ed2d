// SPDX-License-Identifier: MIT
//
// Expected experts and table rows touched: the released numbers, every choice of small cases counted out, and routing by random logits.
#include "dsv41/plan/experts_touched.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/memory.hpp"

using namespace dsv41;
using namespace dsv41::test;
using plan::expected_experts_touched;
using plan::expected_rows_touched;

namespace {

/// The mean over all choices of `batch` subsets of topk of the experts, each subset a bit mask.
double counted_out(int experts, int topk, int batch) {
  std::vector<unsigned> subsets, unions = {0};
  for (unsigned mask = 0; mask < 1u << experts; ++mask) {
    if (std::popcount(mask) == topk) subsets.push_back(mask);
  }
  for (int token = 0; token < batch; ++token) {
    std::vector<unsigned> next;
    for (const unsigned so_far : unions) {
      for (const unsigned mask : subsets) next.push_back(so_far | mask);
    }
    unions = next;
  }
  double sum = 0;
  for (const unsigned mask : unions) sum += std::popcount(mask);
  return sum / static_cast<double>(unions.size());
}

}  // namespace

TEST_CASE("64 tokens of the released model touch 243.8 of 384 experts") {
  CHECK(std::abs(expected_experts_touched(384, 6, 64) - 243.8) < 0.05);
  CHECK(expected_experts_touched(384, 6, 0) == 0);
  CHECK(std::abs(expected_experts_touched(384, 6, 1) - 6) < 1e-14);
  CHECK(expected_experts_touched(5, 5, 3) == 5);
  CHECK(expected_experts_touched(384, 6, std::numeric_limits<std::int64_t>::max()) == 384);
}

TEST_CASE("expected experts touched is exact where every choice can be counted out") {
  CHECK(std::abs(expected_experts_touched(2, 1, 1) - 1) < 1e-15);     // by hand: A or B
  CHECK(std::abs(expected_experts_touched(2, 1, 2) - 1.5) < 1e-15);   // AA AB BA BB: 1, 2, 2, 1
  CHECK(std::abs(expected_experts_touched(2, 1, 3) - 1.75) < 1e-15);  // of eight words, two use one letter
  for (int experts = 1; experts <= 5; ++experts) {
    for (int topk = 1; topk <= experts; ++topk) {
      for (int batch = 1; batch <= 4; ++batch) {
        INFO("experts " << experts << ", topk " << topk << ", batch " << batch);
        CHECK(std::abs(expected_experts_touched(experts, topk, batch) - counted_out(experts, topk, batch)) < 1e-12);
      }
    }
  }
}

TEST_CASE("routing by random logits touches as many experts as expected") {
  // The mean of n independent counts of variance v is within 4 sqrt(v / n) of the expectation but once in 16,000 runs; v is
  // estimated from the counts. The seed is fixed, so this either holds or does not.
  constexpr std::int64_t kExperts = 64, kTopk = 6, kRuns = 400;
  Random random(70);
  for (const std::int64_t batch : {1, 2, 7, 16, 40}) {
    INFO("batch " << batch);
    double sum = 0, squares = 0;
    for (std::int64_t run = 0; run < kRuns; ++run) {
      Array<float, 2> logits = random_array<2>(random, {batch, kExperts});
      std::vector<float> bias(kExperts, 0.0f), weights(static_cast<std::size_t>(batch * kTopk));
      std::vector<std::uint8_t> image(static_cast<std::size_t>(batch), 0);
      std::vector<std::int32_t> ids(weights.size());
      RefBackend().run(ops::TopkRoute{.logits = {logits.values.data(), logits.extents},
                                      .bias = {bias.data(), {kExperts}},
                                      .bias_vl = {bias.data(), {kExperts}},
                                      .image = {image.data(), {batch}},
                                      .ids = {ids.data(), {batch, kTopk}},
                                      .weights = {weights.data(), {batch, kTopk}}});
      std::vector<bool> touched(kExperts, false);
      for (const std::int32_t id : ids) touched[static_cast<std::size_t>(id)] = true;
      double count = 0;
      for (const bool is : touched) count += is;
      sum += count;
      squares += count * count;
    }
    const double mean = sum / kRuns, variance = squares / kRuns - mean * mean;
    CHECK(std::abs(mean - expected_experts_touched(kExperts, kTopk, batch)) <= 4 * std::sqrt(variance / kRuns));
  }
}

TEST_CASE(
    "table rows touched: columns touch theirs independently, a token reads exactly one of each, and never more than "
    "all") {
  for (const std::int64_t columns : {1, 2, 5}) {
    for (const std::int64_t length : {1, 2, 3}) {
      for (int batch = 1; batch <= 4; ++batch) {
        INFO(columns << " columns of " << length << " rows, batch " << batch);
        const double one = counted_out(static_cast<int>(length), 1, batch);
        CHECK(std::abs(expected_rows_touched(columns * length, columns, batch) - static_cast<double>(columns) * one) <
              1e-12);
      }
    }
  }
  CHECK(std::abs(expected_rows_touched(384006168, 24, 1) - 24) <
        1e-12);  // not 1 - (1 - 6e-8), which is off by 1e-9 of it
  CHECK(std::abs(expected_rows_touched(384006168, 24, 2) - 48) < 1e-5);
  CHECK(expected_rows_touched(129280, 1, 0) == 0);
  CHECK(expected_rows_touched(129280, 1, 129280) < 129280 * 0.6322);  // 1 - 1/e
  CHECK(expected_rows_touched(129280, 1, std::numeric_limits<std::int64_t>::max()) == 129280);
}

TEST_CASE("expected_rows_touched refuses impossible numbers") {
  CHECK(failure_of([] { expected_rows_touched(8, 9, 1); }).says("got columns 9, rows 8, batch 1"));
  CHECK(failure_of([] { expected_rows_touched(0, 0, 1); }).code == Errc::invalid_argument);
  CHECK(failure_of([] { expected_rows_touched(8, 1, -1); }).code == Errc::invalid_argument);
}

TEST_CASE("expected_experts_touched refuses impossible numbers") {
  using Numbers = std::array<std::int64_t, 3>;  // experts, topk, batch
  for (const Numbers& n : {Numbers{0, 0, 1}, {8, 0, 1}, {8, 9, 1}, {8, -1, 1}, {8, 2, -1}}) {
    const Failure failure = failure_of([&] { expected_experts_touched(n[0], n[1], n[2]); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("got topk " + std::to_string(n[1]) + ", experts " + std::to_string(n[0]) + ", batch " +
                       std::to_string(n[2])));
  }
}
