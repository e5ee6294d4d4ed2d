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

TEMPLATE_LIST_TEST_CASE("B52: a 67-token prompt gives the same bits in chunks of 1, 2, 3, 5, 7, 8, 9, 16 and 67",
                        "[model]", Backends) {
  RandomModel<TestType> random(three_layers());
  const std::vector<std::int32_t> ids = random_tokens(4, 67, 50);
  Stepper<TestType> stepper(random, {.max_context = 67, .max_rows = 67}, Numeric::exact);
  State<TestType> whole = stepper.open();
  const std::vector<float> want = stepper.step({{&whole, ids}});
  for (const std::size_t chunk : {1u, 2u, 3u, 5u, 7u, 8u, 9u, 16u}) {
    INFO("chunks of " << chunk);
    State<TestType> state = stepper.open();
    CHECK(same_bits(in_chunks(stepper, state, ids, 0, chunk), want));
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

TEMPLATE_LIST_TEST_CASE("B06: context, row and score capacities change no bit", "[model]", Backends) {
  std::vector<float> want;
  for (const Limits limits : {Limits{31, 31, 1}, Limits{128, 40, 1}, Limits{4096, 31, 31}}) {
    RandomModel<TestType> random;
    Stepper<TestType> stepper(random, limits, Numeric::exact);
    State<TestType> state = stepper.open();
    const std::vector<float> got = stepper.step({{&state, random_tokens(6, 31, 50)}});
    if (want.empty()) want = got;
    CHECK(same_bits(got, want));
  }
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
    for (auto& ring : s.rings) fill(ring.data(), static_cast<std::size_t>(ring.size()) * 4);
    for (auto& c : s.sources) {
      for (const Out<float, 2>* v : {&c.entries, &c.index_keys, &c.carry_kv, &c.carry_gate})
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
  used.reset();
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
