// SPDX-License-Identifier: MIT
//
// ops::EngramHash: rows against the definition, however a sequence is cut, and what its history may hold.
#include "dsv41/ops/engram_hash.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kVocab = 60, kCompressed = 31, kPad = 5;

struct Case {
  std::int64_t tokens;
  int max_ngram, heads;
  std::vector<int> layer_ids;
  std::vector<std::size_t> dead;  // positions in an image span
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 4, 8, {1, 14}, {}, 1}, {1, 4, 8, {1, 14}, {}, 2},          {9, 4, 8, {1, 14}, {}, 3},
    {13, 2, 1, {0}, {}, 4},    {20, 8, 3, {3, 4, 9}, {}, 5},       {12, 4, 8, {1, 14}, {4, 5}, 6},
    {9, 4, 2, {1}, {0, 8}, 7}, {5, 3, 2, {2}, {0, 1, 2, 3, 4}, 8},
};

/// Token ids, dead marks and a token map, and the layout they hash with.
struct Inputs {
  std::vector<std::int32_t> ids, map;
  std::vector<std::uint8_t> image;
  numerics::EngramLayout layout;

  explicit Inputs(const Case& c) : map(kVocab), image(static_cast<std::size_t>(c.tokens)) {
    Random random(c.seed);
    for (std::int64_t i = 0; i < c.tokens; ++i) ids.push_back(static_cast<std::int32_t>(random.below(kVocab)));
    for (std::size_t i = 0; i < map.size(); ++i) map[i] = static_cast<std::int32_t>(i * 7 % kCompressed);
    for (const std::size_t at : c.dead) image[at] = 1;
    layout = numerics::engram_layout({.layer_ids = c.layer_ids,
                                      .max_ngram = c.max_ngram,
                                      .vocab_size = 1000,
                                      .heads = c.heads,
                                      .compressed_vocab = kCompressed});
  }

  std::int64_t columns() const { return static_cast<std::int64_t>(layout.layers[0].primes.size()); }
};

/// Row of one token, layer and column: the n-gram of n tokens that ends here, slots behind a gap holding the pad.
std::int64_t row_of(const Inputs& in, const numerics::EngramLayerLayout& layer, std::size_t position,
                    std::size_t column, std::size_t heads) {
  const std::size_t n = column / heads + 2;
  std::uint64_t hash = 0;
  bool text = true;
  for (std::size_t back = 0; back < n; ++back) {
    text = text && back <= position && in.image[position - back] == 0;
    const std::int64_t id = text ? in.map[static_cast<std::size_t>(in.ids[position - back])] : kPad;
    hash ^= static_cast<std::uint64_t>(id) * static_cast<std::uint64_t>(layer.multipliers[back]);
  }
  return static_cast<std::int64_t>(hash % static_cast<std::uint64_t>(layer.primes[column])) + layer.offsets[column];
}

/// A sequence on a backend: rows of any of its tokens, as [tokens][layers * columns].
template <class B>
class Hashing {
 public:
  explicit Hashing(const Inputs& in) : in_(&in), memory_(backend_), map_(memory_.put(in.map)) {
    for (const auto& layer : in.layout.layers) views_.push_back(numerics::view_of(layer));
  }

  /// Token ids before position `first`, dead ones and those before the start as two different negative numbers.
  std::vector<std::int32_t> history(std::size_t first) const {
    const std::size_t size = in_->layout.layers[0].multipliers.size() - 1;
    std::vector<std::int32_t> out(size, -1);
    for (std::size_t back = 1; back <= size && back <= first; ++back)
      out[size - back] = in_->image[first - back] != 0 ? -7 : in_->ids[first - back];
    return out;
  }

  std::vector<std::int64_t> rows(std::size_t first, std::size_t count) { return rows(first, count, history(first)); }
  std::vector<std::int64_t> rows(std::size_t first, std::size_t count, const std::vector<std::int32_t>& history) {
    const auto n = static_cast<std::int64_t>(count);
    const auto layers = static_cast<std::int64_t>(views_.size());
    const std::vector<std::int32_t> ids(in_->ids.begin() + static_cast<std::ptrdiff_t>(first),
                                        in_->ids.begin() + static_cast<std::ptrdiff_t>(first + count));
    const std::vector<std::uint8_t> image(in_->image.begin() + static_cast<std::ptrdiff_t>(first),
                                          in_->image.begin() + static_cast<std::ptrdiff_t>(first + count));
    const auto rows = memory_.put(Array<std::int64_t, 3>({layers, n, in_->columns()}, -1));
    const ops::EngramHash op{.ids = memory_.put(ids),
                             .image = memory_.put(image),
                             .token_map = map_,
                             .layers = views_,
                             .pad = kPad,
                             .history = memory_.put(history),
                             .table_rows = rows};
    op.check();
    backend_.run(op);
    const std::vector<std::int64_t> by_layer = memory_.get(rows);
    std::vector<std::int64_t> out;
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t l = 0; l < layers; ++l) {
        const auto from = by_layer.begin() + (l * n + t) * in_->columns();
        out.insert(out.end(), from, from + in_->columns());
      }
    }
    return out;
  }

 private:
  const Inputs* in_;
  B backend_;
  Memory<B> memory_;
  Out<std::int32_t, 1> map_;
  std::vector<numerics::EngramHashView> views_;
};

template <class B>
void run_case(const Case& c) {
  const Inputs in(c);
  std::vector<std::int64_t> want;
  for (std::size_t t = 0; t < in.ids.size(); ++t) {
    for (const auto& layer : in.layout.layers) {
      for (std::size_t k = 0; k < layer.primes.size(); ++k)
        want.push_back(row_of(in, layer, t, k, static_cast<std::size_t>(c.heads)));
    }
  }
  Hashing<B> hashing(in);
  CHECK(hashing.rows(0, in.ids.size()) == want);
  for (std::size_t k = 0; k <= in.ids.size(); ++k) {  // B08: split at every k
    std::vector<std::int64_t> rows = hashing.rows(0, k);
    const auto rest = hashing.rows(k, in.ids.size() - k);
    rows.insert(rows.end(), rest.begin(), rest.end());
    CHECK(rows == want);
  }
  std::vector<std::int64_t> rows;
  for (std::size_t t = 0; t < in.ids.size(); ++t) {
    const auto one = hashing.rows(t, 1);
    rows.insert(rows.end(), one.begin(), one.end());
  }
  CHECK(rows == want);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("B06, B08: rows follow the definition for the whole prompt, any split, and token by token",
                        "[engram_hash]", Backends) {
  for (const Case& c : kCases) {
    INFO("seed " << c.seed);
    run_case<TestType>(c);
  }
}

TEMPLATE_LIST_TEST_CASE("B08, B10: widths 1, 6 and 3 give the rows of one call", "[engram_hash]", Backends) {
  const Inputs in({10, 4, 8, {1, 14}, {}, 9});
  Hashing<TestType> hashing(in);
  std::vector<std::int64_t> rows;
  std::size_t first = 0;
  for (const std::size_t width : {std::size_t{1}, std::size_t{6}, std::size_t{3}}) {
    const auto piece = hashing.rows(first, width);
    rows.insert(rows.end(), piece.begin(), piece.end());
    first += width;
  }
  CHECK(rows == hashing.rows(0, 10));
}

TEMPLATE_LIST_TEST_CASE("B12: a first call, and one after any others, give the same rows", "[engram_hash]", Backends) {
  const Inputs in({13, 4, 8, {1, 14}, {}, 11});
  for (const std::size_t first : {std::size_t{0}, std::size_t{5}}) {
    Hashing<TestType> hashing(in);
    const auto want = hashing.rows(first, 8);
    CHECK(want.size() == 8 * 2 * 24);
    hashing.rows(0, 13), hashing.rows(7, 1);  // drafts that are rejected leave nothing to take back
    CHECK(hashing.rows(first, 8) == want);
  }
}

TEMPLATE_LIST_TEST_CASE("B92: no rows, or no history, are a call like any other", "[engram_hash]", Backends) {
  const Inputs in({6, 4, 8, {1, 14}, {}, 10});
  Hashing<TestType> hashing(in);
  CHECK(hashing.rows(3, 0).empty());
  const auto start = hashing.rows(0, 6);
  CHECK(hashing.rows(0, 6, {}) == start);
  CHECK(hashing.rows(0, 6, {-1, -2, -2147483647 - 1}) == start);
  CHECK(hashing.rows(2, 4, {in.ids[1]}) == hashing.rows(2, 4, {-1, -1, in.ids[1]}));
}

TEMPLATE_LIST_TEST_CASE("text behind an image cannot look past it, in its own call or in the history", "[engram_hash]",
                        Backends) {
  Inputs a({8, 4, 2, {1}, {3}, 12}), b = a;
  for (std::size_t i = 0; i < 3; ++i)
    b.ids[i] = (a.ids[i] + 11) % static_cast<std::int32_t>(kVocab);  // other text before it
  Hashing<TestType> first(a), second(b);
  CHECK(first.rows(3, 5) == second.rows(3, 5));
  CHECK(first.rows(4, 4) == second.rows(4, 4));
  CHECK(first.rows(4, 4) == first.rows(4, 4, {-1, -1, -1}));
  const std::int32_t text = a.ids[4];
  CHECK(first.rows(5, 3, {9, -1, text}) == first.rows(5, 3, {27, -1, text}));
  CHECK(first.rows(5, 3, {9, -1, text}) == first.rows(5, 3));
  CHECK_FALSE(first.rows(5, 3, {9, 8, text}) == first.rows(5, 3, {27, 8, text}));
}

TEMPLATE_LIST_TEST_CASE("B07: an id outside the map is an error, among the tokens and in the history", "[engram_hash]",
                        Backends) {
  const auto refused = [](const Inputs& in, const std::vector<std::int32_t>& history, const std::string& message) {
    Hashing<TestType> hashing(in);
    const Failure failure = failure_of([&] { hashing.rows(0, 3, history); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says(message));
  };
  Inputs in({3, 4, 8, {1, 14}, {}, 13});
  for (const std::size_t at : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    std::vector<std::int32_t> history(3, -1);
    history[at] = kVocab;
    refused(in, history, "engram_hash: history holds 60");
  }
  refused(in, {1, 2147483647, 1}, "engram_hash: history holds 2147483647");
  in.ids[2] = -1;
  refused(in, {1, 2, 3}, "engram_hash: ids holds -1");
}

TEST_CASE("engram_hash: check() names the field, what it expects and what it got") {
  const numerics::EngramHashView views[2] = {};
  const ops::EngramHash good{.ids = shaped<const std::int32_t, 1>({3}),
                             .image = shaped<const std::uint8_t, 1>({3}),
                             .layers = views,
                             .history = shaped<const std::int32_t, 1>({3}),
                             .table_rows = shaped<std::int64_t, 3>({2, 3, 24})};
  check_refuses(good, "image is [2], expected [3]", [](auto& op) { op.image = shaped<const std::uint8_t, 1>({2}); });
  check_refuses(good, "table_rows is [1, 3, 24], expected [2, 3, 24]", [](auto& op) {
    op.table_rows = shaped<std::int64_t, 3>({1, 3, 24});
  });
  check_refuses(good, "table_rows is [2, 4, 24], expected [2, 3, 24]", [](auto& op) {
    op.table_rows = shaped<std::int64_t, 3>({2, 4, 24});
  });
  check_refuses(good, "history is 8, expected room for the longest n-gram",
                [](auto& op) { op.history = shaped<const std::int32_t, 1>({8}); });
}
