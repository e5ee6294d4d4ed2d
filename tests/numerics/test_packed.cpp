// SPDX-License-Identifier: MIT
//
// Packed rows: the quantisers' bits, and every byte against the layout written out a second time.
#include "dsv41/numerics/packed.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::numerics;
using namespace dsv41::test;

namespace {

constexpr CacheFormat kPacked[] = {CacheFormat::window, CacheFormat::entry, CacheFormat::index};
constexpr CacheFormat kAll[] = {CacheFormat::f32, CacheFormat::window, CacheFormat::entry, CacheFormat::index};

using Bytes = std::vector<std::uint8_t>;

/// The packed row, behind and in front of bytes that it must leave alone, at an odd address.
Bytes packed(CacheFormat f, const std::vector<float>& row) {
  const std::size_t bytes = static_cast<std::size_t>(row_bytes(f, static_cast<std::int64_t>(row.size())));
  Bytes block(bytes + 8, 0x5A);
  pack_row(f, row.data(), static_cast<std::int64_t>(row.size()), reinterpret_cast<std::byte*>(block.data() + 3));
  CHECK(std::count(block.begin(), block.begin() + 3, 0x5A) == 3);
  CHECK(std::count(block.end() - 5, block.end(), 0x5A) == 5);
  return {block.begin() + 3, block.end() - 5};
}

std::vector<float> through(CacheFormat f, const std::vector<float>& row) {
  const Bytes bytes = packed(f, row);
  std::vector<float> out(row.size());
  const auto width = static_cast<std::int64_t>(row.size());
  unpack_row(f, width, reinterpret_cast<const std::byte*>(bytes.data()), 0, width, out.data());
  return out;
}

std::vector<float> quantised_row(CacheFormat f, std::vector<float> row) {
  quantise_row(quantiser_of(f), row.data(), static_cast<std::int64_t>(row.size()));
  return row;
}

/// Holds a row against the quantiser, to the bit, and against the layout's second statement.
void check_row(CacheFormat f, const std::vector<float>& row) {
  const std::vector<float> got = through(f, row);
  CHECK(same_bits(got, quantised_row(f, row)));
  const std::vector<float> want = unpacked(f, static_cast<std::int64_t>(row.size()), packed(f, row).data());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    wrong += std::isnan(got[i]) ? !std::isnan(want[i]) : !same_bits<float>({got[i]}, {want[i]});
  CHECK(wrong == 0);
}

float any_float(Random& random) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()));
}

}  // namespace

TEST_CASE("unpacking what was packed gives the quantiser's bits, at every size of numbers and every width") {
  Random random(1);
  for (const CacheFormat f : kAll) {
    for (int exponent = -149; exponent <= 127; ++exponent) {
      INFO(cache_format_name(f) << ", size 2^" << exponent);
      check_row(f, random.normals(64, std::ldexp(1.0, exponent)));
    }
    for (const std::int64_t width : {1, 7, 15, 16, 17, 31, 32, 33, 48, 64, 80, 96, 100, 128, 512, 520, 528}) {
      INFO(cache_format_name(f) << ", width " << width);
      check_row(f, random.normals(width));
    }
  }
}

TEST_CASE("any bits at all, NaN, infinities, subnormals and -0 included, come back as the quantiser leaves them") {
  Random random(2);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf(""), tiny = 0x1p-149f;
  const float special[] = {nan,   -nan,      inf,   -inf,   0.0f, -0.0f,  tiny,
                           -tiny, 0x1p-126f, 3e38f, -3e38f, 1.0f, 448.0f, 6.0f};
  for (const CacheFormat f : kAll) {
    INFO(cache_format_name(f));
    for (int round = 0; round < 200; ++round) {
      std::vector<float> row(96);
      for (float& x : row) x = any_float(random);
      check_row(f, row);
      for (std::size_t i = 0; i < row.size(); ++i)  // a NaN or an infinity in some blocks only
        row[i] = random.below(12) == 0 ? special[random.below(14)]
                                       : random.normal(std::ldexp(1.0, static_cast<int>(i / 16)));
      check_row(f, row);
    }
    for (const float x : special) {
      for (const float mates : {0.0f, -0.0f, 1.0f, -nan, inf}) {
        std::vector<float> row(64, mates);
        row[5] = row[40] = x;
        check_row(f, row);
      }
    }
  }
}

TEST_CASE(
    "an infinity poisons its block under an E8M0 scale and saturates under an E4M3 one; NaN has no part in a scale") {
  const float inf = std::numeric_limits<float>::infinity();
  for (const CacheFormat f : {CacheFormat::window, CacheFormat::index}) {
    std::vector<float> row(64, 1.0f);
    row[3] = -inf;
    const Bytes bytes = packed(f, row);
    const std::vector<float> got = through(f, row);
    CHECK(bytes[static_cast<std::size_t>(value_bytes(f, 64))] == 255);
    CHECK(std::count(bytes.begin(), bytes.begin() + value_bytes(f, 32), 0) == value_bytes(f, 32));
    for (std::size_t i = 0; i < 64; ++i) CHECK(std::isnan(got[i]) == (i < 32));
  }
  std::vector<float> row(32, 1.0f);
  row[3] = -inf, row[4] = std::nanf(""), row[20] = -std::nanf("");
  const std::vector<float> got = through(CacheFormat::entry, row);
  CHECK(got[3] == -6 * 448.0f);
  CHECK(got[4] == 6 * 448.0f);
  CHECK(got[0] == 0);
  CHECK(got[16] == quantised_row(CacheFormat::entry, std::vector<float>(16, 1.0f))[0]);  // the other block
  CHECK(got[20] < 0);
}

TEST_CASE("every code of every format is where the layout says, and is worth what its tables say") {
  for (const CacheFormat f : kPacked) {
    const bool wide = f == CacheFormat::window;
    const std::int64_t width = 256, block = f == CacheFormat::entry ? 16 : 32, codes = wide ? 256 : 16;
    Bytes bytes(static_cast<std::size_t>(row_bytes(f, width)));
    // All 256 E4M3 codes once; all E2M1 codes in either half of a byte.
    const auto code_of = [&](std::int64_t c) { return static_cast<int>((c * 7 + (wide ? 0 : c / 16)) % codes); };
    for (std::int64_t c = 0; c < width; ++c) {
      std::uint8_t& byte = bytes[static_cast<std::size_t>(wide ? c : c / 2)];
      byte = static_cast<std::uint8_t>(byte + (wide || c % 2 == 0 ? code_of(c) : 16 * code_of(c)));
    }
    const auto values = static_cast<std::size_t>(width / (wide ? 1 : 2));
    for (std::size_t b = 0; values + b < bytes.size(); ++b)
      bytes[values + b] = static_cast<std::uint8_t>(f == CacheFormat::entry ? 8 * (b % 7) + 33 : 124 + b % 7);
    std::vector<float> got(static_cast<std::size_t>(width));
    unpack_row(f, width, reinterpret_cast<const std::byte*>(bytes.data()), 0, width, got.data());
    std::size_t wrong = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const int scale = bytes[values + static_cast<std::size_t>(c / block)];
      const double value = wide ? e4m3_value(code_of(c)) : e2m1_value(code_of(c));
      const double want = value * (f == CacheFormat::entry ? e4m3_value(scale) : e8m0_value(scale));
      const auto x = static_cast<double>(got[static_cast<std::size_t>(c)]);
      wrong += std::isnan(want) ? !std::isnan(x) : x != want || std::signbit(x) != std::signbit(want);
    }
    INFO(cache_format_name(f));
    CHECK(wrong == 0);
  }
}

TEST_CASE("B36: rows written by hand: values first, the even channel in the low nibble, then the scales") {
  std::vector<float> row(32, 0.0f);
  row[0] = 6, row[1] = -1, row[2] = 0.5f, row[31] = 3;  // both blocks of 16 scale by 1 and by 0.5, a block of 32 by 1
  Bytes entry(16 + 2, 0), index(16 + 1, 0), window(32 + 1, 0);
  entry[0] = 0xA7, entry[1] = 0x01, entry[15] = 0x70, entry[16] = 0x38, entry[17] = 0x30;
  index[0] = 0xA7, index[1] = 0x01, index[15] = 0x50, index[16] = 127;
  CHECK(packed(CacheFormat::entry, row) == entry);
  CHECK(packed(CacheFormat::index, row) == index);
  row[0] = 448;
  window[0] = 0x7E, window[1] = 0xB8, window[2] = 0x30, window[31] = 0x44, window[32] = 127;
  CHECK(packed(CacheFormat::window, row) == window);
}

TEST_CASE("B94: any part of a row unpacks as the whole does") {
  Random random(3);
  for (const CacheFormat f : kAll) {
    for (const std::int64_t width : {64, 67}) {
      const std::vector<float> row = random.normals(width), whole = through(f, row);
      const Bytes bytes = packed(f, row);
      std::size_t wrong = 0;
      for (std::int64_t first = 0; first <= width; ++first) {
        for (std::int64_t count = 0; first + count <= width; ++count) {
          std::vector<float> part(static_cast<std::size_t>(count));
          unpack_row(f, width, reinterpret_cast<const std::byte*>(bytes.data()), first, count, part.data());
          wrong += !same_bits(part, {whole.begin() + first, whole.begin() + first + count});
        }
      }
      INFO(cache_format_name(f) << ", width " << width);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("B94: rows of a cache are written and read by one accessor, over pages of any size") {
  Random random(4);
  for (const CacheFormat f : kAll) {
    for (const std::int64_t page_rows : {1, 2, 3, 4, 5, 100}) {
      const std::int64_t rows = 9, width = 64, offset = 11, bytes = row_bytes(f, width);
      std::vector<Bytes> memory(static_cast<std::size_t>((rows + page_rows - 1) / page_rows),
                                Bytes(static_cast<std::size_t>(offset + page_rows * bytes)));
      std::vector<std::byte*> pages;
      for (Bytes& page : memory) pages.push_back(reinterpret_cast<std::byte*>(page.data()));
      const CacheRows cache{.format = f,
                            .rows = rows,
                            .width = width,
                            .pages = {pages.data(), {static_cast<std::int64_t>(pages.size())}},
                            .page_rows = page_rows,
                            .offset = offset};
      std::vector<std::vector<float>> stored;
      for (std::int64_t i = 0; i < rows; ++i) {
        stored.push_back(random.normals(width, std::ldexp(1.0, static_cast<int>(i))));
        store_row(cache, i, stored.back().data());
      }
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::uint8_t* row =
            memory[static_cast<std::size_t>(i / page_rows)].data() + offset + i % page_rows * bytes;
        std::vector<float> got(static_cast<std::size_t>(width));
        load_row(cache, i, got.data());
        CHECK(same_bits(got, unpacked(f, width, row)));
        CHECK(same_bits(got, quantised_row(f, stored[static_cast<std::size_t>(i)])));
      }
    }
  }
}

TEST_CASE("the quantiser of a format works in the blocks that its layout has scales for") {
  for (const CacheFormat f : kPacked) CHECK(quantiser_block(quantiser_of(f)) == cache_block(f));
}
