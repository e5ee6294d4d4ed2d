// SPDX-License-Identifier: MIT
//
// ops::SparseAttention: window, selected entries and sink against a plain softmax, around the ring's end, and the block rule of class
// deployed.
#include "dsv41/ops/sparse_attention.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "support/attention_formula.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t tokens, heads, width, window, spare, first_position, entries, topk;
  double size;  // of queries: large ones make the softmax sharp
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 2, 8, 4, 0, 0, 0, 0, 1, 1},         {1, 1, 1, 1, 0, 0, 0, 0, 1, 2},
    {1, 2, 8, 4, 0, 0, 5, 3, 1, 3},         {6, 2, 16, 4, 0, 0, 9, 4, 1, 4},
    {5, 3, 32, 7, 3, 100, 40, 6, 2, 5},     {3, 2, 33, 128, 0, 126, 0, 0, 1, 6},
    {4, 2, 16, 128, 5, 300, 200, 97, 4, 7}, {2, 1, 64, 127, 1, 1000, 70, 65, 8, 8},
    {9, 2, 8, 3, 0, 2, 12, 12, 0.01, 9},    {2, 4, 512, 128, 0, 4095, 600, 512, 1, 10},
    {3, 4, 32, 100, 0, 50, 90, 80, 4, 11},  // entries begin at slot 100 although the window holds 51 rows
};

struct Inputs {
  Array<float, 3> q;
  Array<float, 2> ring, entries;
  Array<std::int32_t, 2> ids;
  Array<std::int32_t, 1> counts;
  std::vector<float> sink;
  std::int64_t first_position, window, first_visible = 0;

  /// The same with one query.
  Inputs row(std::int64_t t) const {
    Inputs out = *this;
    out.q = q.rows(t, 1), out.ids = ids.rows(t, 1), out.counts = counts.rows(t, 1), out.first_position += t;
    return out;
  }
};

Inputs make(const Case& c) {
  Random random(c.seed);
  const std::int64_t slots = c.window + std::max<std::int64_t>(c.tokens - 1, 0) + c.spare;
  Inputs in{random_array<3>(random, {c.tokens, c.heads, c.width}, c.size),
            random_array<2>(random, {slots, c.width}),
            random_array<2>(random, {c.entries, c.width}),
            Array<std::int32_t, 2>({c.tokens, c.topk}, 0x7FFFFFFF),
            Array<std::int32_t, 1>({c.tokens}),
            random.normals(c.heads, 2),
            c.first_position,
            c.window};
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    std::int32_t count = 0;
    for (std::int64_t e = 0; e < c.entries && count < c.topk - t % 2; ++e) {
      if (random.below(c.entries - e) < c.topk - count)
        in.ids.values[static_cast<std::size_t>(t * c.topk + count++)] = static_cast<std::int32_t>(e);
    }
    in.counts.values[static_cast<std::size_t>(t)] = count;
  }
  return in;
}

template <class B>
std::vector<float> run(const Inputs& in, Numeric numeric, const Paging& paging = {}) {
  B backend;
  Memory<B> memory(backend);
  const auto out = memory.put(Array<float, 3>(in.q.extents, -1.0f));
  ops::SparseAttention op{.q = memory.put(in.q),
                          .ring = memory.put(CacheFormat::window, in.ring, paging),
                          .sink = memory.put(in.sink),
                          .out = out,
                          .first_position = in.first_position,
                          .first_visible = in.first_visible,
                          .window = in.window,
                          .numeric = numeric};
  if (in.ids.extents[1] > 0)
    op.entries = memory.put(CacheFormat::entry, in.entries, paging), op.ids = memory.put(in.ids),
    op.counts = memory.put(in.counts);
  op.check();
  backend.run(op);
  return memory.get(out);
}

/// Rows that a query sees, each with its slot: the window oldest first from slot 0, the entries from slot `window`.
SlotRows seen(const Inputs& in, std::int64_t t) {
  const std::int64_t width = in.q.extents[2], p = in.first_position + t,
                     oldest = std::max(in.first_visible, p - in.window + 1);
  SlotRows out;
  for (std::int64_t at = oldest; at <= p; ++at)
    out.push_back({at - oldest, slice(in.ring.values, at % in.ring.extents[0] * width, width)});
  for (std::int64_t k = 0; k < in.counts.values[static_cast<std::size_t>(t)]; ++k) {
    const std::int64_t entry = in.ids.values[static_cast<std::size_t>(t * in.ids.extents[1] + k)];
    out.push_back({in.window + k, slice(in.entries.values, entry * width, width)});
  }
  return out;
}

Doubles formula(Inputs in, Numeric numeric) {
  in.ring = cached(CacheFormat::window, in.ring), in.entries = cached(CacheFormat::entry, in.entries);
  const auto [tokens, heads, width] = in.q.extents;
  Doubles out;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto rows = seen(in, t);
    for (std::int64_t h = 0; h < heads; ++h) {
      const Doubles one = head_output(rows, slice(in.q.values, (t * heads + h) * width, width),
                                      static_cast<double>(in.sink[static_cast<std::size_t>(h)]), numeric);
      out.insert(out.end(), one.begin(), one.end());
    }
  }
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("attention equals the softmax over window, entries and sink; each row for itself",
                        "[sparse_attention]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << ", " << numeric_name(numeric));
      const Inputs in = make(c);
      const Array<float, 3> got(in.q.extents, run<TestType>(in, numeric));
      check_close(got.values, formula(in, numeric), numeric, kNormAttention);
      for (std::int64_t t = 0; t < c.tokens; ++t)
        CHECK(same_bits(run<TestType>(in.row(t), numeric), got.rows(t, 1).values));
      for (const Paging& paging : kPagings) CHECK(same_bits(run<TestType>(in, numeric, paging), got.values));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("window rows that are not visible take no slots and are not read", "[sparse_attention]",
                        Backends) {
  int hidden = 0;
  for (const Case& c : kCases) {
    for (const std::int64_t back : {0, 1, 5, 80}) {
      if (c.tokens == 0 || back > c.first_position) continue;
      INFO("seed " << c.seed << ", visible from " << back << " before the first");
      Inputs in = make(c);
      in.first_visible = c.first_position - back;
      const std::int64_t oldest = std::max<std::int64_t>(0, c.first_position - c.window + 1),
                         slots = in.ring.extents[0];
      for (std::int64_t p = oldest; p < in.first_visible; ++p, ++hidden) {
        const auto row = in.ring.values.begin() + p % slots * c.width;
        std::fill(row, row + c.width, std::numeric_limits<float>::quiet_NaN());
      }
      for (const Numeric numeric : kNumerics)
        check_close(run<TestType>(in, numeric), formula(in, numeric), numeric, kNormAttention);
    }
  }
  CHECK(hidden > 0);
}

TEMPLATE_LIST_TEST_CASE("the ring's end is invisible: every position gives what a ring with the rows in order gives",
                        "[sparse_attention]", Backends) {
  Random random(30);
  const Inputs straight = make({1, 2, 8, 5, 0, 4, 6, 3, 1, 31});
  const std::vector<float> want = run<TestType>(straight, Numeric::exact);
  for (std::int64_t position = 4; position < 30; ++position) {
    Inputs turned = straight;
    turned.first_position = position;
    turned.ring = random_array<2>(random, {7, 8});  // two slots hold rows that the window has left
    for (std::int64_t back = 0; back < 5; ++back) {
      const auto from = straight.ring.values.begin() + (4 - back) * 8;
      std::copy(from, from + 8, turned.ring.values.begin() + (position - back) % 7 * 8);
    }
    CHECK(same_bits(run<TestType>(turned, Numeric::exact), want));
  }
}

TEMPLATE_LIST_TEST_CASE("a sink takes its share of the denominator only", "[sparse_attention]", Backends) {
  Inputs in = make({1, 1, 4, 2, 0, 1, 0, 0, 1, 32});
  in.q.values.assign(4, 0.0f);
  in.ring.values = {1, 2, 3, 4, 3, 2, 1, 0};
  in.sink = {0};
  const std::vector<float> third = run<TestType>(in, Numeric::exact);  // two rows and the sink, each a third
  for (std::size_t c = 0; c < 4; ++c) CHECK(static_cast<double>(third[c]) == Approx(4.0 / 3).epsilon(1e-6));
  in.sink = {-1e4f};
  CHECK(run<TestType>(in, Numeric::exact) == std::vector<float>{2, 2, 2, 2});
  in.sink = {80};
  for (const float x : run<TestType>(in, Numeric::exact)) CHECK((x >= 0 && x < 1e-30f));
}

TEMPLATE_LIST_TEST_CASE(
    "B54: of the ids -1, 0, len and len + 1 only 0 is used, and a count beyond the list is an error",
    "[sparse_attention]", Backends) {
  Inputs in = make({1, 2, 8, 4, 0, 9, 6, 4, 1, 34});
  Inputs alone = in;
  in.ids.values = {-1, 0, 6, 7}, in.counts.values = {4};
  alone.ids.values = {0, 0x7FFFFFFF, 0x7FFFFFFF, 0x7FFFFFFF}, alone.counts.values = {1};
  for (const Numeric numeric : kNumerics) CHECK(same_bits(run<TestType>(in, numeric), run<TestType>(alone, numeric)));
  for (const std::int32_t count : {-1, 5}) {
    in.counts.values = {count};
    const Failure failure = failure_of([&] { run<TestType>(in, Numeric::exact); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("sparse_attention: counts holds " + std::to_string(count)));
  }
}

TEMPLATE_LIST_TEST_CASE("huge logits stay finite, and the largest takes all", "[sparse_attention]", Backends) {
  Inputs in = make({1, 1, 1, 3, 0, 2, 0, 0, 1, 33});
  in.q.values = {1e6f};
  in.ring.values = {5, 7, -9};
  CHECK(run<TestType>(in, Numeric::exact) == std::vector<float>{7});
  in.q.values = {-1e6f};
  CHECK(run<TestType>(in, Numeric::exact) == std::vector<float>{-9});
}

TEST_CASE("sparse_attention: check() names the field, what it expects and what it got") {
  const ops::SparseAttention good{.q = shaped<const float, 3>({3, 2, 8}),
                                  .ring = shaped_cache(6, 8, CacheFormat::window),
                                  .entries = shaped_cache(9, 8, CacheFormat::entry),
                                  .ids = shaped<const std::int32_t, 2>({3, 4}),
                                  .counts = shaped<const std::int32_t, 1>({3}),
                                  .sink = shaped<const float, 1>({2}),
                                  .out = shaped<float, 3>({3, 2, 8}),
                                  .window = 4};
  check_refuses(good, "ring is [6, 7], expected [6, 8]", [](auto& op) { op.ring = shaped_cache(6, 7); });
  check_refuses(good, "ring is [5, 8], expected at least [6, 8]", [](auto& op) { op.ring = shaped_cache(5, 8); });
  for (const std::int64_t visible : {-1, 1}) {
    check_refuses(good, "first_visible is " + std::to_string(visible) + ", expected 0 to first_position",
                  [&](auto& op) { op.first_visible = visible; });
  }
  check_refuses(good, "sink is [3], expected [2]", [](auto& op) { op.sink = shaped<const float, 1>({3}); });
  check_refuses(good, "out is [3, 2, 9], expected [3, 2, 8]", [](auto& op) { op.out = shaped<float, 3>({3, 2, 9}); });
  check_refuses(good, "ring is of format entry, expected window or f32",
                [](auto& op) { op.ring.format = CacheFormat::entry; });
  check_refuses(good, "entries is [9, 7], expected [9, 8]", [](auto& op) { op.entries = shaped_cache(9, 7); });
  check_refuses(good, "entries is of format index, expected entry or f32",
                [](auto& op) { op.entries.format = CacheFormat::index; });
  check_refuses(good, "entries is 9 pages of 0 rows, expected pages for 9 rows",
                [](auto& op) { op.entries.page_rows = 0; });
  check_refuses(good, "ids is [2, 4], expected [3, 4]", [](auto& op) {
    op.ids = shaped<const std::int32_t, 2>({2, 4});
  });
  check_refuses(good, "counts is [2], expected [3]", [](auto& op) { op.counts = shaped<const std::int32_t, 1>({2}); });
}
