// SPDX-License-Identifier: MIT
//
// Moe on its own: router and experts together, from the layer's input to its output; node-limited groups and hash tables.
#include "dsv41/modules/moe.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kDim = 32, kFf = 16, kExperts = 8, kTokens = 9;

struct Expert {
  Stored w1, w2, w3;
};

template <class B>
struct Bench {
  B backend;
  Memory<B> memory{backend};
  ModelConfig config;
  Stored gate;
  std::vector<Expert> experts;  // the shared one last
  std::vector<float> bias, bias_vl;
  MoeWeights weights;

  explicit Bench(bool shared) {
    config.vocab = 4, config.experts = kExperts, config.topk = 3, config.route_scale = 1.5, config.swiglu_limit = 10,
    config.shared_experts = shared;
    Random random(1);
    gate = random_matrix(random, Format::bf16, kExperts, kDim, 0.25);
    bias = random.normals(kExperts, 0.3), bias_vl = random.normals(kExperts, 3);
    weights = {.gate = memory.put(gate),
               .bias = memory.put(bias),
               .bias_vl = memory.put(bias_vl),
               .experts = {},
               .shared = {}};
    for (std::int64_t e = 0; e <= kExperts; ++e) {
      experts.push_back({random_matrix(random, Format::fp4_row, kFf, kDim, 0.25),
                         random_matrix(random, Format::fp4_row, kDim, kFf, 0.25),
                         random_matrix(random, Format::fp4_row, kFf, kDim, 0.25)});
      const ExpertWeights put{.w1 = memory.put(experts.back().w1),
                              .w2 = memory.put(experts.back().w2),
                              .w3 = memory.put(experts.back().w3)};
      if (e < kExperts) weights.experts.push_back(put);
      if (e == kExperts && shared) weights.shared = put;
    }
  }

  std::vector<float> run(const Array<float, 2>& x, const std::vector<std::uint8_t>& image,
                         const RouterModes& modes = {}, const std::vector<std::int32_t>& token_ids = {}) {
    const std::int64_t rows = x.extents[0];
    const MoeScratch scratch{memory.put(Array<float, 2>({rows, kExperts})),
                             memory.put(Array<std::int32_t, 2>({rows, config.topk})),
                             memory.put(Array<float, 2>({rows, config.topk}))};
    const auto y = memory.put(Array<float, 2>({rows, kDim}));
    Moe(config, weights, Numeric::exact, modes)
        .forward(backend, memory.put(x), memory.put(image), scratch, y, memory.put(token_ids));
    return memory.get(y);
  }

  void add(const Expert& e, const Doubles& x, double weight, Doubles& y) const {
    const Doubles g = product(e.w1, x), u = product(e.w3, x);
    Doubles inner;
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double limited = std::min(g[i], 10.0);
      inner.push_back(weight * limited * sigmoid(limited) * std::clamp(u[i], -10.0, 10.0));
    }
    const Doubles out = product(e.w2, inner);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += out[i];
  }

  Doubles scores(const Doubles& x) const {
    Doubles out = product(gate, x);
    for (double& s : out) {
      s /= config.gate_temp;
      s = config.score == ScoreFunction::sigmoid ? sigmoid(s) : std::sqrt(std::log1p(std::exp(s)));
    }
    return out;
  }

  /// The experts of the largest scores with bias among those of the best groups of `size` experts.
  std::vector<std::size_t> best(const Doubles& s, bool image, std::size_t size = kExperts,
                                std::size_t groups = 1) const {
    const std::vector<float>& b = image ? bias_vl : bias;
    const auto biased = [&](std::size_t e) { return s[e] + static_cast<double>(b[e]); };
    const auto larger = [&](std::size_t l, std::size_t r) { return biased(l) > biased(r); };
    std::vector<std::vector<std::size_t>> teams(kExperts / size);
    for (std::size_t e = 0; e < s.size(); ++e) teams[e / size].push_back(e);
    for (auto& team : teams) std::sort(team.begin(), team.end(), larger);
    std::sort(teams.begin(), teams.end(),
              [&](const auto& l, const auto& r) { return biased(l[0]) + biased(l[1]) > biased(r[0]) + biased(r[1]); });
    std::vector<std::size_t> order;
    for (std::size_t g = 0; g < groups; ++g) order.insert(order.end(), teams[g].begin(), teams[g].end());
    std::sort(order.begin(), order.end(), larger);
    order.resize(3);
    return order;
  }

  Doubles mixture(const Doubles& x, const std::vector<std::size_t>& chosen) const {
    const Doubles s = scores(x);
    Doubles y(kDim);
    double total = 0;
    for (const std::size_t e : chosen) total += s[e];
    for (const std::size_t e : chosen) add(experts[e], x, s[e] / (config.norm_topk ? total : 1) * 1.5, y);
    if (config.shared_experts > 0) add(experts[kExperts], x, 1, y);
    return y;
  }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("a mixture equals the formula, with and without a shared expert, for text and image tokens",
                        "[modules]", Backends) {
  for (const bool shared : {true, false}) {
    Bench<TestType> bench(shared);
    Random random(2);
    const Array<float, 2> x = random_array<2>(random, {kTokens, kDim});
    std::vector<std::uint8_t> image(kTokens);
    for (std::size_t t = 0; t < image.size(); t += 2) image[t] = 1;
    const Array<float, 2> got({kTokens, kDim}, bench.run(x, image));
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const auto at = static_cast<std::size_t>(t);
      const Doubles row = slice(x.values, t * kDim, kDim);
      CHECK(norm_error(got.rows(t, 1).values, bench.mixture(row, bench.best(bench.scores(row), image[at] != 0))) <=
            kNorm);
      CHECK(same_bits(bench.run(x.rows(t, 1), {image[at]}), got.rows(t, 1).values));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("B25: a constant added to every bias changes no bit of the output", "[modules]", Backends) {
  Bench<TestType> bench(true);
  Random random(3);
  const Array<float, 2> x = random_array<2>(random, {kTokens, kDim});
  const std::vector<std::uint8_t> text(kTokens);
  const std::vector<float> want = bench.run(x, text);
  for (float& b : bench.bias) b += 0.5f;
  bench.weights.bias = bench.memory.put(bench.bias);
  CHECK(same_bits(bench.run(x, text), want));
}

TEMPLATE_LIST_TEST_CASE("renumbering the experts changes the output by summation order only", "[modules]", Backends) {
  Bench<TestType> bench(false);
  Random random(4);
  const Array<float, 2> x = random_array<2>(random, {kTokens, kDim});
  const std::vector<float> want = bench.run(x, std::vector<std::uint8_t>(kTokens));
  std::vector<float> rows;
  for (std::int64_t e = kExperts; e-- > 0;) {
    for (std::int64_t i = 0; i < kDim; ++i) rows.push_back(static_cast<float>(bench.gate.value(e, i)));
  }
  bench.weights.gate = bench.memory.put(float_matrix(kExperts, kDim, rows));
  std::reverse(bench.weights.experts.begin(), bench.weights.experts.end());
  std::reverse(bench.bias.begin(), bench.bias.end());
  bench.weights.bias = bench.memory.put(bench.bias);
  CHECK(norm_error(bench.run(x, std::vector<std::uint8_t>(kTokens)), doubles_of(want)) <= kNorm);
}

TEMPLATE_LIST_TEST_CASE("B92: a mixture of no rows does nothing", "[modules]", Backends) {
  Bench<TestType> bench(true);
  CHECK(bench.run(Array<float, 2>({0, kDim}), {}).empty());
}

TEMPLATE_LIST_TEST_CASE("node-limited groups: the mixture of the best experts of the best groups", "[modules]",
                        Backends) {
  Bench<TestType> bench(true);
  Random random(5);
  const Array<float, 2> x = random_array<2>(random, {kTokens, kDim});
  std::vector<std::uint8_t> image(kTokens);
  image[4] = 1;
  const Array<float, 2> got({kTokens, kDim}, bench.run(x, image, {.groups = 4, .topk_groups = 2, .hash_table = {}}));
  bool limited = false;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const Doubles row = slice(x.values, t * kDim, kDim), s = bench.scores(row);
    const auto chosen = bench.best(s, t == 4, 2, 2);
    limited = limited || chosen != bench.best(s, t == 4);
    CHECK(norm_error(got.rows(t, 1).values, bench.mixture(row, chosen)) <= kNorm);
  }
  CHECK(limited);  // the groups took part
}

TEMPLATE_LIST_TEST_CASE("a hash table: the mixture of the experts that a token's row names, whatever the bias",
                        "[modules]", Backends) {
  const bool released = GENERATE(true, false);  // else: every other rule of the router
  Bench<TestType> bench(true);
  if (!released)
    bench.config.score = ScoreFunction::sigmoid, bench.config.gate_temp = 2, bench.config.norm_topk = false;
  Random random(6);
  const Array<float, 2> x = random_array<2>(random, {kTokens, kDim});
  const Array<std::int32_t, 2> table({4, 3}, {7, 0, 3, 1, 2, 4, 6, 5, 0, 2, -1, 7});
  const std::vector<std::int32_t> ids = {3, 0, 1, 2, 0, 0, 3, 1, 2};
  RouterModes modes;
  modes.hash_table = bench.memory.put(table);
  const Array<float, 2> got({kTokens, kDim}, bench.run(x, std::vector<std::uint8_t>(kTokens, 1), modes, ids));
  for (std::int64_t t = 0; t < kTokens; ++t) {
    std::vector<std::size_t> chosen;
    for (std::int64_t k = 0; k < 3; ++k) {
      const std::int32_t e = table.values[static_cast<std::size_t>(ids[static_cast<std::size_t>(t)] * 3 + k)];
      if (e >= 0) chosen.push_back(static_cast<std::size_t>(e));
    }
    CHECK(norm_error(got.rows(t, 1).values, bench.mixture(slice(x.values, t * kDim, kDim), chosen)) <= kNorm);
    CHECK(same_bits(bench.run(x.rows(t, 1), {0}, modes, {ids[static_cast<std::size_t>(t)]}), got.rows(t, 1).values));
  }
}

TEST_CASE("a mixture refuses router modes that its config cannot have, and says which") {
  const Bench<RefBackend> bench(false);
  const auto refusal = [&](const RouterModes& modes) {
    return failure_of([&] { Moe(bench.config, bench.weights, Numeric::exact, modes); });
  };
  const auto grouped = [](std::int64_t groups, std::int64_t kept) { return RouterModes{groups, kept, {}}; };
  CHECK(refusal(grouped(4, 2)).code == Errc::ok);
  CHECK(refusal(grouped(3, 1)).code == Errc::shape_mismatch);
  CHECK(refusal(grouped(3, 1)).message ==
        "topk_route: groups is 3, expected a divisor of the number of experts, at most 64");
  CHECK(refusal(grouped(4, 1)).message == "topk_route: topk_groups is 1, expected enough groups for 3 experts");
  RouterModes table;
  for (const auto& [extents, text] : {std::pair<std::array<std::int64_t, 2>, const char*>{{4, 2}, "[4, 2]"},
                                      {{3, 3}, "[3, 3]"},  // a table for some tokens
                                      {{0, 3}, "[0, 3]"}}) {
    table.hash_table = shaped<const std::int32_t, 2>(extents);
    CHECK(refusal(table).code == Errc::shape_mismatch);
    CHECK(refusal(table).message == std::string("moe: hash_table is ") + text + ", expected [4, 3]");
  }
  table.hash_table = shaped<const std::int32_t, 2>({4, 3});
  CHECK(refusal(table).code == Errc::ok);
  table.groups = 2;
  CHECK(refusal(table).message == "moe: groups is 2, expected 1 beside a hash table");
}
