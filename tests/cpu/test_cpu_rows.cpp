// SPDX-License-Identifier: MIT
//
// Norm, n-gram rows and their gate on the CPU: the reference's bits, for every instruction set, number of threads and batch.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "dsv41/ops/engram_gate.hpp"
#include "dsv41/ops/engram_gather.hpp"
#include "dsv41/ops/rms_norm.hpp"
#include "support/cpu_backends.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr double kEps = 1e-20;

template <class B>
std::vector<float> norm(B& backend, const Array<float, 2>& x, const std::vector<float>& weight, Numeric numeric,
                        bool in_place) {
  Memory<B> memory(backend);
  const Out<float, 2> from = memory.put(x), to = in_place ? from : memory.put(Array<float, 2>(x.extents, -1.0f));
  const ops::RmsNorm op{.x = from, .weight = memory.put(weight), .y = to, .eps = kEps, .numeric = numeric};
  op.check();
  backend.run(op);
  return memory.get(to);
}

void check_norm(const Array<float, 2>& x, const std::vector<float>& weight, Numeric numeric) {
  RefBackend ref;
  const std::vector<float> want = norm(ref, x, weight, numeric, false);
  for_each_cpu_backend([&](CpuBackend& backend) {
    CHECK(same_bits(norm(backend, x, weight, numeric, false), want));
    CHECK(same_bits(norm(backend, x, weight, numeric, true), want));
    std::vector<float> alone;
    for (std::int64_t t = 0; t < x.extents[0]; ++t) {
      const std::vector<float> row = norm(backend, x.rows(t, 1), weight, numeric, false);
      alone.insert(alone.end(), row.begin(), row.end());
    }
    CHECK(same_bits(alone, want));
  });
}

struct GateCase {
  std::int64_t tokens, hc, dim;
  Format format;
};

struct Gated {
  std::vector<float> streams, gates;
};

template <class B>
Gated gate(B& backend, const GateCase& c, Numeric numeric) {
  Random random(5);
  Memory<B> memory(backend);
  Array<std::uint8_t, 1> image({c.tokens});
  for (std::size_t t = 1; t < image.values.size(); t += 3) image.values[t] = 1;
  const Out<float, 3> streams = memory.put(random_array<3>(random, {c.tokens, c.hc, c.dim}));
  const Out<float, 2> gates = memory.put(Array<float, 2>({c.tokens, c.hc}, -1.0f));
  const ops::EngramGate op{.keys_value = memory.put(random_array<2>(random, {c.tokens, (c.hc + 1) * c.dim})),
                           .q_weight = memory.put(random_matrix(random, c.format, c.hc, c.dim), 1),
                           .k_weight = memory.put(random_matrix(random, c.format, c.hc, c.dim), 2),
                           .image = memory.put(image),
                           .streams = streams,
                           .gates = gates,
                           .eps = kEps,
                           .numeric = numeric};
  op.check();
  backend.run(op);
  return {memory.get(streams), memory.get(gates)};
}

/// A table in which every code of the format is somewhere, and rows of it.
struct Gather {
  Stored table;
  Array<std::int64_t, 2> rows;
};

template <class B>
std::vector<float> gather(B& backend, const Gather& g) {
  Memory<B> memory(backend);
  const auto [tokens, columns] = g.rows.extents;
  const Out<float, 2> out = memory.put(Array<float, 2>({tokens, columns * g.table.cols}, -1.0f));
  const ops::EngramGather op{.table_rows = memory.put(g.rows), .table = memory.put(g.table, 3), .out = out};
  op.check();
  backend.run(op);
  return memory.get(out);
}

}  // namespace

TEST_CASE("rms_norm on the CPU has the reference's bits") {
  Random random(1);
  for (const std::int64_t width : {1, 2, 7, 8, 15, 16, 17, 31, 64, 100, 129, 640, 5120}) {
    for (const std::int64_t rows : {0, 1, 3, 4, 9, 37}) {
      for (const Numeric numeric : kNumerics) {
        INFO("width " << width << ", " << rows << " rows, " << numeric_name(numeric));
        check_norm(random_array<2>(random, {rows, width}), random.normals(width), numeric);
      }
    }
  }
}

TEST_CASE(
    "rms_norm on the CPU divides as the reference does, whatever the size of the elements; a zero row stays zero") {
  Random random(2);
  constexpr std::int64_t kRows = 40, kWidth = 67;
  Array<float, 2> x({kRows, kWidth});
  for (std::int64_t t = 1; t < kRows; ++t) {
    for (std::int64_t i = 0; i < kWidth; ++i) {
      // any mantissa; exponents of a row within 2^60 of each other, rows from subnormal to nearly the largest
      const std::int64_t exponent = std::min<std::int64_t>(254, (t - 1) * 6 + random.below(60));
      const std::int64_t bits = random.below(2) << 31 | exponent << 23 | random.below(1 << 23);
      x.values[static_cast<std::size_t>(t * kWidth + i)] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    }
  }
  check_norm(x, std::vector<float>(kWidth, 1.0f), Numeric::exact);
}

TEST_CASE("engram_gather on the CPU has the reference's bits, in every format and of every code") {
  for (const Format format : kFormats) {
    for (const std::int64_t width : {256, 34}) {
      INFO(format_name(format) << ", width " << width);
      Random random(3);
      Gather g{random_matrix(random, format, 97, width), Array<std::int64_t, 2>({11, 24})};
      if (format == Format::fp8_row) {
        for (std::size_t i = 0; i < g.table.bytes.size(); ++i) g.table.bytes[i] = static_cast<std::uint8_t>(i);
        for (std::size_t i = 0; i < g.table.scales.size(); ++i)
          g.table.scales[i] = static_cast<std::uint8_t>(5 * i);  // 0 and 255 too
      }
      for (std::int64_t& r : g.rows.values) r = random.below(97);
      RefBackend ref;
      const std::vector<float> want = gather(ref, g);
      for_each_cpu_backend([&](CpuBackend& backend) {
        CHECK(worst_ulps(gather(backend, g), doubles_of(want)) == 0);
        const Gather first{g.table, g.rows.rows(0, 1)};
        CHECK(worst_ulps(gather(backend, first),
                         doubles_of(std::vector<float>(want.begin(), want.begin() + 24 * width))) == 0);
      });
    }
  }
}

TEST_CASE("engram_gate on the CPU has the reference's bits") {
  for (const GateCase& c : {GateCase{0, 4, 16, Format::bf16},
                            {1, 1, 1, Format::f32},
                            {1, 4, 640, Format::bf16},
                            {5, 3, 97, Format::f16},
                            {23, 2, 129, Format::fp8_row},
                            {7, 8, 33, Format::fp4_row}}) {
    for (const Numeric numeric : kNumerics) {
      INFO(c.tokens << " tokens, " << c.hc << " x " << c.dim << ", " << numeric_name(numeric));
      RefBackend ref;
      const Gated want = gate(ref, c, numeric);
      for_each_cpu_backend([&](CpuBackend& backend) {
        const Gated got = gate(backend, c, numeric);
        CHECK(same_bits(got.streams, want.streams));
        CHECK(same_bits(got.gates, want.gates));
      });
    }
  }
}
