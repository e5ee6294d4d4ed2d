// SPDX-License-Identifier: MIT
//
// Expected experts touched: the released numbers, every choice of small cases counted out, and routing by random logits.
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
  CHECK(expected_experts_touched(384, 6, 1) == 6);  // 6/384 is a power of two
  CHECK(expected_experts_touched(5, 5, 3) == 5);
  CHECK(expected_experts_touched(384, 6, std::numeric_limits<std::int64_t>::max()) == 384);
}

TEST_CASE("expected experts touched is exact where every choice can be counted out") {
  CHECK(expected_experts_touched(2, 1, 1) == 1);     // by hand: A or B
  CHECK(expected_experts_touched(2, 1, 2) == 1.5);   // AA AB BA BB: 1, 2, 2, 1
  CHECK(expected_experts_touched(2, 1, 3) == 1.75);  // of eight words, two use one letter
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

TEST_CASE("expected_experts_touched refuses impossible numbers") {
  using Numbers = std::array<std::int64_t, 3>;  // experts, topk, batch
  for (const Numbers& n : {Numbers{0, 0, 1}, {8, 0, 1}, {8, 9, 1}, {8, -1, 1}, {8, 2, -1}}) {
    const Failure failure = failure_of([&] { expected_experts_touched(n[0], n[1], n[2]); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("got topk " + std::to_string(n[1]) + ", experts " + std::to_string(n[0]) + ", batch " +
                       std::to_string(n[2])));
  }
}
