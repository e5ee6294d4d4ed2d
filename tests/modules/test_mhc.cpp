// SPDX-License-Identifier: MIT
//
// MhcSeam on its own: the mix lags by one sublayer; and the other residuals of its lineage.
#include "dsv41/modules/mhc.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kTokens = 3, kHc = 4, kDim = 24, kRows = (2 + kHc) * kHc;

/// The two seams of a layer whose sublayers pass their input on, over streams in a backend's memory.
template <class B>
struct Layer {
  B backend;
  Memory<B> memory{backend};
  ModelConfig config;
  Residual residual = Residual::mhc;
  Out<float, 3> streams;
  Out<float, 2> mix, attn_in, ffn_in;
  std::vector<float> bases[2] = {std::vector<float>(kRows), std::vector<float>(kRows)};

  Layer() {
    config.hc = kHc, config.hc_iters = 20, config.hc_eps = 1e-6, config.norm_eps = 1e-20, config.dim = kDim;
    Random random(1);
    for (auto& base : bases) base = random.normals(kRows);
  }

  explicit Layer(Residual r) : Layer() { residual = r; }

  SeamWeights seam(std::size_t which) {
    Random random(10 + which);
    return {.fn = memory.put(random_matrix(random, Format::f32, kRows, kHc * kDim, 0.1)),
            .base = memory.put(bases[which]),
            .scale = memory.put(std::vector<float>{1, 1, 1}),
            .norm = memory.put(std::vector<float>(kDim, 1.0f))};
  }

  void run() {
    Random random(2);
    Array<float, 2> first({kTokens, kRows});
    for (std::int64_t t = 0; t < kTokens; ++t)
      first.values[static_cast<std::size_t>(t * kRows)] = 1;  // one-hot on stream 0
    streams = memory.put(random_array<3>(random, {kTokens, kHc, kDim}));
    mix = memory.put(first);
    attn_in = memory.put(Array<float, 2>({kTokens, kDim})), ffn_in = memory.put(Array<float, 2>({kTokens, kDim}));
    MhcSeam(config, seam(0), Numeric::exact, residual).forward(backend, {}, streams, mix, attn_in);
    MhcSeam(config, seam(1), Numeric::exact, residual).forward(backend, attn_in, streams, mix, ffn_in);
  }
};

/// What a seam of norm weight 1 gives its sublayer: sum over streams of pre_j h_j, normed.
Doubles collapsed_and_normed(const std::vector<float>& streams, const std::vector<float>& mix) {
  Doubles out;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    Doubles x(kDim);
    for (std::int64_t j = 0; j < kHc; ++j) {
      for (std::int64_t i = 0; i < kDim; ++i)
        x[static_cast<std::size_t>(i)] +=
            static_cast<double>(mix[static_cast<std::size_t>(t * kRows + j)]) *
            static_cast<double>(streams[static_cast<std::size_t>((t * kHc + j) * kDim + i)]);
    }
    const double rms = root_mean_square(x, 1e-20);
    for (const double v : x) out.push_back(v / rms);
  }
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("B44: the first sublayer reads stream 0, normed", "[modules]", Backends) {
  Layer<TestType> layer;
  Random random(2);
  const Array<float, 3> before = random_array<3>(random, {kTokens, kHc, kDim});
  layer.run();
  Doubles want;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const Doubles row = slice(before.values, t * kHc * kDim, kDim);
    for (const double x : row) want.push_back(x / root_mean_square(row, 1e-20));
  }
  CHECK(norm_error(layer.memory.get(layer.attn_in), want) <= kNorm);
}

TEMPLATE_LIST_TEST_CASE("B44: another pre in the attention seam changes the FFN's input and not the attention's",
                        "[modules]", Backends) {
  Layer<TestType> a, b;
  for (std::size_t i = 0; i < kHc; ++i) b.bases[0][i] += 1;
  a.run(), b.run();
  CHECK(same_bits(a.memory.get(a.attn_in), b.memory.get(b.attn_in)));
  CHECK(same_bits(a.memory.get(a.streams), b.memory.get(b.streams)));  // post and comb are the same
  CHECK_FALSE(same_bits(a.memory.get(a.ffn_in), b.memory.get(b.ffn_in)));
}

TEMPLATE_LIST_TEST_CASE("B44: another pre in the FFN seam changes neither input of its layer, but the mix it leaves",
                        "[modules]", Backends) {
  Layer<TestType> a, b;
  for (std::size_t i = 0; i < kHc; ++i) b.bases[1][i] += 1;
  a.run(), b.run();
  CHECK(same_bits(a.memory.get(a.attn_in), b.memory.get(b.attn_in)));
  CHECK(same_bits(a.memory.get(a.ffn_in), b.memory.get(b.ffn_in)));
  CHECK_FALSE(same_bits(a.memory.get(a.mix), b.memory.get(b.mix)));
}

TEMPLATE_LIST_TEST_CASE(
    "multi-pass: a seam's input collapses with its own pre, which the single pass leaves to the next", "[modules]",
    Backends) {
  Layer<TestType> multi(Residual::mhc_multi_pass), single;
  multi.run();
  const std::vector<float> streams = multi.memory.get(multi.streams);
  CHECK(norm_error(multi.memory.get(multi.ffn_in), collapsed_and_normed(streams, multi.memory.get(multi.mix))) <=
        kNorm);
  // One seam alone, without an output to add: the same streams and coefficients, another input.
  const auto one = [](Layer<TestType>& layer) {
    layer.run();
    Random random(3);
    layer.streams = layer.memory.put(random_array<3>(random, {kTokens, kHc, kDim}));
    const std::vector<float> old_mix = layer.memory.get(layer.mix);
    MhcSeam(layer.config, layer.seam(0), Numeric::exact, layer.residual)
        .forward(layer.backend, {}, layer.streams, layer.mix, layer.attn_in);
    return old_mix;
  };
  one(multi);
  const std::vector<float> old_mix = one(single), mix = single.memory.get(single.mix);
  CHECK(same_bits(multi.memory.get(multi.mix), mix));
  CHECK(norm_error(multi.memory.get(multi.attn_in), collapsed_and_normed(multi.memory.get(multi.streams), mix)) <=
        kNorm);
  CHECK(norm_error(single.memory.get(single.attn_in),
                   collapsed_and_normed(single.memory.get(single.streams), old_mix)) <= kNorm);
}

TEMPLATE_LIST_TEST_CASE("unconstrained: the single pass with logits for a comb, whose rows need not sum to 1",
                        "[modules]", Backends) {
  Layer<TestType> free(Residual::unconstrained), bound;
  free.run(), bound.run();
  CHECK(same_bits(free.memory.get(free.attn_in), bound.memory.get(bound.attn_in)));  // the first pre comes from outside
  CHECK_FALSE(same_bits(free.memory.get(free.streams), bound.memory.get(bound.streams)));
  const ops::MhcCoefficients op{.streams = free.streams,
                                .fn = free.seam(1).fn,
                                .base = free.seam(1).base,
                                .scale = free.seam(1).scale,
                                .mix = free.memory.put(Array<float, 2>({kTokens, kRows})),
                                .rules = {.iters = 20, .hc_eps = 1e-6f, .norm_eps = 1e-20, .constrained = false}};
  free.backend.run(op);
  CHECK(same_bits(free.memory.get(free.mix), free.memory.get(op.mix)));
  const std::vector<float> mix = free.memory.get(free.mix);
  double worst = 0;
  for (std::int64_t i = 0; i < kHc; ++i) {
    double row = 0;
    for (std::int64_t j = 0; j < kHc; ++j)
      row += static_cast<double>(mix[static_cast<std::size_t>(2 * kHc + i * kHc + j)]);
    worst = std::max(worst, std::fabs(row - 1));
  }
  CHECK(worst > 0.1);
}

TEMPLATE_LIST_TEST_CASE("plain: h += y in one float32 or bfloat16 rounding, its norm is the input, no seam weights",
                        "[modules]", Backends) {
  for (const Numeric numeric : kNumerics) {
    INFO(numeric_name(numeric));
    TestType backend;
    Memory<TestType> memory(backend);
    Random random(4);
    ModelConfig config;
    config.hc = 1, config.dim = kDim, config.norm_eps = 1e-20;
    Array<float, 3> h = random_array<3>(random, {kTokens, 1, kDim});
    for (float& x : h.values) x = static_cast<float>(as_activation(numeric, static_cast<double>(x)));
    const Array<float, 2> y = random_array<2>(random, {kTokens, kDim});
    const std::vector<float> weight = random.normals(kDim);
    const auto streams = memory.put(h);
    const auto mix = memory.put(Array<float, 2>({kTokens, 3}, std::nanf(""))),
               input = memory.put(Array<float, 2>({kTokens, kDim}));
    MhcSeam::start_plain(backend, mix);
    const MhcSeam seam(config, {.fn = {}, .base = {}, .scale = {}, .norm = memory.put(weight)}, numeric,
                       Residual::plain);
    const auto normed = [&] {
      const std::vector<float> now = memory.get(streams);
      Doubles want;
      for (std::int64_t t = 0; t < kTokens; ++t) {
        const Doubles row = slice(now, t * kDim, kDim);
        for (std::size_t i = 0; i < row.size(); ++i)
          want.push_back(
              as_activation(numeric, row[i] / root_mean_square(row, 1e-20) * static_cast<double>(weight[i])));
      }
      return want;
    };
    seam.forward(backend, {}, streams, mix, input);
    CHECK(same_bits(memory.get(streams), h.values));
    check_close(memory.get(input), normed(), numeric);
    seam.forward(backend, memory.put(y), streams, mix, input);
    std::vector<float> sums;
    for (std::size_t i = 0; i < y.values.size(); ++i)
      sums.push_back(static_cast<float>(as_activation(numeric, static_cast<double>(h.values[i] + y.values[i]))));
    CHECK(same_bits(memory.get(streams), sums));
    check_close(memory.get(input), normed(), numeric);
    CHECK(memory.get(mix) == std::vector<float>(3 * kTokens, 1.0f));
    seam.forward(backend, {}, streams.rows(0, 0), mix.rows(0, 0), input.rows(0, 0));
  }
}

TEST_CASE("plain residuals of more than one stream are refused") {
  ModelConfig config;
  config.hc = 4;
  const Failure failure = failure_of([&] { MhcSeam(config, {}, Numeric::exact, Residual::plain); });
  CHECK(failure.code == Errc::shape_mismatch);
  CHECK(failure.message == "mhc: hc is 4, expected 1 for a plain residual");
  CHECK_NOTHROW(MhcSeam(config, {}, Numeric::exact, Residual::mhc_multi_pass));
}
