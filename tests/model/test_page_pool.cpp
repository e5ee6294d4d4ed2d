// SPDX-License-Identifier: MIT
//
// PagePool: counts, copies before writing, and a budget that holds to the byte, whatever happens and whatever fails.
#include "dsv41/model/page_pool.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "model/counted_memory.hpp"
#include "model/counted_new.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/random.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

using Pool = PagePool<CountedMemory>;

constexpr std::int64_t kPage = 300;  // slabs end within a unit of the allocator's rounding

struct Setting {
  CountedMemory memory;
  CacheBudget budget;
  Pool pool;

  explicit Setting(std::int64_t limit = 0, std::int64_t slab_pages = 4, std::int64_t page_bytes = kPage)
      : budget(limit), pool(memory, budget, "a page", page_bytes, slab_pages) {}
};

std::int64_t rounded(std::int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

void fill(const Pool& pool, PageId id, int tag) {
  std::memset(pool.data(id), tag, static_cast<std::size_t>(pool.page_bytes()));
}

bool holds(const Pool& pool, PageId id, int tag) {
  const std::byte* data = pool.data(id);
  return std::all_of(data, data + pool.page_bytes(), [&](std::byte b) { return b == static_cast<std::byte>(tag); });
}

/// A pool beside what it should be: every count that somebody holds, and what was written into the page.
struct Model {
  Setting s;
  std::map<PageId, int> tags;
  std::vector<PageId> held;  // one element a count

  explicit Model(std::int64_t limit, std::int64_t slab_pages) : s(limit, slab_pages) { s.memory.unit = kPage; }

  std::int64_t count(PageId id) const { return std::count(held.begin(), held.end(), id); }

  void take(PageId id, int tag) {
    held.push_back(id);
    tags[id] = tag;
    fill(s.pool, id, tag);
  }
  void drop(std::size_t i) {
    const PageId id = held[i];
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    if (count(id) == 0) tags.erase(id);
    s.pool.release(id);
  }

  bool consistent() const {
    for (const auto& [id, tag] : tags) {
      if (!holds(s.pool, id, tag) || s.pool.shared(id) != (count(id) > 1)) return false;
    }
    return s.pool.used() == static_cast<std::int64_t>(tags.size()) && s.budget.used() == s.memory.bytes &&
           (s.budget.limit() == 0 || s.budget.used() <= s.budget.limit());
  }

  /// Pages that the slabs have room for: their rounding is less than a page.
  std::int64_t capacity_left() const { return s.memory.units - s.pool.used(); }
};

}  // namespace

TEST_CASE("a page lives while it is counted, and the last to leave frees it") {
  Setting s;
  const PageId a = s.pool.acquire(), b = s.pool.acquire();
  CHECK(a != b);
  CHECK(s.pool.used() == 2);
  CHECK_FALSE(s.pool.shared(a));
  s.pool.share(a);
  s.pool.share(a);
  CHECK(s.pool.shared(a));
  CHECK_FALSE(s.pool.shared(b));
  CHECK(s.pool.used() == 2);
  s.pool.release(a);
  CHECK(s.pool.shared(a));
  s.pool.release(a);
  CHECK_FALSE(s.pool.shared(a));
  CHECK(s.pool.used() == 2);
  s.pool.release(a);
  CHECK(s.pool.used() == 1);
  CHECK(s.pool.acquire() == a);  // a freed page before a fresh one
  CHECK(s.memory.blocks == 1);
}

TEST_CASE("pages follow each other in slabs, whole and without overlap") {
  Setting s;
  std::vector<PageId> ids;
  for (int i = 0; i < 9; ++i) ids.push_back(s.pool.acquire());
  CHECK(s.memory.blocks == 3);
  CHECK(s.budget.used() == 3 * rounded(4 * kPage));
  CHECK(s.memory.bytes == s.budget.used());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(ids[i] == static_cast<PageId>(i));
    if (i % 4 > 0) CHECK(s.pool.data(ids[i]) - s.pool.data(ids[i - 1]) == kPage);
    if (i % 4 == 0) CHECK(reinterpret_cast<std::uintptr_t>(s.pool.data(ids[i])) % Cursor::kAlignment == 0);
  }
}

TEST_CASE("own() gives a shared page's holder a copy, and leaves a page of its own where it is") {
  Setting s;
  const PageId a = s.pool.acquire();
  fill(s.pool, a, 7);
  CHECK(s.pool.own(a) == a);
  CHECK(s.memory.copied == 0);
  s.pool.share(a);
  const PageId copy = s.pool.own(a);
  CHECK(copy != a);
  CHECK(s.memory.copied == kPage);
  CHECK(s.pool.used() == 2);
  CHECK_FALSE(s.pool.shared(a));
  CHECK_FALSE(s.pool.shared(copy));
  fill(s.pool, copy, 9);
  CHECK(holds(s.pool, a, 7));
}

TEST_CASE("a budget holds to the byte: a slab has as many pages as fit with the allocator's rounding") {
  for (std::int64_t limit = 200; limit < 3000; ++limit) {
    Setting s(limit);
    std::int64_t pages = 0;
    while (failure_of([&] { s.pool.acquire(); }).code == Errc::ok) ++pages;
    // By hand: slabs of 4 take 1280 bytes; then what whole pages of 300 fit into whole units of 256.
    const std::int64_t slabs = limit / 1280, rest = (limit - slabs * 1280) / 256 * 256;
    const bool right = pages == 4 * slabs + rest / 300 && s.budget.used() <= limit &&
                       s.budget.used() == slabs * 1280 + rounded(rest / 300 * 300) &&
                       s.memory.bytes == s.budget.used() && s.pool.used() == pages;
    INFO("limit " << limit << ", " << pages << " pages, " << s.budget.used() << " bytes");
    if (!right) CHECK(right);
  }
}

TEST_CASE("beyond the budget the message says what was wanted and what is left, and nothing has changed") {
  Setting s(1280 + 255);
  for (int i = 0; i < 4; ++i) fill(s.pool, s.pool.acquire(), i);
  for (int i = 0; i < 2; ++i) {
    const Failure failure = failure_of([&] { s.pool.acquire(); });
    CHECK(failure.code == Errc::out_of_memory);
    CHECK(failure.message == "cache budget: a page needs 300 bytes, expected at most the 255 left of 1535");
  }
  s.pool.share(2);
  CHECK(failure_of([&] { s.pool.own(2); }).code == Errc::out_of_memory);
  CHECK(s.pool.shared(2));
  CHECK(s.pool.used() == 4);
  CHECK(s.budget.used() == 1280);
  for (int i = 0; i < 4; ++i) CHECK(holds(s.pool, i, i));
  s.pool.release(1);
  CHECK(s.pool.own(2) == 1);
  CHECK(holds(s.pool, 1, 2));
}

TEST_CASE("where the backend has no memory, nothing is charged and the next call may succeed") {
  Setting s;
  s.pool.acquire();
  for (int i = 0; i < 3; ++i) s.pool.acquire();
  s.memory.left = 100;
  for (int i = 0; i < 3; ++i) {
    CHECK(failure_of([&] { s.pool.acquire(); }).message == "counted: no room for 1280");
    CHECK(s.budget.used() == 1280);
    CHECK(s.pool.used() == 4);
  }
  s.memory.left = CountedMemory::kPlenty;
  CHECK(s.pool.acquire() == 4);
  CHECK(s.budget.used() == 2560);
}

TEST_CASE("trim() gives back slabs that nobody lives in, no other, and their ids come again") {
  Setting s;
  CHECK_FALSE(s.pool.trim());
  for (int i = 0; i < 12; ++i) fill(s.pool, s.pool.acquire(), i);
  CHECK_FALSE(s.pool.trim());
  for (const PageId id : {4, 5, 6, 7, 8}) s.pool.release(id);
  CHECK(s.pool.trim());
  CHECK_FALSE(s.pool.trim());
  CHECK(s.memory.blocks == 2);
  CHECK(s.memory.bytes == 2 * 1280);
  CHECK(s.budget.used() == 2 * 1280);
  for (const PageId id : {0, 1, 2, 3, 9, 10, 11}) CHECK(holds(s.pool, id, id));
  CHECK(s.pool.acquire() == 8);  // the one that is free
  std::set<PageId> again;
  for (int i = 0; i < 4; ++i) again.insert(s.pool.acquire());
  CHECK(again == std::set<PageId>{4, 5, 6, 7});
  CHECK(s.pool.acquire() == 12);
  for (const PageId id : {0, 1, 2, 3, 9, 10, 11}) CHECK(holds(s.pool, id, id));
}

TEST_CASE("a slab that comes back smaller has only the pages it has memory for") {
  Setting s(1280 + 700);
  for (int i = 0; i < 4; ++i) s.pool.acquire();
  for (int i = 0; i < 4; ++i) s.pool.release(i);
  CHECK(s.pool.trim());
  s.budget.charge(1280);  // somebody else
  std::set<PageId> ids{s.pool.acquire()};
  while (failure_of([&] { ids.insert(s.pool.acquire()); }).code == Errc::ok) continue;
  CHECK(ids == std::set<PageId>{0});  // 700 bytes: 512 of whole units
  CHECK(s.memory.bytes == 512);
  s.pool.release(0);
  CHECK(s.pool.trim());
  CHECK(s.memory.bytes == 0);
}

TEST_CASE("several pools and other allocations share a budget") {
  CountedMemory memory;
  CacheBudget budget(2048);
  Pool pages(memory, budget, "a page", 256, 2), blocks(memory, budget, "a block", 1024, 1);
  blocks.acquire();
  pages.acquire();
  CHECK(budget.used() == 1024 + 512);
  CHECK(failure_of([&] { blocks.acquire(); }).says("a block needs 1024 bytes, expected at most the 512 left of 2048"));
  {
    Out<std::int64_t, 1> table;
    const auto layout = [&](Cursor& cursor) { cursor.take(table, {33}); };
    ChargedArena<CountedMemory> first(memory, budget, "a table", layout);
    CHECK(first.bytes() == 512);
    CHECK(budget.left() == 0);
    const Failure refused = failure_of([&] { ChargedArena<CountedMemory> second(memory, budget, "a table", layout); });
    CHECK(refused.message == "cache budget: a table needs 512 bytes, expected at most the 0 left of 2048");
    ChargedArena<CountedMemory> moved(std::move(first)), assigned;
    assigned = std::move(moved);
    CHECK(assigned.bytes() == 512);
    CHECK(budget.left() == 0);
  }
  CHECK(budget.used() == 1024 + 512);
  CHECK(memory.bytes == budget.used());
}

TEST_CASE("a pool that finds no host memory has lost nothing") {
  std::size_t n = 1;
  for (bool failed = true; failed; ++n) {
    Setting s(0, 2);
    for (int i = 0; i < 4; ++i) s.pool.acquire();
    fail_allocation(n);
    failed = false;
    try {
      s.pool.acquire();
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    fail_allocation(0);
    INFO("allocation " << n);
    CHECK(s.pool.used() == (failed ? 4 : 5));
    CHECK(s.budget.used() == s.memory.bytes);
    const PageId next = s.pool.acquire();
    CHECK(next == (failed ? 4 : 5));
    fill(s.pool, next, 1);
    for (PageId id = 0; id <= next; ++id) s.pool.release(id);
    CHECK(s.pool.trim());
    CHECK(s.memory.bytes == 0);
  }
  CHECK(n > 3);
}

TEST_CASE("anything done to a pool leaves the counts, contents and bytes of a plain list") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    INFO("seed " << seed);
    Random random(seed);
    Model m(seed % 4 == 0 ? 0 : 3000 + random.below(9000), 1 + random.below(5));
    bool right = true;
    std::int64_t refused = 0;
    for (int step = 0; step < 1500 && right; ++step) {
      const bool growing = step / 100 % 2 == 0;
      const auto any = [&] { return static_cast<std::size_t>(random.below(std::ssize(m.held))); };
      const std::int64_t what = random.below(10);
      if (m.held.empty() || what < (growing ? 5 : 2)) {
        const std::int64_t used = m.s.pool.used(), bytes = m.s.memory.bytes;
        PageId id = kNoPage;
        if (failure_of([&] { id = m.s.pool.acquire(); }).code == Errc::ok) {
          right = m.tags.count(id) == 0;
          m.take(id, static_cast<int>(random.below(256)));
        } else {
          ++refused;
          right = used == m.s.pool.used() && bytes == m.s.memory.bytes && m.capacity_left() == 0 &&
                  m.s.budget.left() / 256 * 256 < kPage;
        }
      } else if (what < 6) {
        m.held.push_back(m.held[any()]);
        m.s.pool.share(m.held.back());
      } else if (what < 7) {
        const std::size_t i = any();
        const PageId id = m.held[i];
        PageId own = kNoPage;
        if (failure_of([&] { own = m.s.pool.own(id); }).code != Errc::ok) continue;
        right = (own == id) == (m.count(id) == 1) && holds(m.s.pool, own, m.tags[id]);
        m.held.erase(m.held.begin() + static_cast<std::ptrdiff_t>(i));
        m.take(own, static_cast<int>(random.below(256)));
      } else if (what < 9 || growing) {
        m.drop(any());
      } else {
        const std::int64_t bytes = m.s.memory.bytes;
        right = m.s.pool.trim() == (m.s.memory.bytes < bytes);
      }
      right = right && m.consistent();
    }
    CHECK(right);
    if (m.s.budget.limit() > 0) CHECK(refused > 0);
    while (!m.held.empty()) m.drop(m.held.size() - 1);
    m.s.pool.trim();
    CHECK(m.s.memory.bytes == 0);
    CHECK(m.s.budget.used() == 0);
  }
}
