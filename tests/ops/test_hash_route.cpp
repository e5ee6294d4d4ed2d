// SPDX-License-Identifier: MIT
//
// ops::HashRoute: experts by table, weights by score, against the formula in double.
#include "dsv41/ops/hash_route.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t tokens, experts, topk, vocab;
  ScoreFunction score;
  float gate_temp, scale;
  bool normalise;
  std::uint64_t seed;
};

constexpr auto kRoot = ScoreFunction::sqrt_softplus, kSigmoid = ScoreFunction::sigmoid,
               kSoftmax = ScoreFunction::softmax;

const Case kCases[] = {
    {0, 4, 2, 5, kRoot, 1, 1.5f, true, 1},     {1, 1, 1, 1, kRoot, 1, 1.5f, true, 2},
    {1, 256, 6, 50, kRoot, 1, 1.5f, true, 3},  {5, 7, 3, 9, kSigmoid, 1, 2.5f, true, 4},
    {17, 16, 4, 3, kSoftmax, 2, 1, false, 5},  {9, 5, 5, 40, kSoftmax, 1, 1, true, 6},
    {3, 33, 1, 7, kSigmoid, 0.5f, 1, true, 7},
};

struct Inputs {
  Array<float, 2> logits;
  std::vector<std::int32_t> token_ids;
  Array<std::int32_t, 2> table;
};

struct Outputs {
  std::vector<float> scores, weights;
  std::vector<std::int32_t> ids;
};

/// Every row of the table names experts in a random order.
Inputs make(const Case& c) {
  Random random(c.seed);
  Inputs in{random_array<2>(random, {c.tokens, c.experts}, 2), {}, Array<std::int32_t, 2>({c.vocab, c.topk})};
  for (std::int64_t t = 0; t < c.tokens; ++t)
    in.token_ids.push_back(t == 0 ? static_cast<std::int32_t>(c.vocab - 1)
                                  : static_cast<std::int32_t>(random.below(c.vocab)));
  std::vector<std::int32_t> all(static_cast<std::size_t>(c.experts));
  for (std::size_t e = 0; e < all.size(); ++e) all[e] = static_cast<std::int32_t>(e);
  for (std::int64_t v = 0; v < c.vocab; ++v) {
    for (std::size_t k = 0; k < static_cast<std::size_t>(c.topk); ++k) {
      std::swap(all[k], all[k + static_cast<std::size_t>(random.below(c.experts - static_cast<std::int64_t>(k)))]);
      in.table.values[static_cast<std::size_t>(v * c.topk) + k] = all[k];
    }
  }
  return in;
}

template <class B>
Outputs run(const Case& c, const Inputs& in) {
  B backend;
  Memory<B> memory(backend);
  const std::int64_t tokens = in.logits.extents[0];
  const ops::HashRoute op{.logits = memory.put(in.logits),
                          .token_ids = memory.put(in.token_ids),
                          .table = memory.put(in.table),
                          .ids = memory.put(Array<std::int32_t, 2>({tokens, c.topk}, -9)),
                          .weights = memory.put(Array<float, 2>({tokens, c.topk}, -9.0f)),
                          .score = c.score,
                          .gate_temp = c.gate_temp,
                          .scale = c.scale,
                          .normalise = c.normalise};
  op.check();
  backend.run(op);
  backend.sync();
  return {memory.get(op.logits), memory.get(op.weights), memory.get(op.ids)};
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("hash_route takes the table's experts in its order and weighs them by their scores",
                        "[hash_route]", Backends) {
  for (const Case& c : kCases) {
    INFO("seed " << c.seed);
    const Inputs in = make(c);
    const Outputs got = run<TestType>(c, in);
    std::vector<std::int32_t> ids;
    Doubles weights, scores;
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      const Doubles s = route_scores_of(c.score, c.gate_temp, slice(in.logits.values, t * c.experts, c.experts));
      scores.insert(scores.end(), s.begin(), s.end());
      const std::int32_t* row =
          in.table.values.data() + std::int64_t{in.token_ids[static_cast<std::size_t>(t)]} * c.topk;
      double total = 0;
      for (std::int64_t k = 0; k < c.topk; ++k) total += s[static_cast<std::size_t>(row[k])];
      if (!c.normalise || c.topk == 1) total = 1;
      for (std::int64_t k = 0; k < c.topk; ++k) {
        ids.push_back(row[k]);
        weights.push_back(s[static_cast<std::size_t>(row[k])] / total * static_cast<double>(c.scale));
      }
      const Outputs alone =
          run<TestType>(c, {in.logits.rows(t, 1), {in.token_ids[static_cast<std::size_t>(t)]}, in.table});
      CHECK(same_bits(alone.weights, Array<float, 2>({c.tokens, c.topk}, got.weights).rows(t, 1).values));
    }
    CHECK(got.ids == ids);
    CHECK(worst_ulps(got.weights, weights) <= kUlpRoute);
    CHECK(worst_ulps(got.scores, scores) <= kUlpRoute);
  }
}

TEMPLATE_LIST_TEST_CASE("an entry that is no expert, or comes again, is an empty slot and takes no share",
                        "[hash_route]", Backends) {
  const Case c{2, 4, 4, 2, kSigmoid, 1, 2, true, 0};
  const Outputs got =
      run<TestType>(c, {{{2, 4}, std::vector<float>(8, 0.0f)}, {1, 0}, {{2, 4}, {-1, 4, -7, 1 << 30, 2, 2, 1, 2}}});
  CHECK(got.ids == std::vector<std::int32_t>{2, -1, 1, -1, -1, -1, -1, -1});
  CHECK(got.weights == std::vector<float>{1, 0, 1, 0, 0, 0, 0, 0});
}

TEMPLATE_LIST_TEST_CASE("a NaN logit of a named expert makes its row's weights NaN, and no other row's", "[hash_route]",
                        Backends) {
  const Case c{2, 3, 2, 1, kSigmoid, 1, 1, true, 0};
  const Outputs got =
      run<TestType>(c, {{{2, 3}, {0, std::nanf(""), 0, 0, 0, std::nanf("")}}, {0, 0}, {{1, 2}, {1, 0}}});
  CHECK(got.ids == std::vector<std::int32_t>{1, 0, 1, 0});
  CHECK((std::isnan(got.weights[0]) && std::isnan(got.weights[1])));
  CHECK((got.weights[2] == 0.5f && got.weights[3] == 0.5f));
}

TEMPLATE_LIST_TEST_CASE("a token id outside the table is an error, not a read beside it", "[hash_route]", Backends) {
  const Case c{2, 3, 2, 4, kSigmoid, 1, 1, true, 0};
  Inputs in = make(c);
  for (const std::int32_t id : {-1, 4, std::numeric_limits<std::int32_t>::max()}) {
    in.token_ids[1] = id;
    const Failure failure = failure_of([&] { run<TestType>(c, in); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("hash_route: token_ids holds " + std::to_string(id)));
  }
}

TEST_CASE("hash_route: check() names the field, what it expects and what it got") {
  const ops::HashRoute good{.logits = shaped<float, 2>({3, 8}),
                            .token_ids = shaped<const std::int32_t, 1>({3}),
                            .table = shaped<const std::int32_t, 2>({50, 2}),
                            .ids = shaped<std::int32_t, 2>({3, 2}),
                            .weights = shaped<float, 2>({3, 2})};
  check_refuses(good, "token_ids is [2], expected [3]",
                [](auto& op) { op.token_ids = shaped<const std::int32_t, 1>({2}); });
  check_refuses(good, "table is [50, 3], expected [50, 2]", [](auto& op) {
    op.table = shaped<const std::int32_t, 2>({50, 3});
  });
  check_refuses(good, "ids is 9, expected between 1 and the number of experts columns", [](auto& op) {
    op.ids = shaped<std::int32_t, 2>({3, 9});
  });
  check_refuses(good, "ids is 0, expected between 1 and the number of experts columns", [](auto& op) {
    op.ids = shaped<std::int32_t, 2>({3, 0});
  });
  check_refuses(good, "ids is [4, 2], expected [3, 2]", [](auto& op) { op.ids = shaped<std::int32_t, 2>({4, 2}); });
  check_refuses(good, "weights is [3, 3], expected [3, 2]", [](auto& op) { op.weights = shaped<float, 2>({3, 3}); });
}
