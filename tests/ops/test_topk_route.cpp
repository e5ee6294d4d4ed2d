// SPDX-License-Identifier: MIT
//
// ops::TopkRoute: scores, choices by biased score and weights without it, against a full sort.
#include "dsv41/ops/topk_route.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t tokens, experts, topk;
  ScoreFunction score;
  float gate_temp, scale;
  bool normalise;
  std::uint64_t seed;
};

constexpr auto kRoot = ScoreFunction::sqrt_softplus, kSigmoid = ScoreFunction::sigmoid,
               kSoftmax = ScoreFunction::softmax;

const Case kCases[] = {
    {0, 4, 2, kRoot, 1, 1.5f, true, 1},    {1, 1, 1, kRoot, 1, 1.5f, true, 2},
    {1, 384, 6, kRoot, 1, 1.5f, true, 3},  {5, 7, 3, kSigmoid, 1, 2.5f, true, 4},
    {17, 16, 4, kSoftmax, 1, 1, false, 5}, {3, 97, 8, kRoot, 0.5f, 1.5f, false, 6},
    {4, 6, 6, kSoftmax, 2, 1, true, 7},    {9, 5, 1, kSigmoid, 1, 1.5f, true, 8},
};

struct Inputs {
  Array<float, 2> logits;
  std::vector<float> bias, bias_vl;
  Array<std::uint8_t, 1> image;
};

struct Outputs {
  std::vector<float> scores, weights;
  std::vector<std::int32_t> ids;
};

Inputs make(const Case& c) {
  Random random(c.seed);
  Inputs in{random_array<2>(random, {c.tokens, c.experts}, 2), random.normals(c.experts, 0.3),
            random.normals(c.experts, 3), Array<std::uint8_t, 1>({c.tokens})};
  for (std::size_t t = 1; t < in.image.values.size(); t += 2) in.image.values[t] = 1;
  return in;
}

template <class B>
Outputs run(const Case& c, const Inputs& in) {
  B backend;
  Memory<B> memory(backend);
  const std::int64_t tokens = in.logits.extents[0];
  const ops::TopkRoute op{.logits = memory.put(in.logits),
                          .bias = memory.put(in.bias),
                          .bias_vl = memory.put(in.bias_vl),
                          .image = memory.put(in.image),
                          .ids = memory.put(Array<std::int32_t, 2>({tokens, c.topk}, -9)),
                          .weights = memory.put(Array<float, 2>({tokens, c.topk}, -9.0f)),
                          .score = c.score,
                          .gate_temp = c.gate_temp,
                          .scale = c.scale,
                          .normalise = c.normalise};
  op.check();
  backend.run(op);
  return {memory.get(op.logits), memory.get(op.weights), memory.get(op.ids)};
}

/// Scores in double, of float32 arguments: the softmax's distances from the largest logit are rounded once.
Doubles scores_of(const Case& c, Doubles logits) {
  Doubles s;
  double total = 0;
  for (double& x : logits) x = to_float(x / static_cast<double>(c.gate_temp));
  const double top = logits.empty() ? 0 : *std::max_element(logits.begin(), logits.end());
  for (const double x : logits) total += std::exp(to_float(x - top));
  for (const double x : logits) {
    s.push_back(c.score == kRoot      ? std::sqrt(std::log1p(std::exp(x)))
                : c.score == kSigmoid ? sigmoid(x)
                                      : std::exp(to_float(x - top)) / total);
  }
  return s;
}

/// Checks one row of the result. Random logits leave no ties.
void check_row(const Case& c, const Inputs& in, const Outputs& got, std::int64_t t, std::vector<float>& weights,
               Doubles& want) {
  const Doubles s = scores_of(c, slice(in.logits.values, t * c.experts, c.experts));
  const std::vector<float>& bias = in.image.values[static_cast<std::size_t>(t)] != 0 ? in.bias_vl : in.bias;
  std::vector<std::int32_t> order(s.size());
  for (std::size_t e = 0; e < s.size(); ++e) order[e] = static_cast<std::int32_t>(e);
  const auto biased = [&](std::int32_t e) {
    return s[static_cast<std::size_t>(e)] + static_cast<double>(bias[static_cast<std::size_t>(e)]);
  };
  std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return biased(a) > biased(b); });
  order.resize(static_cast<std::size_t>(c.topk));
  CHECK(std::vector<std::int32_t>(got.ids.begin() + t * c.topk, got.ids.begin() + (t + 1) * c.topk) == order);
  double total = 0;
  for (const std::int32_t e : order) total += s[static_cast<std::size_t>(e)];
  if (!c.normalise || c.topk == 1) total = 1;
  for (const std::int32_t e : order)
    want.push_back(s[static_cast<std::size_t>(e)] / total * static_cast<double>(c.scale));
  weights.insert(weights.end(), got.weights.begin() + t * c.topk, got.weights.begin() + (t + 1) * c.topk);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("topk_route chooses by score plus bias and weighs by the score alone, for all three functions",
                        "[topk_route]", Backends) {
  for (const Case& c : kCases) {
    INFO("seed " << c.seed);
    const Inputs in = make(c);
    const Outputs got = run<TestType>(c, in);
    std::vector<float> weights;
    Doubles want;
    for (std::int64_t t = 0; t < c.tokens; ++t) check_row(c, in, got, t, weights, want);
    CHECK(worst_ulps(weights, want) <= kUlpRoute);
  }
}

TEMPLATE_LIST_TEST_CASE("B25: the bias steers the choice and is not in the weights", "[topk_route]", Backends) {
  const Case c{1, 4, 2, kRoot, 1, 1.5f, true, 0};
  const Outputs got =
      run<TestType>(c, {{{1, 4}, {0, 0, 0, 0}}, {0, 5, 0, 3}, {9, 0, 9, 0}, Array<std::uint8_t, 1>({1})});
  CHECK(got.ids == std::vector<std::int32_t>{1, 3});
  CHECK(got.weights == std::vector<float>{0.75f, 0.75f});
  const Outputs image =
      run<TestType>(c, {{{1, 4}, {0, 0, 0, 0}}, {0, 5, 0, 3}, {9, 0, 9, 0}, Array<std::uint8_t, 1>({1}, 1)});
  CHECK(image.ids == std::vector<std::int32_t>{0, 2});
}

TEMPLATE_LIST_TEST_CASE("B30: every row of a batch of any size equals the row alone", "[topk_route]", Backends) {
  for (const std::int64_t tokens : {1, 2, 15, 16, 17, 31, 33, 257}) {
    const Case c{tokens, 24, 3, kRoot, 1, 1.5f, true, 40};
    const Inputs in = make(c);
    const Outputs whole = run<TestType>(c, in);
    Outputs rows;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const Outputs one = run<TestType>(c, {in.logits.rows(t, 1), in.bias, in.bias_vl, in.image.rows(t, 1)});
      rows.ids.insert(rows.ids.end(), one.ids.begin(), one.ids.end());
      rows.weights.insert(rows.weights.end(), one.weights.begin(), one.weights.end());
    }
    CHECK(rows.ids == whole.ids);
    CHECK(same_bits(rows.weights, whole.weights));
  }
}

TEMPLATE_LIST_TEST_CASE("ties go to the lower expert", "[topk_route]", Backends) {
  for (const ScoreFunction f : {kRoot, kSigmoid, kSoftmax}) {
    const Case c{1, 9, 4, f, 1, 1, true, 0};
    const std::vector<float> none(9, 0.0f);
    CHECK(run<TestType>(c, {{{1, 9}, {1, 3, 1, 3, 3, 1, 3, 3, 3}}, none, none, Array<std::uint8_t, 1>({1})}).ids ==
          std::vector<std::int32_t>{1, 3, 4, 6});
  }
}

TEMPLATE_LIST_TEST_CASE("NaN logits are not chosen; with too few numbers the left-over slots are empty", "[topk_route]",
                        Backends) {
  const float nan = std::nanf("");
  const Case c{1, 5, 3, kRoot, 1, 1.5f, true, 0};
  const std::vector<float> none(5, 0.0f);
  const Outputs some = run<TestType>(c, {{{1, 5}, {nan, 1, nan, 2, 0}}, none, none, Array<std::uint8_t, 1>({1})});
  CHECK(some.ids == std::vector<std::int32_t>{3, 1, 4});
  const Outputs few = run<TestType>(c, {{{1, 5}, {nan, nan, 0, nan, nan}}, none, none, Array<std::uint8_t, 1>({1})});
  CHECK(few.ids == std::vector<std::int32_t>{2, -1, -1});
  CHECK(few.weights == std::vector<float>{1.5f, 0, 0});
  const Outputs no_one =
      run<TestType>(c, {{{1, 5}, std::vector<float>(5, nan)}, none, none, Array<std::uint8_t, 1>({1})});
  CHECK(no_one.ids == std::vector<std::int32_t>{-1, -1, -1});
  CHECK(no_one.weights == std::vector<float>{0, 0, 0});
}

TEMPLATE_LIST_TEST_CASE("logits of +-1e30 and scores that vanish give finite weights", "[topk_route]", Backends) {
  for (const ScoreFunction f : {kRoot, kSigmoid, kSoftmax}) {
    const Case c{2, 3, 2, f, 1, 1.5f, true, 0};
    const std::vector<float> none(3, 0.0f);
    const Outputs got = run<TestType>(
        c, {{{2, 3}, {1e30f, -1e30f, 0, -1e30f, -1e30f, -1e30f}}, none, none, Array<std::uint8_t, 1>({2})});
    for (const float w : got.weights) CHECK((std::isfinite(w) && w >= 0));
    CHECK(got.ids[0] == 0);
    CHECK(got.ids[2] == 0);
    CHECK(got.ids[3] == 1);
  }
}

TEST_CASE("topk_route: check() names the field, what it expects and what it got") {
  const ops::TopkRoute good{.logits = shaped<float, 2>({3, 8}),
                            .bias = shaped<const float, 1>({8}),
                            .bias_vl = shaped<const float, 1>({8}),
                            .image = shaped<const std::uint8_t, 1>({3}),
                            .ids = shaped<std::int32_t, 2>({3, 2}),
                            .weights = shaped<float, 2>({3, 2})};
  check_refuses(good, "bias is [0], expected [8]", [](auto& op) { op.bias = {}; });
  check_refuses(good, "bias_vl is [7], expected [8]", [](auto& op) { op.bias_vl = shaped<const float, 1>({7}); });
  check_refuses(good, "image is [2], expected [3]", [](auto& op) { op.image = shaped<const std::uint8_t, 1>({2}); });
  check_refuses(good, "ids is 9, expected between 1 and the number of experts columns", [](auto& op) {
    op.ids = shaped<std::int32_t, 2>({3, 9});
  });
  check_refuses(good, "ids is 0, expected between 1 and the number of experts columns", [](auto& op) {
    op.ids = shaped<std::int32_t, 2>({3, 0});
  });
  check_refuses(good, "ids is [2, 2], expected [3, 2]", [](auto& op) { op.ids = shaped<std::int32_t, 2>({2, 2}); });
  check_refuses(good, "weights is [3, 3], expected [3, 2]", [](auto& op) { op.weights = shaped<float, 2>({3, 3}); });
}
