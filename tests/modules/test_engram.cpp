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

/// The next tokens of a sequence; `before` becomes what it was fed so far, negative where dead.
struct Piece {
  std::vector<std::int32_t>* before;
  std::int64_t rows;
};

/// Rows [layers, tokens, columns] of a batch of pieces.
template <class B>
struct Hashing {
  B backend;
  Memory<B> memory{backend};
  ModelConfig c;
  EngramHasher hasher{c, token_map()};
  Arena<B> constants{backend, [&](Cursor& cursor) { hasher.layout(cursor); }};

  explicit Hashing(std::int32_t pad = 2) : c(config(pad)) { hasher.upload(backend); }

  std::vector<std::int64_t> run(const std::vector<std::int32_t>& ids, const std::vector<Piece>& pieces,
                                std::vector<std::uint8_t> image = {}) {
    image.resize(ids.size());
    std::vector<Segment> segments;
    Array<std::int32_t, 2> history({std::ssize(pieces), 3}, -1);
    std::int64_t first = 0;
    for (const Piece& p : pieces) {
      const std::int64_t fed = std::ssize(*p.before), known = std::min<std::int64_t>(fed, 3);
      std::copy_n(p.before->end() - known, known, history.values.begin() + std::ssize(segments) * 3 + 3 - known);
      segments.push_back({.state = nullptr, .first_row = first, .rows = p.rows, .first_position = fed});
      for (std::int64_t i = 0; i < p.rows; ++i, ++first) {
        const auto at = static_cast<std::size_t>(first);
        p.before->push_back(image[at] != 0 ? -1 : ids[at]);
      }
    }
    const auto n = static_cast<std::int64_t>(ids.size());
    const auto rows = memory.put(Array<std::int64_t, 3>({2, n, c.engram.columns()}, -1));
    const Batch batch{.ids = memory.put(ids),
                      .image = memory.put(image),
                      .image_rows = {},
                      .positions = {},
                      .history = memory.put(history),
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
  std::vector<std::int32_t> a, b, c, x, y, z;
  for (int round = 0; round < 2; ++round) {  // the second round continues
    const auto together = h.run(ids, {{&a, 1}, {&b, 6}, {&c, 3}});
    CHECK(h.cut(together, 0, 1) == h.run({ids[0]}, {{&x, 1}}));
    CHECK(h.cut(together, 1, 6) == h.run({ids.begin() + 1, ids.begin() + 7}, {{&y, 6}}));
    CHECK(h.cut(together, 7, 3) == h.run({ids.begin() + 7, ids.end()}, {{&z, 3}}));
  }
}

TEMPLATE_LIST_TEST_CASE("B08: a sequence at its start sees nothing of its batch mates' histories", "[modules]",
                        Backends) {
  Hashing<TestType> h;
  const std::vector<std::int32_t> text{4, 9, 17, 30}, ids{8, 11, 23, 5};
  std::vector<std::int32_t> alone;
  const auto want = h.run({11, 23}, {{&alone, 2}});
  for (const std::size_t fed : {std::size_t{1}, std::size_t{4}}) {
    std::vector<std::int32_t> before(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(fed)), behind = before,
                                                                                                     start;
    const auto together = h.run(ids, {{&before, 1}, {&start, 2}, {&behind, 1}});
    CHECK(h.cut(together, 1, 2) == want);
    std::vector<std::int32_t> first(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(fed)), last = first;
    CHECK(h.cut(together, 0, 1) == h.run({8}, {{&first, 1}}));
    CHECK(h.cut(together, 3, 1) == h.run({5}, {{&last, 1}}));
  }
}

TEMPLATE_LIST_TEST_CASE("a sequence that went back hashes as one that never went there", "[modules]", Backends) {
  Hashing<TestType> h;
  std::vector<std::int32_t> a{4, 9}, b = a;
  h.run({7, 7, 7, 7}, {{&a, 4}});
  a.resize(2);
  CHECK(h.run({17, 30, 1}, {{&a, 3}}) == h.run({17, 30, 1}, {{&b, 3}}));
}

TEMPLATE_LIST_TEST_CASE("B08: text behind an image span hashes the same in the span's step and in any later one",
                        "[modules]", Backends) {
  Hashing<TestType> h;
  const std::vector<std::int32_t> ids{4, 9, 17, 30, 1, 22, 6};
  const std::vector<std::uint8_t> image{0, 0, 1, 1, 0, 0, 0};
  std::vector<std::int32_t> whole;
  const auto want = h.run(ids, {{&whole, 7}}, image);
  for (std::ptrdiff_t cut = 0; cut <= 7; ++cut) {
    std::vector<std::int32_t> split;
    const auto head = h.run({ids.begin(), ids.begin() + cut}, {{&split, cut}}, {image.begin(), image.begin() + cut});
    const auto tail = h.run({ids.begin() + cut, ids.end()}, {{&split, 7 - cut}}, {image.begin() + cut, image.end()});
    CHECK(head == h.cut(want, 0, cut));
    CHECK(tail == h.cut(want, cut, 7 - cut));
  }
  std::vector<std::int32_t> start, text{4, 9, 17, 30};
  CHECK(h.run({1, 22, 6}, {{&start, 3}}) == h.cut(want, 4, 3));
  CHECK_FALSE(h.run({1, 22, 6}, {{&text, 3}}) == h.cut(want, 4, 3));
}

TEMPLATE_LIST_TEST_CASE("look-backs that stop hold the compressed id of the pad token, not its token id", "[modules]",
                        Backends) {
  Hashing<TestType> h(45);  // compressed: 5
  std::vector<std::int32_t> start, after;
  CHECK(h.run({9}, {{&start, 1}}) == h.cut(h.run({5, 5, 5, 9}, {{&after, 4}}), 3, 1));
}

TEMPLATE_LIST_TEST_CASE("B07: rows that pad a batch are never read, and an id of -1 is an error", "[modules]",
                        Backends) {
  Hashing<TestType> h;
  std::vector<std::int32_t> padded, plain;
  const auto want = h.run({4, 9, 17}, {{&plain, 3}});
  CHECK(h.cut(h.run({4, 9, 17, -1, -1, -1, -1, -1}, {{&padded, 3}}), 0, 3) == want);

  for (const std::int32_t id : {-1, static_cast<std::int32_t>(kVocab)}) {
    const Failure failure = failure_of([&] { h.run({4, id}, {{&plain, 2}}); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("engram_hash: ids holds " + std::to_string(id)));
    plain.resize(3);
  }
  std::vector<std::int32_t> stray{static_cast<std::int32_t>(kVocab)};
  const Failure failure = failure_of([&] { h.run({4}, {{&stray, 1}}); });
  CHECK(failure.says("engram_hash: history holds 50"));
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
