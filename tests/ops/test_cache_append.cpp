// SPDX-License-Identifier: MIT
//
// ops::CacheAppend: rotated, quantised rows in their slots, around the end of a ring.
#include "dsv41/ops/cache_append.hpp"

#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;
using numerics::Quantiser;

namespace {

struct Case {
  std::int64_t rows, width, pairs, capacity, first_position, stride, first_slot;
  Quantiser quantiser;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 32, 4, 5, 3, 1, 3, Quantiser::window_fp8, 1},   {1, 32, 4, 1, 9, 1, 0, Quantiser::window_fp8, 2},
    {5, 64, 8, 5, 100, 1, 3, Quantiser::window_fp8, 3}, {3, 64, 8, 7, 1000, 1, 6, Quantiser::window_fp8, 4},
    {4, 48, 4, 40, 20, 2, 10, Quantiser::entry_fp4, 5}, {7, 32, 2, 9, 12, 3, 4, Quantiser::index_fp4, 6},
    {3, 33, 3, 4, 5, 1, 3, Quantiser::window_fp8, 7},   {2, 7, 1, 11, 1, 8, 10, Quantiser::none, 8},
};

template <class B>
std::pair<std::vector<float>, std::vector<float>> run(const Case& c, const Array<float, 2>& rows,
                                                      const std::vector<float>& f, Numeric numeric) {
  B backend;
  Memory<B> memory(backend);
  const auto in = memory.put(rows);
  const auto cache = memory.put(Array<float, 2>({c.capacity, c.width}, -1.0f));
  const ops::CacheAppend op{.rows = in,
                            .frequencies = memory.put(f),
                            .cache = cache,
                            .first_position = c.first_position,
                            .position_stride = c.stride,
                            .first_slot = c.first_slot,
                            .quantiser = c.quantiser,
                            .numeric = numeric};
  op.check();
  backend.run(op);
  return {memory.get(in), memory.get(cache)};
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
      const auto [in, cache] = run<TestType>(c, rows, f, numeric);
      Doubles want;
      std::vector<float> slots(static_cast<std::size_t>(c.capacity * c.width), -1.0f);
      for (std::int64_t i = 0; i < c.rows; ++i) {
        Doubles row = rotated(slice(rows.values, i * c.width, c.width), c.first_position + i * c.stride, f, false);
        for (double& v : row) v = as_activation(numeric, v);
        row = quantised(c.quantiser, row);
        want.insert(want.end(), row.begin(), row.end());
        for (std::int64_t k = 0; k < c.width; ++k) {
          slots[static_cast<std::size_t>((c.first_slot + i) % c.capacity * c.width + k)] =
              in[static_cast<std::size_t>(i * c.width + k)];
        }
      }
      check_close(in, want, quantises(c.quantiser, c.width) ? Numeric::deployed : numeric);
      CHECK(same_bits(cache, slots));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("B50: pooled row j of ratio 2 is rotated at position 2 j", "[cache_append]", Backends) {
  const std::vector<float> f = {0.5f};
  const auto [in, cache] =
      run<TestType>({3, 2, 1, 3, 0, 2, 0, Quantiser::none, 0}, {{3, 2}, {1, 0, 1, 0, 1, 0}}, f, Numeric::exact);
  for (std::size_t j = 0; j < 3; ++j) {
    CHECK(static_cast<double>(cache[2 * j]) == Approx(std::cos(static_cast<double>(j))).epsilon(1e-6));
    CHECK(static_cast<double>(cache[2 * j + 1]) == Approx(std::sin(static_cast<double>(j))).epsilon(1e-6).margin(1e-7));
  }
}

TEST_CASE("cache_append: check() names the field, what it expects and what it got") {
  const ops::CacheAppend good{
      .rows = shaped<float, 2>({3, 8}), .frequencies = shaped<const float, 1>({4}), .cache = shaped<float, 2>({5, 8})};
  check_refuses(good, "cache is [5, 9], expected [5, 8]", [](auto& op) { op.cache = shaped<float, 2>({5, 9}); });
  check_refuses(good, "cache is [5, 8], expected at least [6, 8]", [](auto& op) {
    op.rows = shaped<float, 2>({6, 8});
  });
  check_refuses(good, "frequencies is 5, expected at most half the width",
                [](auto& op) { op.frequencies = shaped<const float, 1>({5}); });
}
