// SPDX-License-Identifier: MIT
//
// The caches of sequences that are over, or go on elsewhere, found again by what they were made of: a new sequence that begins with the
// same content takes their pages and runs only the rest. Holds counts of pages, never their bytes, and knows neither models nor backends.
// Private to src/runtime.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "content.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/core/view.hpp"
#include "dsv41/model/page_pool.hpp"
#include "files/sha256.hpp"

namespace dsv41::runtime {

/// What the prefix cache needs of a PagePool.
template <class P>
concept CountedPages = requires(P& pool, const P& constant, PageId id) {
  pool.share(id);
  { pool.release(id) }
  noexcept;
  { constant.shared(id) } -> std::same_as<bool>;
  { constant.page_bytes() } -> std::same_as<std::int64_t>;
};

/// The key of a page: SHA-256 over the key of the page before it (zeros: none) and its own text, so it stands for all of the sequence up to
/// the page's end.
struct ChainedSha256 {
  files::Digest operator()(const files::Digest& previous, std::span<const std::byte> text) const noexcept {
    files::Sha256 hash;
    hash.update(previous);
    hash.update(text);
    return hash.digest();
  }
};

/// Pages by content: a tree whose nodes are whole pages of `page_positions` positions, with a block at the end of some of them.
///
/// Rules:   - pages are written and looked up in the same unit, page_positions; a page that is not full is never shared (case B60).
///          - a page is found under equal ids, marks and image digests of itself and of every page before it (case B59). The key only
///            finds it fast: the content is kept and compared, so two contents under one key would do no harm.
///          - an entry is one count of its page. A page that sequences hold as well outlives its entry, and one that a sequence took
///            from here must not be written (PagePool::own).
///          - entries are dropped by least recent use, a page after all that depends on it: its block and the page behind it. insert()
///            uses all pages of its sequence and the block it was given, find() what it returns. No clock: equal calls leave equal caches.
///          - a page weighs page_bytes() of its pool, a block that of its own. The host's memory of an entry, about
///            5 * page_positions + 300 bytes and 40 an image row, is not counted.
/// Errors:  of memory: std::bad_alloc, and what a pool's share() throws, pass through; the cache is consistent then.
/// Cost:    insert and find hash 5 bytes a token and 40 an image row, and compare keys O(log pages) times a page.
template <CountedPages Pool, class KeyOf = ChainedSha256>
class PrefixCache {
 public:
  /// What find() found: the first `positions` positions need not be run. The caller holds one count of each page, and of the block.
  struct Hit {
    std::int64_t positions = 0;   ///< a multiple of page_positions
    std::vector<PageId> pages;    ///< positions / page_positions
    std::optional<PageId> block;  ///< rings and open groups at exactly `positions`; none: they have to be rebuilt
  };

  /// Both pools must outlive the cache. Errors: invalid_argument.
  PrefixCache(Pool& pages, Pool& blocks, std::int64_t page_positions, std::int64_t budget_bytes)
      : page_pool_(&pages), block_pool_(&blocks), page_positions_(page_positions), budget_bytes_(budget_bytes) {
    if (page_positions < 1) refuse("pages of " + std::to_string(page_positions) + " positions, expected at least 1");
    if (budget_bytes < 0) refuse("a budget of " + std::to_string(budget_bytes) + " bytes, expected at least 0");
  }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  ~PrefixCache() { clear(); }

  /// Keeps the first whole pages of a sequence, and its block at `block_position`, as far as the budget allows.
  ///
  /// Rules:   page i holds positions [i * page_positions, (i + 1) * page_positions). What is there already stays as it is; a page that
  ///          has a block keeps it. Room is made by dropping what this sequence does not use; where even that is too little, the
  ///          first pages are kept. A block whose page is not kept, or that has no room beside its sequence's pages, is not kept either.
  /// Errors:  invalid_argument, before anything changes. Of memory: what was inserted so far stays.
  void insert(const Content& content, std::span<const PageId> pages, std::optional<PageId> block,
              std::int64_t block_position) {
    const std::int64_t whole = expect_valid(content) / page_positions_;
    const auto count = static_cast<std::int64_t>(pages.size());
    if (count > whole)
      refuse(std::to_string(count) + " pages, expected at most the " + std::to_string(whole) + " that are whole");
    if (block && (block_position < 1 || block_position % page_positions_ != 0)) {
      refuse("a block at position " + std::to_string(block_position) + ", expected a multiple of " +
             std::to_string(page_positions_) + " above 0");
    }
    std::vector<Entry*> chain = longest_chain(content, count);
    chain.reserve(pages.size());
    touch(chain);
    std::vector<std::byte> text;
    for (std::size_t i = chain.size(); i < pages.size(); ++i) {
      if (!make_room(*page_pool_, chain)) break;
      write_text(content, static_cast<std::int64_t>(i), text);
      chain.push_back(add_page(pages[i], chain, text));
    }
    const std::int64_t end = block ? block_position / page_positions_ : 0;  // in pages
    if (end == 0 || end > static_cast<std::int64_t>(chain.size())) return;
    Entry& page = *chain[static_cast<std::size_t>(end - 1)];
    if (page.block != nullptr) {
      order_.splice(behind(chain), order_, page.block->place);
    } else if (make_room(*block_pool_, chain)) {
      page.block = add_block(*block, page, chain);
    }
  }

  /// The pages to begin a sequence of this content with: of the longest chain that is here within `limit` positions, as much as is worth
  /// taking.
  ///
  /// Rules:   `replay_cost(p)` says how many rows have to run again to rebuild rings and open groups at position p without a block. With
  ///          `deepest` the end of the chain, the hit ends at that end p of a page which costs the fewest rows:
  ///          (deepest - p) + (a block at p ? 0 : replay_cost(p)); ties to the deeper one. No page at all costs deepest.
  /// Errors:  as the class says, and what replay_cost throws: nothing is counted for the caller then.
  /// Cost:    one call of replay_cost for every page of the chain without a block.
  template <std::invocable<std::int64_t> ReplayCost>
  Hit find(const Content& content, std::int64_t limit, const ReplayCost& replay_cost) {
    const std::int64_t positions = std::min(limit, expect_valid(content));
    std::vector<Entry*> chain = longest_chain(content, positions / page_positions_);
    const std::int64_t deepest = static_cast<std::int64_t>(chain.size()) * page_positions_;
    std::size_t best = 0;
    std::int64_t least = deepest;
    for (std::size_t n = 1; n <= chain.size(); ++n) {
      const std::int64_t end = static_cast<std::int64_t>(n) * page_positions_;
      const std::int64_t replayed = chain[n - 1]->block != nullptr ? 0 : replay_cost(end);
      if (deepest - end + replayed > least) continue;
      least = deepest - end + replayed;
      best = n;
    }
    chain.resize(best);
    Hit hit = shared_hit(chain);
    touch(chain);
    if (hit.block) order_.splice(behind(chain), order_, chain.back()->block->place);
    return hit;
  }

  /// Frees one page or block: the least recently used one that nothing in the cache depends on and nobody else holds. Returns false where
  /// there is none, so that dropping entries would free no memory.
  ///
  /// Cost:    O(entries that are in use).
  bool evict() noexcept {
    const auto free = std::find_if(order_.rbegin(), order_.rend(), [](const std::unique_ptr<Entry>& e) {
      return e->dependents == 0 && !e->pool->shared(e->id);
    });
    if (free == order_.rend()) return false;
    drop(**free);
    return true;
  }

  /// Gives up all counts.
  void clear() noexcept {
    while (!order_.empty()) drop(*order_.back());
  }

  std::int64_t bytes() const noexcept { return bytes_; }  ///< of pages and blocks
  std::int64_t pages() const noexcept { return static_cast<std::int64_t>(index_.size()); }

 private:
  struct Entry;
  using Index = std::multimap<files::Digest, Entry*>;  // pages by key
  using Order = std::list<std::unique_ptr<Entry>>;  // most recent first; an entry is behind the one that it depends on

  /// A page, or the block at a page's end.
  struct Entry {
    Pool* pool = nullptr;
    PageId id = kNoPage;
    Entry* parent =
        nullptr;  // what it depends on: the page before, or the page at whose end the block stands; null: the first page
    std::int64_t dependents = 0;     // entries whose parent it is
    Entry* block = nullptr;          // of a page
    std::vector<std::byte> text{};   // of a page: its content
    typename Index::iterator key{};  // of a page; a block has index_.end()
    typename Order::iterator place{};
  };

  [[noreturn]] static void refuse(const std::string& message) {
    throw Error(Errc::invalid_argument, "prefix cache: " + message);
  }

  /// Returns the number of positions.
  static std::int64_t expect_valid(const Content& content) {
    if (content.marks.size() != content.ids.size()) {
      refuse(std::to_string(content.marks.size()) + " marks, expected one for each of " +
             std::to_string(content.ids.size()) + " ids");
    }
    return static_cast<std::int64_t>(content.ids.size());
  }

  /// The content of a page as bytes, equal exactly where the contents are: page_positions, ids, marks, then each image digest with its
  /// position in the page.
  void write_text(const Content& content, std::int64_t page, std::vector<std::byte>& text) const {
    const std::int64_t begin = page * page_positions_, end = begin + page_positions_;
    const auto first = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(page_positions_);
    const auto append = [&](const auto& values) {
      const auto bytes = std::as_bytes(std::span(values));
      text.resize(text.size() + bytes.size());
      std::copy(bytes.begin(), bytes.end(), text.end() - std::ssize(bytes));
    };
    text.clear();
    append(std::span(&page_positions_, 1));
    append(content.ids.subspan(first, count));
    append(content.marks.subspan(first, count));
    auto image = std::ranges::lower_bound(content.images, begin, {}, &ImageDigest::position);
    for (; image != content.images.end() && image->position < end; ++image) {
      const std::int64_t within = image->position - begin;
      append(std::span(&within, 1));
      append(image->digest);
    }
  }

  static files::Digest key_of(std::span<Entry* const> before, std::span<const std::byte> text) {
    return KeyOf{}(before.empty() ? files::Digest{} : before.back()->key->first, text);
  }

  /// The pages that are here, of at most the first `count`.
  std::vector<Entry*> longest_chain(const Content& content, std::int64_t count) {
    std::vector<Entry*> chain;
    std::vector<std::byte> text;
    for (std::int64_t page = 0; page < count; ++page) {
      write_text(content, page, text);
      const Entry* parent = chain.empty() ? nullptr : chain.back();
      const auto [begin, end] = index_.equal_range(key_of(chain, text));
      const auto found = std::find_if(begin, end, [&](const typename Index::value_type& at) {
        return at.second->parent == parent && at.second->text == text;
      });
      if (found == end) break;
      chain.push_back(found->second);
    }
    return chain;
  }

  /// Counts for the caller all pages of a chain and the block at its end.
  Hit shared_hit(std::span<Entry* const> chain) {
    Hit hit{.positions = static_cast<std::int64_t>(chain.size()) * page_positions_, .pages = {}, .block = {}};
    hit.pages.reserve(chain.size());
    try {
      for (const Entry* page : chain) {
        page_pool_->share(page->id);
        hit.pages.push_back(page->id);
      }
      if (chain.empty() || chain.back()->block == nullptr) return hit;
      block_pool_->share(chain.back()->block->id);
      hit.block = chain.back()->block->id;
    } catch (...) {
      for (const PageId id : hit.pages) page_pool_->release(id);
      throw;
    }
    return hit;
  }

  /// Where an entry is less recent than this chain and more recent than all others.
  typename Order::iterator behind(std::span<Entry* const> chain) noexcept {
    return chain.empty() ? order_.begin() : std::next(chain.back()->place);
  }

  /// Makes this chain the most recent entries, its first page the most recent of all.
  void touch(std::span<Entry* const> chain) noexcept {
    for (std::size_t i = chain.size(); i-- > 0;) order_.splice(order_.begin(), order_, chain[i]->place);
  }

  /// Drops entries until one more of `pool` fits; none of this chain, which must be the most recent. Returns false, with nothing dropped,
  /// where the budget is too small for the chain and that one.
  bool make_room(const Pool& pool, std::span<Entry* const> chain) noexcept {
    const std::int64_t kept = static_cast<std::int64_t>(chain.size()) * page_pool_->page_bytes();
    if (kept + pool.page_bytes() > budget_bytes_) return false;
    while (bytes_ + pool.page_bytes() > budget_bytes_) drop(*order_.back());
    return true;
  }

  Entry* add_page(PageId id, std::span<Entry* const> before, const std::vector<std::byte>& text) {
    auto page = std::make_unique<Entry>(
        Entry{.pool = page_pool_, .id = id, .parent = before.empty() ? nullptr : before.back(), .text = text});
    Index one;
    one.emplace(key_of(before, text), page.get());
    return add(std::move(page), one.extract(one.begin()), before);
  }

  Entry* add_block(PageId id, Entry& page, std::span<Entry* const> chain) {
    return add(std::make_unique<Entry>(Entry{.pool = block_pool_, .id = id, .parent = &page}), {}, chain);
  }

  /// Takes an entry over, behind a chain, and the key of a page. What can fail comes first.
  Entry* add(std::unique_ptr<Entry> entry, typename Index::node_type key, std::span<Entry* const> chain) {
    Order one;
    one.push_back(std::move(entry));
    Entry& added = *one.front();
    added.pool->share(added.id);
    added.place = one.begin();
    order_.splice(behind(chain), one);
    added.key = index_.insert(std::move(key));  // end() without a key
    bytes_ += added.pool->page_bytes();
    if (added.parent != nullptr) ++added.parent->dependents;
    return &added;
  }

  void drop(Entry& entry) noexcept {
    DSV41_DCHECK(entry.dependents == 0);
    entry.pool->release(entry.id);
    bytes_ -= entry.pool->page_bytes();
    if (entry.key != index_.end()) index_.erase(entry.key);
    if (entry.parent != nullptr) {
      --entry.parent->dependents;
      if (entry.parent->block == &entry) entry.parent->block = nullptr;
    }
    order_.erase(entry.place);
  }

  Pool* page_pool_;
  Pool* block_pool_;
  std::int64_t page_positions_, budget_bytes_;
  std::int64_t bytes_ = 0;
  Index index_;
  Order order_;
};

}  // namespace dsv41::runtime
