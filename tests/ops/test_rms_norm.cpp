// SPDX-License-Identifier: MIT
//
// ops::RmsNorm over rows, in place and not, against the formula in double.
#include "dsv41/ops/rms_norm.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t tokens, width;
  double size, eps;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 16, 1, 1e-20, 1},   {1, 1, 1, 1e-6, 2},     {1, 512, 1, 1e-20, 3},      {17, 33, 1e-8, 1e-20, 4},
    {3, 97, 1e10, 1e-6, 5}, {4, 1280, 1, 1e-20, 6}, {2, 5120, 1e-15, 1e-20, 7}, {5, 7, 1e-3, 1e-5, 8},
};

template <class B>
std::vector<float> run(const Array<float, 2>& x, const std::vector<float>& w, double eps, Numeric numeric,
                       bool in_place) {
  B backend;
  Memory<B> memory(backend);
  const auto in = memory.put(x);
  const auto y = in_place ? in : memory.put(Array<float, 2>(x.extents, -1.0f));
  const ops::RmsNorm op{.x = in, .weight = memory.put(w), .y = y, .eps = eps, .numeric = numeric};
  op.check();
  backend.run(op);
  return memory.get(y);
}

Doubles formula(const Array<float, 2>& x, const std::vector<float>& w, double eps, Numeric numeric) {
  Doubles out;
  for (std::int64_t t = 0; t < x.extents[0]; ++t) {
    const Doubles row = slice(x.values, t * x.extents[1], x.extents[1]);
    const double r = root_mean_square(row, eps);
    for (std::size_t i = 0; i < row.size(); ++i)
      out.push_back(as_activation(numeric, static_cast<double>(w[i]) * row[i] / r));
  }
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("rms_norm equals the formula, also in place, each row for itself", "[rms_norm]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << ", " << numeric_name(numeric));
      Random random(c.seed);
      const Array<float, 2> x = random_array<2>(random, {c.tokens, c.width}, c.size);
      const std::vector<float> w = random.normals(c.width), got = run<TestType>(x, w, c.eps, numeric, false);
      check_close(got, formula(x, w, c.eps, numeric), numeric);
      CHECK(same_bits(run<TestType>(x, w, c.eps, numeric, true), got));
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        CHECK(same_bits(run<TestType>(x.rows(t, 1), w, c.eps, numeric, false),
                        Array<float, 2>(x.extents, got).rows(t, 1).values));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("B32: eps 1e-20 keeps small rows, and a zero row gives exact zeros", "[rms_norm]", Backends) {
  const std::vector<float> got = run<TestType>({{2, 4}, {1e-8f, 1e-8f, 1e-8f, 1e-8f, 0, 0, 0, 0}},
                                               std::vector<float>(4, 1.0f), 1e-20, Numeric::exact, false);
  for (std::size_t i = 0; i < 4; ++i) CHECK(static_cast<double>(got[i]) == Approx(0.99995).epsilon(1e-6));
  for (std::size_t i = 4; i < 8; ++i) CHECK(got[i] == 0.0f);
}

TEST_CASE("rms_norm: check() names the field, what it expects and what it got") {
  const ops::RmsNorm good{
      .x = shaped<const float, 2>({3, 8}), .weight = shaped<const float, 1>({8}), .y = shaped<float, 2>({3, 8})};
  check_refuses(good, "weight is [9], expected [8]", [](auto& op) { op.weight = shaped<const float, 1>({9}); });
  check_refuses(good, "y is [3, 7], expected [3, 8]", [](auto& op) { op.y = shaped<float, 2>({3, 7}); });
}
