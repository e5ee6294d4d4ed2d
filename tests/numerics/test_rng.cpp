// SPDX-License-Identifier: MIT
//
// The generator against its published vectors, the bits of both uniforms, and the independence of the keys.
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "../support/catch.hpp"
#include "dsv41/numerics/rng.hpp"

using namespace dsv41::numerics;

namespace {

std::vector<std::uint32_t> words(const RandomBlock& b) {
  return {b.word, b.word + 4};
}

using Words = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("philox4x32 with ten rounds gives the known answers of Random123", "[rng]") {
  const std::uint32_t ones = 0xffffffff;
  CHECK(words(philox4x32({{0, 0, 0, 0}}, 0)) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words(philox4x32({{ones, ones, ones, ones}}, ~std::uint64_t{0})) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  // Digits of pi: counter first, then the key, word 0 lowest.
  CHECK(words(philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822)) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a draw is keyed by seed, position, purpose and index", "[rng]") {
  const std::int64_t position = 0x123456789;
  CHECK(words(random_block(7, position, Purpose::residual, 5)) == words(philox4x32({{0x23456789, 1, 3, 5}}, 7)));
  static_assert(random_block(1, 2, Purpose::sample).word[0] == random_block(1, 2, Purpose::sample).word[0]);

  std::set<Words> seen;
  std::size_t keys = 0;
  for (std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32, ~std::uint64_t{0}}) {
    for (std::int64_t at : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 32}) {
      for (Purpose p : {Purpose::sample, Purpose::draft, Purpose::acceptance, Purpose::residual}) {
        for (std::uint32_t index : {0u, 1u}) {
          seen.insert(words(random_block(seed, at, p, index)));
          ++keys;
        }
      }
    }
  }
  CHECK(seen.size() == keys);
}

TEST_CASE("uniforms reach exactly the ends they promise", "[rng]") {
  const RandomBlock zeros{{0, 0, 0, 0}}, ones{{0xffffffff, 0xffffffff, 0, 0}}, low{{0x7ff, 0, 0, 0}},
      one{{0x800, 0, 0, 0}};
  CHECK(uniform_below_one(zeros) == 0.0);
  CHECK(uniform_below_one(ones) == 1.0 - 0x1p-53);
  CHECK(uniform_below_one(low) == 0.0);
  CHECK(uniform_below_one(one) == 0x1p-53);
  CHECK(uniform_above_zero(zeros) == 0x1p-53);
  CHECK(uniform_above_zero(ones) == 1.0);
}

TEST_CASE("uniforms are uniform, and draws of two purposes are uncorrelated", "[rng]") {
  const int draws = 200000, cells = 100;
  std::vector<double> count(cells, 0);
  double sum_xy = 0;
  for (int i = 0; i < draws; ++i) {
    const double x = uniform_below_one(random_block(42, i, Purpose::sample));
    const double y = uniform_below_one(random_block(42, i, Purpose::draft));
    count[static_cast<std::size_t>(x * cells)] += 1;
    sum_xy += (x - 0.5) * (y - 0.5);
  }
  double chi2 = 0;
  for (double c : count) chi2 += (c - draws / cells) * (c - draws / cells) / (draws / cells);
  CHECK(chi2 > 45.0);  // 99 degrees of freedom: 6e-7 below, 4e-6 above the bounds
  CHECK(chi2 < 175.0);
  CHECK(std::abs(12.0 * sum_xy / draws) < 5.0 / std::sqrt(draws));
}
