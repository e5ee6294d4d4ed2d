// SPDX-License-Identifier: MIT
//
// Decoding of stored matrices: every format at every kind of address, column range and ragged edge.
#include "dsv41/numerics/stored.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// Elements of [first, first + count) of a row that differ from the formula; the byte behind must stay.
std::size_t differing(const Stored& m, const Matrix& stored, std::int64_t row, std::int64_t first, std::int64_t count) {
  std::vector<float> out(static_cast<std::size_t>(count) + 1, 12345.0f);
  numerics::decode_row(stored, row, first, count, out.data());
  std::size_t wrong = out.back() != 12345.0f;
  for (std::int64_t i = 0; i < count; ++i) {
    const double want = m.value(row, first + i), got = static_cast<double>(out[static_cast<std::size_t>(i)]);
    wrong += !(got == want && std::signbit(got) == std::signbit(want));
  }
  return wrong;
}

/// One row of `cols` columns under one scale, decoded whole.
std::vector<float> decoded(Format format, std::int64_t cols, const std::uint8_t* codes, std::uint8_t scale) {
  const Matrix m{
      .format = format, .rows = 1, .cols = cols, .data = reinterpret_cast<const std::byte*>(codes), .scales = &scale};
  std::vector<float> out(static_cast<std::size_t>(cols));
  numerics::decode_row(m, 0, 0, cols, out.data());
  return out;
}

}  // namespace

TEST_CASE("every format decodes any column range at any address, ragged edges included") {
  RefBackend backend;
  Random random(15);
  for (const Format format : kFormats) {
    for (const std::int64_t cols : {2, 30, 32, 34, 64, 98}) {
      Memory memory(backend);
      const Stored m = random_matrix(random, format, 37, cols);
      std::size_t wrong = 0;
      for (const std::size_t shift : {0u, 1u, 2u, 3u, 7u, 15u}) {
        const Matrix stored = memory.put(m, shift);
        for (const std::int64_t row : {0, 1, 31, 32, 36}) {
          for (std::int64_t first = 0; first < cols; first += first < 5 ? 1 : 13) {
            for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, (cols - first) / 2, cols - first}) {
              wrong += differing(m, stored, row, first, count);
            }
          }
        }
      }
      INFO(format_name(format) << " with " << cols << " columns");
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("B36: the even column lies in the low nibble") {
  const std::uint8_t bytes[] = {0x21, 0xF8}, scale = 127;
  const std::vector<float> out = decoded(Format::fp4_row, 4, bytes, scale);
  CHECK(out[0] == 0.5f);
  CHECK(out[1] == 1.0f);
  CHECK(out[2] == 0.0f);
  CHECK(out[3] == -6.0f);
}

TEST_CASE("B36: a row of the 16 codes twice decodes to the table twice") {
  std::uint8_t bytes[16];
  for (std::uint8_t i = 0; i < 16; ++i) bytes[i] = static_cast<std::uint8_t>((2 * i % 16) | ((2 * i + 1) % 16) << 4);
  const std::uint8_t scale = 127;
  const std::vector<float> out = decoded(Format::fp4_row, 32, bytes, scale);
  for (int i = 0; i < 32; ++i) CHECK(static_cast<double>(out[static_cast<std::size_t>(i)]) == e2m1_value(i % 16));
}

TEST_CASE("B40: all 65536 pairs of FP4 bytes decode by the table, at every alignment") {
  RefBackend backend;
  Memory memory(backend);
  Stored m{.format = Format::fp4_row, .rows = 65536, .cols = 4, .bytes = {}, .scales = {}, .name = {}};
  for (int pattern = 0; pattern < 65536; ++pattern) {
    m.bytes.push_back(static_cast<std::uint8_t>(pattern % 256));
    m.bytes.push_back(static_cast<std::uint8_t>(pattern / 256));
  }
  m.scales.assign(65536, 128);
  std::size_t wrong = 0;
  for (std::size_t shift = 0; shift < 16; ++shift) {
    const Matrix stored = memory.put(m, shift);
    for (std::int64_t row = 0; row < m.rows; ++row) wrong += differing(m, stored, row, 0, 4);
  }
  CHECK(wrong == 0);
}

TEST_CASE("bytes decode to what was stored just before them: an optimiser keeps the two apart") {
  std::byte bytes[2] = {};
  const std::uint8_t scale = 127;
  std::size_t wrong = 0;
  for (int pattern = 0; pattern < 65536; ++pattern) {
    bytes[0] = static_cast<std::byte>(pattern % 256);
    bytes[1] = static_cast<std::byte>(pattern / 256);
    const Matrix m{.format = Format::fp4_row, .rows = 1, .cols = 4, .data = bytes, .scales = &scale, .name = {}};
    float out[4];
    numerics::decode_row(m, 0, 0, 4, out);
    for (int i = 0; i < 4; ++i) wrong += static_cast<double>(out[i]) != e2m1_value(pattern >> (4 * i) & 15);
  }
  CHECK(wrong == 0);
}

TEST_CASE("B40: FP4 rows of 1 to 67 bytes decode by the table at every alignment") {
  RefBackend backend;
  Memory memory(backend);
  Random random(40);
  std::size_t wrong = 0;
  for (std::int64_t length = 1; length <= 67; ++length) {
    const Stored m = random_matrix(random, Format::fp4_row, 2, 2 * length);
    for (std::size_t shift = 0; shift < 16; ++shift) {
      const Matrix stored = memory.put(m, shift);
      for (const std::int64_t row : {0, 1}) wrong += differing(m, stored, row, 0, 2 * length);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("scales at the ends of E8M0 decode exactly, subnormal results included") {
  for (const int code : {0, 1, 20, 246}) {
    const std::uint8_t scale = static_cast<std::uint8_t>(code), bytes[2] = {0x38, 0x09};  // 1.0 and 9/8 * 2^-6
    const std::vector<float> out = decoded(Format::fp8_row, 2, bytes, scale);
    CHECK(static_cast<double>(out[0]) == std::ldexp(1.0, code - 127));
    CHECK(static_cast<double>(out[1]) == std::ldexp(1.125, code - 133));
  }
}

#if defined(__SSE2__)
TEST_CASE("B41: decoding to normal numbers does not depend on the caller's flush-to-zero mode") {
  RefBackend backend;
  Memory memory(backend);
  Random random(16);
  for (const Format format : kFormats) {
    const Matrix m = memory.put(random_matrix(random, format, 64, 64));
    std::vector<float> plain(64 * 64), flushed(64 * 64);
    for (std::int64_t r = 0; r < 64; ++r) numerics::decode_row(m, r, 0, 64, plain.data() + 64 * r);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
    for (std::int64_t r = 0; r < 64; ++r) numerics::decode_row(m, r, 0, 64, flushed.data() + 64 * r);
    _mm_setcsr(before);
    CHECK(same_bits(flushed, plain));
  }
}
#endif
