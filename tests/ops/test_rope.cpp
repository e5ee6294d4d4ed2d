// SPDX-License-Identifier: MIT
//
// ops::Rope: rotation of trailing channels, its inverse, and the quantiser behind it.
#include "dsv41/ops/rope.hpp"

#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;
using numerics::Quantiser;

namespace {

struct Case {
  std::int64_t tokens, heads, width, pairs, first_position;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 2, 8, 2, 0, 1},  {1, 1, 2, 1, 0, 2},          {1, 4, 64, 8, 100000, 3}, {5, 3, 32, 16, 7, 4},
    {7, 1, 67, 5, 1, 5}, {3, 2, 512, 32, 1048570, 6}, {17, 2, 96, 1, 65535, 7},
};

constexpr Quantiser kQuantisers[] = {Quantiser::none, Quantiser::window_fp8, Quantiser::entry_fp4,
                                     Quantiser::index_fp4};

struct Inputs {
  Array<float, 3> x;
  std::vector<std::int64_t> positions;
  std::vector<float> frequencies;
};

Inputs make(const Case& c) {
  Random random(c.seed);
  Inputs in{random_array<3>(random, {c.tokens, c.heads, c.width}), {}, {}};
  for (std::int64_t t = 0; t < c.tokens; ++t) in.positions.push_back(c.first_position + t * t);
  for (std::int64_t i = 0; i < c.pairs; ++i)
    in.frequencies.push_back(static_cast<float>(std::pow(10000.0, -static_cast<double>(i) / 32)));
  return in;
}

template <class B>
std::vector<float> run(const Inputs& in, bool inverse, Quantiser quantiser, Numeric numeric) {
  B backend;
  Memory<B> memory(backend);
  const auto x = memory.put(in.x);
  const ops::Rope op{.x = x,
                     .positions = memory.put(in.positions),
                     .frequencies = memory.put(in.frequencies),
                     .inverse = inverse,
                     .quantiser = quantiser,
                     .numeric = numeric};
  op.check();
  backend.run(op);
  return memory.get(x);
}

Doubles formula(const Inputs& in, bool inverse, Quantiser quantiser, Numeric numeric) {
  Doubles out;
  const auto [tokens, heads, width] = in.x.extents;
  for (std::int64_t r = 0; r < tokens * heads; ++r) {
    Doubles row = rotated(slice(in.x.values, r * width, width), in.positions[static_cast<std::size_t>(r / heads)],
                          in.frequencies, inverse);
    for (double& v : row) v = as_activation(numeric, v);
    row = quantised(quantiser, row);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("rope equals the rotation in double, forward and inverse, with every quantiser", "[rope]",
                        Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      for (const bool inverse : {false, true}) {
        for (const Quantiser q : kQuantisers) {
          INFO("seed " << c.seed << ", " << numeric_name(numeric) << ", inverse " << inverse << ", quantiser "
                       << static_cast<int>(q));
          const Inputs in = make(c);
          const bool steps = quantises(q, c.width) || numeric == Numeric::deployed;
          check_close(run<TestType>(in, inverse, q, numeric), formula(in, inverse, q, numeric),
                      steps ? Numeric::deployed : Numeric::exact);
        }
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("the inverse undoes the rotation, and the leading channels stay to the bit", "[rope]",
                        Backends) {
  for (const Case& c : kCases) {
    Inputs in = make(c);
    const Array<float, 3> before = in.x;
    in.x.values = run<TestType>(in, false, Quantiser::none, Numeric::exact);
    for (std::size_t i = 0; i < in.x.values.size(); ++i) {
      if (static_cast<std::int64_t>(i) % c.width < c.width - 2 * c.pairs) CHECK(in.x.values[i] == before.values[i]);
    }
    CHECK(norm_error(run<TestType>(in, true, Quantiser::none, Numeric::exact), doubles_of(before.values)) <= kNorm);
  }
}

TEMPLATE_LIST_TEST_CASE("a rope's row does not depend on its batch mates", "[rope]", Backends) {
  for (const Case& c : kCases) {
    const Inputs in = make(c);
    const Array<float, 3> whole(in.x.extents, run<TestType>(in, false, Quantiser::index_fp4, Numeric::deployed));
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      const Inputs one{in.x.rows(t, 1), {in.positions[static_cast<std::size_t>(t)]}, in.frequencies};
      CHECK(same_bits(run<TestType>(one, false, Quantiser::index_fp4, Numeric::deployed), whole.rows(t, 1).values));
    }
  }
}

TEST_CASE("rope: check() names the field, what it expects and what it got") {
  const ops::Rope good{.x = shaped<float, 3>({3, 2, 8}),
                       .positions = shaped<const std::int64_t, 1>({3}),
                       .frequencies = shaped<const float, 1>({4})};
  check_refuses(good, "positions is [2], expected [3]",
                [](auto& op) { op.positions = shaped<const std::int64_t, 1>({2}); });
  check_refuses(good, "frequencies is 5, expected at most half the width",
                [](auto& op) { op.frequencies = shaped<const float, 1>({5}); });
}
