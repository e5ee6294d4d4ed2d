// SPDX-License-Identifier: MIT
//
// Host memory that runs out at any allocation of the prefix cache: every count is where it was or belongs to an entry.
#include <cstdint>
#include <new>
#include <vector>

#include "dsv41/model/page_pool.hpp"
#include "dsv41/ref/ref_backend.hpp"
#include "model/counted_new.hpp"
#include "runtime/prefix_cache.hpp"
#include "support/catch.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kPage = 4;

/// Four pages of a sequence that hold an image row each, with a block at the end of the last.
struct Sequence {
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(16, 3);
  std::vector<std::uint8_t> marks = std::vector<std::uint8_t>(16, 1);
  std::vector<runtime::ImageDigest> images{{.position = 1}, {.position = 6}, {.position = 11}, {.position = 12}};
  runtime::Content content() const { return {ids, marks, images}; }
};

struct Pools {
  RefBackend backend;
  CacheBudget budget;
  PagePool<RefBackend> pages{backend, budget, "pages", 64, 8}, blocks{backend, budget, "blocks", 64, 8};
};

/// Runs `call` with its n-th allocation failing. Returns whether it had that many.
template <class F>
bool fails_at(std::size_t n, F&& call) {
  fail_allocation(n);
  bool failed = false;
  try {
    call();
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  fail_allocation(0);
  return failed;
}

std::int64_t no_replay(std::int64_t) {
  return 0;
}

}  // namespace

TEST_CASE("B87: an insert that finds no memory keeps whole entries, and no count too many", "[model]") {
  const Sequence s;
  std::size_t n = 1;
  for (bool failed = true; failed; ++n) {
    Pools pools;
    std::vector<PageId> own;
    for (int i = 0; i < 4; ++i) own.push_back(pools.pages.acquire());
    const PageId block = pools.blocks.acquire();
    runtime::PrefixCache<PagePool<RefBackend>> cache(pools.pages, pools.blocks, kPage, 1 << 20);
    failed = fails_at(n, [&] { cache.insert(s.content(), own, block, 16); });
    INFO("allocation " << n);
    std::int64_t shared = 0;
    for (const PageId id : own) shared += pools.pages.shared(id);
    CHECK(shared == cache.pages());
    CHECK(cache.bytes() == 64 * (shared + pools.blocks.shared(block)));
    if (failed) {
      CHECK_FALSE(pools.blocks.shared(block));
    } else {
      CHECK(shared == 4);
      CHECK(pools.blocks.shared(block));
    }
    const auto hit = cache.find(s.content(), 16, no_replay);  // the entries are the first ones, and in order
    CHECK(hit.pages == std::vector<PageId>(own.begin(), own.begin() + shared));
    cache.insert(s.content(), own, block, 16);
    CHECK(cache.pages() == 4);
    cache.clear();
    for (const PageId id : hit.pages) pools.pages.release(id);
    if (hit.block) pools.blocks.release(*hit.block);
    for (const PageId id : own) CHECK_FALSE(pools.pages.shared(id));
    CHECK_FALSE(pools.blocks.shared(block));
  }
  CHECK(n > 15);
}

TEST_CASE("B87: a find that finds no memory counts nothing for its caller", "[model]") {
  const Sequence s;
  Pools pools;
  std::vector<PageId> own;
  for (int i = 0; i < 4; ++i) own.push_back(pools.pages.acquire());
  const PageId block = pools.blocks.acquire();
  runtime::PrefixCache<PagePool<RefBackend>> cache(pools.pages, pools.blocks, kPage, 1 << 20);
  cache.insert(s.content(), own, block, 16);
  for (const PageId id : own) pools.pages.release(id);
  pools.blocks.release(block);
  std::size_t n = 1;
  for (bool failed = true; failed; ++n) {
    typename runtime::PrefixCache<PagePool<RefBackend>>::Hit hit;
    failed = fails_at(n, [&] { hit = cache.find(s.content(), 16, no_replay); });
    INFO("allocation " << n);
    for (const PageId id : own) CHECK(pools.pages.shared(id) == !failed);
    CHECK(pools.blocks.shared(block) == !failed);
    for (const PageId id : hit.pages) pools.pages.release(id);
    if (hit.block) pools.blocks.release(*hit.block);
  }
  CHECK(n > 3);
}
