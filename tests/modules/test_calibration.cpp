// SPDX-License-Identifier: MIT
//
// Confidences from logits: plain, with given temperatures, and with temperatures that follow what was accepted (dspark.md 8.1 example 11).
#include "dsv41/modules/dspark/calibration.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/random.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> calibrated(const std::vector<float>& logits, const std::vector<double>& temperatures) {
  std::vector<float> out(logits.size());
  calibrate_confidences(logits, temperatures, out);
  return out;
}

/// Rows of one step, all with the same logits.
struct Rows {
  std::vector<float> logits;
  std::vector<std::int32_t> verified, accepted;
  std::int64_t draft = 0;

  void add(int count, const std::vector<float>& row, std::int32_t v, std::int32_t a) {
    draft = static_cast<std::int64_t>(row.size());
    for (int i = 0; i < count; ++i) {
      logits.insert(logits.end(), row.begin(), row.end());
      verified.push_back(v);
      accepted.push_back(a);
    }
  }
  void update(OnlineTemperatures& online) const {
    online.update({logits.data(), {static_cast<std::int64_t>(verified.size()), draft}}, verified, accepted);
  }
};

Rows example_11() {
  Rows rows;
  rows.add(45, {2.2f, 1.2f}, 2, 2);
  rows.add(20, {2.2f, 1.2f}, 2, 1);
  rows.add(35, {2.2f, 1.2f}, 2, 0);
  return rows;
}

}  // namespace

TEST_CASE("without temperatures confidences are the sigmoid") {
  const std::vector<float> logits = {.65f, .3f, -1.075f};  // example 9
  const std::vector<float> got = calibrated(logits, {1, 1, 1});
  const double expected[] = {.657010, .574443, .254453};
  for (std::size_t k = 0; k < 3; ++k) {
    CHECK(got[k] == numerics::sigmoid(logits[k]));
    CHECK(got[k] == Approx(expected[k]).margin(1e-6));
  }
}

TEST_CASE("each position has its temperature") {
  const std::vector<float> got = calibrated({2, 2, kNan}, {1, 4, 1});
  CHECK(got[0] == Approx(1 / (1 + std::exp(-2.0))).epsilon(1e-6));
  CHECK(got[1] == Approx(1 / (1 + std::exp(-0.5))).epsilon(1e-6));
  CHECK(std::isnan(got[2]));
  CHECK(calibrated({1}, {1, 7}).size() == 1);  // fewer drafts than positions

  expect_temperatures(std::vector<double>{1, .5, 8});
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    const Failure failure = failure_of([&] { expect_temperatures(std::vector<double>{1, bad}); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("temperature of draft 2"));
  }
}

TEST_CASE("example 11: one update of online temperatures") {
  OnlineTemperatures online(2);
  CHECK(online.temperatures()[0] == 1.0);
  example_11().update(online);
  CHECK(online.trials(0) == 100.0);
  CHECK(online.hits(0) == 65.0);
  CHECK(online.trials(1) == 65.0);
  CHECK(online.hits(1) == 45.0);
  CHECK(online.temperatures()[0] == Approx(3.438722).margin(5e-7));
  CHECK(online.temperatures()[1] == Approx(2.228125).margin(5e-7));
}

TEST_CASE("an update forgets a thousandth of what came before") {
  OnlineTemperatures online(2);
  example_11().update(online);
  example_11().update(online);
  CHECK(online.trials(0) == Approx(199.9));
  CHECK(online.hits(1) == Approx(89.955));
  OnlineTemperatures(1).update({nullptr, {0, 1}}, {}, {});  // a step without drafts
}

TEST_CASE("a trial is the first rejected draft and those before it, of what was verified") {
  OnlineTemperatures online(3);
  Rows rows;
  rows.add(1, {1, 1, 1}, 3, 1);  // trials of the first two
  rows.add(1, {1, 1, 1}, 1, 1);  // the second was never judged
  rows.add(1, {1, 1, 1}, 0, 0);
  rows.add(1, {kNan, 1, 1}, 2, 2);
  rows.update(online);
  CHECK(online.trials(0) == 2.0);
  CHECK(online.hits(0) == 2.0);
  CHECK(online.trials(1) == 2.0);
  CHECK(online.hits(1) == 1.0);
  CHECK(online.trials(2) == 0.0);
  CHECK(failure_of([] { OnlineTemperatures none(0); }).says("draft is 0"));
}

TEST_CASE("logits beyond the bins count in the end bins, and a position without trials takes what the others say") {
  OnlineTemperatures online(2);
  Rows rows;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float z : {100.f, infinity, 7.5f}) rows.add(100, {z, 0}, 1, 1);
  for (const float z : {-100.f, -infinity, -8.f, -7.5f}) rows.add(100, {z, 0}, 1, 0);
  rows.update(online);
  CHECK(online.trials(0) == 700.0);
  CHECK(online.hits(0) == 300.0);
  CHECK(online.trials(1) == 0.0);
  CHECK(online.temperatures()[0] < 1);  // overconfidence is right here
  // Both have the same fit f. Pooled: w log f, which is all that the second has; the first: w log f + (1 - w) of that.
  const double pooled = std::log2(online.temperatures()[1]), w = 700.0 / 764;
  CHECK(pooled / w == Approx(-3.0));  // the end of the grid
  CHECK(std::log2(online.temperatures()[0]) == Approx((2 - w) * pooled));
}

TEST_CASE("temperatures converge to those that the acceptances were drawn with, a position each") {
  Random random(72);
  OnlineTemperatures online(2);
  const double truth[] = {2.0, 0.5};
  for (int step = 0; step < 200; ++step) {
    Rows rows;
    for (int r = 0; r < 64; ++r) {
      const std::vector<float> z = {random.uniform(-4, 4), random.uniform(-4, 4)};
      std::int32_t accepted = 0;
      while (accepted < 2 &&
             random.uniform(0, 1) < 1 / (1 + std::exp(-z[static_cast<std::size_t>(accepted)] / truth[accepted]))) {
        ++accepted;
      }
      rows.add(1, z, 2, accepted);
    }
    rows.update(online);
  }
  const double two_steps = std::exp2(2.0 / 8);  // of the grid; bins a logit wide cannot tell more
  for (std::size_t k = 0; k < 2; ++k) {
    CHECK(online.temperatures()[k] < truth[k] * two_steps);
    CHECK(online.temperatures()[k] > truth[k] / two_steps);
  }
}
