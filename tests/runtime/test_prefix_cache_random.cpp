// SPDX-License-Identifier: MIT
//
// The prefix cache under thousands of random calls, against a list of pages that is searched from end to end.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "../support/catch.hpp"
#include "../support/random.hpp"
#include "counting_pool.hpp"
#include "runtime/prefix_cache.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// One position: what has to be equal for its cached rows to be.
struct Position {
  std::int32_t id;
  std::uint8_t mark;
  int image;  // 0: no row given
  bool operator==(const Position&) const = default;
};
using Positions = std::vector<Position>;

Sequence sequence_of(const Positions& positions) {
  Sequence s;
  for (const Position& p : positions) {
    if (p.image != 0) s.images.push_back(image_at(s.size(), p.image));
    s.ids.push_back(p.id);
    s.marks.push_back(p.mark);
  }
  return s;
}

/// The contract once more: every page with all of the content before its end, every use with a time.
class PlainCache {
 public:
  struct Page {
    Positions content;  // of the whole sequence up to the page's end
    PageId id;
    std::int64_t used;
    std::optional<PageId> block{};
    std::int64_t block_used = 0;
  };

  PlainCache(std::int64_t page, std::int64_t budget) : page_(page), budget_(budget) {}

  std::vector<Page> pages;

  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const Page& p : pages) sum += kPageBytes + (p.block ? kBlockBytes : 0);
    return sum;
  }

  Page* at(const Positions& s, std::int64_t end) {
    const Positions content(s.begin(), s.begin() + end);
    for (Page& p : pages) {
      if (p.content == content) return &p;
    }
    return nullptr;
  }

  std::int64_t deepest(const Positions& s, std::int64_t limit) {
    std::int64_t end = 0;
    while (end + page_ <= std::min(limit, static_cast<std::int64_t>(s.size())) && at(s, end + page_) != nullptr) {
      end += page_;
    }
    return end;
  }

  /// Uses the block at `block_end`, if that is not 0, then the pages before `end` from the last one on.
  void use(const Positions& s, std::int64_t end, std::int64_t block_end) {
    if (block_end > 0) at(s, block_end)->block_used = ++now_;
    for (; end > 0; end -= page_) at(s, end)->used = ++now_;
  }

  void insert(const Positions& s, const std::vector<PageId>& ids, std::optional<PageId> block,
              std::int64_t block_position) {
    std::int64_t end = deepest(s, static_cast<std::int64_t>(ids.size()) * page_);
    use(s, end, 0);
    while (end / page_ < static_cast<std::int64_t>(ids.size()) && room(s, end, kPageBytes)) {
      end += page_;
      pages.push_back({.content = Positions(s.begin(), s.begin() + end),
                       .id = ids[static_cast<std::size_t>(end / page_ - 1)],
                       .used = 0});
    }
    use(s, end, 0);
    if (!block || block_position > end) return;
    if (!at(s, block_position)->block && room(s, end, kBlockBytes)) at(s, block_position)->block = block;
    if (at(s, block_position)->block) use(s, end, block_position);
  }

  /// Where a hit ends.
  template <class F>
  std::int64_t find(const Positions& s, std::int64_t limit, const F& replay_cost) {
    const std::int64_t deep = deepest(s, limit);
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> ends;  // by cost, deeper first
    ends[{deep, 0}] = 0;
    for (std::int64_t end = page_; end <= deep; end += page_) {
      ends[{deep - end + (at(s, end)->block ? 0 : replay_cost(end)), -end}] = end;
    }
    const std::int64_t best = ends.begin()->second;
    use(s, best, best > 0 && at(s, best)->block ? best : 0);
    return best;
  }

  /// Drops the least recently used page that is last, or block, of those that `may_go`. Returns whether there is one.
  template <class F>
  bool drop(const F& may_go) {
    Page* oldest = nullptr;
    std::int64_t when = INT64_MAX;
    bool is_block = false;
    for (Page& p : pages) {
      if (p.block && p.block_used < when && may_go(p, true)) oldest = &p, when = p.block_used, is_block = true;
      if (!p.block && p.used < when && last(p) && may_go(p, false)) oldest = &p, when = p.used, is_block = false;
    }
    if (oldest == nullptr) return false;
    if (is_block) {
      oldest->block.reset();
    } else {
      pages.erase(pages.begin() + (oldest - pages.data()));
    }
    return true;
  }

 private:
  static bool begins(const Positions& s, const Positions& with) {
    return with.size() <= s.size() && std::equal(with.begin(), with.end(), s.begin());
  }

  bool last(const Page& p) const {
    return std::none_of(pages.begin(), pages.end(), [&](const Page& other) {
      return other.content.size() > p.content.size() && begins(other.content, p.content);
    });
  }

  /// Room for `bytes` beside the pages of `s` before `end`.
  bool room(const Positions& s, std::int64_t end, std::int64_t bytes_more) {
    if (end / page_ * kPageBytes + bytes_more > budget_) return false;
    const Positions kept(s.begin(), s.begin() + end);
    while (bytes() + bytes_more > budget_) {
      drop([&](const Page& p, bool is_block) { return is_block || !begins(kept, p.content); });
    }
    return true;
  }

  std::int64_t page_, budget_, now_ = 0;
};

/// All pages under one key: finding must not rest on keys.
struct OneKey {
  files::Digest operator()(const files::Digest&, std::span<const std::byte>) const noexcept { return {}; }
};

}  // namespace

TEMPLATE_TEST_CASE("thousands of random calls do what a plain list does", "[runtime]", runtime::ChainedSha256, OneKey) {
  std::int64_t hits = 0, with_block = 0, evictions = 0, refusals = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Random random(seed);
    const std::int64_t page = 1 + random.below(4), budget = random.below(40) * kPageBytes + random.below(kPageBytes);
    CountingPool page_pool(kPageBytes), block_pool(kBlockBytes);
    runtime::PrefixCache<CountingPool, TestType> cache(page_pool, block_pool, page, budget);
    PlainCache plain(page, budget);
    struct Held {
      std::vector<PageId> pages;
      std::optional<PageId> block;
    };
    std::vector<Held> held;
    std::vector<Positions> past{{}};
    const auto let_go = [&](std::size_t i) {
      page_pool.release(held[i].pages);
      if (held[i].block) block_pool.release(*held[i].block);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    };
    for (int step = 0; step < 700; ++step) {
      const auto recent = static_cast<std::size_t>(random.below(std::min<std::int64_t>(20, step + 1)));
      Positions s = past[past.size() - 1 - recent];
      s.resize(static_cast<std::size_t>(random.below(static_cast<std::int64_t>(s.size()) + 1)));
      for (std::int64_t more = random.below(3 * page + 2); more > 0 && s.size() < 40; --more) {
        const bool mark = random.below(4) == 0;
        s.push_back({static_cast<std::int32_t>(random.below(2)), mark, mark ? static_cast<int>(random.below(3)) : 0});
      }
      past.push_back(s);
      const Sequence given = sequence_of(s);
      const std::int64_t whole = given.size() / page, what = random.below(10);
      INFO("seed " << seed << ", step " << step);
      if (what < 5) {
        Held own{.pages = page_pool.acquire(random.below(whole + 1)), .block = {}};
        std::int64_t block_position = 0;
        if (whole > 0 && random.below(2) == 0) {
          own.block = block_pool.acquire();
          block_position = (1 + random.below(whole)) * page;
        }
        cache.insert(given.content(), own.pages, own.block, block_position);
        plain.insert(s, own.pages, own.block, block_position);
        held.push_back(own);
      } else if (what < 9) {
        const std::int64_t limit = random.below(given.size() + 3) - 1, flat = random.below(20) * random.below(2),
                           tilt = random.below(4);
        const auto replay_cost = [&](std::int64_t p) { return flat + p * tilt / 4; };
        const auto hit = cache.find(given.content(), limit, replay_cost);
        const std::int64_t end = plain.find(s, limit, replay_cost);
        REQUIRE(hit.positions == end);
        REQUIRE(static_cast<std::int64_t>(hit.pages.size()) == end / page);
        for (std::size_t i = 0; i < hit.pages.size(); ++i) {
          REQUIRE(hit.pages[i] == plain.at(s, (static_cast<std::int64_t>(i) + 1) * page)->id);
        }
        REQUIRE(hit.block == (end == 0 ? std::optional<PageId>() : plain.at(s, end)->block));
        hits += end > 0;
        with_block += hit.block.has_value();
        held.push_back({hit.pages, hit.block});
      } else {
        const bool freed = plain.drop([&](const PlainCache::Page& p, bool is_block) {
          return is_block ? block_pool.count(*p.block) == 1 : page_pool.count(p.id) == 1;
        });
        REQUIRE(cache.evict() == freed);
        (freed ? evictions : refusals) += 1;
      }
      while (held.size() > 3) let_go(static_cast<std::size_t>(random.below(static_cast<std::int64_t>(held.size()))));
      // Everything that lives is held by the cache, by a sequence, or by both.
      std::map<PageId, std::int64_t> page_counts, block_counts;
      for (const Held& h : held) {
        for (const PageId id : h.pages) ++page_counts[id];
        if (h.block) ++block_counts[*h.block];
      }
      for (const PlainCache::Page& p : plain.pages) {
        ++page_counts[p.id];
        if (p.block) ++block_counts[*p.block];
      }
      REQUIRE(page_pool.live() == static_cast<std::int64_t>(page_counts.size()));
      for (const auto& [id, count] : page_counts) REQUIRE(page_pool.count(id) == count);
      REQUIRE(block_pool.live() == static_cast<std::int64_t>(block_counts.size()));
      for (const auto& [id, count] : block_counts) REQUIRE(block_pool.count(id) == count);
      REQUIRE(cache.pages() == static_cast<std::int64_t>(plain.pages.size()));
      REQUIRE(cache.bytes() == plain.bytes());
      REQUIRE(cache.bytes() <= budget);
    }
    while (!held.empty()) let_go(0);
    cache.clear();
    CHECK(page_pool.live() == 0);
    CHECK(block_pool.live() == 0);
  }
  CHECK(hits > 2000);
  CHECK(with_block > 1000);
  CHECK(evictions > 1000);
  CHECK(refusals > 200);
}
