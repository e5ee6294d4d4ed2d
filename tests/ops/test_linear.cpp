// SPDX-License-Identifier: MIT
//
// ops::Linear: every stored format, groups, odd sizes, roles and classes against a plain double product.
#include "dsv41/ops/linear.hpp"

#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t tokens, in, out, groups;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 8, 4, 1, 1},     {1, 2, 1, 1, 2},      {1, 32, 7, 1, 3},    {3, 34, 5, 1, 4},
    {2, 64, 32, 2, 5},   {5, 98, 13, 1, 6},    {17, 40, 12, 4, 7},  {33, 128, 9, 3, 8},
    {16, 320, 33, 1, 9}, {1, 1280, 64, 8, 10}, {2, 5120, 3, 1, 11},
};

constexpr ops::LinearRole kRoles[] = {ops::LinearRole::hidden, ops::LinearRole::plain_input, ops::LinearRole::float32};

template <class B>
std::vector<float> run(const Array<float, 2>& x, const Stored& w, std::int64_t groups, ops::LinearRole role,
                       Numeric numeric, std::size_t shift = 0) {
  B backend;
  Memory<B> memory(backend);
  const auto y = memory.put(Array<float, 2>({x.extents[0], w.rows}, -1.0f));
  const ops::Linear op{
      .x = memory.put(x), .w = memory.put(w, shift), .y = y, .groups = groups, .role = role, .numeric = numeric};
  op.check();
  backend.run(op);
  backend.sync();
  return memory.get(y);
}

bool fp8_or_fp4(Format f) {
  return f == Format::fp8_tile || f == Format::fp8_row || f == Format::fp4_row;
}

Doubles formula(const Array<float, 2>& x, const Stored& w, std::int64_t groups, ops::LinearRole role, Numeric numeric) {
  const bool deployed = numeric == Numeric::deployed;
  Doubles y;
  for (std::int64_t t = 0; t < x.extents[0]; ++t) {
    Doubles row = slice(x.values, t * x.extents[1], x.extents[1]);
    if (deployed && role == ops::LinearRole::hidden && fp8_or_fp4(w.format))
      row = quantised(numerics::Quantiser::input_fp8, row);
    for (const double v : product(w, row, groups)) {
      y.push_back(deployed && role != ops::LinearRole::float32 ? to_bf16(v) : to_float(v));
    }
  }
  return y;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("linear equals the product in double for every format, role and class", "[linear]", Backends) {
  for (const Case& c : kCases) {
    for (const Format format : kFormats) {
      Random random(c.seed);
      const Array<float, 2> x = random_array<2>(random, {c.tokens, c.groups * c.in});
      const Stored w = random_matrix(random, format, c.out, c.in, 0.25);
      for (const ops::LinearRole role : kRoles) {
        for (const Numeric numeric : kNumerics) {
          INFO("seed " << c.seed << ", " << format_name(format) << ", role " << static_cast<int>(role) << ", "
                       << numeric_name(numeric));
          const std::vector<float> got = run<TestType>(x, w, c.groups, role, numeric);
          const bool rounds = numeric == Numeric::deployed && role != ops::LinearRole::float32;
          const Doubles want = formula(x, w, c.groups, role, numeric);
          if (rounds || kSumsWide<TestType>) {
            check_close(got, want, rounds ? Numeric::deployed : Numeric::exact);
          } else {
            check_terms(got, want, formula(magnitudes(x), magnitudes(w), c.groups, role, numeric));
          }
        }
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a linear's row does not depend on its batch mates, nor on the weight's address", "[linear]",
                        Backends) {
  for (const Format format : kFormats) {
    for (const Numeric numeric : kNumerics) {
      INFO(format_name(format) << ", " << numeric_name(numeric));
      Random random(20);
      const Array<float, 2> x = random_array<2>(random, {19, 66});
      const Stored w = random_matrix(random, format, 35, 66);
      const std::vector<float> whole = run<TestType>(x, w, 1, ops::LinearRole::hidden, numeric);
      for (const std::size_t shift : {1u, 3u, 13u})
        CHECK(same_bits(run<TestType>(x, w, 1, ops::LinearRole::hidden, numeric, shift), whole));
      std::vector<float> alone;
      for (std::int64_t t = 0; t < 19; ++t) {
        const auto row = run<TestType>(x.rows(t, 1), w, 1, ops::LinearRole::hidden, numeric);
        alone.insert(alone.end(), row.begin(), row.end());
      }
      CHECK(same_bits(alone, whole));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a linear's input and output may be columns of wider matrices", "[linear]", Backends) {
  TestType backend;
  Memory<TestType> memory(backend);
  Random random(21);
  const Array<float, 2> x = random_array<2>(random, {5, 12});
  const Stored w = random_matrix(random, Format::bf16, 3, 4);
  const auto y = memory.put(Array<float, 2>({5, 7}, -1.0f));
  backend.run(ops::Linear{.x = memory.put(x).columns(6, 4), .w = memory.put(w), .y = y.columns(2, 3)});
  const std::vector<float> got = memory.get(y);
  for (std::int64_t t = 0; t < 5; ++t) {
    const Doubles want = product(w, slice(x.values, t * 12 + 6, 4));
    for (std::int64_t i = 0; i < 7; ++i) {
      const float value = got[static_cast<std::size_t>(t * 7 + i)];
      if (i < 2 || i > 4) {
        CHECK(value == -1.0f);
      } else {
        CHECK(static_cast<double>(value) == Approx(want[static_cast<std::size_t>(i - 2)]).epsilon(1e-6));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("sums are wide: terms that cancel leave the small rest", "[linear]", Backends) {
  Random random(22);
  Stored w = random_matrix(random, Format::f32, 1, 3);
  const float weights[3] = {1e8f, 1, -1e8f};
  std::memcpy(w.bytes.data(), weights, sizeof weights);
  CHECK(run<TestType>({{1, 3}, {1, 1, 1}}, w, 1, ops::LinearRole::float32, Numeric::exact) == std::vector<float>{1});
}

TEMPLATE_LIST_TEST_CASE("infinities and NaN of one row stay in that row", "[linear]", Backends) {
  Random random(23);
  const Stored w = random_matrix(random, Format::f32, 4, 8);
  Array<float, 2> x = random_array<2>(random, {3, 8});
  const std::vector<float> clean = run<TestType>(x, w, 1, ops::LinearRole::hidden, Numeric::exact);
  x.values[8] = std::nanf("");
  const std::vector<float> got = run<TestType>(x, w, 1, ops::LinearRole::hidden, Numeric::exact);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK((i / 4 == 1 ? std::isnan(got[i]) : got[i] == clean[i]));
}

TEST_CASE("linear: check() names the field, what it expects and what it got") {
  const ops::Linear good{
      .x = shaped<const float, 2>({3, 16}), .w = {.rows = 6, .cols = 8}, .y = shaped<float, 2>({3, 6}), .groups = 2};
  check_refuses(good, "groups is 4, expected a divisor of the output width", [](auto& op) { op.groups = 4; });
  check_refuses(good, "groups is 0, expected a divisor of the output width", [](auto& op) { op.groups = 0; });
  check_refuses(good, "x is [3, 15], expected [3, 16]", [](auto& op) { op.x = shaped<const float, 2>({3, 15}); });
  check_refuses(good, "y is [2, 6], expected [3, 6]", [](auto& op) { op.y = shaped<float, 2>({2, 6}); });
}
