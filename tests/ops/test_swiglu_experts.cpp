// SPDX-License-Identifier: MIT
//
// ops::SwigluExperts: routed and shared experts in every stored format against the formula in double.
#include "dsv41/ops/swiglu_experts.hpp"

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
  std::int64_t tokens, dim, ff, experts, topk, shared_ff;  // shared_ff 0: none
  float limit;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 32, 16, 4, 2, 16, 10, 1}, {1, 32, 64, 4, 2, 64, 10, 2}, {1, 64, 32, 8, 8, 0, 10, 3},
    {5, 40, 34, 3, 2, 68, 0, 4},  {17, 34, 18, 7, 3, 18, 1, 5}, {3, 96, 96, 97, 6, 96, 10, 6},
    {2, 2, 2, 1, 1, 0, 0.5f, 7},
};

struct Expert {
  Stored w1, w2, w3;
};

struct Inputs {
  Array<float, 2> x, weights;
  Array<std::int32_t, 2> ids;
  std::vector<Expert> experts;
  std::vector<Expert> shared;  // none or one
  float limit = 0;

  Inputs row(std::int64_t t) const {
    return {x.rows(t, 1), weights.rows(t, 1), ids.rows(t, 1), experts, shared, limit};
  }
};

Expert random_expert(Random& random, Format format, std::int64_t dim, std::int64_t ff) {
  return {random_matrix(random, format, ff, dim, 0.25), random_matrix(random, format, dim, ff, 0.25),
          random_matrix(random, format, ff, dim, 0.25)};
}

Inputs make(const Case& c, Format format) {
  Random random(c.seed);
  Inputs in{random_array<2>(random, {c.tokens, c.dim}),
            Array<float, 2>({c.tokens, c.topk}),
            Array<std::int32_t, 2>({c.tokens, c.topk}),
            {},
            {},
            c.limit};
  for (std::int64_t e = 0; e < c.experts; ++e) in.experts.push_back(random_expert(random, format, c.dim, c.ff));
  if (c.shared_ff > 0) in.shared.push_back(random_expert(random, format, c.dim, c.shared_ff));
  for (float& w : in.weights.values) w = random.uniform(0.1, 1.5);
  for (std::int64_t t = 0; t < c.tokens; ++t) {  // distinct experts in any order
    const std::int64_t first = random.below(c.experts);
    for (std::int64_t k = 0; k < c.topk; ++k) {
      in.ids.values[static_cast<std::size_t>(t * c.topk + k)] =
          static_cast<std::int32_t>((first + c.experts - k) % c.experts);
    }
  }
  return in;
}

template <class B>
std::vector<float> run(const Inputs& in, Numeric numeric) {
  B backend;
  Memory<B> memory(backend);
  const auto put = [&](const Expert& e) {
    return ExpertWeights{.w1 = memory.put(e.w1, 1), .w2 = memory.put(e.w2, 2), .w3 = memory.put(e.w3, 3)};
  };
  std::vector<ExpertWeights> experts;
  for (const Expert& e : in.experts) experts.push_back(put(e));
  ops::SwigluExperts op{.x = memory.put(in.x),
                        .ids = memory.put(in.ids),
                        .weights = memory.put(in.weights),
                        .experts = experts,
                        .y = memory.put(Array<float, 2>(in.x.extents, -1.0f)),
                        .limit = in.limit,
                        .numeric = numeric};
  if (!in.shared.empty()) op.shared = put(in.shared[0]);
  op.check();
  backend.run(op);
  backend.sync();
  return memory.get(op.y);
}

/// A linear of class and format: quantised input for FP8 and FP4, bfloat16 output, in class deployed.
Doubles linear(const Stored& w, const Doubles& x, Numeric numeric) {
  const bool stored8or4 = w.format == Format::fp8_tile || w.format == Format::fp8_row || w.format == Format::fp4_row;
  Doubles y = product(w, numeric == Numeric::deployed && stored8or4 ? quantised(numerics::Quantiser::input_fp8, x) : x);
  for (double& v : y) v = as_activation(numeric, v);
  return y;
}

Doubles expert_output(const Expert& e, const Doubles& x, double weight, double limit, Numeric numeric) {
  const Doubles gate = linear(e.w1, x, numeric), up = linear(e.w3, x, numeric);
  Doubles inner;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double g = limit > 0 ? std::min(gate[i], limit) : gate[i],
                 u = limit > 0 ? std::clamp(up[i], -limit, limit) : up[i];
    inner.push_back(as_activation(numeric, weight * g * sigmoid(g) * u));
  }
  return linear(e.w2, inner, numeric);
}

Doubles formula(const Inputs& in, Numeric numeric) {
  const std::int64_t dim = in.x.extents[1], topk = in.ids.extents[1];
  Doubles out;
  for (std::int64_t t = 0; t < in.x.extents[0]; ++t) {
    const Doubles x = slice(in.x.values, t * dim, dim);
    Doubles y(static_cast<std::size_t>(dim));
    const auto add = [&](const Expert& e, double weight) {
      const Doubles o = expert_output(e, x, weight, static_cast<double>(in.limit), numeric);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += o[i];
    };
    for (std::int64_t k = 0; k < topk; ++k) {
      const std::int32_t id = in.ids.values[static_cast<std::size_t>(t * topk + k)];
      if (id >= 0)
        add(in.experts[static_cast<std::size_t>(id)],
            static_cast<double>(in.weights.values[static_cast<std::size_t>(t * topk + k)]));
    }
    if (!in.shared.empty()) add(in.shared[0], 1);
    for (const double v : y) out.push_back(as_activation(numeric, v));
  }
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE(
    "experts equal the formula in every stored format, with and without a shared one, clamped or not",
    "[swiglu_experts]", Backends) {
  for (const Case& c : kCases) {
    for (const Format format : kFormats) {
      for (const Numeric numeric : kNumerics) {
        INFO("seed " << c.seed << ", " << format_name(format) << ", " << numeric_name(numeric));
        const Inputs in = make(c, format);
        const Array<float, 2> got(in.x.extents, run<TestType>(in, numeric));
        check_close(got.values, formula(in, numeric), numeric);
        for (std::int64_t t = 0; t < c.tokens; ++t)
          CHECK(same_bits(run<TestType>(in.row(t), numeric), got.rows(t, 1).values));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("the order of a token's choices does not matter: experts are summed in ascending id",
                        "[swiglu_experts]", Backends) {
  Inputs in = make({4, 32, 16, 9, 5, 16, 10, 50}, Format::fp4_row);
  const std::vector<float> want = run<TestType>(in, Numeric::exact);
  for (std::int64_t t = 0; t < 4; ++t) {
    std::reverse(in.ids.values.begin() + 5 * t, in.ids.values.begin() + 5 * t + 5);
    std::reverse(in.weights.values.begin() + 5 * t, in.weights.values.begin() + 5 * t + 5);
  }
  CHECK(same_bits(run<TestType>(in, Numeric::exact), want));
}

TEMPLATE_LIST_TEST_CASE("B28: an id of -1 adds nothing, and a row of empty slots is the shared expert alone",
                        "[swiglu_experts]", Backends) {
  Inputs in = make({2, 32, 16, 8, 2, 16, 10, 51}, Format::bf16);
  in.ids.values = {2, -1, -1, -1};
  in.weights.values = {0.5f, 0.5f, 0.5f, 0.5f};
  const Array<float, 2> got(in.x.extents, run<TestType>(in, Numeric::exact));
  check_close(got.values, formula(in, Numeric::exact), Numeric::exact);
  in.shared.clear();
  const Array<float, 2> routed(in.x.extents, run<TestType>(in, Numeric::exact));
  for (const float y : routed.rows(1, 1).values) CHECK(y == 0.0f);
  CHECK(norm_error(routed.rows(0, 1).values,
                   expert_output(in.experts[2], slice(in.x.values, 0, 32), 0.5, 10, Numeric::exact)) <= kNorm);
}

TEMPLATE_LIST_TEST_CASE("B28: an id without an expert is an error, and any negative id an empty slot",
                        "[swiglu_experts]", Backends) {
  Inputs in = make({2, 32, 16, 8, 2, 16, 10, 53}, Format::bf16);
  in.ids.values = {2, 8, 0, 1};
  const Failure failure = failure_of([&] { run<TestType>(in, Numeric::exact); });
  CHECK(failure.code == Errc::invalid_argument);
  CHECK(failure.says("swiglu_experts: ids holds 8, expected "));
  CHECK(failure.says(" less than 8"));
  in.ids.values = {2, -1, 0, 1};
  const std::vector<float> want = run<TestType>(in, Numeric::exact);
  in.ids.values = {2, -2147483647, 0, 1};
  CHECK(same_bits(run<TestType>(in, Numeric::exact), want));
}

TEMPLATE_LIST_TEST_CASE("B31: the clamps are those of the model, for routed and shared experts", "[swiglu_experts]",
                        Backends) {
  struct Clamp {
    float gate, up, limit;
    double want;
  };
  for (const Clamp& clamp :
       {Clamp{12, -15, 10, -99.99546}, Clamp{-20, 3, 10, -1.2367e-7}, Clamp{12, 15, 0, 179.9989}}) {
    const Expert expert{float_matrix(1, 1, {clamp.gate}), float_matrix(1, 1, {1}), float_matrix(1, 1, {clamp.up})};
    Inputs in{{{1, 1}, {1}}, {{1, 1}, {1}}, {{1, 1}, {0}}, {expert}, {}, clamp.limit};
    CHECK(static_cast<double>(run<TestType>(in, Numeric::exact)[0]) == Approx(clamp.want).epsilon(1e-4));
    in.ids.values = {-1};
    in.shared = {expert};
    CHECK(static_cast<double>(run<TestType>(in, Numeric::exact)[0]) == Approx(clamp.want).epsilon(1e-4));
  }
}

TEMPLATE_LIST_TEST_CASE("B92: one token meets many experts, most without tokens", "[swiglu_experts]", Backends) {
  const Inputs in = make({1, 32, 16, 384, 6, 16, 10, 52}, Format::fp4_row);
  check_close(run<TestType>(in, Numeric::exact), formula(in, Numeric::exact), Numeric::exact);
}

TEST_CASE("swiglu_experts: check() names the field, what it expects and what it got") {
  const ExpertWeights expert{.w1 = {.rows = 4, .cols = 8}, .w2 = {.rows = 8, .cols = 4}, .w3 = {.rows = 4, .cols = 8}};
  std::vector<ExpertWeights> experts(3, expert);
  ops::SwigluExperts good{.x = shaped<const float, 2>({3, 8}),
                          .ids = shaped<const std::int32_t, 2>({3, 2}),
                          .weights = shaped<const float, 2>({3, 2}),
                          .experts = experts,
                          .shared = expert,
                          .y = shaped<float, 2>({3, 8})};
  const std::byte something{};
  good.shared.w1.data = &something;
  check_refuses(good, "ids is [2, 2], expected [3, 2]", [](auto& op) {
    op.ids = shaped<const std::int32_t, 2>({2, 2});
  });
  check_refuses(good, "weights is [3, 1], expected [3, 2]", [](auto& op) {
    op.weights = shaped<const float, 2>({3, 1});
  });
  check_refuses(good, "y is [3, 7], expected [3, 8]", [](auto& op) { op.y = shaped<float, 2>({3, 7}); });
  check_refuses(good, "w1 is [4, 9], expected [4, 8]", [](auto& op) { op.shared.w1.cols = 9; });
  check_refuses(good, "w2 is [8, 5], expected [8, 4]", [](auto& op) { op.shared.w2.cols = 5; });
  check_refuses(good, "w3 is [5, 8], expected [4, 8]", [](auto& op) { op.shared.w3.rows = 5; });
  check_refuses(good, "w3 is [5, 8], expected [4, 8]", [&](auto&) { experts[2].w3.rows = 5; });
}
