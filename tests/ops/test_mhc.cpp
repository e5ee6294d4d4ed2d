// SPDX-License-Identifier: MIT
//
// Ops of the residual streams (MhcSeam, MhcExpand, MhcCoefficients, MhcCollapse, StreamMean) against the formulas in double; the seam
// against its parts, bit for bit.
#include "dsv41/ops/mhc.hpp"

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
    {0, 4, 8, Format::f32, 1},  {1, 1, 1, Format::f32, 2},   {1, 4, 64, Format::f32, 3},   {3, 2, 33, Format::f32, 4},
    {17, 8, 5, Format::f32, 5}, {5, 3, 97, Format::bf16, 6}, {2, 4, 1024, Format::f32, 7},
};

constexpr ops::MhcRules kRules{.iters = 20, .hc_eps = 1e-6f, .norm_eps = 1e-20},
    kUnconstrained{.iters = 20, .hc_eps = 1e-6f, .norm_eps = 1e-20, .constrained = false};

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

Inputs make(const Case& c) {
  Random random(c.seed);
  const std::int64_t rows = (2 + c.hc) * c.hc;
  Inputs in{random_array<2>(random, {c.tokens, c.dim}),
            random_array<2>(random, {c.tokens, rows}, 0.5),
            random_array<3>(random, {c.tokens, c.hc, c.dim}),
            random_matrix(random, c.format, rows, c.hc * c.dim, 0.125),
            random.normals(rows),
            random.normals(3),
            random.normals(c.dim)};
  return in;
}

/// Views of the inputs in a backend's memory.
template <class B>
struct Bound {
  B backend;
  Memory<B> memory{backend};
  ops::MhcSeam seam;

  Bound(const Inputs& in, Numeric numeric, bool with_y = true) {
    seam = {.streams = memory.put(in.streams),
            .fn = memory.put(in.fn, 1),
            .base = memory.put(in.base),
            .scale = memory.put(in.scale),
            .norm = memory.put(in.norm),
            .mix = memory.put(in.mix),
            .input = memory.put(Array<float, 2>(in.y.extents, -1.0f)),
            .rules = kRules,
            .numeric = numeric};
    if (with_y) seam.y = memory.put(in.y);
    seam.check();
  }
  std::vector<float> streams() { return memory.get(seam.streams); }
  std::vector<float> mix() { return memory.get(seam.mix); }
  std::vector<float> input() { return memory.get(seam.input); }
};

Doubles expanded(const Inputs& in, Numeric numeric) {
  const auto [tokens, hc, dim] = in.streams.extents;
  Doubles out;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Doubles mix = slice(in.mix.values, t * (2 + hc) * hc, (2 + hc) * hc),
                  h = slice(in.streams.values, t * hc * dim, hc * dim);
    for (std::int64_t k = 0; k < hc; ++k) {
      for (std::int64_t i = 0; i < dim; ++i) {
        double sum = mix[static_cast<std::size_t>(hc + k)] *
                     static_cast<double>(in.y.values[static_cast<std::size_t>(t * dim + i)]);
        for (std::int64_t j = 0; j < hc; ++j)
          sum += mix[static_cast<std::size_t>(2 * hc + j * hc + k)] * h[static_cast<std::size_t>(j * dim + i)];
        out.push_back(as_activation(numeric, sum));
      }
    }
  }
  return out;
}

Doubles collapsed(const Inputs& in, Numeric numeric) {
  const auto [tokens, hc, dim] = in.streams.extents;
  Doubles out;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Doubles pre = slice(in.mix.values, t * (2 + hc) * hc, hc),
                  h = slice(in.streams.values, t * hc * dim, hc * dim);
    for (std::int64_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < hc; ++j)
        sum += pre[static_cast<std::size_t>(j)] * h[static_cast<std::size_t>(j * dim + i)];
      out.push_back(as_activation(numeric, sum));
    }
  }
  return out;
}

/// The sublayer's input: collapsed with the pre that was there, and normed.
Doubles normed(const Inputs& in) {
  const std::int64_t dim = in.streams.extents[2];
  Doubles out = collapsed(in, Numeric::exact);
  for (std::int64_t t = 0; t < in.streams.extents[0]; ++t) {
    const double rms = root_mean_square(Doubles(out.begin() + t * dim, out.begin() + (t + 1) * dim), kRules.norm_eps);
    for (std::int64_t i = 0; i < dim; ++i)
      out[static_cast<std::size_t>(t * dim + i)] *= static_cast<double>(in.norm[static_cast<std::size_t>(i)]) / rms;
  }
  return out;
}

/// Divides rows (or columns) of an n x n matrix by their sum + eps.
void normalise(Doubles& m, std::size_t n, bool rows, double eps) {
  for (std::size_t i = 0; i < n; ++i) {
    double sum = eps;
    for (std::size_t j = 0; j < n; ++j) sum += rows ? m[i * n + j] : m[j * n + i];
    for (std::size_t j = 0; j < n; ++j) (rows ? m[i * n + j] : m[j * n + i]) /= sum;
  }
}

Doubles coefficients(const Inputs& in, bool constrained = true) {
  const auto [tokens, streams, dim] = in.streams.extents;
  const auto hc = static_cast<std::size_t>(streams);
  const double eps = static_cast<double>(kRules.hc_eps);
  Doubles out;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Doubles z = slice(in.streams.values, t * streams * dim, streams * dim);
    Doubles m = product(in.fn, z);
    const double r = root_mean_square(z, kRules.norm_eps);
    for (std::size_t i = 0; i < m.size(); ++i) {
      const std::size_t part = i < hc ? 0 : i < 2 * hc ? 1 : 2;
      m[i] = m[i] / r * static_cast<double>(in.scale[part]) + static_cast<double>(in.base[i]);
    }
    for (std::size_t i = 0; i < hc; ++i) out.push_back(sigmoid(m[i]) + eps);
    for (std::size_t i = hc; i < 2 * hc; ++i) out.push_back(2 * sigmoid(m[i]));
    Doubles comb(m.begin() + 2 * streams, m.end());
    if (!constrained) {
      out.insert(out.end(), comb.begin(), comb.end());
      continue;
    }
    for (double& x : comb) x = std::exp(x);
    normalise(comb, hc, true, 0);  // the softmax over the second index
    for (double& x : comb) x += eps;
    normalise(comb, hc, false, eps);
    for (std::int32_t i = 1; i < kRules.iters; ++i) normalise(comb, hc, true, eps), normalise(comb, hc, false, eps);
    out.insert(out.end(), comb.begin(), comb.end());
  }
  return out;
}

void check_seam_op(const std::vector<float>& got, const Doubles& want, Numeric numeric) {
  if (numeric == Numeric::deployed) return check_rounded(got, want);
  CHECK(worst_ulps(got, want) <= kUlpSeam);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("expand, collapse and coefficients equal their formulas", "[mhc]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << ", " << numeric_name(numeric));
      const Inputs in = make(c);
      Bound<TestType> a(in, numeric), b(in, numeric), d(in, numeric);
      a.backend.run(a.seam.expand());
      check_seam_op(a.streams(), expanded(in, numeric), numeric);
      b.backend.run(b.seam.collapse());
      check_seam_op(b.input(), collapsed(in, numeric), numeric);
      d.backend.run(d.seam.coefficients());
      CHECK(norm_error(d.mix(), coefficients(in)) <= kNorm);  // float32 in both classes
      CHECK(same_bits(d.streams(), in.streams.values));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("unconstrained coefficients equal their formula, in the parts and in the seam", "[mhc]",
                        Backends) {
  for (const Case& c : kCases) {
    const Inputs in = make(c);
    Bound<TestType> part(in, Numeric::exact), seam(in, Numeric::exact, false);
    part.seam.rules = seam.seam.rules = kUnconstrained;
    part.backend.run(part.seam.coefficients());
    seam.backend.run(seam.seam);
    CHECK(norm_error(part.mix(), coefficients(in, false)) <= kNorm);
    CHECK(same_bits(seam.mix(), part.mix()));
    CHECK(norm_error(seam.input(), normed(in)) <= kNorm);
  }
}

TEMPLATE_LIST_TEST_CASE("B44: a seam equals expand, collapse with the old pre, norm, coefficients, bit for bit",
                        "[mhc]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      for (const bool with_y : {true, false}) {
        INFO("seed " << c.seed << ", " << numeric_name(numeric) << ", y " << with_y);
        const Inputs in = make(c);
        Bound<TestType> fused(in, numeric, with_y), parts(in, numeric, with_y);
        fused.backend.run(fused.seam);
        if (with_y) parts.backend.run(parts.seam.expand());
        parts.backend.run(parts.seam.collapse());
        parts.backend.run(ops::RmsNorm{.x = parts.seam.input,
                                       .weight = parts.seam.norm,
                                       .y = parts.seam.input,
                                       .eps = kRules.norm_eps,
                                       .numeric = numeric});
        parts.backend.run(parts.seam.coefficients());
        CHECK(same_bits(fused.streams(), parts.streams()));
        CHECK(same_bits(fused.input(), parts.input()));
        CHECK(same_bits(fused.mix(), parts.mix()));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a seam's row does not depend on its batch mates", "[mhc]", Backends) {
  for (const Case& c : kCases) {
    const Inputs in = make(c);
    Bound<TestType> whole(in, Numeric::exact);
    whole.backend.run(whole.seam);
    const Array<float, 2> mix(in.mix.extents, whole.mix()), input(in.y.extents, whole.input());
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      Bound<TestType> alone(in.rows(t, 1), Numeric::exact);
      alone.backend.run(alone.seam);
      CHECK(same_bits(alone.mix(), mix.rows(t, 1).values));
      CHECK(same_bits(alone.input(), input.rows(t, 1).values));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a zero token's seam is finite and its input exactly zero", "[mhc]", Backends) {
  Inputs in = make({2, 4, 16, Format::f32, 8});
  for (float& x : in.streams.values) x = 0;
  Bound<TestType> bound(in, Numeric::exact, false);
  bound.backend.run(bound.seam);
  for (const float x : bound.input()) CHECK(x == 0.0f);
  for (const float x : bound.mix()) CHECK(std::isfinite(x));
}

TEMPLATE_LIST_TEST_CASE("stream_mean is the float32 mean in ascending stream, written into columns", "[mhc]",
                        Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      TestType backend;
      Memory<TestType> memory(backend);
      const Inputs in = make(c);
      const auto wide = memory.put(Array<float, 2>({c.tokens, 3 * c.dim}, -1.0f));
      const ops::StreamMean op{
          .streams = memory.put(in.streams), .tap = wide.columns(c.dim, c.dim), .numeric = numeric};
      op.check();
      backend.run(op);
      std::vector<float> want;
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        for (std::int64_t i = 0; i < 3 * c.dim; ++i) {
          float sum = 0;
          for (std::int64_t j = 0; j < c.hc; ++j)
            sum += in.streams.values[static_cast<std::size_t>((t * c.hc + j) * c.dim + i % c.dim)];
          want.push_back(i / c.dim == 1 ? static_cast<float>(as_activation(
                                              numeric, static_cast<double>(sum / static_cast<float>(c.hc))))
                                        : -1.0f);
        }
      }
      CHECK(memory.get(wide) == want);
    }
  }
}

TEST_CASE("mhc: check() names the field, what it expects and what it got") {
  const ops::MhcSeam good{.y = shaped<const float, 2>({3, 8}),
                          .streams = shaped<float, 3>({3, 2, 8}),
                          .fn = {.rows = 8, .cols = 16},
                          .base = shaped<const float, 1>({8}),
                          .scale = shaped<const float, 1>({3}),
                          .norm = shaped<const float, 1>({8}),
                          .mix = shaped<float, 2>({3, 8}),
                          .input = shaped<float, 2>({3, 8})};
  check_refuses(good, "norm is [7], expected [8]", [](auto& op) { op.norm = shaped<const float, 1>({7}); });
  check_refuses(good.expand(), "y is [3, 9], expected [3, 8]", [](auto& op) { op.y = shaped<const float, 2>({3, 9}); });
  check_refuses(good.expand(), "mix is [3, 7], expected [3, 8]", [](auto& op) {
    op.mix = shaped<const float, 2>({3, 7});
  });
  check_refuses(good.collapse(), "mix is [2, 8], expected [3, 8]", [](auto& op) {
    op.mix = shaped<const float, 2>({2, 8});
  });
  check_refuses(good.collapse(), "x is [3, 7], expected [3, 8]", [](auto& op) { op.x = shaped<float, 2>({3, 7}); });
  const ops::MhcCoefficients part = good.coefficients();
  check_refuses(part, "streams is 9, expected 1 to 8 streams", [](auto& op) {
    op.streams = shaped<const float, 3>({3, 9, 8});
  });
  check_refuses(part, "streams is strided, expected dense", [](auto& op) {
    op.streams = In<float, 3>(op.streams.data(), op.streams.extents(), {17, 8, 1});
  });
  check_refuses(part, "fn is [8, 15], expected [8, 16]", [](auto& op) { op.fn.cols = 15; });
  check_refuses(part, "base is [9], expected [8]", [](auto& op) { op.base = shaped<const float, 1>({9}); });
  check_refuses(part, "scale is [2], expected [3]", [](auto& op) { op.scale = shaped<const float, 1>({2}); });
  check_refuses(part, "mix is [3, 6], expected [3, 8]", [](auto& op) { op.mix = shaped<float, 2>({3, 6}); });
  const ops::StreamMean mean{.streams = shaped<const float, 3>({3, 2, 8}), .tap = shaped<float, 2>({3, 8})};
  check_refuses(mean, "tap is [3, 16], expected [3, 8]", [](auto& op) { op.tap = shaped<float, 2>({3, 16}); });
}
