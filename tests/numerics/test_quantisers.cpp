// SPDX-License-Identifier: MIT
//
// Block quantisers: the published numbers, and random rows against a second statement in double.
#include "dsv41/numerics/quantisers.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"
#include "support/random.hpp"

using namespace dsv41::numerics;
using namespace dsv41::test;

namespace {

constexpr Quantiser kAll[] = {Quantiser::none, Quantiser::window_fp8, Quantiser::entry_fp4, Quantiser::index_fp4,
                              Quantiser::input_fp8};

float scale_of_block(Quantiser q, float amax) {
  return scale_decode(q, scale_encode(q, amax));
}

std::vector<float> through(Quantiser q, std::vector<float> row) {
  quantise_row(q, row.data(), static_cast<std::int64_t>(row.size()));
  return row;
}

/// Number of elements that differ from the second statement.
std::size_t differing(Quantiser q, const std::vector<float>& row) {
  const std::vector<float> got = through(q, row);
  const Doubles want = quantised(q, Doubles(row.begin(), row.end()));
  std::size_t count = 0;
  for (std::size_t i = 0; i < got.size(); ++i) count += static_cast<double>(got[i]) != want[i];
  return count;
}

}  // namespace

TEST_CASE("B38: scales of all-zero and boundary blocks") {
  for (const Quantiser q : {Quantiser::window_fp8, Quantiser::input_fp8}) {
    CHECK(scale_of_block(q, 0.0f) == 0x1p-22f);  // E8M0 code 105
    CHECK(scale_of_block(q, 448.0f) == 1.0f);
    CHECK(scale_of_block(q, 448.5f) == 2.0f);
    CHECK(scale_of_block(q, 224.0f) == 0.5f);
  }
  CHECK(scale_of_block(Quantiser::entry_fp4, 0.0f) == 0x1p-9f);
  CHECK(scale_of_block(Quantiser::entry_fp4, 6.0f) == 1.0f);
  CHECK(scale_of_block(Quantiser::entry_fp4, 6.0f * 448) == 448.0f);
  CHECK(scale_of_block(Quantiser::entry_fp4, 1e30f) == 448.0f);  // never the NaN code
  // Just below six times a midpoint of two E4M3 codes; a product with 1 / 6 would land on it and round up.
  CHECK(scale_of_block(Quantiser::entry_fp4, 0x1.c7fffep0f) == 0.28125f);
  CHECK(scale_of_block(Quantiser::index_fp4, 0.0f) == 0x1p-126f);
  CHECK(scale_of_block(Quantiser::index_fp4, 6.0f) == 1.0f);
  CHECK(scale_of_block(Quantiser::index_fp4, std::nextafter(6.0f, 7.0f)) == 2.0f);
}

TEST_CASE("B38: a block of zeros stays zeros under every quantiser") {
  for (const Quantiser q : kAll) {
    for (const float x : through(q, std::vector<float>(64, 0.0f))) CHECK(x == 0.0f);
  }
}

TEST_CASE("the largest magnitude of every scale survives, and saturated entries clamp") {
  CHECK(through(Quantiser::window_fp8, std::vector<float>(32, 448.0f))[0] == 448.0f);
  CHECK(through(Quantiser::window_fp8, std::vector<float>(32, -449.0f))[0] == -448.0f);  // 224.5 -> 224, scale 2
  CHECK(through(Quantiser::entry_fp4, std::vector<float>(16, 1e6f))[0] == 6.0f * 448.0f);
  CHECK(through(Quantiser::entry_fp4, std::vector<float>(16, -1e6f))[0] == -6.0f * 448.0f);
}

TEST_CASE("random rows equal the second statement, at every size of numbers") {
  Random random(1);
  for (const Quantiser q : kAll) {
    for (int exponent = -40; exponent <= 40; exponent += 4) {
      INFO("quantiser " << static_cast<int>(q) << " size 2^" << exponent);
      CHECK(differing(q, random.normals(256, std::ldexp(1.0, exponent))) == 0);
    }
    CHECK(differing(q, random.normals(32, 1e-37)) == 0);
    CHECK(differing(q, random.normals(32, 1e30)) == 0);
  }
}

TEST_CASE("values on rounding boundaries equal the second statement") {
  for (const Quantiser q : kAll) {
    std::vector<float> row(96, 0.0f);
    row[0] = 6, row[16] = 6, row[32] = 448, row[48] = -448, row[64] = 0x1p-20f;
    for (std::size_t i = 1; i < 16; ++i) {
      row[i] = static_cast<float>(i) * 0.25f, row[16 + i] = -row[i];
      row[32 + i] = static_cast<float>(i) * 0x1p-10f, row[48 + i] = 17 * static_cast<float>(i);
    }
    INFO(static_cast<int>(q));
    CHECK(differing(q, row) == 0);
  }
}

TEST_CASE("a row whose length is no multiple of the block stays, except linear inputs with their short last block") {
  Random random(2);
  for (const std::int64_t count : {1, 15, 17, 31, 33, 40, 67}) {
    const std::vector<float> row = random.normals(count);
    for (const Quantiser q : {Quantiser::none, Quantiser::window_fp8, Quantiser::entry_fp4, Quantiser::index_fp4}) {
      CHECK(through(q, row) == row);
    }
    CHECK(differing(Quantiser::input_fp8, row) == 0);
    CHECK(through(Quantiser::input_fp8, row) != row);
  }
}

TEST_CASE("quantising twice changes nothing more") {
  Random random(3);
  for (const Quantiser q : kAll) {
    if (q == Quantiser::entry_fp4) continue;  // its E4M3 scale is derived again from a clamped maximum
    const std::vector<float> once = through(q, random.normals(320, 3));
    CHECK(through(q, once) == once);
  }
}

TEST_CASE("a NaN stays NaN in FP8 and leaves its block mates alone") {
  for (const Quantiser q : {Quantiser::window_fp8, Quantiser::input_fp8}) {
    std::vector<float> row(32, 3.0f);
    row[5] = std::nanf("");
    const std::vector<float> got = through(q, row);
    for (std::size_t i = 0; i < row.size(); ++i) CHECK((i == 5 ? std::isnan(got[i]) : got[i] == 3.0f));
  }
}
