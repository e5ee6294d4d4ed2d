// SPDX-License-Identifier: MIT
//
// Attention on its own, over caller-owned memory: latent norms, positions, and the inverse rotation of the output.
#include "dsv41/modules/csa2/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// One window layer and the rows of one sequence.
template <class B>
struct Bench {
  B backend;
  Memory<B> memory{backend};
  ModelConfig config;
  AttentionWeights weights;
  std::vector<float> frequencies;
  SequenceState state;
  std::vector<std::int64_t> positions;
  Segment segment;
  AttentionScratch scratch;
  Out<float, 2> y;

  Bench(std::int64_t rows, std::int64_t dim, std::int64_t heads, std::int64_t head_dim, std::int64_t rope_dim) {
    config.dim = dim, config.heads = heads, config.head_dim = head_dim, config.rope_dim = rope_dim, config.window = 16;
    config.q_rank = 24, config.o_groups = 1, config.o_rank = heads * head_dim, config.norm_eps = 1e-20;
    for (std::int64_t i = 0; i < rope_dim / 2; ++i)
      frequencies.push_back(static_cast<float>(std::pow(0.3, static_cast<double>(i))));
    for (std::int64_t p = 0; p < rows; ++p) positions.push_back(p);
    Random random(1);
    const auto ones = [&](std::int64_t n) { return memory.put(std::vector<float>(static_cast<std::size_t>(n), 1.0f)); };
    weights = {.wq_a = memory.put(random_matrix(random, Format::fp8_tile, config.q_rank, dim, 0.2)),
               .q_norm = ones(config.q_rank),
               .wq_b = {},
               .wkv = memory.put(random_matrix(random, Format::fp8_tile, head_dim, dim, 0.2)),
               .kv_norm = ones(head_dim),
               .sink = memory.put(std::vector<float>(static_cast<std::size_t>(heads), -1e30f)),
               .wo_a = memory.put(identity_matrix(heads * head_dim)),
               .wo_b = memory.put(identity_matrix(heads * head_dim)),
               .compressor = {},
               .indexer = {}};
    set_wq_b(random_matrix(random, Format::fp8_tile, heads * head_dim, config.q_rank, 0.2));
    state.rings = {memory.put(CacheFormat::window, Array<float, 2>({config.window + rows - 1, head_dim}), {3, 0})};
    segment = {.state = &state, .first_row = 0, .rows = rows};
    Cursor count;
    scratch.layout(count, config, rows);
    const auto bytes = memory.put(std::vector<std::uint8_t>(count.used()));
    Cursor bind(reinterpret_cast<std::byte*>(bytes.data()));
    scratch.layout(bind, config, rows);
    y = memory.put(Array<float, 2>({rows, dim}));
  }

  /// The ring becomes one of that many slots, which hold nothing yet.
  void set_ring(std::int64_t slots) {
    state.rings = {memory.put(CacheFormat::window, Array<float, 2>({slots, config.head_dim}, -7.0f), {3, 0})};
  }
  void set_wq_b(const Stored& m) { weights.wq_b = memory.put(m); }
  Batch batch() {
    return {.ids = shaped<const std::int32_t, 1>({segment.rows}),
            .image = {},
            .image_rows = {},
            .positions = memory.put(positions),
            .history = {},
            .segments = {&segment, 1}};
  }
  Attention attention(Numeric numeric = Numeric::exact) {
    return Attention(config, weights, memory.put(frequencies), numeric);
  }

  /// q (rotated) and kv (normed) of the rows.
  std::pair<std::vector<float>, std::vector<float>> project(const Array<float, 2>& x) {
    const In<float, 2> rows = memory.put(x);
    attention().project_kv(backend, rows, scratch.kv);
    attention().project_queries(backend, rows, batch().positions, scratch);
    return {memory.get(scratch.q), memory.get(scratch.kv)};
  }
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("B32: an input scaled by 2^20 leaves q and kv as they were", "[modules]", Backends) {
  Bench<TestType> bench(5, 40, 3, 32, 8);
  Random random(2);
  Array<float, 2> x = random_array<2>(random, {5, 40});
  const auto [q, kv] = bench.project(x);
  for (float& v : x.values) v *= 0x1p20f;
  const auto [big_q, big_kv] = bench.project(x);
  CHECK(norm_error(big_q, doubles_of(q)) <= kNorm);
  CHECK(norm_error(big_kv, doubles_of(kv)) <= kNorm);
}

TEMPLATE_LIST_TEST_CASE("B32: wq_b times two doubles q exactly, for no norm follows it", "[modules]", Backends) {
  Bench<TestType> bench(4, 40, 3, 32, 8);
  Random random(3), seeds(4);
  const Array<float, 2> x = random_array<2>(random, {4, 40});
  Stored wq_b = random_matrix(seeds, Format::fp8_tile, 96, 24, 0.2);
  bench.set_wq_b(wq_b);
  std::vector<float> q = bench.project(x).first;
  for (std::uint8_t& scale : wq_b.scales) ++scale;
  bench.set_wq_b(wq_b);
  for (float& v : q) v *= 2;
  CHECK(same_bits(bench.project(x).first, q));
}

TEMPLATE_LIST_TEST_CASE("B50: equal rows under equal weights come out rotated by their distance from the query",
                        "[modules]", Backends) {
  // A head of 20 channels stays unquantised in the window, so the answer is exact.
  const std::int64_t rows = 6, heads = 2, width = 20, rope = 8, dim = heads * width;
  Bench<TestType> bench(rows, dim, heads, width, rope);
  bench.set_wq_b(
      float_matrix(dim, 24, std::vector<float>(static_cast<std::size_t>(dim * 24), 0.0f)));  // q = 0: equal weights
  Random random(5);
  Array<float, 2> x({rows, dim});
  const std::vector<float> row = random.normals(dim);
  for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] = row[i % row.size()];
  const Attention attention = bench.attention();
  const std::vector<float> kv = bench.project(x).second;
  attention.attend(bench.backend, bench.batch(), 0, -1, {}, bench.scratch, bench.y);
  Doubles want;
  for (std::int64_t p = 0; p < rows; ++p) {
    Doubles mean(static_cast<std::size_t>(width));
    for (std::int64_t j = 0; j <= p; ++j) {
      const Doubles turned = rotated(slice(kv, 0, width), j - p, bench.frequencies, false);
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += turned[i] / static_cast<double>(p + 1);
    }
    for (std::int64_t h = 0; h < heads; ++h) want.insert(want.end(), mean.begin(), mean.end());
  }
  CHECK(norm_error(bench.memory.get(bench.y), want) <= kNormAttention);
}

TEMPLATE_LIST_TEST_CASE("a window row is kept for as long as the window reaches, and not longer", "[modules]",
                        Backends) {
  Bench<TestType> bench(20, 40, 1, 40, 8);
  Random random(6);
  const Array<float, 2> x = random_array<2>(random, {20, 40});
  Array<float, 2> other = x;
  for (std::size_t i = 0; i < 40; ++i) other.values[3 * 40 + i] = 7;  // position 3, seen by 3 .. 18 with a window of 16
  const auto run = [&](const Array<float, 2>& in) {
    const Attention attention = bench.attention();
    const In<float, 2> rows = bench.memory.put(in);
    attention.project_kv(bench.backend, rows, bench.scratch.kv);
    attention.project_queries(bench.backend, rows, bench.batch().positions, bench.scratch);
    attention.attend(bench.backend, bench.batch(), 0, -1, {}, bench.scratch, bench.y);
    return Array<float, 2>({20, 40}, bench.memory.get(bench.y));
  };
  const Array<float, 2> a = run(x), b = run(other);
  for (std::int64_t p = 0; p < 20; ++p) {
    INFO("position " << p);
    CHECK(same_bits(a.rows(p, 1).values, b.rows(p, 1).values) == (p < 3 || p > 18));
  }
}

TEMPLATE_LIST_TEST_CASE("a ring of any size gives the bits of one that keeps every row, and ends with the same rows",
                        "[modules]", Backends) {
  const std::int64_t rows = 70;
  Bench<TestType> bench(rows, 64, 2, 32, 8);
  Random random(7);
  const Array<float, 2> x = random_array<2>(random, {rows, 64});
  const In<float, 2> in = bench.memory.put(x);
  const auto run = [&](std::int64_t slots, std::int64_t unasked) {
    bench.set_ring(slots);
    const Attention attention = bench.attention(Numeric::deployed);
    attention.project_kv(bench.backend, in, bench.scratch.kv);
    attention.project_queries(bench.backend, in, bench.batch().positions, bench.scratch);
    Segment head = bench.segment, tail = bench.segment;
    head.rows = unasked, tail.rows = rows - unasked, tail.first_row = tail.first_position = unasked;
    if (unasked > 0) attention.remember(bench.backend, head, 0, bench.scratch);
    Batch batch = bench.batch();
    batch.segments = {&tail, 1};
    attention.attend(bench.backend, batch, 0, -1, {}, bench.scratch, bench.y);
    return Array<float, 2>({rows, 64}, bench.memory.get(bench.y));
  };
  const auto newest = [&](std::int64_t p) {
    return bench.memory.get(bench.state.rings[0], p % bench.state.rings[0].rows, 1);
  };
  const std::vector<float> want = run(16 + rows, 0).values;
  std::vector<std::vector<float>> kept;
  for (std::int64_t p = 0; p < rows; ++p) kept.push_back(newest(p));
  for (const std::int64_t slots : {16, 17, 19, 24, 69, 70, 85}) {
    for (const std::int64_t unasked : {0, 1, 5, 30, 69}) {
      INFO(slots << " slots, the first " << unasked << " rows answer nothing");
      const Array<float, 2> got = run(slots, unasked);
      const auto from = static_cast<std::ptrdiff_t>(unasked * 64);
      CHECK(same_bits(got.rows(unasked, rows - unasked).values, {want.begin() + from, want.end()}));
      for (std::int64_t p = std::max<std::int64_t>(0, rows - slots); p < rows; ++p)
        CHECK(newest(p) == kept[static_cast<std::size_t>(p)]);
    }
  }
}
