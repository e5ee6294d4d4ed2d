// SPDX-License-Identifier: MIT
//
// The sampler against a second statement of its filters, against the law it claims (chi-square, fixed seeds; case B62),
// and its promise that a draw depends on (seed, position, logits) alone (case B68).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "../support/catch.hpp"
#include "../support/failure.hpp"
#include "dsv41/numerics/rng.hpp"
#include "dsv41/runtime/sampler.hpp"

using namespace dsv41;
using runtime::Sampler;
using runtime::SamplerOptions;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

In<float, 1> row(const std::vector<float>& v) {
  return {v.data(), {static_cast<std::int64_t>(v.size())}};
}

std::vector<double> law(const SamplerOptions& options, const std::vector<float>& logits) {
  Sampler sampler(options, static_cast<std::int64_t>(logits.size()));
  const auto p = sampler.probabilities(row(logits));
  return {p.begin(), p.end()};
}

/// The filters once more, by sorting everything. Finite logits only.
std::vector<double> plain_law(const SamplerOptions& o, const std::vector<float>& logits) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(logits.size(), 0);
  auto weight = [&](std::size_t id) {
    return std::exp((double{logits[id]} - double{logits[order[0]]}) / o.temperature);
  };
  std::size_t keep = o.top_k > 0 ? std::min(order.size(), static_cast<std::size_t>(o.top_k)) : order.size();
  double mass = 0, so_far = 0;
  for (std::size_t i = 0; i < keep; ++i) mass += weight(order[i]);
  std::size_t nucleus = 0;
  while (nucleus < keep && (nucleus == 0 || so_far < o.top_p * mass)) so_far += weight(order[nucleus++]);
  if (o.top_p < 1) keep = nucleus;
  while (keep > 1 && weight(order[keep - 1]) < o.min_p) --keep;
  double total = 0;
  for (std::size_t i = 0; i < keep; ++i) total += weight(order[i]);
  for (std::size_t i = 0; i < keep; ++i) p[order[i]] = weight(order[i]) / total;
  return p;
}

std::vector<float> random_logits(std::size_t n, unsigned seed) {
  std::mt19937 g(seed);
  std::normal_distribution<float> d(0, 3);
  std::vector<float> v(n);
  for (float& x : v) x = d(g);
  return v;
}

/// Sum of (observed - expected)^2 / expected over ids with probability.
double chi_square(const std::vector<double>& p, const std::vector<std::int64_t>& count, std::int64_t draws) {
  double chi2 = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * static_cast<double>(draws), off = static_cast<double>(count[i]) - expected;
    if (p[i] > 0) chi2 += off * off / expected;
  }
  return chi2;
}

std::vector<std::int64_t> histogram(const SamplerOptions& o, const std::vector<float>& logits, std::int64_t draws) {
  Sampler sampler(o, static_cast<std::int64_t>(logits.size()));
  std::vector<std::int64_t> count(logits.size(), 0);
  for (std::int64_t at = 0; at < draws; ++at) ++count[static_cast<std::size_t>(sampler.sample(row(logits), at))];
  return count;
}

std::vector<std::int32_t> text(std::uint64_t seed, std::int64_t tokens = 64) {
  Sampler sampler({.temperature = 1, .seed = seed}, 50);
  std::vector<std::int32_t> out;
  for (std::int64_t at = 0; at < tokens; ++at) out.push_back(sampler.sample(row(random_logits(50, unsigned(at))), at));
  return out;
}

}  // namespace

TEST_CASE("probabilities equal a plain statement of the filters", "[sampler]") {
  for (std::size_t vocab : {std::size_t{1}, std::size_t{2}, std::size_t{65}, std::size_t{1000}}) {
    for (double t : {0.1, 0.7, 1.0, 5.0}) {
      for (std::int64_t k : {0, 1, 3, 64, 100000}) {
        for (double p : {1e-12, 0.3, 0.9, 0.999999, 1.0}) {
          for (double m : {0.0, 0.05, 1.0}) {
            const SamplerOptions o{.temperature = t, .top_k = k, .top_p = p, .min_p = m};
            const auto logits = random_logits(vocab, static_cast<unsigned>(vocab + static_cast<std::size_t>(k)));
            const auto got = law(o, logits), want = plain_law(o, logits);
            bool same = true;
            for (std::size_t i = 0; i < vocab; ++i) {
              same = same && std::abs(got[i] - want[i]) <= 1e-12 && (got[i] > 0) == (want[i] > 0);
            }
            INFO("vocab " << vocab << " T " << t << " k " << k << " p " << p << " m " << m);
            CHECK(same);
            CHECK(std::accumulate(got.begin(), got.end(), 0.0) == Approx(1).margin(1e-12));
          }
        }
      }
    }
  }
}

TEST_CASE("filters apply in the stated order", "[sampler]") {
  // Weights 8:4:2:1:1 at T = 1. top_k 3 leaves 8:4:2; 0.85 of their 14 is 11.9, so two stay. Before top_k it would be
  // three of 16.
  const std::vector<float> logits{std::log(8.f), std::log(4.f), std::log(2.f), 0, 0};
  CHECK(law({.temperature = 1, .top_k = 3, .top_p = 0.85}, logits) == law({.temperature = 1, .top_k = 2}, logits));
  CHECK(law({.temperature = 1, .top_p = 0.85}, logits) == law({.temperature = 1, .top_k = 3}, logits));
  // Temperature comes first: at T = 2 the third id has half of the first's probability, at T = 1 a quarter.
  CHECK(law({.temperature = 2, .min_p = 0.4}, logits)[2] > 0);
  CHECK(law({.temperature = 1, .min_p = 0.4}, logits)[2] == 0);
  // min_p comes last: its own cut would leave 8:4 with top_p's share taken of 12, not of 16.
  CHECK(law({.temperature = 1, .top_p = 0.7, .min_p = 0.4}, logits) == law({.temperature = 1, .top_k = 2}, logits));
}

TEST_CASE("ties go to the lower id", "[sampler]") {
  const std::vector<float> logits{1, 2, 2, 2, 0};
  CHECK(law({}, logits) == std::vector<double>{0, 1, 0, 0, 0});
  CHECK(law({.temperature = 1, .top_k = 2}, logits) == std::vector<double>{0, 0.5, 0.5, 0, 0});
  CHECK(law({.temperature = 1, .top_p = 1e-9}, logits) == std::vector<double>{0, 1, 0, 0, 0});
  CHECK(law({.temperature = 1, .min_p = 1}, logits)[3] == Approx(1.0 / 3));
  CHECK(runtime::argmax(row(logits)) == 1);
}

TEST_CASE("extreme temperatures stay finite", "[sampler]") {
  const std::vector<float> logits{-3e38f, 0, 3e38f, 3e38f};
  CHECK(law({.temperature = 1e-300}, logits) == std::vector<double>{0, 0, 0.5, 0.5});
  CHECK(law({.temperature = 5e-324}, {1, 2}) == std::vector<double>{0, 1});
  CHECK(law({.temperature = 1e300}, logits) == std::vector<double>(4, 0.25));
  CHECK(law({.temperature = 1e300, .top_k = 1}, {1, 2, 3}) == std::vector<double>{0, 0, 1});
}

TEST_CASE("a row with a NaN is refused, greedy and sampled", "[sampler]") {
  const std::string end = ", expected none; a weight of the checkpoint is NaN or a value overflowed";
  for (double t : {0.0, 1.0}) {
    Sampler sampler({.temperature = t}, 3);
    for (float nan : {kNan, -kNan}) {
      const auto some = test::failure_of([&] { sampler.sample(row({5, nan, nan}), 3); });
      CHECK(some.code == Errc::invalid_argument);
      CHECK(some.message == "logits at position 2: 2 of 3 are NaN, the first for token 1" + end);
    }
    const auto all = test::failure_of([&] { sampler.probabilities(row({kNan, kNan, kNan})); });
    CHECK(all.message == "logits: 3 of 3 are NaN, the first for token 0" + end);
  }
  CHECK(test::failure_of([] { runtime::argmax(row({0, kNan})); }).says("1 of 2 are NaN, the first for token 1"));
  CHECK_NOTHROW(runtime::check_logits(row({0, kInf, -kInf}), 7));
}

TEST_CASE("infinite logits", "[sampler]") {
  CHECK(law({.temperature = 1}, {0, -kInf, 0}) == std::vector<double>{0.5, 0, 0.5});
  CHECK(law({.temperature = 1, .top_k = 3, .top_p = 0.99}, {-kInf, 0, -kInf, 0}) ==
        std::vector<double>{0, 0.5, 0, 0.5});
  CHECK(law({.temperature = 1}, {kInf, 0, kInf}) == std::vector<double>{0.5, 0, 0.5});
  for (double t : {0.0, 1.0}) {
    Sampler sampler({.temperature = t}, 2);
    const auto failure = test::failure_of([&] { sampler.sample(row({-kInf, -kInf}), 0); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("none of the 2 logits is above -inf"));
    CHECK(test::failure_of([&] { sampler.sample(row({1, 2, 3}), 0); }).says("row of 3 logits, expected 2"));
  }
}

TEST_CASE("options are checked", "[sampler]") {
  auto message = [](const SamplerOptions& o) { return test::failure_of([&] { Sampler(o, 4); }).message; };
  CHECK(message({.temperature = -1}).find("temperature") != std::string::npos);
  CHECK(message({.temperature = std::nan("")}).find("temperature") != std::string::npos);
  CHECK(message({.temperature = HUGE_VAL}).find("temperature") != std::string::npos);
  CHECK(message({.top_k = -1}).find("top_k") != std::string::npos);
  CHECK(message({.top_p = 0}).find("top_p") != std::string::npos);
  CHECK(message({.top_p = 1.5}).find("top_p") != std::string::npos);
  CHECK(message({.top_p = std::nan("")}).find("top_p") != std::string::npos);
  CHECK(message({.min_p = -0.1}).find("min_p") != std::string::npos);
  CHECK(message({.min_p = 1.1}).find("min_p") != std::string::npos);
  CHECK(test::failure_of([] { Sampler({}, 0); }).says("vocabulary of 0"));
  CHECK(message({.temperature = 2, .top_k = 9, .top_p = 1, .min_p = 1}).empty());
}

TEST_CASE("B62: first tokens follow the filtered law", "[sampler]") {
  // Close logits, two of five stay.
  const SamplerOptions o{.temperature = 0.7, .top_k = 2, .top_p = 0.9, .seed = 1};
  const std::vector<float> logits{1.00f, 1.05f, 0.95f, 1.02f, 0.99f};
  const std::int64_t draws = 200000;
  const auto p = plain_law(o, logits);
  const auto count = histogram(o, logits, draws);
  CHECK(count[0] + count[2] + count[4] == 0);
  CHECK(count[1] > 0);
  CHECK(chi_square(p, count, draws) < 15.13);  // one degree of freedom, p = 1e-4
}

TEST_CASE("unfiltered tokens follow the softmax", "[sampler]") {
  const auto logits = random_logits(40, 9);
  for (std::uint64_t seed : {0u, 1u, 2u}) {
    const SamplerOptions o{.temperature = 1.5, .seed = seed};
    const auto p = plain_law(o, logits);
    CHECK(chi_square(p, histogram(o, logits, 200000), 200000) < 82.1);  // 39 degrees of freedom, p = 7e-5
  }
}

TEST_CASE("B68: a draw depends on seed, position and logits alone", "[sampler]") {
  const auto alone = text(42);
  CHECK(text(42) == alone);

  // Four sequences in any order of rows, with an unrelated one given up half way.
  Sampler shared({.temperature = 1, .seed = 42}, 50), other({.temperature = 1, .top_k = 5, .seed = 7}, 50);
  std::vector<std::int32_t> batched(64);
  for (std::int64_t at = 63; at >= 0; --at) {
    const auto logits = random_logits(50, unsigned(at));
    if (at > 30) other.sample(row(random_logits(50, unsigned(at) + 1000)), at);
    for (int row_of_batch = 0; row_of_batch < 4; ++row_of_batch) {
      batched[static_cast<std::size_t>(at)] = shared.sample(row(logits), at);
    }
  }
  CHECK(batched == alone);

  std::vector<std::vector<std::int32_t>> threaded(8);
  std::vector<std::thread> threads;
  for (auto& out : threaded) threads.emplace_back([&out] { out = text(42); });
  for (auto& t : threads) t.join();
  for (const auto& out : threaded) CHECK(out == alone);
}

TEST_CASE("B68: seeds matter when sampling and not when greedy", "[sampler]") {
  std::set<std::vector<std::int32_t>> texts;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) texts.insert(text(seed));
  CHECK(texts.size() >= 15);
  const auto logits = random_logits(50, 3);
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    CHECK(Sampler({.seed = seed}, 50).sample(row(logits), 11) == runtime::argmax(row(logits)));
  }
}
