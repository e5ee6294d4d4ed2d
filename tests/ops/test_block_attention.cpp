// SPDX-License-Identifier: MIT
//
// ops::BlockAttention: context, block and sink against a plain softmax; which keys a block sees, and in which slots.
#include "dsv41/ops/block_attention.hpp"

#include <algorithm>
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
  std::int64_t tokens, heads, width, window, spare, first_position;
  double size;  // of queries: large ones make the softmax sharp
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 2, 8, 4, 0, 9, 1, 1},         {1, 1, 1, 1, 0, 0, 1, 2},      {1, 2, 8, 4, 0, 1, 1, 3},
    {5, 2, 16, 8, 0, 6, 1, 4},        {5, 3, 32, 7, 0, 7, 2, 5},     {5, 2, 33, 8, 0, 8, 2, 6},
    {4, 2, 16, 128, 0, 201, 4, 7},    {7, 1, 64, 61, 5, 1000, 4, 8}, {9, 2, 8, 3, 1, 1 << 20, 1, 9},
    {5, 4, 512, 128, 0, 4095, 1, 10}, {3, 4, 32, 64, 3, 130, 4, 11}, {70, 2, 8, 63, 0, 40, 4, 12},
};

struct Inputs {
  Array<float, 3> q;
  Array<float, 2> ring, block;
  std::vector<float> sink;
  std::int64_t first_position, window, first_visible = 0;
};

Inputs make(const Case& c) {
  Random random(c.seed);
  return {random_array<3>(random, {c.tokens, c.heads, c.width}, c.size),
          random_array<2>(random, {c.window + c.spare, c.width}),
          random_array<2>(random, {c.tokens, c.width}),
          random.normals(c.heads, 2),
          c.first_position,
          c.window};
}

template <class B>
std::vector<float> run(const Inputs& in, Numeric numeric, const Paging& paging = {}) {
  B backend;
  Memory<B> memory(backend);
  const auto out = memory.put(Array<float, 3>(in.q.extents, -1.0f));
  const CacheRows ring = memory.put(CacheFormat::window, in.ring, paging);
  const std::vector<std::uint8_t> before = memory.bytes(ring);
  const ops::BlockAttention op{.q = memory.put(in.q),
                               .ring = ring,
                               .block = memory.put(in.block),
                               .sink = memory.put(in.sink),
                               .out = out,
                               .first_position = in.first_position,
                               .first_visible = in.first_visible,
                               .window = in.window,
                               .numeric = numeric};
  op.check();
  backend.run(op);
  const std::vector<float> got = memory.get(out);
  CHECK(memory.bytes(ring) == before);
  return got;
}

/// What every query of the block sees: the ring in the order of slots p % window, then the block.
SlotRows seen(const Inputs& in) {
  const std::int64_t width = in.q.extents[2];
  SlotRows out;
  std::int64_t slots = 0;
  for (std::int64_t p = std::max<std::int64_t>(0, in.first_position - in.window); p < in.first_position; ++p, ++slots) {
    if (p >= in.first_visible)
      out.push_back({p % in.window, slice(in.ring.values, p % in.ring.extents[0] * width, width)});
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::int64_t i = 0; i < in.block.extents[0]; ++i)
    out.push_back({slots + i, slice(in.block.values, i * width, width)});
  return out;
}

Doubles formula(Inputs in, Numeric numeric) {
  in.ring = cached(CacheFormat::window, in.ring);
  const auto [tokens, heads, width] = in.q.extents;
  const SlotRows rows = seen(in);
  Doubles out;
  for (std::int64_t i = 0; i < tokens * heads; ++i) {
    const Doubles one = head_output(rows, slice(in.q.values, i * width, width),
                                    static_cast<double>(in.sink[static_cast<std::size_t>(i % heads)]), numeric);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("block attention equals the softmax over context, block and sink", "[block_attention]",
                        Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << ", " << numeric_name(numeric));
      const Inputs in = make(c);
      const std::vector<float> got = run<TestType>(in, numeric);
      check_close(got, formula(in, numeric), numeric, kNormAttention);
      for (const Paging& paging : kPagings) CHECK(same_bits(run<TestType>(in, numeric, paging), got));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("context rows that are not visible leave their slots empty and are not read",
                        "[block_attention]", Backends) {
  int hidden = 0;
  for (const Case& c : kCases) {
    for (const std::int64_t back : {0, 1, 5, 80}) {
      if (c.tokens == 0 || back > c.first_position) continue;
      INFO("seed " << c.seed << ", visible from " << back << " before the block");
      Inputs in = make(c);
      in.first_visible = c.first_position - back;
      for (std::int64_t p = std::max<std::int64_t>(0, c.first_position - c.window); p < in.first_visible;
           ++p, ++hidden) {
        const auto row = in.ring.values.begin() + p % in.ring.extents[0] * c.width;
        std::fill(row, row + c.width, std::numeric_limits<float>::quiet_NaN());
      }
      for (const Numeric numeric : kNumerics)
        check_close(run<TestType>(in, numeric), formula(in, numeric), numeric, kNormAttention);
    }
  }
  CHECK(hidden > 0);
}

TEMPLATE_LIST_TEST_CASE("every row sees every other of its block, and all see the same window", "[block_attention]",
                        Backends) {
  Inputs in = make({5, 2, 16, 8, 0, 30, 1, 20});
  std::copy_n(in.q.values.begin(), 32, in.q.values.begin() + 4 * 32);  // equal queries, so equal answers
  const std::vector<float> got = run<TestType>(in, Numeric::exact);
  CHECK(same_bits(std::vector<float>(got.begin(), got.begin() + 32), std::vector<float>(got.end() - 32, got.end())));
  in.block.values.back() += 1;
  const std::vector<float> other = run<TestType>(in, Numeric::exact);
  for (std::size_t row = 0; row < 5; ++row) CHECK(got[row * 32 + 15] != other[row * 32 + 15]);
}

TEMPLATE_LIST_TEST_CASE("the window ends before the block: a row that it has left is not read", "[block_attention]",
                        Backends) {
  Inputs in = make({5, 2, 16, 8, 1, 30, 1, 21});  // nine slots: that of position 21 is one too old
  const std::vector<float> want = run<TestType>(in, Numeric::exact);
  std::fill_n(in.ring.values.begin() + 21 % 9 * 16, 16, std::numeric_limits<float>::quiet_NaN());
  CHECK(same_bits(run<TestType>(in, Numeric::exact), want));
  std::fill_n(in.ring.values.begin() + 22 % 9 * 16, 16, 0.0f);
  CHECK(!same_bits(run<TestType>(in, Numeric::exact), want));
}

TEST_CASE("block_attention: check() names the field, what it expects and what it got") {
  const ops::BlockAttention good{.q = shaped<const float, 3>({3, 2, 8}),
                                 .ring = shaped_cache(4, 8, CacheFormat::window),
                                 .block = shaped<const float, 2>({3, 8}),
                                 .sink = shaped<const float, 1>({2}),
                                 .out = shaped<float, 3>({3, 2, 8}),
                                 .first_position = 5,
                                 .window = 4};
  check_refuses(good, "window is 0, expected at least 1", [](auto& op) { op.window = 0; });
  check_refuses(good, "ring is [4, 7], expected [4, 8]", [](auto& op) { op.ring = shaped_cache(4, 7); });
  check_refuses(good, "ring is [3, 8], expected at least [4, 8]", [](auto& op) { op.ring = shaped_cache(3, 8); });
  check_refuses(good, "ring is of format index, expected window or f32",
                [](auto& op) { op.ring.format = CacheFormat::index; });
  for (const std::int64_t visible : {-1, 6}) {
    check_refuses(good, "first_visible is " + std::to_string(visible) + ", expected 0 to first_position",
                  [&](auto& op) { op.first_visible = visible; });
  }
  check_refuses(good, "block is [2, 8], expected [3, 8]", [](auto& op) { op.block = shaped<const float, 2>({2, 8}); });
  check_refuses(good, "sink is [3], expected [2]", [](auto& op) { op.sink = shaped<const float, 1>({3}); });
  check_refuses(good, "out is [3, 2, 9], expected [3, 2, 8]", [](auto& op) { op.out = shaped<float, 3>({3, 2, 9}); });
}
