// SPDX-License-Identifier: MIT
//
// CacheRows: bytes of a row at every width, and where row i lies: across pages in any order, several caches in one page, far beyond 2^31.
#include "dsv41/core/cache_rows.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"

using namespace dsv41;

namespace {

/// Byte of a page at which row i lies; the pages begin at these addresses.
std::int64_t byte_of(const CacheRows& cache, const std::vector<std::byte*>& pages, std::int64_t i) {
  const std::byte* page = pages[static_cast<std::size_t>(i / cache.page_rows)];
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(cache.row(i)) -
                                   reinterpret_cast<std::uintptr_t>(page));
}

}  // namespace

TEST_CASE("released rows take 528, 288 and 68 bytes") {
  CHECK(row_bytes(CacheFormat::window, 512) == 528);
  CHECK(row_bytes(CacheFormat::entry, 512) == 288);
  CHECK(row_bytes(CacheFormat::index, 128) == 68);
  CHECK(row_bytes(CacheFormat::f32, 512) == 2048);
  CHECK(value_bytes(CacheFormat::window, 512) == 512);
  CHECK(value_bytes(CacheFormat::entry, 512) == 256);
  CHECK(value_bytes(CacheFormat::index, 128) == 64);
}

TEST_CASE("a width that is no multiple of the block is stored as float32, in every format") {
  for (std::int64_t width = 1; width <= 130; ++width) {
    INFO("width " << width);
    const bool by_16 = width % 16 == 0, by_32 = width % 32 == 0;
    CHECK(row_bytes(CacheFormat::window, width) == (by_32 ? width + width / 32 : 4 * width));
    CHECK(row_bytes(CacheFormat::entry, width) == (by_16 ? width / 2 + width / 16 : 4 * width));
    CHECK(row_bytes(CacheFormat::index, width) == (by_32 ? width / 2 + width / 32 : 4 * width));
    CHECK(row_bytes(CacheFormat::f32, width) == 4 * width);
    CHECK((stored_format(CacheFormat::entry, width) == CacheFormat::entry) == by_16);
  }
}

TEST_CASE("row i lies in page i / page_rows, whatever the order of the pages in memory") {
  std::vector<std::byte> memory(4096);
  // Pages of three rows of 68 bytes: the second one first, the others behind it.
  const std::vector<std::byte*> pages{memory.data() + 500, memory.data(), memory.data() + 1000};
  const CacheRows cache{.format = CacheFormat::index,
                        .rows = 8,
                        .width = 128,
                        .pages = {pages.data(), {3}},
                        .page_rows = 3,
                        .offset = 10};
  const std::int64_t want[] = {510, 578, 646, 10, 78, 146, 1010, 1078};
  for (std::int64_t i = 0; i < 8; ++i) CHECK(cache.row(i) - memory.data() == want[i]);
}

TEST_CASE("caches of the same positions share their pages at different offsets") {
  std::vector<std::byte> memory(2 * 1000);
  const std::vector<std::byte*> pages{memory.data(), memory.data() + 1000};
  CacheRows entries{
      .format = CacheFormat::entry, .rows = 4, .width = 512, .pages = {pages.data(), {2}}, .page_rows = 2, .offset = 0};
  CacheRows keys = entries;
  keys.format = CacheFormat::index, keys.width = 128, keys.offset = 2 * 288;
  CHECK(entries.row(3) - memory.data() == 1000 + 288);
  CHECK(keys.row(0) - memory.data() == 576);
  CHECK(keys.row(3) - memory.data() == 1000 + 576 + 68);
}

TEST_CASE("B90: rows, pages and offsets beyond 2^31 keep all their bits") {
  // Addresses are formed, never followed.
  const std::uintptr_t base = std::uintptr_t{1} << 44;
  std::vector<std::byte*> pages{reinterpret_cast<std::byte*>(base), reinterpret_cast<std::byte*>(2 * base)};
  const std::int64_t rows = std::int64_t{1} << 33;
  CacheRows cache{.format = CacheFormat::window,
                  .rows = rows,
                  .width = 512,
                  .pages = {pages.data(), {2}},
                  .page_rows = rows / 2,
                  .offset = (std::int64_t{1} << 40) + 3};
  for (const std::int64_t i : {std::int64_t{0}, rows / 4, rows / 2 - 1, rows / 2, rows - 1})
    CHECK(byte_of(cache, pages, i) == cache.offset + i % (rows / 2) * 528);
}
