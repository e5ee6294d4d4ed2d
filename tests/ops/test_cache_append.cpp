// SPDX-License-Identifier: MIT
//
// ops::CacheAppend: rotated, packed rows in their slots, around the end of a ring, on any pages.
#include "dsv41/ops/cache_append.hpp"

#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t rows, width, pairs, capacity, first_position, stride, first_slot;
  CacheFormat format;
  std::uint64_t seed;
};

constexpr CacheFormat f32 = CacheFormat::f32, window = CacheFormat::window, entry = CacheFormat::entry,
                      index = CacheFormat::index;

const Case kCases[] = {
    {0, 32, 4, 5, 3, 1, 3, window, 1},    {1, 32, 4, 1, 9, 1, 0, window, 2},   {5, 64, 8, 5, 100, 1, 3, window, 3},
    {3, 64, 8, 7, 1000, 1, 6, window, 4}, {4, 48, 4, 40, 20, 2, 10, entry, 5}, {7, 32, 2, 9, 12, 3, 4, index, 6},
    {3, 33, 3, 4, 5, 1, 3, window, 7},    {3, 33, 3, 4, 5, 1, 3, entry, 8},    {3, 33, 3, 4, 5, 1, 3, index, 9},
    {2, 7, 1, 11, 1, 8, 10, f32, 10},     {4, 32, 4, 5, 7, 1, 3, f32, 11},     {2, 512, 32, 9, 70, 1, 8, window, 12},
    {5, 512, 32, 8, 70, 1, 6, entry, 13}, {4, 128, 32, 9, 4, 2, 2, index, 14},
};

constexpr float kOld = -6;  // what slots hold before; every format keeps it as it is

struct Outputs {
  std::vector<float> rows, cache;           // values
  std::vector<std::uint8_t> bytes, before;  // of the cache
  bool untouched = false;                   // between its rows
};

template <class B>
Outputs run(const Case& c, const Array<float, 2>& rows, const std::vector<float>& f, Numeric numeric,
            const Paging& paging = {}) {
  B backend;
  Memory<B> memory(backend);
  const auto in = memory.put(rows);
  const CacheRows cache = memory.put(c.format, Array<float, 2>({c.capacity, c.width}, kOld), paging);
  const std::vector<std::uint8_t> before = memory.bytes(cache);
  const ops::CacheAppend op{.rows = in,
                            .frequencies = memory.put(f),
                            .cache = cache,
                            .first_position = c.first_position,
                            .position_stride = c.stride,
                            .first_slot = c.first_slot,
                            .numeric = numeric};
  op.check();
  backend.run(op);
  return {memory.get(in), memory.get(cache), memory.bytes(cache), before, memory.untouched_between(cache)};
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("cache_append stores each row in its slot, wraps, and leaves other slots alone",
                        "[cache_append]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << ", " << numeric_name(numeric));
      Random random(c.seed);
      const Array<float, 2> rows = random_array<2>(random, {c.rows, c.width});
      std::vector<float> f;
      for (std::int64_t i = 0; i < c.pairs; ++i) f.push_back(random.uniform(1e-4, 1));
      const Outputs got = run<TestType>(c, rows, f, numeric);
      Doubles want;
      std::vector<float> slots(static_cast<std::size_t>(c.capacity * c.width), kOld);
      std::vector<std::uint8_t> others = got.bytes;  // the old bytes in every slot that no row went to
      const auto bytes = static_cast<std::ptrdiff_t>(row_bytes(c.format, c.width));
      std::vector<bool> written(static_cast<std::size_t>(c.capacity));
      for (std::int64_t i = 0; i < c.rows; ++i) {
        Doubles row = rotated(slice(rows.values, i * c.width, c.width), c.first_position + i * c.stride, f, false);
        for (double& v : row) v = as_activation(numeric, v);
        row = quantised(quantiser_behind(c.format), row);
        want.insert(want.end(), row.begin(), row.end());
        written[static_cast<std::size_t>((c.first_slot + i) % c.capacity)] = true;
        for (std::int64_t k = 0; k < c.width; ++k) {
          slots[static_cast<std::size_t>((c.first_slot + i) % c.capacity * c.width + k)] =
              got.rows[static_cast<std::size_t>(i * c.width + k)];
        }
      }
      for (std::ptrdiff_t s = 0; s < c.capacity; ++s) {
        if (!written[static_cast<std::size_t>(s)])
          std::copy_n(got.before.begin() + s * bytes, bytes, others.begin() + s * bytes);
      }
      check_close(got.rows, want, quantises(quantiser_behind(c.format), c.width) ? Numeric::deployed : numeric);
      CHECK(same_bits(got.cache, slots));
      CHECK(same_bits(got.bytes, others));
      for (const Paging& paging : kPagings) {
        INFO("pages of " << paging.page_rows);
        const Outputs paged = run<TestType>(c, rows, f, numeric, paging);
        CHECK(same_bits(paged.bytes, got.bytes));
        CHECK(same_bits(paged.rows, got.rows));
        CHECK(paged.untouched);
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("B50: pooled row j of ratio 2 is rotated at position 2 j", "[cache_append]", Backends) {
  const std::vector<float> f = {0.5f};
  const std::vector<float> cache =
      run<TestType>({3, 2, 1, 3, 0, 2, 0, f32, 0}, {{3, 2}, {1, 0, 1, 0, 1, 0}}, f, Numeric::exact).cache;
  for (std::size_t j = 0; j < 3; ++j) {
    CHECK(static_cast<double>(cache[2 * j]) == Approx(std::cos(static_cast<double>(j))).epsilon(1e-6));
    CHECK(static_cast<double>(cache[2 * j + 1]) == Approx(std::sin(static_cast<double>(j))).epsilon(1e-6).margin(1e-7));
  }
}

TEST_CASE("cache_append: check() names the field, what it expects and what it got") {
  const ops::CacheAppend good{
      .rows = shaped<float, 2>({3, 8}), .frequencies = shaped<const float, 1>({4}), .cache = shaped_cache(5, 8)};
  check_refuses(good, "first_position is -1, expected at least 0", [](auto& op) { op.first_position = -1; });
  check_refuses(good, "cache is [5, 9], expected [5, 8]", [](auto& op) { op.cache = shaped_cache(5, 9); });
  check_refuses(good, "cache is [5, 8], expected at least [6, 8]", [](auto& op) {
    op.rows = shaped<float, 2>({6, 8});
  });
  check_refuses(good, "cache is 2 pages of 2 rows, expected pages for 5 rows",
                [](auto& op) { op.cache.pages = shaped<std::byte* const, 1>({2}), op.cache.page_rows = 2; });
  check_refuses(good, "cache is 5 pages of 0 rows, expected pages for 5 rows",
                [](auto& op) { op.cache.page_rows = 0; });
  check_refuses(good, "cache is at offset -1, expected at least 0", [](auto& op) { op.cache.offset = -1; });
  check_refuses(good, "frequencies is 5, expected at most half the width",
                [](auto& op) { op.frequencies = shaped<const float, 1>({5}); });
}
