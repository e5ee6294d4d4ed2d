// SPDX-License-Identifier: MIT
//
// EngramConvolution on its own: sequences in one batch and in several, with the gate's scratch as it is.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "dsv41/modules/engram/convolution.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kHc = 3, kDim = 10, kLags = 4, kLayers = 2;

template <class B>
struct Bench {
  B backend;
  Memory<B> memory{backend};
  ModelConfig config;
  Stored norm, kernel;
  EngramConvolutionWeights weights;

  Bench() {
    config.hc = kHc, config.dim = kDim, config.norm_eps = 1e-20, config.engram.max_ngram = 4;
    Random random(1);
    norm = random_matrix(random, Format::bf16, kHc, kDim),
    kernel = random_matrix(random, Format::bf16, kHc * kDim, kLags, 0.5);
    weights = {.norm = memory.put(norm), .kernel = memory.put(kernel)};
  }

  EngramConvolution module(Numeric numeric) const { return EngramConvolution(config, weights, numeric); }

  SequenceState open(std::int64_t max_rows) {
    SequenceState s;
    for (std::int64_t l = 0; l < kLayers; ++l)
      s.convolution_rings.push_back(
          memory.put(Array<float, 3>({module(Numeric::exact).slots(max_rows), kHc, kDim}, std::nanf(""))));
    return s;
  }
};

struct Rows {
  Array<float, 2> keys_value, gates;
  Array<float, 3> streams;

  Rows rows(std::int64_t first, std::int64_t n) const {
    return {keys_value.rows(first, n), gates.rows(first, n), streams.rows(first, n)};
  }
};

Rows make(std::int64_t n, std::uint64_t seed) {
  Random random(seed);
  return {random_array<2>(random, {n, (kHc + 1) * kDim}), random_array<2>(random, {n, kHc}),
          random_array<3>(random, {n, kHc, kDim})};
}

/// Runs a batch through the layer's module, advances its sequences, and returns the streams.
template <class B>
std::vector<float> step(Bench<B>& bench, const Rows& in, std::vector<Segment> segments, std::size_t layer,
                        Numeric numeric) {
  const auto streams = bench.memory.put(in.streams);
  for (Segment& s : segments) s.first_position = s.state->position;
  bench.module(numeric).forward(bench.backend, bench.memory.put(in.keys_value), bench.memory.put(in.gates), segments,
                                layer, streams);
  for (const Segment& s : segments) s.state->position += s.rows;
  return bench.memory.get(streams);
}

void append(std::vector<float>& to, const std::vector<float>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

Rows joined(Rows a, const Rows& b) {
  append(a.keys_value.values, b.keys_value.values), append(a.gates.values, b.gates.values);
  append(a.streams.values, b.streams.values);
  const std::int64_t n = a.streams.extents[0] + b.streams.extents[0];
  a.keys_value.extents[0] = a.gates.extents[0] = a.streams.extents[0] = n;
  return a;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("a sequence of the paper's convolution equals the formula", "[modules]", Backends) {
  Bench<TestType> bench;
  const std::int64_t tokens = 19;
  const Rows in = make(tokens, 2);
  SequenceState s = bench.open(tokens);
  CHECK(bench.module(Numeric::exact).slots(tokens) == 3 * 4 + tokens);  // four lags, four tokens apart
  const std::vector<float> got = step(bench, in, {{&s, 0, tokens}}, 1, Numeric::exact);
  Doubles normed, want;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < kHc; ++j) {
      Doubles v = slice(in.keys_value.values, (t * (kHc + 1) + kHc) * kDim, kDim);
      for (double& x : v) x *= static_cast<double>(in.gates.values[static_cast<std::size_t>(t * kHc + j)]);
      const double rms = root_mean_square(v, 1e-20);
      for (std::int64_t i = 0; i < kDim; ++i)
        normed.push_back(v[static_cast<std::size_t>(i)] / rms * bench.norm.value(j, i));
    }
    for (std::int64_t c = 0; c < kHc * kDim; ++c) {
      double sum = 0;
      for (std::int64_t back = 0; back < kLags && t - 4 * back >= 0; ++back)
        sum +=
            bench.kernel.value(c, kLags - 1 - back) * normed[static_cast<std::size_t>((t - 4 * back) * kHc * kDim + c)];
      want.push_back(static_cast<double>(in.streams.values[static_cast<std::size_t>(t * kHc * kDim + c)]) +
                     sum * sigmoid(sum));
    }
  }
  CHECK(norm_error(got, want) <= kNorm);
}

TEMPLATE_LIST_TEST_CASE("interleaved sequences and layers remember apart; any split gives the same bits", "[modules]",
                        Backends) {
  for (const Numeric numeric : kNumerics) {
    Bench<TestType> bench;
    const Rows a = make(21, 3), b = make(21, 4);
    const auto rounded = [](float x) { return static_cast<double>(x) == to_bf16(static_cast<double>(x)); };
    SequenceState whole_a = bench.open(21), whole_b = bench.open(21), x = bench.open(8), y = bench.open(8);
    const std::vector<float> want_a = step(bench, a, {{&whole_a, 0, 21}}, 0, numeric);
    const std::vector<float> want_b = step(bench, b, {{&whole_b, 0, 21}}, 1, numeric);
    std::vector<float> got_a, got_b, got_a1, got_b1;
    std::int64_t done = 0;
    for (const std::int64_t n : {1, 8, 2, 0, 7, 3}) {
      const std::vector<Segment> segments = {{&x, 0, n}, {&y, n, n}};
      const Rows first = joined(a.rows(done, n), b.rows(done, n)), second = joined(b.rows(done, n), a.rows(done, n));
      const Array<float, 3> layer_0(first.streams.extents, step(bench, first, segments, 0, numeric));
      x.position -= n, y.position -= n;  // the other layer of the same step
      const Array<float, 3> layer_1(first.streams.extents, step(bench, second, segments, 1, numeric));
      append(got_a, layer_0.rows(0, n).values), append(got_b, layer_0.rows(n, n).values);
      append(got_b1, layer_1.rows(0, n).values), append(got_a1, layer_1.rows(n, n).values);
      done += n;
    }
    CHECK(done == 21);
    CHECK(same_bits(got_a, want_a));
    CHECK(std::all_of(got_a.begin(), got_a.end(), rounded) == (numeric == Numeric::deployed));
    CHECK(same_bits(got_b, want_b));
    CHECK(same_bits(got_a1, want_a));
    CHECK(same_bits(got_b1, want_b));
  }
}

TEMPLATE_LIST_TEST_CASE("a sequence that steps back by fewer rows than a step has repeats itself", "[modules]",
                        Backends) {
  Bench<TestType> bench;
  const Rows in = make(30, 5), other = make(30, 6);
  SequenceState plain = bench.open(6), back = bench.open(6);
  std::vector<float> want, got;
  for (std::int64_t p = 0; p < 30; p += 6) {
    append(want, step(bench, in.rows(p, 6), {{&plain, 0, 6}}, 0, Numeric::exact));
    append(got, step(bench, in.rows(p, 1), {{&back, 0, 1}}, 0, Numeric::exact));
    step(bench, other.rows(p, 5), {{&back, 0, 5}}, 0, Numeric::exact);  // refused: five drafted tokens
    back.position -= 5;
    append(got, step(bench, in.rows(p + 1, 5), {{&back, 0, 5}}, 0, Numeric::exact));
  }
  CHECK(same_bits(got, want));
}
