// SPDX-License-Identifier: MIT
//
// ops::EngramGate: the gated memory against the formula in double.
#include "dsv41/ops/engram_gate.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t tokens, hc, dim;
  Format format;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 4, 16, Format::bf16, 1}, {1, 1, 1, Format::f32, 2},  {1, 4, 32, Format::bf16, 3},
    {7, 8, 33, Format::f32, 4},  {5, 3, 97, Format::f16, 5}, {3, 2, 640, Format::bf16, 6},
};

struct Inputs {
  Array<float, 2> kv;
  Array<float, 3> streams;
  Stored q, k;
  Array<std::uint8_t, 1> image;

  Inputs rows(std::int64_t first, std::int64_t count) const {
    return {kv.rows(first, count), streams.rows(first, count), q, k, image.rows(first, count)};
  }
};

struct Outputs {
  std::vector<float> streams, gates;
};

constexpr double kEps = 1e-20;

Inputs make(const Case& c) {
  Random random(c.seed);
  Inputs in{random_array<2>(random, {c.tokens, (c.hc + 1) * c.dim}), random_array<3>(random, {c.tokens, c.hc, c.dim}),
            random_matrix(random, c.format, c.hc, c.dim), random_matrix(random, c.format, c.hc, c.dim),
            Array<std::uint8_t, 1>({c.tokens})};
  for (std::size_t t = 1; t < in.image.values.size(); t += 3) in.image.values[t] = 1;
  return in;
}

template <class B>
Outputs run(const Inputs& in, Numeric numeric) {
  B backend;
  Memory<B> memory(backend);
  const auto streams = memory.put(in.streams);
  const auto gates = memory.put(Array<float, 2>({in.streams.extents[0], in.streams.extents[1]}, -1.0f));
  const ops::EngramGate op{.keys_value = memory.put(in.kv),
                           .q_weight = memory.put(in.q, 1),
                           .k_weight = memory.put(in.k, 2),
                           .image = memory.put(in.image),
                           .streams = streams,
                           .gates = gates,
                           .eps = kEps,
                           .numeric = numeric};
  op.check();
  backend.run(op);
  return {memory.get(streams), memory.get(gates)};
}

/// The op in double: streams, then gates.
std::pair<Doubles, Doubles> formula(const Inputs& in, Numeric numeric) {
  const auto [tokens, hc, dim] = in.streams.extents;
  Doubles streams, gates;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t j = 0; j < hc; ++j) {
      const Doubles h = slice(in.streams.values, (t * hc + j) * dim, dim),
                    key = slice(in.kv.values, t * (hc + 1) * dim + j * dim, dim);
      const Doubles value = slice(in.kv.values, t * (hc + 1) * dim + hc * dim, dim);
      double dot = 0;
      for (std::int64_t i = 0; i < dim; ++i) {
        const auto at = static_cast<std::size_t>(i);
        dot += h[at] * in.q.value(j, i) * in.k.value(j, i) * key[at];
      }
      dot /= root_mean_square(h, kEps) * root_mean_square(key, kEps) * std::sqrt(static_cast<double>(dim));
      const double gate = in.image.values[static_cast<std::size_t>(t)] != 0
                              ? 0
                              : sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot));
      gates.push_back(gate);
      for (std::size_t i = 0; i < h.size(); ++i) streams.push_back(as_activation(numeric, h[i] + gate * value[i]));
    }
  }
  return {streams, gates};
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("engram_gate adds the gated value to every stream, and nothing for image tokens",
                        "[engram_gate]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << " " << numeric_name(numeric));
      const Inputs in = make(c);
      const Outputs got = run<TestType>(in, numeric);
      const auto [streams, gates] = formula(in, numeric);
      check_close(got.streams, streams, numeric);
      CHECK(norm_error(got.gates, gates) <= kNorm);
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        const Outputs alone = run<TestType>(in.rows(t, 1), numeric);
        CHECK(same_bits(alone.streams, Array<float, 2>({c.tokens, c.hc * c.dim}, got.streams).rows(t, 1).values));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a dot of +0 opens the gate by sigmoid(1e-3), also for a zero stream and a zero key",
                        "[engram_gate]", Backends) {
  Inputs in = make({1, 2, 8, Format::f32, 9});
  for (std::size_t i = 0; i < 8; ++i) in.streams.values[i] = 0, in.kv.values[8 + i] = 0;
  const Outputs got = run<TestType>(in, Numeric::exact);
  for (const float gate : got.gates) CHECK(static_cast<double>(gate) == Approx(sigmoid(1e-3)).epsilon(1e-6));
}

TEST_CASE("engram_gate: check() names the field, what it expects and what it got") {
  const ops::EngramGate good{.keys_value = shaped<const float, 2>({3, 24}),
                             .q_weight = {.rows = 2, .cols = 8},
                             .k_weight = {.rows = 2, .cols = 8},
                             .image = shaped<const std::uint8_t, 1>({3}),
                             .streams = shaped<float, 3>({3, 2, 8}),
                             .gates = shaped<float, 2>({3, 2})};
  check_refuses(good, "keys_value is [3, 16], expected [3, 24]", [](auto& op) {
    op.keys_value = shaped<const float, 2>({3, 16});
  });
  check_refuses(good, "q_weight is [2, 9], expected [2, 8]", [](auto& op) { op.q_weight.cols = 9; });
  check_refuses(good, "k_weight is [1, 8], expected [2, 8]", [](auto& op) { op.k_weight.rows = 1; });
  check_refuses(good, "layers.1.engram.k_weight is [1, 8], expected [2, 8]",
                [](auto& op) { op.k_weight.rows = 1, op.k_weight.name = "layers.1.engram.k_weight"; });
  check_refuses(good, "image is [1], expected [3]", [](auto& op) { op.image = shaped<const std::uint8_t, 1>({1}); });
  check_refuses(good, "gates is [3, 3], expected [3, 2]", [](auto& op) { op.gates = shaped<float, 2>({3, 3}); });
}
