// SPDX-License-Identifier: MIT
//
// Moe on its own: router and experts together, from the layer's input to its output.
#include "dsv41/modules/moe.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kDim = 32, kFf = 16, kExperts = 7, kTokens = 9;

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
    config.experts = kExperts, config.topk = 3, config.route_scale = 1.5, config.swiglu_limit = 10,
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

  std::vector<float> run(const Array<float, 2>& x, const std::vector<std::uint8_t>& image) {
    const std::int64_t rows = x.extents[0];
    const MoeScratch scratch{memory.put(Array<float, 2>({rows, kExperts})),
                             memory.put(Array<std::int32_t, 2>({rows, config.topk})),
                             memory.put(Array<float, 2>({rows, config.topk}))};
    const auto y = memory.put(Array<float, 2>({rows, kDim}));
    Moe(config, weights, Numeric::exact).forward(backend, memory.put(x), memory.put(image), scratch, y);
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

  Doubles formula(const Doubles& x, bool image) const {
    Doubles scores = product(gate, x), y(kDim);
    std::vector<std::size_t> order;
    for (double& s : scores) s = std::sqrt(std::log1p(std::exp(s)));
    for (std::size_t e = 0; e < scores.size(); ++e) order.push_back(e);
    const std::vector<float>& b = image ? bias_vl : bias;
    std::sort(order.begin(), order.end(), [&](std::size_t l, std::size_t r) {
      return scores[l] + static_cast<double>(b[l]) > scores[r] + static_cast<double>(b[r]);
    });
    const double total = scores[order[0]] + scores[order[1]] + scores[order[2]];
    for (std::size_t k = 0; k < 3; ++k) add(experts[order[k]], x, scores[order[k]] / total * 1.5, y);
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
      CHECK(norm_error(got.rows(t, 1).values, bench.formula(slice(x.values, t * kDim, kDim), image[at] != 0)) <= kNorm);
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
