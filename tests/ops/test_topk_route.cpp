// SPDX-License-Identifier: MIT
//
// ops::TopkRoute: scores, choices by biased score and weights without it, against a full sort; node-limited groups.
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
  std::int64_t groups = 1, topk_groups = 1;
};

constexpr auto kRoot = ScoreFunction::sqrt_softplus, kSigmoid = ScoreFunction::sigmoid,
               kSoftmax = ScoreFunction::softmax;

const Case kCases[] = {
    {0, 4, 2, kRoot, 1, 1.5f, true, 1},
    {1, 1, 1, kRoot, 1, 1.5f, true, 2},
    {1, 384, 6, kRoot, 1, 1.5f, true, 3},
    {5, 7, 3, kSigmoid, 1, 2.5f, true, 4},
    {17, 16, 4, kSoftmax, 1, 1, false, 5},
    {3, 97, 8, kRoot, 0.5f, 1.5f, false, 6},
    {4, 6, 6, kSoftmax, 2, 1, true, 7},
    {9, 5, 1, kSigmoid, 1, 1.5f, true, 8},
    {7, 256, 8, kSigmoid, 1, 2.5f, true, 9, 8, 4},
    {5, 12, 3, kRoot, 1, 1.5f, true, 10, 6, 2},
    {4, 9, 3, kSoftmax, 1, 1, false, 11, 3, 1},
    {6, 128, 5, kRoot, 1, 1.5f, true, 12, 64, 3},
    {3, 10, 4, kSigmoid, 1, 1, true, 13, 2, 2},
    {0, 8, 2, kSigmoid, 1, 1, true, 14, 4, 2},
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
                          .normalise = c.normalise,
                          .groups = c.groups,
                          .topk_groups = c.topk_groups};
  op.check();
  backend.run(op);
  return {memory.get(op.logits), memory.get(op.weights), memory.get(op.ids)};
}

/// Whether each expert stands in one of the best groups: those of the largest sums of their two best biased scores.
std::vector<bool> in_best_groups(const Case& c, const Doubles& biased) {
  const std::int64_t size = c.experts / c.groups;
  std::vector<std::pair<double, std::int64_t>> groups;
  for (std::int64_t g = 0; g < c.groups; ++g) {
    Doubles own(biased.begin() + g * size, biased.begin() + (g + 1) * size);
    std::sort(own.begin(), own.end());
    groups.push_back({own.size() < 2 ? 0 : -(own[own.size() - 1] + own[own.size() - 2]), g});
  }
  std::sort(groups.begin(), groups.end());
  std::vector<bool> kept(biased.size());
  for (std::size_t i = 0; i < static_cast<std::size_t>(c.topk_groups); ++i) {
    for (std::int64_t e = groups[i].second * size; e < (groups[i].second + 1) * size; ++e)
      kept[static_cast<std::size_t>(e)] = true;
  }
  return kept;
}

/// Checks one row of the result. Random logits leave no ties.
void check_row(const Case& c, const Inputs& in, const Outputs& got, std::int64_t t, std::vector<float>& weights,
               Doubles& want) {
  const Doubles s = route_scores_of(c.score, c.gate_temp, slice(in.logits.values, t * c.experts, c.experts));
  const std::vector<float>& bias = in.image.values[static_cast<std::size_t>(t)] != 0 ? in.bias_vl : in.bias;
  std::vector<std::int32_t> order(s.size());
  for (std::size_t e = 0; e < s.size(); ++e) order[e] = static_cast<std::int32_t>(e);
  const auto biased = [&](std::int32_t e) {
    return s[static_cast<std::size_t>(e)] + static_cast<double>(bias[static_cast<std::size_t>(e)]);
  };
  Doubles all;
  for (const std::int32_t e : order) all.push_back(biased(e));
  const std::vector<bool> kept = in_best_groups(c, all);
  std::erase_if(order, [&](std::int32_t e) { return !kept[static_cast<std::size_t>(e)]; });
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

TEMPLATE_LIST_TEST_CASE("a group counts by its two best experts: the best expert of all may stand outside",
                        "[topk_route]", Backends) {
  const std::vector<float> none(6, 0.0f);
  const Inputs in{{{1, 6}, {5, 0, 3, 3.5f, 4, 1}}, none, none, Array<std::uint8_t, 1>({1})};
  CHECK(run<TestType>({1, 6, 2, kSigmoid, 1, 1, false, 0, 3, 1}, in).ids == std::vector<std::int32_t>{3, 2});
  CHECK(run<TestType>({1, 6, 2, kSigmoid, 1, 1, false, 0, 3, 2}, in).ids == std::vector<std::int32_t>{4, 3});
  CHECK(run<TestType>({1, 6, 2, kSigmoid, 1, 1, false, 0, 1, 1}, in).ids == std::vector<std::int32_t>{0, 4});
}

TEMPLATE_LIST_TEST_CASE(
    "groups are chosen with the bias, image tokens by their own; keeping all groups excludes no one", "[topk_route]",
    Backends) {
  const std::vector<float> zero(4, 0.0f), text = {0, 0, 1, 1}, image = {1, 1, 0, 0};
  const Outputs got = run<TestType>({2, 4, 2, kSigmoid, 1, 1, true, 0, 2, 1},
                                    {{{2, 4}, {0, 0, 0, 0, 0, 0, 0, 0}}, text, image, {{2}, {0, 1}}});
  CHECK(got.ids == std::vector<std::int32_t>{2, 3, 0, 1});
  CHECK(got.weights == std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f});
  const Case all{33, 24, 3, kRoot, 1, 1.5f, true, 41, 6, 6}, none{33, 24, 3, kRoot, 1, 1.5f, true, 41};
  CHECK(run<TestType>(all, make(all)).ids == run<TestType>(none, make(none)).ids);
}

TEMPLATE_LIST_TEST_CASE("ties of groups go to the lower group; a group without two numbers is never kept",
                        "[topk_route]", Backends) {
  const float nan = std::nanf(""), low = -HUGE_VALF;
  const std::vector<float> none(8, 0.0f);
  const auto ids = [&](std::vector<float> logits, std::vector<float> bias, std::int64_t topk,
                       std::int64_t topk_groups) {
    return run<TestType>({1, 8, topk, kSigmoid, 1, 1, true, 0, 4, topk_groups},
                         {{{1, 8}, std::move(logits)}, bias, bias, Array<std::uint8_t, 1>({1})})
        .ids;
  };
  CHECK(ids({1, 2, 2, 1, 2, 1, 1, 2}, none, 2, 1) == std::vector<std::int32_t>{1, 0});
  CHECK(ids({0, 0, 2, 1, 1, 2, 2, 1}, none, 4, 2) == std::vector<std::int32_t>{2, 5, 3, 4});
  CHECK(ids({9, nan, nan, 9, 1, 1, 0, 0}, none, 3, 2) == std::vector<std::int32_t>{4, 5, 6});
  CHECK(ids({9, 9, 1, 1, 0, 0, 2, 2}, {low, 0, 0, 0, 0, 0, 0, low}, 2, 1) == std::vector<std::int32_t>{2, 3});
  CHECK(ids({9, nan, nan, nan, 1, 1, nan, 1}, none, 4, 2) == std::vector<std::int32_t>{4, 5, -1, -1});
  CHECK(ids(std::vector<float>(8, nan), none, 2, 2) == std::vector<std::int32_t>{-1, -1});
  CHECK(ids({0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, HUGE_VALF, nan, 1, 1}, 2, 1) == std::vector<std::int32_t>{6, 7});
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
  check_refuses(good, "groups is 3, expected a divisor of the number of experts, at most 64",
                [](auto& op) { op.groups = 3; });
  check_refuses(good, "groups is 0, expected a divisor of the number of experts, at most 64",
                [](auto& op) { op.groups = 0; });
  check_refuses(good, "groups is 8, expected at most half the number of experts", [](auto& op) { op.groups = 8; });
  check_refuses(good, "topk_groups is 0, expected between 1 and groups",
                [](auto& op) { op.groups = 4, op.topk_groups = 0; });
  check_refuses(good, "topk_groups is 2, expected between 1 and groups", [](auto& op) { op.topk_groups = 2; });
  check_refuses(good, "topk_groups is 1, expected enough groups for 3 experts", [](auto& op) {
    op.groups = 4, op.ids = shaped<std::int32_t, 2>({3, 3}), op.weights = shaped<float, 2>({3, 3});
  });
  ops::TopkRoute wide = good;
  wide.logits = shaped<float, 2>({3, 130}), wide.bias = wide.bias_vl = shaped<const float, 1>({130});
  check_refuses(wide, "groups is 65, expected a divisor of the number of experts, at most 64",
                [](auto& op) { op.groups = 65; });
}
