// SPDX-License-Identifier: MIT
//
// Element formats: every code by its formula, every encoder against the nearest value by distance.
#include "dsv41/numerics/formats.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"
#include "support/random.hpp"

using namespace dsv41::numerics;
using namespace dsv41::test;

namespace {

bool same(float got, double want) {
  if (std::isnan(want)) return std::isnan(got);
  return static_cast<double>(got) == want && std::signbit(got) == std::signbit(want);
}

/// The code whose value lies nearest to x; of two equally near ones the even code.
template <class Decode>
int nearest_code(double x, int codes, const Decode& decode) {
  int best = -1;
  for (int code = 0; code < codes; ++code) {
    const double distance = std::fabs(decode(code) - x);
    if (std::isnan(distance)) continue;
    const double so_far = best < 0 ? HUGE_VAL : std::fabs(decode(best) - x);
    if (distance < so_far || (distance == so_far && code % 2 == 0)) best = code;
  }
  return best;
}

/// Points that decide an encoder between each pair of neighbours: both ends, the midpoint, its float neighbours, and some between.
template <class Decode>
std::vector<float> deciding_points(int codes, const Decode& decode) {
  std::vector<float> out;
  for (int code = 0; code + 1 < codes && !std::isnan(decode(code + 1)); ++code) {
    const double a = decode(code), b = decode(code + 1);
    const float middle = static_cast<float>((a + b) / 2);
    for (const float x : {static_cast<float>(a), std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e9f),
                          static_cast<float>(b)}) {
      out.push_back(x);
    }
    for (int i = 1; i < 32; ++i) out.push_back(static_cast<float>(a + (b - a) * i / 32));
  }
  return out;
}

}  // namespace

TEST_CASE("B34: all 256 E4M3 codes decode by the formula") {
  for (int code = 0; code < 256; ++code) {
    INFO(code);
    CHECK(same(e4m3_decode(static_cast<std::uint8_t>(code)), e4m3_value(code)));
  }
  CHECK(e4m3_decode(0x01) == 0.001953125f);
  CHECK(e4m3_decode(0x07) == 0.013671875f);
  CHECK(e4m3_decode(0x08) == 0.015625f);
  CHECK(e4m3_decode(0x38) == 1.0f);
  CHECK(e4m3_decode(0x7E) == 448.0f);
  CHECK(std::isnan(e4m3_decode(0x7F)));
  CHECK(std::isnan(e4m3_decode(0xFF)));
  CHECK(std::signbit(e4m3_decode(0x80)));
}

TEST_CASE("all 16 E2M1 codes and all 256 E8M0 codes decode by the formula") {
  for (int code = 0; code < 16; ++code) CHECK(same(e2m1_decode(static_cast<std::uint8_t>(code)), e2m1_value(code)));
  for (int code = 0; code < 256; ++code) CHECK(same(e8m0_decode(static_cast<std::uint8_t>(code)), e8m0_value(code)));
}

TEST_CASE("all 65536 F16 codes decode by the formula") {
  int wrong = 0;
  for (int code = 0; code < 65536; ++code)
    wrong += !same(f16_decode(static_cast<std::uint16_t>(code)), f16_value(code));
  CHECK(wrong == 0);
}

TEST_CASE("all 65536 BF16 codes decode to the float with the same upper half, and encode back") {
  int wrong = 0;
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const auto h = static_cast<std::uint16_t>(code);
    const float x = bf16_decode(h);
    wrong += std::bit_cast<std::uint32_t>(x) != code << 16;
    wrong += std::isnan(x) ? !std::isnan(bf16_round(x)) : bf16_encode_rne(x) != h;
  }
  CHECK(wrong == 0);
}

TEST_CASE("BF16 rounds to nearest, ties to even, and keeps NaN") {
  int wrong = 0;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    for (const std::uint32_t lower : {0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      if (std::isnan(x)) {
        wrong += !std::isnan(bf16_round(x));
        continue;
      }
      double want = nearest(static_cast<double>(x), 8, 0x1p-133);
      if (std::fabs(want) >= 0x1p128) want = std::copysign(HUGE_VAL, want);  // beyond the largest: infinity
      wrong += static_cast<double>(bf16_round(x)) != want;
    }
  }
  CHECK(wrong == 0);
  CHECK(bf16_round(std::bit_cast<float>(0x3F808000u)) == 1.0f);
  CHECK(bf16_round(std::bit_cast<float>(0x3F818000u)) == std::bit_cast<float>(0x3F820000u));
  CHECK(std::isnan(bf16_round(std::bit_cast<float>(0x7F800001u))));  // its payload lies below the cut
  CHECK(std::isinf(bf16_round(std::numeric_limits<float>::max())));
}

TEST_CASE("E4M3 encodes every code to itself and everything between to the nearest, ties to even") {
  for (int code = 0; code < 256; ++code) {
    if (code % 128 == 127) continue;
    CHECK(e4m3_encode_rne(e4m3_decode(static_cast<std::uint8_t>(code))) == code);
  }
  int wrong = 0;
  for (const float x : deciding_points(128, e4m3_value)) {
    const int want = nearest_code(static_cast<double>(x), 127, e4m3_value);
    wrong += e4m3_encode_rne(x) != want;
    wrong += e4m3_encode_rne(-x) != want + 128;
    wrong += to_e4m3(static_cast<double>(x)) != e4m3_value(want);  // the other statement used by the suite
  }
  CHECK(wrong == 0);
  CHECK(e4m3_encode_rne(0x1p-10f) == 0);   // half of the smallest step, to even
  CHECK(e4m3_encode_rne(0x1.8p-9f) == 2);  // 1.5 steps, to even
  CHECK(e4m3_encode_rne(std::nanf("")) == 0x7F);
  CHECK(e4m3_encode_rne(449.0f) == 0x7F);  // the caller clamps
  CHECK(e4m3_encode_rne(0x1p-149f) == 0);
}

TEST_CASE("E2M1 encodes every code to itself and everything between to the nearest, ties to even") {
  for (int code = 0; code < 16; ++code) CHECK(e2m1_encode_rne(e2m1_decode(static_cast<std::uint8_t>(code))) == code);
  int wrong = 0;
  for (const float x : deciding_points(8, e2m1_value)) {
    const int want = nearest_code(static_cast<double>(x), 8, e2m1_value);
    wrong += e2m1_encode_rne(x) != want;
    wrong += e2m1_encode_rne(-x) != want + 8;
    wrong += to_e2m1(static_cast<double>(x)) != e2m1_value(want);
  }
  CHECK(wrong == 0);
}

TEST_CASE("B38: E2M1 ties are .25->0 .75->1 1.25->1 1.75->2 2.5->2 3.5->4 5->4, negatives alike") {
  const float ties[][2] = {{.25f, 0}, {.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5, 4}};
  for (const auto& [x, want] : ties) {
    CHECK(e2m1_decode(e2m1_encode_rne(x)) == want);
    CHECK(e2m1_decode(e2m1_encode_rne(-x)) == -want);
  }
}

TEST_CASE("pow2ceil is the smallest power of two at or above t, for every exponent") {
  int wrong = 0;
  for (std::uint32_t exponent = 1; exponent < 254; ++exponent) {
    for (const std::uint32_t mantissa : {0u, 1u, 2u, 0x3FFFFFu, 0x400000u, 0x7FFFFEu, 0x7FFFFFu}) {
      const float t = std::bit_cast<float>(exponent << 23 | mantissa);
      const double got = static_cast<double>(pow2ceil(t)), x = static_cast<double>(t);
      wrong += !(got >= x && got / 2 < x && std::exp2(std::round(std::log2(got))) == got);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("load_unaligned reads at every byte offset") {
  std::uint8_t bytes[24] = {};
  for (std::size_t offset = 0; offset < 16; ++offset) {
    const double value = 1.0 / static_cast<double>(offset + 3);
    std::memcpy(bytes + offset, &value, sizeof value);
    CHECK(load_unaligned<double>(bytes + offset) == value);
  }
}
