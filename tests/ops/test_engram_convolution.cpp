// SPDX-License-Identifier: MIT
//
// ops::EngramConvolution: the causal convolution against the formula over the whole sequence, in one call and in pieces.
#include "dsv41/ops/engram_convolution.hpp"

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
  std::int64_t tokens, hc, dim, lags, dilation;
  Format format;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 4, 8, 4, 3, Format::f32, 1},    {1, 1, 1, 1, 1, Format::f32, 2},  {1, 4, 16, 4, 4, Format::bf16, 3},
    {17, 4, 33, 4, 4, Format::bf16, 4}, {9, 2, 7, 4, 3, Format::f16, 5},  {30, 3, 5, 4, 2, Format::f32, 6},
    {7, 8, 3, 2, 5, Format::f32, 7},    {6, 1, 97, 3, 1, Format::f32, 8}, {5, 2, 8, 1, 3, Format::bf16, 9},
};

constexpr double kEps = 1e-20;

struct Inputs {
  Array<float, 2> keys_value, gates;  // hc keys, which the op must not read, and the value
  Array<float, 3> streams;
  Stored norm, kernel;

  std::int64_t dim() const { return streams.extents[2]; }
};

Inputs make(const Case& c) {
  Random random(c.seed);
  Inputs in{random_array<2>(random, {c.tokens, (c.hc + 1) * c.dim}), Array<float, 2>({c.tokens, c.hc}),
            random_array<3>(random, {c.tokens, c.hc, c.dim}), random_matrix(random, c.format, c.hc, c.dim),
            random_matrix(random, c.format, c.hc * c.dim, c.lags, 0.5)};
  for (float& g : in.gates.values) g = random.below(5) == 0 ? 0.0f : random.uniform(0, 1);
  return in;
}

/// Runs the sequence in calls of these many tokens, on one ring of just enough slots that holds NaN where nothing was written.
template <class B>
std::vector<float> run(const Case& c, const Inputs& in, const std::vector<std::int64_t>& calls, Numeric numeric,
                       std::int64_t spare_slots = 0) {
  B backend;
  Memory<B> memory(backend);
  std::int64_t longest = 0;
  for (const std::int64_t n : calls) longest = std::max(longest, n);
  const std::int64_t slots = std::max<std::int64_t>(1, longest + (c.lags - 1) * c.dilation + spare_slots);
  const auto ring = memory.put(Array<float, 3>({slots, c.hc, c.dim}, std::nanf("")));
  const auto kv = memory.put(in.keys_value), gates = memory.put(in.gates);
  const auto streams = memory.put(in.streams);
  const Matrix norm = memory.put(in.norm, 1), kernel = memory.put(in.kernel, 3);
  std::int64_t first = 0;
  for (const std::int64_t n : calls) {
    const ops::EngramConvolution op{.value = kv.columns(c.hc * c.dim, c.dim).rows(first, n),
                                    .gates = gates.rows(first, n),
                                    .norm = norm,
                                    .kernel = kernel,
                                    .ring = ring,
                                    .streams = streams.rows(first, n),
                                    .first_position = first,
                                    .dilation = c.dilation,
                                    .eps = kEps,
                                    .numeric = numeric};
    op.check();
    backend.run(op);
    first += n;
  }
  backend.sync();
  return memory.get(streams);
}

Doubles formula(const Case& c, const Inputs& in, Numeric numeric) {
  Doubles normed, out;  // [tokens, hc, dim]
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t j = 0; j < c.hc; ++j) {
      Doubles v = slice(in.keys_value.values, (t * (c.hc + 1) + c.hc) * c.dim, c.dim);
      for (double& x : v) x *= static_cast<double>(in.gates.values[static_cast<std::size_t>(t * c.hc + j)]);
      const double rms = root_mean_square(v, kEps);
      for (std::int64_t i = 0; i < c.dim; ++i)
        normed.push_back(as_activation(numeric, v[static_cast<std::size_t>(i)] / rms * in.norm.value(j, i)));
    }
  }
  const std::int64_t width = c.hc * c.dim;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t channel = 0; channel < width; ++channel) {
      double sum = 0;
      for (std::int64_t back = 0; back < c.lags; ++back) {
        const std::int64_t from = t - back * c.dilation;
        if (from >= 0)
          sum += in.kernel.value(channel, c.lags - 1 - back) * normed[static_cast<std::size_t>(from * width + channel)];
      }
      const double h = static_cast<double>(in.streams.values[static_cast<std::size_t>(t * width + channel)]);
      out.push_back(as_activation(numeric, h + sum * sigmoid(sum)));
    }
  }
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("engram_convolution equals the formula over the sequence", "[engram_convolution]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << ", " << numeric_name(numeric));
      const Inputs in = make(c);
      check_close(run<TestType>(c, in, {c.tokens}, numeric), formula(c, in, numeric), numeric);
    }
  }
}

TEMPLATE_LIST_TEST_CASE("any split into calls, and any ring that is long enough, gives the same bits",
                        "[engram_convolution]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << ", " << numeric_name(numeric));
      const Inputs in = make(c);
      const std::vector<float> whole = run<TestType>(c, in, {c.tokens}, numeric);
      CHECK(same_bits(run<TestType>(c, in, std::vector<std::int64_t>(static_cast<std::size_t>(c.tokens), 1), numeric),
                      whole));
      Random random(c.seed);
      for (const std::int64_t spare : {0, 1, 5}) {
        std::vector<std::int64_t> calls;
        for (std::int64_t left = c.tokens; left > 0; left -= calls.back())
          calls.push_back(std::min(left, random.below(4)));  // now and then a call of no rows
        CHECK(same_bits(run<TestType>(c, in, calls, numeric, spare), whole));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a token reaches exactly the tokens a multiple of the dilation behind it, never one before it",
                        "[engram_convolution]", Backends) {
  const Case c{20, 2, 4, 4, 3, Format::f32, 11};
  Inputs in = make(c);
  for (float& g : in.gates.values) g = 0.5f;
  const std::vector<float> before = run<TestType>(c, in, {c.tokens}, Numeric::exact);
  for (std::int64_t i = 0; i < 4; ++i)
    in.keys_value.values[static_cast<std::size_t>((5 * 3 + 2) * 4 + i)] += 1 + static_cast<float>(i);
  const std::vector<float> after = run<TestType>(c, in, {c.tokens}, Numeric::exact);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const bool reached = t == 5 || t == 8 || t == 11 || t == 14;
    CHECK(same_bits(Array<float, 3>(in.streams.extents, before).rows(t, 1).values,
                    Array<float, 3>(in.streams.extents, after).rows(t, 1).values) != reached);
  }
}

TEMPLATE_LIST_TEST_CASE("closed gates add nothing; a NaN stays within its reach", "[engram_convolution]", Backends) {
  const Case c{12, 2, 5, 4, 2, Format::f32, 12};
  Inputs in = make(c);
  Inputs closed = in;
  for (float& g : closed.gates.values) g = 0;
  CHECK(same_bits(run<TestType>(c, closed, {12}, Numeric::exact), in.streams.values));
  in.gates.values[2 * 2] = std::nanf("");  // token 2, stream 0
  const std::vector<float> got = run<TestType>(c, in, {12}, Numeric::exact);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t i = 0; i < 10; ++i) {
      const bool reached = i < 5 && (t == 2 || t == 4 || t == 6 || t == 8);
      CHECK(std::isnan(got[static_cast<std::size_t>(t * 10 + i)]) == reached);
    }
  }
}

TEST_CASE("engram_convolution: check() names the field, what it expects and what it got") {
  const ops::EngramConvolution good{.value = shaped<const float, 2>({3, 8}),
                                    .gates = shaped<const float, 2>({3, 2}),
                                    .norm = {.rows = 2, .cols = 8},
                                    .kernel = {.rows = 16, .cols = 4},
                                    .ring = shaped<float, 3>({15, 2, 8}),
                                    .streams = shaped<float, 3>({3, 2, 8}),
                                    .dilation = 4};
  check_refuses(good, "value is [3, 24], expected [3, 8]", [](auto& op) {
    op.value = shaped<const float, 2>({3, 24});
  });
  check_refuses(good, "gates is [3, 3], expected [3, 2]", [](auto& op) { op.gates = shaped<const float, 2>({3, 3}); });
  check_refuses(good, "norm is [1, 8], expected [2, 8]", [](auto& op) { op.norm.rows = 1; });
  check_refuses(good, "kernel is 0, expected at least 1 lag", [](auto& op) { op.kernel.cols = 0; });
  check_refuses(good, "kernel is [8, 4], expected [16, 4]", [](auto& op) { op.kernel.rows = 8; });
  check_refuses(good, "first_position is -1, expected at least 0", [](auto& op) { op.first_position = -1; });
  check_refuses(good, "dilation is 0, expected at least 1", [](auto& op) { op.dilation = 0; });
  check_refuses(good, "dilation is 4611686018427387904, expected no more than ring has slots",
                [](auto& op) { op.dilation = std::int64_t{1} << 62; });
  check_refuses(good, "kernel is 16, expected no more lags than ring has slots", [](auto& op) { op.kernel.cols = 16; });
  check_refuses(good, "ring is [14, 2, 8], expected at least [15, 2, 8]", [](auto& op) {
    op.ring = shaped<float, 3>({14, 2, 8});
  });
  check_refuses(good, "ring is [15, 2, 9], expected [15, 2, 8]", [](auto& op) {
    op.ring = shaped<float, 3>({15, 2, 9});
  });
}
