// SPDX-License-Identifier: MIT
//
// The residual-stream ops on the CPU: the reference's bits where they are promised, and the same bits for every instruction set, number of
// threads and batch, in a seam and in its parts.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "dsv41/ops/mhc.hpp"
#include "dsv41/ops/rms_norm.hpp"
#include "support/cpu_backends.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t tokens, hc, dim;
  Format format = Format::f32;
  bool with_y = true, constrained = true;
};

std::string text(const Case& c) {
  return std::to_string(c.tokens) + " tokens, " + std::to_string(c.hc) + " x " + std::to_string(c.dim) + ", " +
         std::string(format_name(c.format)) + (c.with_y ? "" : ", no y") + (c.constrained ? "" : ", unconstrained");
}

/// Chunks of channels, whole and not; rows of fn read where they are (dim a multiple of 16, few tokens, outputs in fours) and not; more
/// tokens than one tile, than one vector of coefficients, than one group.
const Case kCases[] = {
    {0, 4, 16},
    {1, 1, 1},
    {1, 4, 640},
    {2, 4, 1040},
    {7, 4, 33},
    {17, 4, 272, Format::f32, false},
    {3, 2, 129, Format::bf16},
    {5, 3, 97, Format::f16, true, false},
    {4, 5, 160, Format::fp8_row},
    {9, 6, 96, Format::fp8_tile, false},
    {6, 7, 40, Format::fp4_row},
    {13, 8, 144},
    {70, 4, 160},
    {131, 2, 31, Format::bf16, true, false},
};

struct Inputs {
  Array<float, 2> y, mix;
  Array<float, 3> streams;
  Stored fn;
  std::vector<float> base, scale, norm;

  Inputs rows(std::int64_t first, std::int64_t count) const {
    Inputs out = *this;
    out.y = y.rows(first, count), out.mix = mix.rows(first, count), out.streams = streams.rows(first, count);
    return out;
  }
};

Inputs make(const Case& c, std::uint64_t seed) {
  Random random(seed);
  const std::int64_t rows = (2 + c.hc) * c.hc;
  return {random_array<2>(random, {c.tokens, c.dim}),
          random_array<2>(random, {c.tokens, rows}, 0.5),
          random_array<3>(random, {c.tokens, c.hc, c.dim}),
          random_matrix(random, c.format, rows, c.hc * c.dim, 0.125),
          random.normals(rows),
          random.normals(3),
          random.normals(c.dim)};
}

struct Outputs {
  std::vector<float> streams, mix, input;
};

template <class B>
struct Bound {
  Memory<B> memory;
  ops::MhcSeam seam;

  Bound(B& backend, const Inputs& in, const Case& c, Numeric numeric) : memory(backend) {
    seam = {.streams = memory.put(in.streams),
            .fn = memory.put(in.fn, 1),
            .base = memory.put(in.base),
            .scale = memory.put(in.scale),
            .norm = memory.put(in.norm),
            .mix = memory.put(in.mix),
            .input = memory.put(Array<float, 2>(in.y.extents, -1.0f)),
            .rules = {.iters = 20, .hc_eps = 1e-6f, .norm_eps = 1e-20, .constrained = c.constrained},
            .numeric = numeric};
    if (c.with_y) seam.y = memory.put(in.y);
    seam.check();
  }
  Outputs outputs() { return {memory.get(seam.streams), memory.get(seam.mix), memory.get(seam.input)}; }
};

template <class B>
Outputs run(B& backend, const Inputs& in, const Case& c, Numeric numeric) {
  Bound<B> bound(backend, in, c, numeric);
  backend.run(bound.seam);
  return bound.outputs();
}

template <class B>
Outputs run_parts(B& backend, const Inputs& in, const Case& c, Numeric numeric) {
  Bound<B> bound(backend, in, c, numeric);
  const ops::MhcSeam& seam = bound.seam;
  if (c.with_y) backend.run(seam.expand());
  backend.run(seam.collapse());
  backend.run(ops::RmsNorm{
      .x = seam.input, .weight = seam.norm, .y = seam.input, .eps = seam.rules.norm_eps, .numeric = numeric});
  backend.run(seam.coefficients());
  return bound.outputs();
}

void check_same(const Outputs& got, const Outputs& want) {
  CHECK(same_bits(got.streams, want.streams));
  CHECK(same_bits(got.mix, want.mix));
  CHECK(same_bits(got.input, want.input));
}

/// A backend's streams, behind each of them three floats that are nobody's.
Array<float, 3> spread(const Array<float, 3>& streams) {
  const auto [tokens, hc, dim] = streams.extents;
  Array<float, 3> out({tokens, hc, dim + 3}, -7.0f);
  for (std::int64_t r = 0; r < tokens * hc; ++r)
    std::copy_n(streams.values.begin() + r * dim, dim, out.values.begin() + r * (dim + 3));
  return out;
}

}  // namespace

TEST_CASE("a seam on the CPU has the reference's streams and input, and coefficients as near as is promised") {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO(text(c) << ", " << numeric_name(numeric));
      const Inputs in = make(c, 1);
      RefBackend ref;
      CpuBackend cpu;
      const Outputs want = run(ref, in, c, numeric), got = run(cpu, in, c, numeric);
      CHECK(same_bits(got.streams, want.streams));
      CHECK(same_bits(got.input, want.input));
      CHECK(norm_error(got.mix, doubles_of(want.mix)) <= kNorm);
    }
  }
}

TEST_CASE(
    "a seam on the CPU has the same bits for every instruction set, number of threads and batch, and as its parts") {
  for (const Case& c : kCases) {
    INFO(text(c));
    const Numeric numeric = c.hc % 2 == 0 ? Numeric::exact : Numeric::deployed;
    const Inputs in = make(c, 2);
    CpuBackend one({.threads = 1});
    const Outputs want = run(one, in, c, numeric);
    for_each_cpu_backend([&](CpuBackend& backend) {
      check_same(run(backend, in, c, numeric), want);
      check_same(run_parts(backend, in, c, numeric), want);
      if (backend.threads() > 2) return;
      Outputs alone;
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        const Outputs row = run(backend, in.rows(t, 1), c, numeric);
        alone.streams.insert(alone.streams.end(), row.streams.begin(), row.streams.end());
        alone.mix.insert(alone.mix.end(), row.mix.begin(), row.mix.end());
        alone.input.insert(alone.input.end(), row.input.begin(), row.input.end());
      }
      check_same(alone, want);
    });
  }
}

TEST_CASE("where the projection is exact in any order, coefficients on the CPU are the reference's bits") {
  for (const std::int64_t hc : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const bool constrained : {true, false}) {
      const Case c{.tokens = 19, .hc = hc, .dim = 48, .constrained = constrained};
      INFO(text(c));
      Inputs in = make(c, static_cast<std::uint64_t>(hc));
      Random random(3);
      std::vector<float> weights(static_cast<std::size_t>(in.fn.rows * in.fn.cols));
      for (float& w : weights) w = static_cast<float>(random.below(65) - 32);
      in.fn = float_matrix(in.fn.rows, in.fn.cols, weights);
      for (float& h : in.streams.values) h = static_cast<float>(random.below(17) - 8) * 0.25f;
      RefBackend ref;
      Bound<RefBackend> want(ref, in, c, Numeric::exact);
      ref.run(want.seam.coefficients());
      for_each_cpu_backend([&](CpuBackend& backend) {
        Bound<CpuBackend> got(backend, in, c, Numeric::exact);
        backend.run(got.seam.coefficients());
        CHECK(same_bits(got.outputs().mix, want.outputs().mix));
      });
    }
  }
}

TEST_CASE(
    "expand, collapse and stream_mean on the CPU are the reference's bits, also of strided streams and infinite sums") {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO(text(c) << ", " << numeric_name(numeric));
      Inputs in = make(c, 4);
      if (c.tokens > 1) {  // sums beyond float32
        std::fill_n(in.streams.values.begin(), in.streams.row_size(), std::numeric_limits<float>::max());
        std::fill_n(in.mix.values.begin(), in.mix.row_size(), 1.5f);
      }
      const auto all = [&]<class B>(B& backend) {
        Memory<B> memory(backend);
        const Out<float, 3> wide = memory.put(spread(in.streams));
        const Out<float, 3> streams(wide.data(), in.streams.extents, {wide.stride(0), wide.stride(1), 1});
        const In<float, 2> mix = memory.put(in.mix);
        const Out<float, 2> x = memory.put(Array<float, 2>(in.y.extents, -1.0f)),
                            tap = memory.put(Array<float, 2>(in.y.extents, -1.0f));
        backend.run(ops::MhcExpand{.y = memory.put(in.y), .mix = mix, .streams = streams, .numeric = numeric});
        backend.run(ops::MhcCollapse{.streams = streams, .mix = mix, .x = x, .numeric = numeric});
        backend.run(ops::StreamMean{.streams = streams, .tap = tap, .numeric = numeric});
        return std::vector{memory.get(wide), memory.get(x), memory.get(tap)};
      };
      RefBackend ref;
      const auto want = all(ref);
      for_each_cpu_backend([&](CpuBackend& backend) {
        const auto got = all(backend);
        for (std::size_t i = 0; i < want.size(); ++i) {
          INFO("output " << i);
          CHECK(worst_ulps(got[i], doubles_of(want[i])) == 0);  // and NaN where the reference has one
        }
      });
    }
  }
}
