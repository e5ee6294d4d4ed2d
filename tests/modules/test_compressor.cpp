// SPDX-License-Identifier: MIT
//
// Compressor on its own: entries and index keys in caller-owned caches, whatever the widths of the steps.
#include "dsv41/modules/csa2/compressor.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kDim = 40, kTokens = 26;

template <class B>
struct Bench {
  B backend;
  Memory<B> memory{backend};
  ModelConfig config;
  CompressorWeights weights;
  std::vector<float> frequencies = {1, 0.25f};
  SequenceState state;
  CompressorScratch scratch;
  std::int32_t ratio;

  Bench(std::int32_t ratio_, std::int64_t head_dim, std::int64_t index_dim) : ratio(ratio_) {
    config.head_dim = head_dim, config.index_dim = index_dim, config.norm_eps = 1e-20;
    Random random(1);
    const auto norm = [&](std::int64_t n) { return memory.put(random.normals(n)); };
    weights = {.wkv = memory.put(random_matrix(random, Format::bf16, head_dim, kDim)),
               .wgate = memory.put(random_matrix(random, Format::bf16, head_dim, kDim, 0.25)),
               .norm = norm(head_dim),
               .wk = memory.put(random_matrix(random, Format::bf16, index_dim, head_dim)),
               .k_norm = norm(index_dim)};
    const auto rows = [&](std::int64_t count, std::int64_t width) { return Array<float, 2>({count, width}, -1.0f); };
    state.sources = {{memory.put(CacheFormat::entry, rows(kTokens / ratio, head_dim), {4, 0}),
                      memory.put(CacheFormat::index, rows(kTokens / ratio, index_dim), {4, 0}),
                      memory.put(rows(ratio, head_dim)), memory.put(rows(ratio, head_dim))}};
    Cursor count;
    scratch.layout(count, config, kTokens);
    const auto bytes = memory.put(std::vector<std::uint8_t>(count.used()));
    Cursor bind(reinterpret_cast<std::byte*>(bytes.data()));
    scratch.layout(bind, config, kTokens);
  }

  /// The next rows of the sequence.
  void step(const Array<float, 2>& x, std::int64_t rows, Numeric numeric = Numeric::exact) {
    const Segment segment{.state = &state, .first_row = 0, .rows = rows, .first_position = state.position};
    const Compressor compressor(config, weights, ratio, memory.put(frequencies), numeric);
    compressor.forward(backend, memory.put(x.rows(state.position, rows)), {&segment, 1}, 0, scratch.rows(0, rows));
    state.position += rows;
  }

  /// Everything the sequence remembers.
  std::vector<float> cache() {
    std::vector<float> out;
    const SourceCache& c = state.sources[0];
    for (const std::vector<float>& part :
         {memory.get(c.entries), memory.get(c.index_keys), memory.get(c.carry_kv), memory.get(c.carry_gate)}) {
      out.insert(out.end(), part.begin(), part.end());
    }
    return out;
  }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE(
    "B53: every start parity and width of 1 to 9 gives the same entries, keys and carry, for ratios 1 to 8",
    "[modules]", Backends) {
  Random random(2);
  const Array<float, 2> x = random_array<2>(random, {kTokens, kDim});
  for (const std::int32_t ratio : {1, 2, 3, 4, 8}) {
    for (const Numeric numeric : kNumerics) {
      Bench<TestType> whole(ratio, 32, 32);
      whole.step(x, kTokens, numeric);
      for (const std::int64_t start : {1, 2, 3}) {
        for (std::int64_t width = 1; width <= 9; ++width) {
          INFO("ratio " << ratio << ", first " << start << ", then " << width << ", " << numeric_name(numeric));
          Bench<TestType> steps(ratio, 32, 32);
          steps.step(x, start, numeric);
          while (steps.state.position < kTokens)
            steps.step(x, std::min(width, kTokens - steps.state.position), numeric);
          CHECK(same_bits(steps.cache(), whole.cache()));
        }
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("B50: entry j of ratio r stands at position j r, and its key is made of the unrotated latent",
                        "[modules]", Backends) {
  for (const std::int32_t ratio : {1, 2, 3}) {
    Bench<TestType> bench(ratio, 20, 12);  // no multiples of the quantisers' blocks
    Random random(3);
    Array<float, 2> x({kTokens, kDim});
    const std::vector<float> row = random.normals(kDim);
    for (std::size_t i = 0; i < x.values.size(); ++i)
      x.values[i] = row[i % row.size()];  // every group pools to the same latent
    bench.step(x, kTokens);
    const std::vector<float> entries = bench.memory.get(bench.state.sources[0].entries),
                             keys = bench.memory.get(bench.state.sources[0].index_keys);
    Doubles want, want_keys;
    for (std::int64_t j = 0; j < kTokens / ratio; ++j) {
      const Doubles entry =
          rotated(slice(entries, 0, 20), j * ratio, bench.frequencies, false);  // entry 0 is unrotated
      const Doubles key = rotated(slice(keys, 0, 12), j * ratio, bench.frequencies, false);
      want.insert(want.end(), entry.begin(), entry.end());
      want_keys.insert(want_keys.end(), key.begin(), key.end());
    }
    CHECK(norm_error(entries, want) <= kNorm);
    CHECK(norm_error(keys, want_keys) <= kNorm);
  }
}

TEMPLATE_LIST_TEST_CASE("the entry of a single group is the norm of its softmax-weighted projections", "[modules]",
                        Backends) {
  Bench<TestType> bench(2, 20, 12);
  Random weights(1), random(4);
  const Array<float, 2> x = random_array<2>(random, {kTokens, kDim});
  const Stored wkv = random_matrix(weights, Format::bf16, 20, kDim),
               wgate = random_matrix(weights, Format::bf16, 20, kDim, 0.25);
  const std::vector<float> norm = weights.normals(20);
  bench.step(x, 2);
  const Doubles a = product(wkv, slice(x.values, 0, kDim)), b = product(wkv, slice(x.values, kDim, kDim));
  const Doubles ga = product(wgate, slice(x.values, 0, kDim)), gb = product(wgate, slice(x.values, kDim, kDim));
  Doubles latent;
  for (std::size_t i = 0; i < 20; ++i) latent.push_back(a[i] * sigmoid(ga[i] - gb[i]) + b[i] * sigmoid(gb[i] - ga[i]));
  const double r = root_mean_square(latent, 1e-20);
  for (std::size_t i = 0; i < 20; ++i) latent[i] *= static_cast<double>(norm[i]) / r;
  CHECK(norm_error(bench.memory.get(bench.state.sources[0].entries, 0, 1), latent) <=
        2 * kNorm);  // float32 gates behind an exp
}
