// SPDX-License-Identifier: MIT
//
// MtpHead: its two halves against the formula, and a whole draft step around a block of plain residuals.
#include "dsv41/modules/mtp.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "dsv41/modules/mhc.hpp"
#include "dsv41/modules/moe.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kDim = 32, kVocab = 21, kFf = 16, kExperts = 3;

template <class B>
struct Bench {
  B backend;
  Memory<B> memory{backend};
  ModelConfig config;
  std::vector<float> embedding_norm, hidden_norm, last_norm, block_norm;
  Stored embed, proj, head, gate, w1[kExperts], w2[kExperts], w3[kExperts];
  MtpWeights weights;
  MoeWeights moe;
  SeamWeights seam;

  Bench() {
    config.dim = kDim, config.hc = 1, config.norm_eps = 1e-6, config.experts = config.topk = kExperts;
    config.score = ScoreFunction::sigmoid, config.norm_topk = false;
    Random random(1);
    embedding_norm = random.normals(kDim), hidden_norm = random.normals(kDim);
    last_norm = random.normals(kDim), block_norm = random.normals(kDim);
    const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
      return random_matrix(random, Format::bf16, rows, cols, 0.25);
    };
    embed = matrix(kVocab, kDim), proj = matrix(kDim, 2 * kDim), head = matrix(kVocab, kDim),
    gate = matrix(kExperts, kDim);
    weights = {.embedding_norm = memory.put(embedding_norm),
               .hidden_norm = memory.put(hidden_norm),
               .proj = memory.put(proj),
               .norm = memory.put(last_norm),
               .head = memory.put(head)};
    moe = {.gate = memory.put(gate),
           .bias = memory.put(std::vector<float>(kExperts)),
           .bias_vl = memory.put(std::vector<float>(kExperts)),
           .experts = {},
           .shared = {}};
    for (std::size_t e = 0; e < kExperts; ++e) {
      w1[e] = matrix(kFf, kDim), w2[e] = matrix(kDim, kFf), w3[e] = matrix(kFf, kDim);
      moe.experts.push_back({.w1 = memory.put(w1[e]), .w2 = memory.put(w2[e]), .w3 = memory.put(w3[e])});
    }
    seam.norm = memory.put(block_norm);
  }

  MtpScratch scratch(std::int64_t rows) {
    return {memory.put(Array<float, 2>({rows, 2 * kDim})), memory.put(Array<float, 2>({rows, kDim}))};
  }
  auto rows_of(std::int64_t rows, std::int64_t width = kDim) { return memory.put(Array<float, 2>({rows, width})); }

  /// Logits of the tokens two behind each hidden state, through combine, one sublayer of experts on a plain residual, and the head.
  std::vector<float> draft(const Array<float, 2>& hidden, const std::vector<std::int32_t>& next) {
    const std::int64_t n = hidden.extents[0];
    const std::vector<std::uint8_t> text(next.size());
    const auto embedded = memory.put(Array<float, 3>({n, 1, kDim}));
    const auto mix = rows_of(n, 3), x = rows_of(n), in = rows_of(n), out = rows_of(n), logits = rows_of(n, kVocab);
    MhcSeam::start_plain(backend, mix);
    backend.run(ops::Embed{.ids = memory.put(next),
                           .image = memory.put(text),
                           .image_rows = {},
                           .table = memory.put(embed),
                           .streams = embedded,
                           .mix = mix});
    const MtpScratch t = scratch(n);
    const MoeScratch moe_scratch{rows_of(n, kExperts), memory.put(Array<std::int32_t, 2>({n, kExperts})),
                                 rows_of(n, kExperts)};
    const MtpHead mtp(config, weights, Numeric::exact);
    const MhcSeam residual(config, seam, Numeric::exact, Residual::plain);
    mtp.combine(backend, memory.put(hidden), embedded.template reshaped<2>({n, kDim}), t, x);
    const auto streams = x.template reshaped<3>({n, 1, kDim});
    residual.forward(backend, {}, streams, mix, in);
    Moe(config, moe, Numeric::exact).forward(backend, in, memory.put(text), moe_scratch, out);
    residual.forward(backend, out, streams, mix, in);  // adds the output; the input it reads off is not used
    mtp.logits(backend, x, t, logits);
    return memory.get(logits);
  }
};

Doubles normed(const Doubles& x, const std::vector<float>& weight, Numeric numeric = Numeric::exact) {
  Doubles out;
  for (std::size_t i = 0; i < x.size(); ++i)
    out.push_back(as_activation(numeric, x[i] / root_mean_square(x, 1e-6) * static_cast<double>(weight[i])));
  return out;
}

Doubles joined(Doubles a, const Doubles& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("combine projects the normed embedding, then the normed hidden state; logits norm and project",
                        "[modules]", Backends) {
  for (const Numeric numeric : kNumerics) {
    for (const std::int64_t n : {0, 1, 7}) {
      INFO(numeric_name(numeric) << ", " << n << " rows");
      Bench<TestType> bench;
      Random random(2);
      const Array<float, 2> hidden = random_array<2>(random, {n, kDim}), next = random_array<2>(random, {n, kDim}, 3);
      const auto x = bench.rows_of(n), logits = bench.rows_of(n, kVocab);
      const MtpHead mtp(bench.config, bench.weights, numeric);
      const MtpScratch t = bench.scratch(n + 2).first_rows(n);
      mtp.combine(bench.backend, bench.memory.put(hidden), bench.memory.put(next), t, x);
      mtp.logits(bench.backend, x, t, logits);
      const std::vector<float> got = bench.memory.get(x), read = bench.memory.get(t.normed);
      Doubles want, want_read, want_logits;
      for (std::int64_t r = 0; r < n; ++r) {
        const Doubles e = normed(slice(next.values, r * kDim, kDim), bench.embedding_norm, numeric),
                      h = normed(slice(hidden.values, r * kDim, kDim), bench.hidden_norm, numeric);
        for (const double v : product(bench.proj, joined(e, h))) want.push_back(as_activation(numeric, v));
        const Doubles last = normed(slice(got, r * kDim, kDim), bench.last_norm, numeric),
                      l = product(bench.head, slice(read, r * kDim, kDim));
        want_read.insert(want_read.end(), last.begin(), last.end());
        want_logits.insert(want_logits.end(), l.begin(), l.end());
      }
      check_close(got, want, numeric);
      check_close(read, want_read, numeric);
      CHECK(norm_error(bench.memory.get(logits), want_logits) <= kNorm);  // float32 in both classes
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a draft step with a mixture on a plain residual equals the formula, row by row", "[modules]",
                        Backends) {
  Bench<TestType> bench;
  Random random(3);
  const std::int64_t n = 5;
  const Array<float, 2> hidden = random_array<2>(random, {n, kDim});
  const std::vector<std::int32_t> next = {20, 0, 3, 3, 11};
  const Array<float, 2> got({n, kVocab}, bench.draft(hidden, next));
  for (std::int64_t r = 0; r < n; ++r) {
    Doubles e;
    for (std::int64_t i = 0; i < kDim; ++i) e.push_back(bench.embed.value(next[static_cast<std::size_t>(r)], i));
    Doubles x = product(bench.proj, joined(normed(e, bench.embedding_norm),
                                           normed(slice(hidden.values, r * kDim, kDim), bench.hidden_norm)));
    const Doubles in = normed(x, bench.block_norm), s = product(bench.gate, in);
    for (std::size_t k = 0; k < kExperts; ++k) {
      Doubles g = product(bench.w1[k], in);
      const Doubles u = product(bench.w3[k], in);
      for (std::size_t i = 0; i < g.size(); ++i) g[i] *= sigmoid(g[i]) * u[i] * sigmoid(s[k]);
      const Doubles y = product(bench.w2[k], g);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    }
    CHECK(norm_error(got.rows(r, 1).values, product(bench.head, normed(x, bench.last_norm))) <= kNorm);
    CHECK(same_bits(bench.draft(hidden.rows(r, 1), {next[static_cast<std::size_t>(r)]}), got.rows(r, 1).values));
  }
}
