// SPDX-License-Identifier: MIT
//
// ops::EngramGather: dequantised rows side by side, at offsets beyond 32 bits.
#include "dsv41/ops/engram_gather.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Case {
  std::int64_t tokens, columns, table_rows, width;
  Format format;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 24, 50, 64, Format::fp8_row, 1}, {1, 1, 1, 1, Format::f32, 2},        {3, 24, 97, 256, Format::fp8_row, 3},
    {5, 7, 33, 34, Format::fp4_row, 4},  {17, 3, 50, 33, Format::fp8_row, 5}, {2, 6, 40, 31, Format::fp8_tile, 6},
    {4, 4, 64, 40, Format::bf16, 7},     {4, 4, 64, 40, Format::f16, 8},
};

template <class B>
void run_case(const Case& c, std::size_t shift) {
  B backend;
  Memory<B> memory(backend);
  Random random(c.seed);
  const Stored table = random_matrix(random, c.format, c.table_rows, c.width);
  Array<std::int64_t, 2> rows({c.tokens, c.columns});
  for (std::int64_t& r : rows.values) r = random.below(c.table_rows);
  const auto out = memory.put(Array<float, 2>({c.tokens, c.columns * c.width}));
  const ops::EngramGather op{.table_rows = memory.put(rows), .table = memory.put(table, shift), .out = out};
  op.check();
  backend.run(op);
  Doubles want;
  for (const std::int64_t r : rows.values) {
    for (std::int64_t i = 0; i < c.width; ++i) want.push_back(table.value(r, i));
  }
  CHECK(doubles_of(memory.get(out)) == want);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("a gather gives the rows' exact values side by side, at any address", "[engram_gather]",
                        Backends) {
  for (const Case& c : kCases) {
    for (const std::size_t shift : {0u, 1u, 5u}) {
      INFO("seed " << c.seed << " shift " << shift);
      run_case<TestType>(c, shift);
    }
  }
}

TEST_CASE("a table of more than 2^32 bytes is read at 64-bit offsets") {
  constexpr std::int64_t kWidth = 256, kRows = 20'000'000, kLast = kRows - 1;
  constexpr std::size_t kBytes = kRows * kWidth, kScales = kRows * (kWidth / 32);
  // Untouched pages of a private mapping cost nothing.
  void* memory =
      ::mmap(nullptr, kBytes + kScales, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* const data = static_cast<std::uint8_t*>(memory);
  data[static_cast<std::size_t>(kLast) * kWidth + 33] = 0x40;                // 2.0
  data[kBytes + static_cast<std::size_t>(kLast) * (kWidth / 32) + 1] = 128;  // times 2
  const Matrix table{.format = Format::fp8_row,
                     .rows = kRows,
                     .cols = kWidth,
                     .data = static_cast<const std::byte*>(memory),
                     .scales = data + kBytes};
  const std::int64_t rows[1] = {kLast};
  std::vector<float> out(kWidth, -1.0f);
  RefBackend backend;
  backend.run(ops::EngramGather{.table_rows = {rows, {1, 1}}, .table = table, .out = {out.data(), {1, kWidth}}});
  CHECK(out[33] == 4.0f);
  CHECK(out[32] == 0.0f);
  ::munmap(memory, kBytes + kScales);
}

TEMPLATE_LIST_TEST_CASE("B07: a row outside the table is an error, not a read beside it", "[engram_gather]", Backends) {
  TestType backend;
  Memory<TestType> memory(backend);
  Random random(20);
  const Matrix table = memory.put(random_matrix(random, Format::fp8_row, 9, 32));
  for (const std::int64_t row : {std::int64_t{-1}, std::int64_t{9}, std::int64_t{1} << 40}) {
    const Out<float, 2> out = memory.put(Array<float, 2>({1, 64}, 5.0f));
    backend.run(ops::EngramGather{
        .table_rows = memory.put(Array<std::int64_t, 2>({1, 2}, {3, row})), .table = table, .out = out});
    const Failure failure = failure_of([&] { backend.sync(); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.message ==
          "engram_gather: table_rows holds " + std::to_string(row) + ", expected at least 0 and less than 9");
    CHECK(memory.get(out) == std::vector<float>(64, 5.0f));
  }
}

TEST_CASE("engram_gather: check() names the field, what it expects and what it got") {
  const ops::EngramGather good{.table_rows = shaped<const std::int64_t, 2>({3, 4}),
                               .table = {.rows = 9, .cols = 8},
                               .out = shaped<float, 2>({3, 32})};
  check_refuses(good, "out is [2, 32], expected [3, 32]", [](auto& op) { op.out = shaped<float, 2>({2, 32}); });
  check_refuses(good, "out is [3, 32], expected [3, 40]", [](auto& op) {
    op.table_rows = shaped<const std::int64_t, 2>({3, 5});
  });
}
