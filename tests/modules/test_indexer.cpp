// SPDX-License-Identifier: MIT
//
// Indexer on its own: its source's keys and no other's, scores by the formula, selections for several sequences in one batch.
#include "dsv41/modules/csa2/indexer.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kDim = 24, kRank = 16, kHeads = 3, kWidth = 20, kContext = 40, kTopk = 4, kBlock = 2, kKept = 3;

/// One index source over a sequence of two kv sources, every key present. A width of 20 stays unquantised.
template <class B>
struct Bench {
  B backend;
  Memory<B> memory{backend};
  ModelConfig config;
  Stored wq_b, weights_proj;
  IndexerWeights weights;
  std::vector<float> frequencies = {1, 0.25f, 0.125f};
  Array<float, 2> keys[2];
  SequenceState state;
  Selection selection;

  explicit Bench(std::uint64_t seed = 1, std::int64_t rows = 8) {
    config.index_heads = kHeads, config.index_dim = kWidth, config.candidate_block = kBlock;
    Random random(1);
    wq_b = random_matrix(random, Format::bf16, kHeads * kWidth, kRank),
    weights_proj = random_matrix(random, Format::bf16, kHeads, kDim);
    weights = {.wq_b = memory.put(wq_b), .weights_proj = memory.put(weights_proj)};
    Random data(seed);
    for (Array<float, 2>& k : keys) {
      k = random_array<2>(data, {kContext, kWidth});
      state.sources.push_back(
          {.entries = {}, .index_keys = memory.put(CacheFormat::index, k, {7, 0}), .carry_kv = {}, .carry_gate = {}});
    }
    selection = {.ids = memory.put(Array<std::int32_t, 2>({rows, kTopk}, -9)),
                 .counts = memory.put(Array<std::int32_t, 1>({rows}, -9)),
                 .blocks = memory.put(Array<std::int32_t, 2>({rows, kKept}, -9)),
                 .block_counts = memory.put(Array<std::int32_t, 1>({rows}, -9)),
                 .scores = memory.put(Array<float, 2>({rows, kContext}, 77.0f)),
                 .block_scores = memory.put(Array<float, 2>({rows, kContext / kBlock}))};
  }

  void run(const LayerPlan& plan, const Array<float, 2>& x, const Array<float, 2>& qr, std::vector<Segment> segments) {
    const std::int64_t rows = x.extents[0];
    std::vector<std::int64_t> positions;
    for (Segment& s : segments) {
      s.first_position = s.state->position;
      for (std::int64_t i = 0; i < s.rows; ++i) positions.push_back(s.state->position + i);
    }
    const Indexer indexer(config, weights, plan, memory.put(frequencies), Numeric::exact);
    const IndexerScratch scratch{memory.put(Array<float, 2>({rows, kHeads * kWidth})),
                                 memory.put(Array<float, 2>({rows, kHeads}))};
    const Batch batch{.ids = shaped<const std::int32_t, 1>({rows}),
                      .image = {},
                      .image_rows = {},
                      .positions = memory.put(positions),
                      .history = {},
                      .segments = segments};
    indexer.forward(backend, memory.put(x), memory.put(qr), batch, scratch, selection);
  }

  std::vector<std::int32_t> chosen(std::int64_t row) {
    const std::vector<std::int32_t> ids = memory.get(selection.ids.rows(row, 1));
    return {ids.begin(), ids.begin() + memory.get(selection.counts)[static_cast<std::size_t>(row)]};
  }
};

struct Rows {
  Array<float, 2> x, qr;

  explicit Rows(std::int64_t count, std::uint64_t seed = 5) {
    Random random(seed);
    x = random_array<2>(random, {count, kDim}), qr = random_array<2>(random, {count, kRank});
  }
};

const LayerPlan kSecondSource{.kind = LayerKind::reindex, .ratio = 2, .source = 1};

}  // namespace

TEMPLATE_LIST_TEST_CASE("an indexer scores its own source's keys by the formula, and only the visible ones",
                        "[modules]", Backends) {
  Bench<TestType> bench;
  const Rows rows(6);
  bench.state.position = 31;
  bench.run(kSecondSource, rows.x, rows.qr, {{&bench.state, 0, 6}});
  const std::vector<float> got = bench.memory.get(bench.selection.scores);
  for (std::int64_t t = 0; t < 6; ++t) {
    const std::int64_t position = 31 + t, visible = (position + 1) / 2;
    const Doubles q = product(bench.wq_b, slice(rows.qr.values, t * kRank, kRank)),
                  w = product(bench.weights_proj, slice(rows.x.values, t * kDim, kDim));
    Doubles want;
    for (std::int64_t e = 0; e < visible; ++e) {
      double score = 0;
      for (std::int64_t h = 0; h < kHeads; ++h) {
        const Doubles head =
            rotated(Doubles(q.begin() + h * kWidth, q.begin() + (h + 1) * kWidth), position, bench.frequencies, false);
        double dot = 0;
        for (std::int64_t i = 0; i < kWidth; ++i) {
          dot += head[static_cast<std::size_t>(i)] *
                 static_cast<double>(bench.keys[1].values[static_cast<std::size_t>(e * kWidth + i)]);
        }
        score += w[static_cast<std::size_t>(h)] * std::max(dot, 0.0) / std::sqrt(static_cast<double>(kHeads * kWidth));
      }
      want.push_back(score);
    }
    const auto from = got.begin() + t * kContext;
    CHECK(norm_error({from, from + visible}, want) <= kNorm);
    CHECK(*(from + visible) == 77.0f);
    CHECK(bench.chosen(t).size() == static_cast<std::size_t>(kTopk));
  }
}

TEMPLATE_LIST_TEST_CASE("another source's keys change nothing", "[modules]", Backends) {
  Bench<TestType> a, b;
  b.state.sources[0].index_keys = b.memory.put(CacheFormat::index, Array<float, 2>({kContext, kWidth}, std::nanf("")));
  const Rows rows(6);
  a.state.position = b.state.position = 20;
  a.run(kSecondSource, rows.x, rows.qr, {{&a.state, 0, 6}});
  b.run(kSecondSource, rows.x, rows.qr, {{&b.state, 0, 6}});
  for (std::int64_t t = 0; t < 6; ++t) CHECK(a.chosen(t) == b.chosen(t));
}

TEMPLATE_LIST_TEST_CASE("fewer visible entries than index_topk are all chosen, and none at first", "[modules]",
                        Backends) {
  Bench<TestType> bench;
  const Rows rows(8);
  bench.run(kSecondSource, rows.x, rows.qr, {{&bench.state, 0, 8}});
  CHECK(bench.chosen(0).empty());
  CHECK(bench.chosen(1) == std::vector<std::int32_t>{0});
  CHECK(bench.chosen(2) == std::vector<std::int32_t>{0});
  CHECK(bench.chosen(7) == std::vector<std::int32_t>{0, 1, 2, 3});
}

TEMPLATE_LIST_TEST_CASE("two sequences in one batch choose as each alone", "[modules]", Backends) {
  Bench<TestType> both, alone;
  SequenceState other = both.state, other_alone = alone.state;
  std::swap(other.sources[0], other.sources[1]), std::swap(other_alone.sources[0], other_alone.sources[1]);
  both.state.position = alone.state.position = 25, other.position = other_alone.position = 60;
  const Rows rows(7);
  both.run(kSecondSource, rows.x, rows.qr, {{&both.state, 0, 3}, {&other, 3, 4}});
  alone.run(kSecondSource, rows.x.rows(0, 3), rows.qr.rows(0, 3), {{&alone.state, 0, 3}});
  for (std::int64_t t = 0; t < 3; ++t) CHECK(both.chosen(t) == alone.chosen(t));
  alone.run(kSecondSource, rows.x.rows(3, 4), rows.qr.rows(3, 4), {{&other_alone, 0, 4}});
  for (std::int64_t t = 0; t < 4; ++t) CHECK(both.chosen(3 + t) == alone.chosen(t));
}

TEMPLATE_LIST_TEST_CASE("later index sources choose inside the published blocks, the publisher anywhere", "[modules]",
                        Backends) {
  Bench<TestType> bench, free;
  const Rows rows(6), later(6, 6);
  bench.state.position = free.state.position = 50;
  LayerPlan publish = kSecondSource, limited = kSecondSource;
  publish.publishes_candidates = true, limited.limited_to_candidates = true;
  free.run(kSecondSource, rows.x, rows.qr, {{&free.state, 0, 6}});
  bench.run(publish, rows.x, rows.qr, {{&bench.state, 0, 6}});
  for (std::int64_t t = 0; t < 6; ++t) CHECK(bench.chosen(t) == free.chosen(t));
  const std::vector<std::int32_t> blocks = bench.memory.get(bench.selection.blocks);
  bench.run(limited, later.x, later.qr, {{&bench.state, 0, 6}});
  for (std::int64_t t = 0; t < 6; ++t) {
    const auto first = blocks.begin() + t * kKept;
    CHECK(*(first + kKept - 1) == ((50 + t + 1) / 2 - 1) / kBlock);  // the newest block
    for (const std::int32_t id : bench.chosen(t)) CHECK(std::find(first, first + kKept, id / kBlock) != first + kKept);
    CHECK(bench.chosen(t).size() == static_cast<std::size_t>(kTopk));
  }
}
