// SPDX-License-Identifier: MIT
//
// Products with stored weights on the CPU backend: the same bits for every instruction set, number of threads and batch, against double,
// and what codes and scales at the ends of their ranges are worth.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "dsv41/numerics/stored.hpp"
#include "support/catch.hpp"
#include "support/cpu_backends.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

std::vector<float> product(CpuBackend& backend, const Array<float, 2>& x, const Stored& w, Numeric numeric,
                           std::int64_t groups = 1, ops::LinearRole role = ops::LinearRole::hidden) {
  Memory<CpuBackend> memory(backend);
  const auto y = memory.put(Array<float, 2>({x.extents[0], w.rows}, -1.0f));
  backend.run(
      ops::Linear{.x = memory.put(x), .w = memory.put(w), .y = y, .groups = groups, .role = role, .numeric = numeric});
  backend.sync();
  return memory.get(y);
}

/// Rows of every path: few, several, more than a block of the kernel; and columns of one and more chunks, with part blocks.
struct Shape {
  std::int64_t rows, in, out, groups;
};
constexpr Shape kShapes[] = {{1, 32, 40, 1},  {2, 520, 9, 1},   {3, 1100, 37, 1}, {4, 64, 33, 3},
                             {5, 544, 14, 2}, {9, 1024, 70, 1}, {13, 34, 5, 1},   {210, 96, 20, 1}};

}  // namespace

TEST_CASE("products have the same bits for every instruction set, number of threads and batch", "[products]") {
  std::uint64_t seed = 1;
  for (const Shape& s : kShapes) {
    for (const Format format : kFormats) {
      for (const Numeric numeric : kNumerics) {
        Random random(seed++);
        const std::int64_t out = s.out / s.groups * s.groups;
        const Array<float, 2> x = random_array<2>(random, {s.rows, s.groups * s.in});
        const Stored w = random_matrix(random, format, out, s.in, 0.25);
        INFO(format_name(format) << ", " << s.rows << " rows of " << s.in << ", " << numeric_name(numeric));
        CpuBackend best({.threads = 1});
        const std::vector<float> whole = product(best, x, w, numeric, s.groups);
        std::vector<float> alone;
        for (std::int64_t t = 0; t < s.rows; ++t) {
          const std::vector<float> row = product(best, x.rows(t, 1), w, numeric, s.groups);
          alone.insert(alone.end(), row.begin(), row.end());
        }
        CHECK(same_bits(alone, whole));
        if (numeric == Numeric::exact) {
          Doubles want, sizes;
          const Stored size = magnitudes(w);
          for (std::int64_t t = 0; t < s.rows; ++t) {
            const Doubles row = slice(x.values, t * x.extents[1], x.extents[1]);
            const Doubles abs = slice(magnitudes(x).values, t * x.extents[1], x.extents[1]);
            for (const double y : test::product(w, row, s.groups)) want.push_back(y);
            for (const double y : test::product(size, abs, s.groups)) sizes.push_back(y);
          }
          check_terms(whole, want, sizes);
        }
        for_each_cpu_backend(
            [&](CpuBackend& backend) { CHECK(same_bits(product(backend, x, w, numeric, s.groups), whole)); });
      }
    }
  }
}

TEST_CASE("B40: every code under every scale is worth what the format says", "[products]") {
  for (const Format format : {Format::fp8_tile, Format::fp8_row, Format::fp4_row}) {
    // One code times 1 is a sum of one term and zeros: exact, so the decoding itself is compared.
    const std::int64_t out = 256, in = 64;
    Random random(3);
    Stored w = random_matrix(random, format, out, in);
    for (std::size_t i = 0; i < w.bytes.size(); ++i)
      w.bytes[i] = static_cast<std::uint8_t>(
          i % static_cast<std::size_t>(w.bytes.size() / out) == 0 ? i / (w.bytes.size() / 256) : 0);
    for (std::size_t i = 0; i < w.scales.size(); ++i) w.scales[i] = static_cast<std::uint8_t>(i * 37);
    Array<float, 2> x({9, in});
    for (std::int64_t t = 0; t < 9; ++t) x.values[static_cast<std::size_t>(t * in + (t % 2))] = 1;
    std::vector<float> want;
    Matrix m{.format = format, .rows = out, .cols = in, .data = reinterpret_cast<const std::byte*>(w.bytes.data())};
    m.scales = w.scales.data();
    for (std::int64_t t = 0; t < 9; ++t) {
      for (std::int64_t o = 0; o < out; ++o) {
        float row[64];
        numerics::decode_row(m, o, 0, in, row);
        double sum = 0;  // infinity and NaN count even where they meet a 0
        for (std::int64_t k = 0; k < in; ++k)
          sum += static_cast<double>(x.values[static_cast<std::size_t>(t * in + k)]) * static_cast<double>(row[k]);
        want.push_back(static_cast<float>(sum));
      }
    }
    for_each_cpu_backend([&](CpuBackend& backend) {
      for (const std::int64_t rows : {1, 9}) {
        const std::vector<float> got = product(backend, x.rows(0, rows), w, Numeric::exact);
        std::int64_t worst = 0;
        for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, ulps(got[i], want[i]));
        INFO(format_name(format) << ", " << rows << " rows");
        CHECK(worst == 0);
      }
    });
  }
}

TEST_CASE("experts have the same bits for every instruction set, number of threads and batch", "[products]") {
  const std::int64_t dim = 96, experts = 7, topk = 3;
  for (const Format format : kFormats) {
    for (const Numeric numeric : kNumerics) {
      Random random(11);
      const std::int64_t tokens = 23;
      const Array<float, 2> x = random_array<2>(random, {tokens, dim});
      std::vector<Stored> stored;
      for (std::int64_t e = 0; e < experts; ++e) {  // one of another format, one wide
        const Format own = e == 3 ? Format::bf16 : format;
        const std::int64_t ff = e == 5 ? 200 : 40;
        stored.push_back(random_matrix(random, own, ff, dim, 0.25));
        stored.push_back(random_matrix(random, own, dim, ff, 0.25));
        stored.push_back(random_matrix(random, own, ff, dim, 0.25));
      }
      Array<float, 2> weights({tokens, topk});
      Array<std::int32_t, 2> ids({tokens, topk});
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t k = 0; k < topk; ++k) {
          const auto i = static_cast<std::size_t>(t * topk + k);
          weights.values[i] = random.uniform(0.1, 1.5);
          ids.values[i] = t % 5 == 4 && k == 1 ? -1 : static_cast<std::int32_t>((t * 2 + k * 3) % experts);
        }
      }
      const auto run = [&](CpuBackend& backend, std::int64_t first, std::int64_t count) {
        Memory<CpuBackend> memory(backend);
        std::vector<ExpertWeights> e;
        for (std::size_t i = 0; i < stored.size(); i += 3)
          e.push_back({memory.put(stored[i]), memory.put(stored[i + 1]), memory.put(stored[i + 2])});
        const ExpertWeights shared = e.back();
        e.pop_back();
        e.push_back(e[0]);
        const auto y = memory.put(Array<float, 2>({count, dim}));
        backend.run(ops::SwigluExperts{.x = memory.put(x.rows(first, count)),
                                       .ids = memory.put(ids.rows(first, count)),
                                       .weights = memory.put(weights.rows(first, count)),
                                       .experts = e,
                                       .shared = shared,
                                       .y = y,
                                       .limit = 1,
                                       .numeric = numeric});
        backend.sync();
        return memory.get(y);
      };
      INFO(format_name(format) << ", " << numeric_name(numeric));
      CpuBackend best({.threads = 1});
      const std::vector<float> whole = run(best, 0, tokens);
      std::vector<float> alone;
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::vector<float> row = run(best, t, 1);
        alone.insert(alone.end(), row.begin(), row.end());
      }
      CHECK(same_bits(alone, whole));
      for_each_cpu_backend([&](CpuBackend& backend) { CHECK(same_bits(run(backend, 0, tokens), whole)); });
    }
  }
}
