// SPDX-License-Identifier: MIT
//
// What a step may not depend on: batch mates, chunks, start parity, stale memory, capacity.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "dsv41/model/model.hpp"
#include "support/memory.hpp"
#include "support/random_model.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// Logits of a prompt fed in chunks of `width`, after a first chunk of `start` tokens.
template <class B>
std::vector<float> in_chunks(Stepper<B>& stepper, State<B>& state, const std::vector<std::int32_t>& ids,
                             std::size_t start, std::size_t width) {
  std::vector<float> out;
  for (std::size_t at = 0; at < ids.size();) {
    const std::size_t count = std::min(at == 0 && start > 0 ? start : width, ids.size() - at);
    const std::vector<float> logits = stepper.step({{&state, part(ids, at, count)}});
    out.insert(out.end(), logits.begin(), logits.end());
    at += count;
  }
  return out;
}

/// The layer that a test of B52 asks for: window 8, ratios 0, 2 and 1, four entries a query.
ModelConfig three_layers() {
  ModelConfig c = tiny_config();
  c.layers = 3, c.ratios = {0, 2, 1}, c.kv_sources = {1, 2}, c.index_sources = {1, 2}, c.candidate_source = -1;
  c.engram.layers = {0};
  return c;
}

/// A backend that keeps what index sources select: per source (in the order in which they run) the entries of every row so far.
template <class B>
class Watching : public B {
 public:
  template <class Op>
  void run(const Op& op) noexcept {
    B::run(op);
    if constexpr (std::is_same_v<Op, ops::IndexSelect>) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(op.ids.size())),
          counts(static_cast<std::size_t>(op.counts.size()));
      B::download(ids.data(), op.ids.data(), ids.size() * sizeof ids[0]);
      B::download(counts.data(), op.counts.data(), counts.size() * sizeof counts[0]);
      for (std::size_t t = 0; t < counts.size(); ++t) {
        const auto from = ids.begin() + static_cast<std::ptrdiff_t>(t) * op.ids.extent(1);
        selected[next_].emplace_back(from, from + counts[t]);
      }
      next_ = (next_ + 1) % selected.size();
    }
  }

  std::vector<std::vector<std::vector<std::int32_t>>> selected;

 private:
  std::size_t next_ = 0;
};

/// The rows of a step that index sources chose for: ids of every row, cut to their counts.
template <class B>
std::vector<std::int32_t> selection(RandomModel<B>& random, const Stepper<B>& stepper, std::int64_t rows) {
  const Selection& s = stepper.scratch().views().selection;
  const std::vector<std::int32_t> ids = random.memory.get(s.ids.rows(0, rows)),
                                  counts = random.memory.get(s.counts.rows(0, rows));
  std::vector<std::int32_t> out;
  for (std::int64_t t = 0; t < rows; ++t) {
    const auto from = ids.begin() + t * s.ids.extent(1);
    out.insert(out.end(), from, from + counts[static_cast<std::size_t>(t)]);
    out.push_back(-1);
  }
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("two sequences of different lengths in one batch equal each alone, to the bit", "[model]",
                        Backends) {
  for (const Numeric numeric : kNumerics) {
    INFO(numeric_name(numeric));
    RandomModel<TestType> random;
    Stepper<TestType> stepper(random, {.max_context = 64, .max_rows = 32}, numeric);
    const std::vector<std::int32_t> a = random_tokens(2, 23, 50), b = random_tokens(3, 9, 50);
    State<TestType> alone_a = stepper.open(), alone_b = stepper.open(), a1 = stepper.open(), b1 = stepper.open();
    const std::vector<float> want_a = stepper.step({{&alone_a, a}}), want_b = stepper.step({{&alone_b, b}});
    // First uneven pieces of both, in either order, then one row of each together with the rest.
    std::vector<float> got_a, got_b;
    const auto take = [&](std::size_t rows_first, bool a_first, const std::vector<float>& logits) {
      const std::size_t cut = rows_first * 50;
      std::vector<float>&first = a_first ? got_a : got_b, &second = a_first ? got_b : got_a;
      first.insert(first.end(), logits.begin(), logits.begin() + static_cast<std::ptrdiff_t>(cut));
      second.insert(second.end(), logits.begin() + static_cast<std::ptrdiff_t>(cut), logits.end());
    };
    take(12, true, stepper.step({{&a1, part(a, 0, 12)}, {&b1, part(b, 0, 3)}}));
    take(1, false, stepper.step({{&b1, part(b, 3, 1)}, {&a1, part(a, 12, 1)}}));
    take(5, false, stepper.step({{&b1, part(b, 4, 5)}, {&a1, part(a, 13, 10)}}));
    CHECK(same_bits(got_a, want_a));
    CHECK(same_bits(got_b, want_b));
    CHECK(same_bits(remembered(random.memory, random.config, a1), remembered(random.memory, random.config, alone_a)));
  }
}

TEMPLATE_LIST_TEST_CASE(
    "B52: a 67-token prompt gives the same bits and selections in chunks of 1, 2, 3, 5, 7, 8, 9, 16 and 67", "[model]",
    Backends) {
  RandomModel<Watching<TestType>> random(three_layers());
  const std::int64_t sources = 2;
  Stepper<Watching<TestType>> stepper(random, {.max_context = 67, .max_rows = 67}, Numeric::exact);
  auto& selected = random.backend.selected;
  bool needle = false;  // an entry of the first chunk that a row of the last one selects
  for (std::uint64_t seed = 4; seed < 8; ++seed) {
    const std::vector<std::int32_t> ids = random_tokens(seed, 67, 50);
    State<Watching<TestType>> whole = stepper.open();
    selected.assign(sources, {});
    const std::vector<float> want = stepper.step({{&whole, ids}});
    const auto want_selected = selected;
    for (const auto& source : want_selected) REQUIRE(source.size() == 67);
    for (std::size_t row = 58; row < 67; ++row) {  // ratio 1: position 3 is entry 3
      const std::vector<std::int32_t>& entries = want_selected[1][row];
      needle = needle || std::find(entries.begin(), entries.end(), 3) != entries.end();
    }
    for (const std::size_t chunk : {1u, 2u, 3u, 5u, 7u, 8u, 9u, 16u, 67u}) {
      INFO("chunks of " << chunk << ", seed " << seed);
      State<Watching<TestType>> state = stepper.open();
      selected.assign(sources, {});
      CHECK(same_bits(in_chunks(stepper, state, ids, 0, chunk), want));
      CHECK(selected == want_selected);
    }
  }
  CHECK(needle);
}

TEMPLATE_LIST_TEST_CASE("B64: 300 greedy tokens verified in steps of 1 to 7 rows give the same ids and caches",
                        "[model]", Backends) {
  // What a verifier with drafts that are always right would run; rejected drafts need a sequence that can go back.
  RandomModel<TestType> random;
  Stepper<TestType> stepper(random, {.max_context = 304, .max_rows = 7}, Numeric::exact);
  State<TestType> plain = stepper.open();
  std::vector<std::int32_t> ids{7, 3};
  std::vector<float> logits = stepper.step({{&plain, ids}});
  for (int i = 0; i < 300; ++i) {
    const float* row = logits.data() + logits.size() - 50;
    ids.push_back(static_cast<std::int32_t>(std::max_element(row, row + 50) - row));
    if (i + 1 < 300) logits = stepper.step({{&plain, {ids.back()}}});
  }
  ids.pop_back();  // the newest one has not been fed
  const std::vector<float> memory = remembered(random.memory, random.config, plain);
  for (std::size_t width = 1; width <= 7; ++width) {
    INFO("width " << width);
    State<TestType> state = stepper.open();
    const std::vector<float> all = in_chunks(stepper, state, ids, 2, width);
    std::size_t wrong = 0;
    for (std::size_t at = 1; at + 1 < ids.size(); ++at) {
      const float* row = all.data() + 50 * at;
      wrong += std::max_element(row, row + 50) - row != ids[at + 1];
    }
    CHECK(wrong == 0);
    CHECK(same_bits(remembered(random.memory, random.config, state), memory));
  }
}

TEMPLATE_LIST_TEST_CASE(
    "B53: every start parity and width of 1 to 9 gives the same entries, carry, selection and logits", "[model]",
    Backends) {
  RandomModel<TestType> random;
  const std::vector<std::int32_t> ids = random_tokens(5, 21, 50);
  Stepper<TestType> stepper(random, {.max_context = 32, .max_rows = 21}, Numeric::exact);
  State<TestType> whole = stepper.open();
  const std::vector<float> want = stepper.step({{&whole, ids}});
  const std::vector<float> memory = remembered(random.memory, random.config, whole);
  std::vector<std::int32_t> chosen = selection(random, stepper, 21);
  for (const std::size_t start : {1u, 2u, 3u}) {
    for (std::size_t width = 1; width <= 9; ++width) {
      INFO("first " << start << ", then " << width);
      State<TestType> state = stepper.open();
      CHECK(same_bits(in_chunks(stepper, state, ids, start, width), want));
      CHECK(same_bits(remembered(random.memory, random.config, state), memory));
      const auto last_rows =
          static_cast<std::int64_t>((ids.size() - start) % width == 0 ? width : (ids.size() - start) % width);
      const std::vector<std::int32_t> last = selection(random, stepper, last_rows);
      CHECK(std::equal(last.rbegin(), last.rend(), chosen.rbegin()));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("B06: context, row and score capacities change no bit, and 31 tokens make 15 and 31 entries",
                        "[model]", Backends) {
  for (const std::int64_t window : {8, 128}) {  // and a window that the context does not reach
    ModelConfig config = tiny_config();
    config.window = window;
    std::vector<float> want, want_memory;
    for (const Limits limits : {Limits{31, 31, 1}, Limits{128, 40, 1}, Limits{4096, 31, 31}}) {
      RandomModel<TestType> random(config);
      Stepper<TestType> stepper(random, limits, Numeric::exact);
      State<TestType> state = stepper.open();
      // Mark the caches: what a step has not written still has its mark.
      for (SourceCache& c : state.sequence().sources) random.memory.fill(c.entries, 0xA5A5A5A5);
      const std::vector<float> got = stepper.step({{&state, random_tokens(6, 31, 50)}});
      const std::vector<float> memory = remembered(random.memory, config, state);
      if (want.empty()) want = got, want_memory = memory;
      CHECK(same_bits(got, want));
      CHECK(same_bits(memory, want_memory));
      const std::int64_t counts[] = {15, 31};  // of ratios 2 and 1
      for (std::size_t i = 0; i < 2; ++i) {
        const CacheRows& entries = state.sequence().sources[i].entries;
        const std::vector<std::uint8_t> bytes = random.memory.bytes(entries);
        const auto row = row_bytes(entries.format, entries.width);
        std::int64_t written = 0;
        for (auto e = bytes.begin(); e != bytes.end(); e += row)
          written += std::count(e, e + row, std::uint8_t{0xA5}) != row;
        CHECK(written == counts[i]);
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("caches in pages of any size give the bits of caches in one piece", "[model]", Backends) {
  const std::vector<std::int32_t> ids = random_tokens(12, 40, 50);
  for (const std::int64_t width : {32, 40}) {  // packed, and float32 but for the entries' blocks of 16
    ModelConfig config = tiny_config();
    config.head_dim = config.index_dim = width;
    RandomModel<TestType> random(config);
    Stepper<TestType> stepper(random, {.max_context = 40, .max_rows = 13}, Numeric::exact);
    State<TestType> whole = stepper.open();
    const std::vector<float> want = in_chunks(stepper, whole, ids, 0, 13);
    for (const Paging& paging : kPagings) {
      INFO("pages of " << paging.page_rows);
      State<TestType> state = stepper.open();
      const auto page = [&](CacheRows& c) {
        c = random.memory.put(c.format, Array<float, 2>({c.rows, c.width}, -3.0f), paging);
      };
      for (CacheRows& ring : state.sequence().rings) page(ring);
      for (SourceCache& source : state.sequence().sources) page(source.entries), page(source.index_keys);
      CHECK(same_bits(in_chunks(stepper, state, ids, 0, 13), want));
      CHECK(same_bits(remembered(random.memory, config, state), remembered(random.memory, config, whole)));
      for (const CacheRows& ring : state.sequence().rings) CHECK(random.memory.untouched_between(ring));
      for (const SourceCache& source : state.sequence().sources) {
        CHECK(random.memory.untouched_between(source.entries));
        CHECK(random.memory.untouched_between(source.index_keys));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a sequence holds its caches packed, and nothing of them twice", "[model]", Backends) {
  ModelConfig config = tiny_config();
  config.head_dim = 512, config.index_dim = 128;
  RandomModel<TestType> random(config);
  CachePool<TestType> pool(random.backend, config, 5);
  State<TestType> state(pool, 200);
  state.reserve(200);
  const SequenceState& s = state.sequence();
  std::int64_t block = 0, page = 0;
  const auto check = [&](const CacheRows& c, std::int64_t rows, std::int64_t row) {
    CHECK(c.rows == rows);
    CHECK(row_bytes(c.format, c.width) == row);
  };
  for (const CacheRows& ring : s.rings) check(ring, 8 + 5, 528), block += 13 * 528;
  check(s.sources[0].entries, 100, 288), check(s.sources[0].index_keys, 100, 68), page += 32 * (288 + 68);
  check(s.sources[1].entries, 200, 288), check(s.sources[1].index_keys, 200, 68), page += 64 * (288 + 68);
  block += 2 * 8 * 512 * 4;  // the open group of ratio 2, with its room
  CHECK(pool.pages.page_bytes() == page);
  CHECK(pool.blocks.page_bytes() == block);
  CHECK(pool.pages.used() == 4);  // of 64 positions
  CHECK(pool.blocks.used() == 1);
}

TEST_CASE("B54: what lies in scratch and unfilled caches before a step changes nothing") {
  const auto filled = [](std::uint32_t pattern) {
    RandomModel<RefBackend> random;
    const Limits limits{.max_context = 40, .max_rows = 16, .score_rows = 1};
    Stepper<RefBackend> stepper(random, limits, Numeric::deployed);
    State<RefBackend> state = stepper.open();
    const auto fill = [&](void* data, std::size_t bytes) {
      for (std::size_t i = 0; i + 4 <= bytes; i += 4) std::memcpy(static_cast<char*>(data) + i, &pattern, 4);
    };
    SequenceState& s = state.sequence();
    for (const CacheRows& ring : s.rings) random.memory.fill(ring, pattern);
    for (const SourceCache& c : s.sources) {
      for (const CacheRows* cache : {&c.entries, &c.index_keys}) random.memory.fill(*cache, pattern);
      for (const Out<float, 2>* v : {&c.carry_kv, &c.carry_gate})
        fill(v->data(), static_cast<std::size_t>(v->size()) * 4);
    }
    std::vector<float> out;
    const std::vector<std::int32_t> ids = random_tokens(7, 39, 50);
    for (std::size_t at = 0; at < ids.size(); at += 13) {
      // The scratch is one allocation that starts with the streams.
      fill(stepper.scratch().views().streams.data(), stepper.scratch().bytes());
      const std::vector<float> logits = stepper.step({{&state, part(ids, at, 13)}});
      out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
  };
  const std::vector<float> want = filled(0);
  CHECK(same_bits(filled(0x7FFFFFFFu), want));  // NaN, and the largest index
  CHECK(same_bits(filled(0xFFFFFFFFu), want));  // NaN, and -1
  CHECK(same_bits(filled(0x7F800000u), want));  // infinity
  for (const float x : want) CHECK(std::isfinite(x));
}

TEMPLATE_LIST_TEST_CASE("a reset sequence starts over", "[model]", Backends) {
  RandomModel<TestType> random;
  Stepper<TestType> stepper(random, {.max_context = 32, .max_rows = 16}, Numeric::exact);
  State<TestType> fresh = stepper.open(), used = stepper.open();
  const std::vector<std::int32_t> ids = random_tokens(8, 16, 50);
  const std::vector<float> want = stepper.step({{&fresh, ids}});
  stepper.step({{&used, random_tokens(9, 15, 50)}});
  used.rewind(0);
  CHECK(same_bits(stepper.step({{&used, ids}}), want));
}

TEMPLATE_LIST_TEST_CASE("B92: a step without rows, or with an empty segment, leaves everything alone", "[model]",
                        Backends) {
  RandomModel<TestType> random;
  Stepper<TestType> stepper(random, {.max_context = 32, .max_rows = 16}, Numeric::exact);
  State<TestType> a = stepper.open(), b = stepper.open(), plain = stepper.open();
  CHECK(stepper.step({}).empty());
  CHECK(stepper.step({{&a, {}}}).empty());
  const std::vector<std::int32_t> ids = random_tokens(10, 7, 50);
  const std::vector<float> want = stepper.step({{&plain, ids}});
  CHECK(same_bits(stepper.step({{&b, {}}, {&a, ids}}), want));
  CHECK(b.sequence().position == 0);
}

TEMPLATE_LIST_TEST_CASE("the token that follows changes nothing before it", "[model]", Backends) {
  RandomModel<TestType> random;
  Stepper<TestType> stepper(random, {.max_context = 32, .max_rows = 20}, Numeric::exact);
  State<TestType> a = stepper.open(), b = stepper.open();
  std::vector<std::int32_t> ids = random_tokens(11, 20, 50);
  std::vector<float> first = stepper.step({{&a, ids}});
  ids.back() = (ids.back() + 1) % 50;
  std::vector<float> second = stepper.step({{&b, ids}});
  CHECK_FALSE(same_bits(first, second));
  first.resize(19 * 50), second.resize(19 * 50);
  CHECK(same_bits(first, second));
}

TEST_CASE("a step and its logits promise not to throw") {
  using M = Model<RefBackend>;
  STATIC_REQUIRE(noexcept(std::declval<const M&>().step(std::declval<RefBackend&>(), std::declval<const Batch&>(),
                                                        std::declval<const ScratchViews&>())));
  STATIC_REQUIRE(noexcept(std::declval<const M&>().logits(
      std::declval<RefBackend&>(), std::declval<const ScratchViews&>(), 0, 0, std::declval<Out<float, 2>>())));
}
