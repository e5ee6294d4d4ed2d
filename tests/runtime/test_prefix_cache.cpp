// SPDX-License-Identifier: MIT
//
// The prefix cache over pools that only count: what is shared and what is not, and what goes first when the budget is short.
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "../support/catch.hpp"
#include "../support/failure.hpp"
#include "counting_pool.hpp"
#include "runtime/prefix_cache.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::common_prefix;
using runtime::Content;
using runtime::digest_rows;
using runtime::ImageDigest;

namespace {

/// first, first + 1, ...
Sequence counting(std::int32_t first, std::int64_t count) {
  Sequence s{.ids = std::vector<std::int32_t>(static_cast<std::size_t>(count))};
  for (std::size_t i = 0; i < s.ids.size(); ++i) s.ids[i] = first + static_cast<std::int32_t>(i);
  s.marks.resize(s.ids.size());
  return s;
}

/// `s`, of which the tokens from `position` on are others.
Sequence parting_at(Sequence s, std::int64_t position) {
  for (auto i = static_cast<std::size_t>(position); i < s.ids.size(); ++i) s.ids[i] += 1000;
  return s;
}

std::int64_t free_replay(std::int64_t) {
  return 0;
}

constexpr std::int64_t kPage = 4;  // positions

/// A cache, and sequences that are over as soon as they are inserted.
struct Bench {
  CountingPool page_pool{kPageBytes}, block_pool{kBlockBytes};
  runtime::PrefixCache<CountingPool> cache;

  explicit Bench(std::int64_t budget = 1000) : cache(page_pool, block_pool, kPage, budget) {}

  /// Inserts all whole pages, and a block at `block_position` if that is not 0. Returns the pages.
  std::vector<PageId> insert(const Sequence& s, std::int64_t block_position = 0) {
    const std::vector<PageId> pages = page_pool.acquire(s.size() / kPage);
    std::optional<PageId> block;
    if (block_position > 0) block = block_pool.acquire();
    cache.insert(s.content(), pages, block, block_position);
    page_pool.release(pages);
    if (block) block_pool.release(*block);
    return pages;
  }

  /// find(), given back at once.
  auto find(const Sequence& s, std::int64_t (*replay_cost)(std::int64_t) = free_replay) {
    const auto hit = cache.find(s.content(), s.size(), replay_cost);
    page_pool.release(hit.pages);
    if (hit.block) block_pool.release(*hit.block);
    return hit;
  }

  /// Positions of `s` that are there, without using them.
  std::int64_t held(const Sequence& s, const std::vector<PageId>& pages) const {
    std::int64_t n = 0;
    while (n < s.size() / kPage && page_pool.count(pages[static_cast<std::size_t>(n)]) > 0) ++n;
    return n * kPage;
  }
};

}  // namespace

TEST_CASE("B60: sequences share whole pages, counted in one unit for writing and finding", "[runtime]") {
  Bench b;
  const Sequence s = counting(0, 12);
  const std::vector<PageId> pages = b.insert(s);
  const std::vector<std::int64_t> shared{0, 1, 3, 4, 5, 6, 7, 8, 11, 12}, reused{0, 0, 0, 4, 4, 4, 4, 8, 8, 12};
  for (std::size_t i = 0; i < shared.size(); ++i) {
    INFO(shared[i] << " shared tokens");
    const auto hit = b.find(parting_at(s, shared[i]));
    CHECK(hit.positions == reused[i]);
    CHECK(hit.pages == std::vector<PageId>(pages.begin(), pages.begin() + reused[i] / kPage));
    CHECK(common_prefix(s.content(), parting_at(s, shared[i]).content()) == shared[i]);
    CHECK(b.find(counting(0, shared[i])).positions == reused[i]);  // a sequence that ends there
    const auto limited = b.cache.find(s.content(), shared[i], free_replay);
    CHECK(limited.positions == reused[i]);
    b.page_pool.release(limited.pages);
  }
}

TEST_CASE("B60: what a sequence of no whole pages wrote is not shared", "[runtime]") {
  Bench b;
  b.insert(counting(0, 7));
  CHECK(b.cache.pages() == 1);
  CHECK(b.find(counting(0, 7)).positions == 4);
  b.insert(counting(50, 3));
  CHECK(b.cache.pages() == 1);
  CHECK(b.find(counting(50, 3)).positions == 0);
  const std::vector<PageId> two = b.page_pool.acquire(2);
  const Failure failure = failure_of([&] { b.cache.insert(counting(0, 7).content(), two, {}, 0); });
  CHECK(failure.code == Errc::invalid_argument);
  CHECK(failure.message == "prefix cache: 2 pages, expected at most the 1 that are whole");
}

TEST_CASE("B59: image spans of equal ids share a cache only where the given rows are equal", "[runtime]") {
  Bench b;
  Sequence a = counting(0, 12);
  a.marks = {0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0};
  Sequence other = a, fewer = a, none = a;
  a.images = {image_at(5, 1), image_at(6, 2), image_at(7, 3)};
  other.images = {image_at(5, 1), image_at(6, 9), image_at(7, 3)};
  fewer.images = {image_at(5, 1), image_at(6, 2)};
  const Sequence* const all[] = {&a, &other, &fewer, &none};
  const std::int64_t parting[4][4] = {{12, 6, 7, 5}, {6, 12, 6, 5}, {7, 6, 12, 5}, {5, 5, 5, 12}};
  std::vector<std::vector<PageId>> pages;
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(b.find(*all[i]).positions == (i == 0 ? 0 : 4));  // the page before the span, of the first
    pages.push_back(b.insert(*all[i]));
    for (std::size_t k = 0; k < 4; ++k) CHECK(common_prefix(all[i]->content(), all[k]->content()) == parting[i][k]);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const auto hit = b.find(*all[i]);
    CHECK(hit.positions == 12);
    CHECK(hit.pages == std::vector<PageId>{pages[0][0], pages[i][1], pages[i][2]});
  }
}

TEST_CASE("B59: a digest belongs to its position", "[runtime]") {
  Bench b;
  Sequence s{.ids = {7, 7, 7, 7, 7, 7, 7, 7}, .marks = {1, 1, 1, 1, 1, 1, 1, 1}, .images = {image_at(1, 5)}};
  b.insert(s);
  CHECK(b.find(s).positions == 8);
  s.images = {image_at(2, 5)};
  CHECK(b.find(s).positions == 0);
  s.images = {image_at(1, 5), image_at(5, 5)};
  CHECK(b.find(s).positions == 4);
  s.images = {image_at(5, 5)};
  CHECK(b.find(s).positions == 0);
}

TEST_CASE("digest_rows gives each row to the next marked token", "[runtime]") {
  const std::vector<float> rows{1, 2, 3, 4, 1, 2};
  const std::vector<std::uint8_t> marks{0, 1, 0, 1, 1, 1};
  const std::vector<ImageDigest> images = digest_rows(marks, In<float, 2>(rows.data(), {3, 2}), 100);
  REQUIRE(images.size() == 3);
  CHECK(images[0].position == 101);
  CHECK(images[1].position == 103);
  CHECK(images[2].position == 104);
  CHECK(images[0].digest == images[2].digest);
  CHECK(images[0].digest != images[1].digest);
  // printf '\0\0\200\77\0\0\0\100' | sha256sum
  CHECK(files::hex(images[0].digest) == "b9c80b5adeca450753a16950c3cc655d271f7bef7a485bc83f112b72fef21d37");
  CHECK(digest_rows(marks, In<float, 2>(rows.data(), {2, 2}, {4, 1}), 0)[1].digest == images[0].digest);  // a stride
  CHECK(digest_rows(marks, {}, 0).empty());
}

TEST_CASE("tokens with other marks share nothing", "[runtime]") {
  Bench b;
  Sequence s = counting(0, 8);
  b.insert(s);
  s.marks[6] = 1;
  CHECK(b.find(s).positions == 4);
  CHECK(common_prefix(s.content(), counting(0, 8).content()) == 6);
  s.marks.pop_back();
  const Failure failure = failure_of([&] { b.find(s); });
  CHECK(failure.code == Errc::invalid_argument);
  CHECK(failure.message == "prefix cache: 7 marks, expected one for each of 8 ids");
}

TEST_CASE("a page of equal tokens behind other tokens is another page", "[runtime]") {
  Bench b;
  b.insert({.ids = {1, 1, 1, 1, 5, 5, 5, 5}});
  CHECK(b.find({.ids = {5, 5, 5, 5}}).positions == 0);
  CHECK(b.find({.ids = {2, 2, 2, 2, 5, 5, 5, 5}}).positions == 0);
  b.insert({.ids = {2, 2, 2, 2}});
  CHECK(b.find({.ids = {2, 2, 2, 2, 5, 5, 5, 5}}).positions == 4);
  CHECK(b.find({.ids = {1, 1, 1, 1, 1, 1, 1, 1}}).positions == 4);
}

TEST_CASE("pages of one content are kept once, those that came first", "[runtime]") {
  Bench b;
  const std::vector<PageId> first = b.insert(counting(0, 8)), second = b.insert(counting(0, 12));
  CHECK(b.find(counting(0, 12)).pages == std::vector<PageId>{first[0], first[1], second[2]});
  CHECK(b.cache.pages() == 3);
  CHECK(b.cache.bytes() == 3 * kPageBytes);
  CHECK(b.page_pool.live() == 3);
  b.cache.clear();
  CHECK(b.cache.pages() == 0);
  CHECK(b.cache.bytes() == 0);
  CHECK(b.page_pool.live() == 0);
}

TEST_CASE("pages that a sequence holds outlive their entries", "[runtime]") {
  CountingPool pages(kPageBytes), blocks(kBlockBytes);
  std::optional<runtime::PrefixCache<CountingPool>> cache;
  cache.emplace(pages, blocks, kPage, 1000);
  const Sequence s = counting(0, 8);
  const std::vector<PageId> own = pages.acquire(2);
  const PageId block = blocks.acquire();
  cache->insert(s.content(), own, block, 8);
  pages.release(own);
  blocks.release(block);
  const auto hit = cache->find(s.content(), 8, free_replay);
  CHECK(hit.pages == own);
  CHECK(hit.block == block);
  cache.reset();
  for (const PageId id : own) CHECK(pages.count(id) == 1);
  CHECK(blocks.count(block) == 1);
}

TEST_CASE("the least recently used leaves make room, and no page goes before what is behind it", "[runtime]") {
  Bench b(6 * kPageBytes);
  const Sequence s[] = {counting(0, 12), counting(100, 12), counting(200, 4)};
  const auto first = b.insert(s[0]), second = b.insert(s[1]);
  CHECK(b.cache.bytes() == 60);
  CHECK(b.find(counting(0, 8)).positions == 8);  // the third page of the first is now the oldest
  const auto third = b.insert(s[2]);
  CHECK(b.held(s[0], first) == 8);
  CHECK(b.held(s[1], second) == 12);
  CHECK(b.held(s[2], third) == 4);
  b.insert(counting(300, 8));  // then the second's, from its end
  CHECK(b.held(s[0], first) == 8);
  CHECK(b.held(s[1], second) == 4);
  CHECK(b.cache.bytes() == 60);
  for (std::int64_t left = 5; left >= 0; --left) {
    CHECK(b.cache.evict());
    CHECK(b.cache.pages() == left);
    CHECK(b.page_pool.live() == left);
    CHECK(b.held(s[1], second) == 0);
    CHECK(b.held(s[0], first) == (left == 5 ? 8 : left == 4 ? 4 : 0));
  }
  CHECK_FALSE(b.cache.evict());
}

TEST_CASE("a sequence beyond the budget keeps its first pages", "[runtime]") {
  Bench b(3 * kPageBytes);
  b.insert(counting(100, 8));
  const Sequence s = counting(0, 20);
  const auto pages = b.insert(s, 20);
  CHECK(b.held(s, pages) == 12);
  CHECK(b.cache.bytes() == 30);
  CHECK(b.block_pool.live() == 0);
  b.insert(s);
  CHECK(b.held(s, pages) == 12);
  for (const std::int64_t budget : {std::int64_t{0}, kPageBytes - 1}) {
    Bench small(budget);
    small.insert(s, 8);
    CHECK(small.cache.bytes() == 0);
    CHECK(small.page_pool.live() == 0);
    CHECK(small.block_pool.live() == 0);
    CHECK_FALSE(small.cache.evict());
  }
}

TEST_CASE("a block is kept at the end of a page, once, and weighs its own bytes", "[runtime]") {
  Bench b(3 * kPageBytes + 2 * kBlockBytes);
  const Sequence s = counting(0, 12);
  b.insert(s, 8);
  CHECK(b.cache.bytes() == 3 * kPageBytes + kBlockBytes);
  const auto never = [](std::int64_t p) { return 2 * p; };
  const auto hit = b.find(s, never);
  CHECK(hit.positions == 8);
  REQUIRE(hit.block.has_value());
  b.insert(s, 8);
  CHECK(b.find(s, never).block == hit.block);
  CHECK(b.block_pool.live() == 1);
  b.insert(s, 12);  // no page is new
  CHECK(b.cache.bytes() == 3 * kPageBytes + 2 * kBlockBytes);
  CHECK(b.find(s, never).positions == 12);
  b.insert(s, 4);  // no room for three: the one that was used longest ago goes, and no page
  CHECK(b.find(counting(0, 8), never).positions == 4);
  CHECK(b.block_pool.count(*hit.block) == 0);
  CHECK(b.cache.pages() == 3);
  CHECK(b.cache.bytes() == 3 * kPageBytes + 2 * kBlockBytes);
}

TEST_CASE("a block that does not fit beside its sequence's pages drops nothing", "[runtime]") {
  Bench b(3 * kPageBytes + kBlockBytes - 1);
  const Sequence old = counting(100, 8);
  const auto pages = b.insert(old);
  b.insert(counting(0, 12), 12);
  CHECK(b.held(old, pages) == 8);
  CHECK(b.cache.bytes() == 5 * kPageBytes);
  CHECK(b.block_pool.live() == 0);
  b.insert(counting(0, 8), 8);
  CHECK(b.block_pool.live() == 1);
  CHECK(b.held(old, pages) == 0);  // the oldest leaves went: both pages of the first, and the third of the second
  CHECK(b.cache.bytes() == 2 * kPageBytes + kBlockBytes);
}

TEST_CASE("a leaf loses its block before its page", "[runtime]") {
  Bench b;
  const Sequence s = counting(0, 4);
  b.insert(s, 4);
  CHECK(b.cache.evict());
  CHECK(b.block_pool.live() == 0);
  CHECK(b.find(s).positions == 4);
  CHECK_FALSE(b.find(s).block.has_value());
  CHECK(b.cache.evict());
  CHECK(b.cache.pages() == 0);
}

TEST_CASE("evict() frees something or says so: what sequences hold stays", "[runtime]") {
  Bench b;
  const Sequence s = counting(0, 12), other = counting(100, 4);
  b.insert(s, 12);
  b.insert(other);
  const auto hit = b.cache.find(s.content(), 8, free_replay);
  const auto later = b.cache.find(s.content(), 12, free_replay);
  CHECK(b.cache.evict());
  CHECK(b.find(other).positions == 0);
  CHECK_FALSE(b.cache.evict());
  CHECK(b.find(s).positions == 12);
  b.page_pool.release(later.pages);
  CHECK_FALSE(b.cache.evict());  // the block stands at the end of the third page
  b.block_pool.release(*later.block);
  CHECK(b.cache.evict());
  CHECK(b.block_pool.live() == 0);
  CHECK(b.cache.evict());
  CHECK_FALSE(b.cache.evict());
  CHECK(b.cache.pages() == 2);
  b.page_pool.release(hit.pages);
  CHECK(b.cache.evict());
  CHECK(b.cache.evict());
  CHECK_FALSE(b.cache.evict());
}

TEST_CASE("a hit ends where the fewest rows have to run again", "[runtime]") {
  struct Case {
    std::int64_t block;
    std::int64_t (*replay_cost)(std::int64_t);
    std::int64_t positions;
  };
  const Case cases[] = {
      {0, [](std::int64_t) { return std::int64_t{0}; }, 20},
      {0, [](std::int64_t) { return std::int64_t{7}; }, 20},
      {0, [](std::int64_t) { return std::int64_t{19}; }, 20},
      {0, [](std::int64_t) { return std::int64_t{20}; }, 20},  // a tie with nothing
      {0, [](std::int64_t) { return std::int64_t{21}; }, 0},   // nothing is cheaper
      {8, [](std::int64_t) { return std::int64_t{11}; }, 20},  // the block costs 12
      {8, [](std::int64_t) { return std::int64_t{12}; }, 20},  // a tie
      {8, [](std::int64_t) { return std::int64_t{13}; }, 8},
      {20, [](std::int64_t) { return std::int64_t{100}; }, 20},
      {8, [](std::int64_t p) { return p == 16 ? std::int64_t{7} : std::int64_t{13}; }, 16},  // 4 + 7
      {8, [](std::int64_t p) { return p == 16 ? std::int64_t{8} : std::int64_t{13}; }, 16},  // a tie with the block
      {8, [](std::int64_t p) { return p == 16 ? std::int64_t{9} : std::int64_t{13}; }, 8},
      {16, [](std::int64_t p) { return p == 16 ? std::int64_t{-100} : std::int64_t{5}; }, 16},  // not asked: 4
  };
  for (const Case& c : cases) {
    Bench b;
    b.insert(counting(0, 20), c.block);
    const auto hit = b.find(counting(0, 30), c.replay_cost);
    INFO("block at " << c.block << ", expected " << c.positions);
    CHECK(hit.positions == c.positions);
    CHECK(static_cast<std::int64_t>(hit.pages.size()) == c.positions / kPage);
    CHECK(hit.block.has_value() == (c.block > 0 && c.block == c.positions));
  }
}

TEST_CASE("arguments that make no sense are refused", "[runtime]") {
  CountingPool pages(kPageBytes), blocks(kBlockBytes);
  using Cache = runtime::PrefixCache<CountingPool>;
  CHECK(failure_of([&] { Cache(pages, blocks, 0, 10); }).message ==
        "prefix cache: pages of 0 positions, expected at least 1");
  CHECK(failure_of([&] { Cache(pages, blocks, 4, -1); }).message ==
        "prefix cache: a budget of -1 bytes, expected at least 0");
  Bench b;
  for (const std::int64_t position : {0, 3, 5, -4}) {
    const std::vector<PageId> own = b.page_pool.acquire(2);
    const Failure failure = failure_of([&] { b.cache.insert(counting(0, 8).content(), own, PageId{0}, position); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.message ==
          "prefix cache: a block at position " + std::to_string(position) + ", expected a multiple of 4 above 0");
    b.page_pool.release(own);
  }
  CHECK(b.page_pool.live() == 0);
}

TEST_CASE("a count that fails leaves nothing half done", "[runtime]") {
  Bench b;
  const Sequence s = counting(0, 12);
  const std::vector<PageId> pages = b.insert(s, 12);
  for (std::int64_t n = 0; n < 3; ++n) {
    b.page_pool.fails_at = n;
    CHECK_THROWS_AS(b.find(s), std::bad_alloc);
    b.page_pool.fails_at = -1;
  }
  b.block_pool.fails_at = 0;
  CHECK_THROWS_AS(b.find(s), std::bad_alloc);
  for (const PageId id : pages) CHECK(b.page_pool.count(id) == 1);
  CHECK_THROWS_AS(b.insert(counting(100, 8), 8), std::bad_alloc);
  b.block_pool.fails_at = -1;
  CHECK(b.find(counting(100, 8)).positions == 8);
  const std::vector<PageId> own = b.page_pool.acquire(3);
  b.page_pool.fails_at = 1;
  CHECK_THROWS_AS(b.cache.insert(counting(200, 12).content(), own, {}, 0), std::bad_alloc);
  b.page_pool.fails_at = -1;
  CHECK(b.page_pool.count(own[0]) == 2);
  CHECK(b.page_pool.count(own[1]) == 1);
  b.page_pool.release(own);
  CHECK(b.find(counting(200, 12)).positions == 4);
  CHECK(b.cache.pages() == 6);
}
