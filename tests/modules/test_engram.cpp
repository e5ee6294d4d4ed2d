// SPDX-License-Identifier: MIT
//
// EngramHasher and EngramMemory on their own: what they refuse, histories of several sequences, and a memory added to the streams.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "dsv41/modules/engram/hasher.hpp"
#include "dsv41/modules/engram/memory.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kVocab = 50;

ModelConfig config(std::int32_t pad = 2) {
  ModelConfig c;
  c.vocab = kVocab, c.dim = 24, c.hc = 3, c.norm_eps = 1e-20;
  c.engram = {.layers = {1, 4},
              .rows = {},
              .max_ngram = 4,
              .vocab = 101,
              .heads = 2,
              .dim = 32,
              .pad = pad,
              .compressed_vocab = 40};
  const auto layout = numerics::engram_layout(
      {.layer_ids = {1, 4}, .max_ngram = 4, .vocab_size = 101, .heads = 2, .compressed_vocab = 40});
  for (const auto& l : layout.layers) c.engram.rows.push_back(l.rows);
  return c;
}

std::vector<std::int32_t> token_map() {
  std::vector<std::int32_t> map;
  for (std::int32_t i = 0; i < kVocab; ++i) map.push_back(i % 40);
  return map;
}

void check_refused(const ModelConfig& c, const std::vector<std::int32_t>& map, const std::string& message) {
  const Failure failure = failure_of([&] { EngramHasher(c, map); });
  CHECK(failure.code == Errc::format);
  CHECK(failure.message.starts_with(message));
}

/// Rows [layers, tokens, columns] of a batch of pieces that continue sequences.
template <class B>
struct Hashing {
  B backend;
  Memory<B> memory{backend};
  ModelConfig c;
  EngramHasher hasher{c, token_map()};
  Arena<B> constants{backend, [&](Cursor& cursor) { hasher.layout(cursor); }};

  explicit Hashing(std::int32_t pad = 2) : c(config(pad)) { hasher.upload(backend); }

  SequenceState open() {
    SequenceState s;
    s.engram_history = memory.put(std::vector<std::int32_t>(3, -1));
    return s;
  }

  std::vector<std::int64_t> run(const std::vector<std::int32_t>& ids, const std::vector<Segment>& segments) {
    const auto n = static_cast<std::int64_t>(ids.size());
    const auto rows = memory.put(Array<std::int64_t, 3>({2, n, c.engram.columns()}, -1));
    const Batch batch{.ids = memory.put(ids),
                      .image = memory.put(std::vector<std::uint8_t>(ids.size())),
                      .image_rows = {},
                      .positions = {},
                      .segments = segments};
    hasher.forward(backend, batch, rows);
    return memory.get(rows);
  }

  /// Rows [first, first + count) of both layers.
  std::vector<std::int64_t> cut(const std::vector<std::int64_t>& rows, std::int64_t first, std::int64_t count) const {
    std::vector<std::int64_t> out;
    const std::int64_t columns = c.engram.columns(), n = static_cast<std::int64_t>(rows.size()) / (2 * columns);
    for (std::int64_t l = 0; l < 2; ++l) {
      out.insert(out.end(), rows.begin() + (l * n + first) * columns, rows.begin() + (l * n + first + count) * columns);
    }
    return out;
  }
};

}  // namespace

TEST_CASE("B03: a hasher refuses a map or table that is not the config's, and says which") {
  const ModelConfig good = config();
  std::vector<std::int32_t> map = token_map();
  CHECK_NOTHROW(EngramHasher(good, map));
  check_refused(good, std::vector<std::int32_t>(map.begin(), map.end() - 1),
                "token map: number of token ids is 49, expected 50");
  std::vector<std::int32_t> gap = map;
  gap[7] = 39;
  check_refused(good, gap, "token map: compressed id of token 7 is 39, expected 7");
  gap[7] = -1;
  check_refused(good, gap, "token map: compressed id of token 7 is -1, expected 7");
  ModelConfig other = good;
  other.engram.compressed_vocab = 41;
  check_refused(other, map, "token map: number of compressed ids (engram_compressed_vocab_size) is 40, expected 41");
  other = good;
  other.engram.rows[1] += 1;
  check_refused(other, map,
                "engram_num_embeddings of layer 4 is " + std::to_string(other.engram.rows[1]) + ", expected " +
                    std::to_string(good.engram.rows[1]));
}

TEMPLATE_LIST_TEST_CASE("B08, B10: interleaved sequences of widths 1, 6 and 3 hash as each alone", "[modules]",
                        Backends) {
  Hashing<TestType> h;
  Random random(1);
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(static_cast<std::int32_t>(random.below(kVocab)));
  SequenceState a = h.open(), b = h.open(), c = h.open(), x = h.open(), y = h.open(), z = h.open();
  for (int round = 0; round < 2; ++round) {  // the second round continues
    const auto together = h.run(ids, {{&a, 0, 1}, {&b, 1, 6}, {&c, 7, 3}});
    CHECK(h.cut(together, 0, 1) == h.run({ids[0]}, {{&x, 0, 1}}));
    CHECK(h.cut(together, 1, 6) == h.run({ids.begin() + 1, ids.begin() + 7}, {{&y, 0, 6}}));
    CHECK(h.cut(together, 7, 3) == h.run({ids.begin() + 7, ids.end()}, {{&z, 0, 3}}));
  }
}

TEMPLATE_LIST_TEST_CASE("look-backs that stop hold the compressed id of the pad token, not its token id", "[modules]",
                        Backends) {
  Hashing<TestType> h(45);  // compressed: 5
  SequenceState start = h.open(), after = h.open();
  CHECK(h.run({9}, {{&start, 0, 1}}) == h.cut(h.run({5, 5, 5, 9}, {{&after, 0, 4}}), 3, 1));
}

TEMPLATE_LIST_TEST_CASE("B07: rows that pad a batch never enter a history, and an id of -1 is an error", "[modules]",
                        Backends) {
  Hashing<TestType> h;
  SequenceState padded = h.open(), plain = h.open();
  const auto want = h.run({4, 9, 17}, {{&plain, 0, 3}});
  const auto rows = h.run({4, 9, 17, -1, -1, -1, -1, -1}, {{&padded, 0, 3}});
  CHECK(h.cut(rows, 0, 3) == want);
  CHECK(h.memory.get(padded.engram_history) == h.memory.get(plain.engram_history));

  const std::vector<std::int32_t> before = h.memory.get(plain.engram_history);
  for (const std::int32_t id : {-1, static_cast<std::int32_t>(kVocab)}) {
    const Failure failure = failure_of([&] { h.run({4, id}, {{&plain, 0, 2}}); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("engram_hash: ids holds " + std::to_string(id)));
    CHECK(h.memory.get(plain.engram_history) == before);
  }
}

TEMPLATE_LIST_TEST_CASE("a memory's forward is gather, projection and gate: the formula in double", "[modules]",
                        Backends) {
  TestType backend;
  Memory<TestType> memory(backend);
  const ModelConfig c = config();
  const std::int64_t tokens = 4, columns = c.engram.columns(), width = columns * c.engram.dim;
  Random random(2);
  const Stored table = random_matrix(random, Format::fp8_row, c.engram.rows[0], c.engram.dim),
               wkv = random_matrix(random, Format::bf16, (c.hc + 1) * c.dim, width, 0.1);
  const Stored q = random_matrix(random, Format::bf16, c.hc, c.dim),
               k = random_matrix(random, Format::bf16, c.hc, c.dim);
  Array<std::int64_t, 2> rows({tokens, columns});
  for (std::int64_t& r : rows.values) r = random.below(table.rows);
  Array<float, 3> before = random_array<3>(random, {tokens, c.hc, c.dim});
  std::fill(before.values.end() - c.dim, before.values.end(), 0.0f);  // a stream of zeros: eps keeps its gate a number
  const auto streams = memory.put(before);
  const EngramScratch scratch{{},
                              memory.put(Array<float, 2>({tokens, width})),
                              memory.put(Array<float, 2>({tokens, (c.hc + 1) * c.dim})),
                              memory.put(Array<float, 2>({tokens, c.hc}))};
  const EngramMemory module(
      c, {.table = memory.put(table), .wkv = memory.put(wkv), .q_weight = memory.put(q), .k_weight = memory.put(k)},
      Numeric::exact);
  module.forward(backend, memory.put(rows), memory.put(std::vector<std::uint8_t>{0, 1, 0, 0}), scratch, streams);
  Doubles want;
  for (std::int64_t t = 0; t < tokens; ++t) {
    Doubles embedding;
    for (std::int64_t i = 0; i < width; ++i)
      embedding.push_back(
          table.value(rows.values[static_cast<std::size_t>(t * columns + i / c.engram.dim)], i % c.engram.dim));
    const Doubles kv = product(wkv, embedding);
    for (std::int64_t j = 0; j < c.hc; ++j) {
      const Doubles h = slice(before.values, (t * c.hc + j) * c.dim, c.dim),
                    key(kv.begin() + j * c.dim, kv.begin() + (j + 1) * c.dim);
      double dot = 0;
      for (std::int64_t i = 0; i < c.dim; ++i)
        dot += h[static_cast<std::size_t>(i)] * key[static_cast<std::size_t>(i)] * q.value(j, i) * k.value(j, i);
      dot /= root_mean_square(h, 1e-20) * root_mean_square(key, 1e-20) * std::sqrt(static_cast<double>(c.dim));
      const double gate = t == 1 ? 0 : sigmoid(std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot));
      for (std::int64_t i = 0; i < c.dim; ++i)
        want.push_back(h[static_cast<std::size_t>(i)] + gate * kv[static_cast<std::size_t>(c.hc * c.dim + i)]);
    }
  }
  CHECK(norm_error(memory.get(streams), want) <= kNorm);
}
