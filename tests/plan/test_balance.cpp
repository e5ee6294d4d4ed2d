// SPDX-License-Identifier: MIT
//
// Loss-free balancing: loads, one step of the bias by hand, and a router that starts skewed and comes into balance.
#include "dsv41/plan/balance.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/memory.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

using Loads = std::vector<std::int64_t>;

template <class T>
View<T, 1> all(std::vector<T>& v) {
  return {v.data(), {static_cast<std::int64_t>(v.size())}};
}

std::vector<float> updated(Loads load, std::vector<float> bias, float step) {
  plan::update_bias(all(load), all(bias), step);
  return bias;
}

double violation(Loads load) {
  return plan::max_violation(all(load));
}

/// A router over random tokens: each modality prefers other experts.
class Simulation {
 public:
  static constexpr std::int64_t kExperts = 64, kTopk = 6, kText = 2048, kImage = 1536, kTokens = kText + kImage;

  Simulation() : bias(kExperts, 0.0f), bias_vl(kExperts, 0.0f), image_(kTokens, 0) {
    std::fill(image_.begin() + kText, image_.end(), std::uint8_t{1});
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const double slope = static_cast<double>(e) / (kExperts - 1);
      skew_[0].push_back(2 * slope * slope * slope);                         // text: a few hot experts at the end
      skew_[1].push_back(1.5 * std::cos(6 * slope) * (e % 2 == 0 ? 1 : 0));  // image: every other one, in waves
    }
  }

  /// Routes a fresh batch; loads of text and image.
  std::array<Loads, 2> batch() {
    Array<float, 2> logits({kTokens, kExperts});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::vector<double>& skew = skew_[image_[static_cast<std::size_t>(t)]];
      for (std::int64_t e = 0; e < kExperts; ++e) {
        logits.values[static_cast<std::size_t>(t * kExperts + e)] =
            random_.uniform(-1.5, 1.5) + static_cast<float>(skew[static_cast<std::size_t>(e)]);
      }
    }
    std::vector<std::int32_t> ids(kTokens * kTopk);
    std::vector<float> weights(ids.size());
    RefBackend().run(ops::TopkRoute{.logits = {logits.values.data(), logits.extents},
                                    .bias = all(bias),
                                    .bias_vl = all(bias_vl),
                                    .image = all(image_),
                                    .ids = {ids.data(), {kTokens, kTopk}},
                                    .weights = {weights.data(), {kTokens, kTopk}}});
    std::array<Loads, 2> loads = {Loads(kExperts, 0), Loads(kExperts, 0)};
    plan::add_loads(In<std::int32_t, 2>(ids.data(), {kTokens, kTopk}), all(image_), all(loads[0]), all(loads[1]));
    return loads;
  }

  std::vector<float> bias, bias_vl;

 private:
  std::vector<std::uint8_t> image_;
  std::array<std::vector<double>, 2> skew_;
  Random random_{71};
};

}  // namespace

TEST_CASE("a router that starts skewed comes into balance in both modalities, batch by batch; left alone it does not") {
  // The skew is at most 0.9 in the score; a step of 0.001 brings an expert above and one below the mean 0.002 closer, so 500 are enough.
  // What stays is the noise of a batch: mean counts of 192 (text) and 144 (image) have standard deviations of 7 and 8 %, and the worst
  // of 64 experts in 20 batches is some three or four of these above the mean.
  constexpr int kSteps = 500, kWatched = 20;
  Simulation updated, control;
  const auto violations = [](const std::array<Loads, 2>& loads) {
    return std::array<double, 2>{violation(loads[0]), violation(loads[1])};
  };
  const std::array<double, 2> start = violations(updated.batch());
  CHECK(start == violations(control.batch()));
  std::array<double, 2> worst = {0, 0};
  for (int step = 0; step < kSteps + kWatched; ++step) {
    std::array<Loads, 2> loads = updated.batch();
    plan::update_bias(all(loads[0]), all(updated.bias));
    plan::update_bias(all(loads[1]), all(updated.bias_vl));
    for (std::size_t m = 0; m < 2; ++m) {
      if (step >= kSteps) worst[m] = std::max(worst[m], violation(loads[m]));
    }
  }
  for (std::size_t m = 0; m < 2; ++m) {
    INFO("modality " << m << ": maximum load violation " << start[m] << " at the start, then at most " << worst[m]);
    CHECK(start[m] > 3);
    CHECK(worst[m] * 10 <= start[m]);
  }
  for (int batch = 0; batch < kWatched; ++batch) {
    const std::array<double, 2> now = violations(control.batch());
    CHECK(now[0] > 0.8 * start[0]);
    CHECK(now[1] > 0.8 * start[1]);
  }
}

TEST_CASE("a step moves each bias against its load by a fixed amount") {
  CHECK(updated({4, 2, 0, 2}, {0, 0, 0, 0}, 0.5f) == std::vector<float>{-0.5f, 0, 0.5f, 0});
  CHECK(updated({1, 2}, {1, 1}, 0.25f) == std::vector<float>{1.25f, 0.75f});      // mean 1.5
  CHECK(updated({2, 2, 1}, {0, 0, 0}, 1) == std::vector<float>{-1, -1, 1});       // mean 5/3
  CHECK(updated({1, 1, 2}, {0, 0, 0}, 1) == std::vector<float>{1, 1, -1});        // mean 4/3
  CHECK(updated({900, 0, 0}, {0, 0, 0}, 1) == updated({3, 1, 1}, {0, 0, 0}, 1));  // the sign, not the distance
  CHECK(updated({7}, {3}, 1) == std::vector<float>{3});
  CHECK(updated({5, 1}, {1, 1}, 0) == std::vector<float>{1, 1});
  std::vector<float> bias = {0, 0};
  Loads load = {1, 0};
  plan::update_bias(all(load), all(bias));
  CHECK(bias == std::vector<float>{-0.001f, 0.001f});
}

TEST_CASE("a mean beyond the precision of a double is still compared exactly") {
  constexpr std::int64_t kBig = std::int64_t{1} << 60;
  CHECK(updated({kBig, kBig + 1, kBig + 2}, {0, 0, 0}, 1) == std::vector<float>{1, 0, -1});
}

TEST_CASE("a modality without tokens keeps its bias, and its tokens count for it alone") {
  std::vector<std::int32_t> ids = {0, 1, 0, 2, 3, -1};
  std::vector<std::uint8_t> image = {0, 0, 7};
  Loads text = {10, 0, 0, 0}, images(4, 0);
  const In<std::int32_t, 2> rows(ids.data(), {3, 2});
  plan::add_loads(rows, all(image), all(text), all(images));
  CHECK(text == Loads{12, 1, 1, 0});
  CHECK(images == Loads{0, 0, 0, 1});
  images.assign(4, 0);
  plan::add_loads(rows.rows(0, 2), In<std::uint8_t, 1>(image.data(), {2}), all(text), all(images));
  CHECK(updated(images, {1, -2, 3, 0}, 1) == std::vector<float>{1, -2, 3, 0});
  CHECK(images == Loads(4, 0));
}

TEST_CASE("maximum load violation is the largest load over the mean, less one") {
  CHECK(violation({5, 5, 5}) == 0);
  CHECK(violation({6, 2, 1, 3}) == 1);
  CHECK(violation({0, 0, 0, 8}) == 3);
  CHECK(violation({0, 0}) == 0);
  CHECK(violation({9}) == 0);
}

TEST_CASE("balancing refuses bad shapes, ids, loads and steps, and changes nothing then") {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> bias = {1, 2};
  const auto refused = [&](Loads load, float step) {
    const Failure failure = failure_of([&] { plan::update_bias(all(load), all(bias), step); });
    CHECK(bias == std::vector<float>{1, 2});
    return failure;
  };
  CHECK(refused({1, 2, 3}, 1).message == "update_bias: bias is [2], expected [3]");
  CHECK(refused({1, 2, 3}, 1).code == Errc::shape_mismatch);
  CHECK(refused({}, 1).message == "update_bias: load is [0], expected at least one expert");
  CHECK(refused({3, -1}, 1).says("load of expert 1 is -1"));
  CHECK(refused({1, std::numeric_limits<std::int64_t>::max()}, 1).code == Errc::invalid_argument);
  for (const float step : {std::nanf(""), inf, -0.001f}) {
    CHECK(refused({1, 0}, step).code == Errc::invalid_argument);
    CHECK(refused({1, 0}, step).says("expected a finite number of at least 0"));
  }
  CHECK(failure_of([] { violation({}); }).code == Errc::shape_mismatch);
  CHECK(failure_of([] { violation({2, -2}); }).code == Errc::invalid_argument);

  std::vector<std::uint8_t> image = {0, 1};
  Loads text(4, 0), images(4, 0);
  const auto adds = [&](std::vector<std::int32_t> ids, Loads& other) {
    const In<std::int32_t, 2> rows(ids.data(), {static_cast<std::int64_t>(ids.size()), 1});
    return failure_of([&] { plan::add_loads(rows, all(image), all(text), all(other)); });
  };
  CHECK(adds({0, 1, 2}, images).message == "add_loads: extent of image is 2, expected 3");
  Loads few(3, 0);
  CHECK(adds({0, 1}, few).message == "add_loads: extent of image_load is 3, expected 4");
  CHECK(adds({0, 4}, images).message == "add_loads: id of token 1, rank 0 is 4, expected -1 or an expert below 4");
  CHECK(adds({0, -2}, images).code == Errc::invalid_argument);
  CHECK(text == Loads(4, 0));
}
