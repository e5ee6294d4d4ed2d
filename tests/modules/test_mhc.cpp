// SPDX-License-Identifier: MIT
//
// MhcSeam on its own: the mix lags by one sublayer.
#include "dsv41/modules/mhc.hpp"

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
  Out<float, 3> streams;
  Out<float, 2> mix, attn_in, ffn_in;
  std::vector<float> bases[2] = {std::vector<float>(kRows), std::vector<float>(kRows)};

  Layer() {
    config.hc = kHc, config.hc_iters = 20, config.hc_eps = 1e-6, config.norm_eps = 1e-20, config.dim = kDim;
    Random random(1);
    for (auto& base : bases) base = random.normals(kRows);
  }

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
    MhcSeam(config, seam(0), Numeric::exact).forward(backend, {}, streams, mix, attn_in);
    MhcSeam(config, seam(1), Numeric::exact).forward(backend, attn_in, streams, mix, ffn_in);
  }
};

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
