// SPDX-License-Identifier: MIT
//
// The demo's geometry at 131,072 tokens: what the caches take, and that the index finds an entry wherever it lies. The caches are filled
// with random rows instead of being run (tests/bench/long_context.cpp runs them); what is looked for is put among them.
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "dsv41/model/model.hpp"
#include "dsv41/model/state.hpp"
#include "dsv41/numerics/packed.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "support/memory.hpp"
#include "support/random.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kTokens = 131072;

/// What each index source asked for and got, in the order in which they ran; of the last row of a step.
struct Query {
  std::vector<float> q, weights;  // [heads * width], [heads]
  std::vector<std::int32_t> ids, blocks;
};

template <class B>
class Listening : public B {
 public:
  template <class Op>
  void run(const Op& op) noexcept {
    B::run(op);
    if constexpr (std::is_same_v<Op, ops::IndexSelect>) {
      Query query;
      const std::int64_t last = op.q.extent(0) - 1;
      std::vector<std::int32_t> count;
      fetch(query.q, op.q.row(last).data(), op.q.extent(1) * op.q.extent(2));
      fetch(query.weights, op.weights.row(last).data(), op.q.extent(1));
      fetch(count, op.counts.data() + last, 1);
      fetch(query.ids, op.ids.row(last).data(), count[0]);
      if (op.candidates != ops::CandidateUse::none) {
        fetch(count, op.block_counts.data() + last, 1);
        fetch(query.blocks, op.blocks.row(last).data(), count[0]);
      }
      heard.push_back(query);
    }
  }

  std::vector<Query> heard;

 private:
  template <class T>
  void fetch(std::vector<T>& to, const T* from, std::int64_t count) noexcept {
    to.resize(static_cast<std::size_t>(count));
    B::download(to.data(), from, to.size() * sizeof(T));
  }
};

/// The demo's model with positions enough, and a sequence of kTokens - 1 tokens whose caches hold random rows.
template <class B>
class LongSequence {
 public:
  LongSequence()
      : folder_(runtime::ModelFolder::open(DSV41_DEMO_DIR)),
        config_(with_positions(folder_.checkpoint.config())),
        model_(backend, config_, folder_.checkpoint.weights(), folder_.token_map, Numeric::exact),
        pool(backend, config_, 8),
        state(pool, kTokens),
        scratch_(backend, config_, {.max_context = kTokens, .max_rows = 1}) {
    backend.prepare(config_, 1);
    state.reserve(kTokens);
    Random random(1);
    for (CacheRows& ring : state.sequence().rings) fill(random, ring, ring.rows);
    for (SourceCache& source : state.sequence().sources) {
      fill(random, source.entries, source.entries.rows);
      fill(random, source.index_keys, source.index_keys.rows);
    }
    state.advance(kTokens - 1);
  }

  const ModelConfig& config() const { return config_; }

  /// Runs the last token; nothing advances, so it can run again.
  std::vector<Query> ask() {
    const std::int32_t id = 100;
    const std::uint8_t image = 0;
    const std::int64_t position = kTokens - 1;
    const std::vector<std::int32_t> history(static_cast<std::size_t>(config_.engram.look_back()), 7);
    const Segment segment{.state = &state.sequence(), .first_row = 0, .rows = 1, .first_position = position};
    Memory<Listening<B>> memory(backend);
    backend.heard.clear();
    model_.step(backend,
                Batch{.ids = memory.put(std::vector<std::int32_t>{id}),
                      .image = memory.put(std::vector<std::uint8_t>{image}),
                      .image_rows = {},
                      .positions = memory.put(std::vector<std::int64_t>{position}),
                      .history = memory.put(Array<std::int32_t, 2>({1, std::ssize(history)}, history)),
                      .segments = {&segment, 1}},
                scratch_.views());
    backend.sync();
    return backend.heard;
  }

  /// A row of a cache, packed by its quantiser.
  void put(const CacheRows& cache, std::int64_t row, const std::vector<float>& values) {
    std::vector<std::byte> packed(static_cast<std::size_t>(row_bytes(cache.format, cache.width)));
    numerics::pack_row(cache.format, values.data(), cache.width, packed.data());
    backend.upload(cache.row(row), packed.data(), packed.size());
  }
  std::vector<std::byte> bytes(const CacheRows& cache, std::int64_t row) {
    std::vector<std::byte> out(static_cast<std::size_t>(row_bytes(cache.format, cache.width)));
    backend.download(out.data(), cache.row(row), out.size());
    return out;
  }

  Listening<B> backend;

 private:
  static ModelConfig with_positions(ModelConfig config) {
    config.max_positions = kTokens;
    return config;
  }

  void fill(Random& random, const CacheRows& cache, std::int64_t rows) {
    for (std::int64_t row = 0; row < rows; ++row) put(cache, row, random.normals(cache.width, 1));
  }

  runtime::ModelFolder folder_;
  ModelConfig config_;
  Model<Listening<B>> model_;

 public:
  CachePool<Listening<B>> pool;
  State<Listening<B>> state;

 private:
  Scratch<Listening<B>> scratch_;
};

/// The key that this query likes best among those of a length: its heads' queries, weighed as it weighs them.
std::vector<float> answer_to(const Query& query, std::int64_t width, float length) {
  std::vector<float> key(static_cast<std::size_t>(width));
  for (std::size_t h = 0; h < query.weights.size(); ++h) {
    for (std::size_t c = 0; c < key.size(); ++c)
      key[c] += std::max(query.weights[h], 0.0f) * query.q[h * key.size() + c];
  }
  const float largest =
      *std::max_element(key.begin(), key.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  for (float& x : key) x *= length / std::abs(largest);
  return key;
}

bool holds(const std::vector<std::int32_t>& ids, std::int64_t id) {
  return std::binary_search(ids.begin(), ids.end(), static_cast<std::int32_t>(id));
}

}  // namespace

TEMPLATE_LIST_TEST_CASE(
    "131,072 tokens of the demo take what the layout says, and the index finds an entry at every depth", "[model]",
    Backends) {
  LongSequence<TestType> sequence;
  const ModelConfig& c = sequence.config();
  // 64-wide entries in 36 bytes and 32-wide keys in 17; one source of ratio 2, one of ratio 1.
  CHECK(sequence.pool.pages.used() * sequence.pool.pages.page_bytes() == kTokens * 3 * (36 + 17) / 2);
  CHECK(sequence.pool.blocks.page_bytes() == 6 * (32 + 8) * (64 + 2) + 2 * 10 * 64 * 4);

  const std::vector<Query> first = sequence.ask();
  REQUIRE(first.size() == 3);  // layers 1, 3 and 5
  const std::int64_t ratios[] = {2, 1};
  for (std::size_t source = 0; source < 2; ++source) {
    const CacheRows& keys = sequence.state.sequence().sources[source].index_keys;
    const std::int64_t visible = kTokens / ratios[source];
    const std::vector<float> key = answer_to(first[source], c.index_dim, 64);
    for (const std::int64_t depth : {1, 2, 100, 1000, 8191, 16384, 50000, 65535, 65536, 100000, 131000, 131072}) {
      const std::int64_t entry = visible - depth;  // depth counts back from the newest
      if (entry < 0) continue;
      INFO("source " << source << ", entry " << entry << " of " << visible);
      if (entry >= (kTokens - 1) / ratios[source]) continue;  // the step writes this one itself
      CHECK(!holds(first[source].ids, entry));
      const std::vector<std::byte> old = sequence.bytes(keys, entry);
      sequence.put(keys, entry, key);
      const std::vector<Query> now = sequence.ask();
      CHECK(holds(now[source].ids, entry));
      CHECK(std::ssize(now[source].ids) == c.index_topk);
      if (source ==
          1) {  // it publishes candidates: the later source is shown the block, and nothing outside the blocks
        CHECK(holds(now[1].blocks, entry / c.candidate_block));
        CHECK(now[2].blocks == now[1].blocks);
        for (const std::int32_t id : now[2].ids)
          CHECK(holds(now[2].blocks, id / static_cast<std::int32_t>(c.candidate_block)));
      }
      sequence.backend.upload(keys.row(entry), old.data(), old.size());
    }
  }
}
