// SPDX-License-Identifier: MIT
//
// The three kinds of memory of a running model are Weights (immutable), State (what a sequence remembers) and Scratch (meaningless
// between steps, model/scratch.hpp). This file keeps State: pages that grow with the sequence and one block for what is bounded, both
// counted, shared by forks, and copied when they are written while shared.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/cache_layout.hpp"
#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/model/page_pool.hpp"
#include "dsv41/modules/dspark/draft_state.hpp"
#include "dsv41/modules/sequence.hpp"

namespace dsv41 {

/// Who keeps pages or blocks only for later use.
class CacheReserve {
 public:
  /// Gives some up; false: there is nothing left.
  virtual bool give_up() noexcept = 0;

 protected:
  ~CacheReserve() = default;
};

/// Memory of all sequences of a model.
template <class B>
class CachePool {
 public:
  /// `room`, `drafts`: see make_cache_layout. `limit`: bytes that pages, blocks and page tables may take together; 0: what the backend has.
  /// The backend must outlive the pool, the pool its states.
  CachePool(B& b, const ModelConfig& config, std::int64_t room, std::int64_t limit = 0, bool drafts = false)
      : backend(b),
        config(config),
        layout(make_cache_layout(config, room, drafts)),
        budget(limit),
        pages(b, budget, "a page of entries and index keys", layout.page_bytes, slab_pages(layout.page_bytes, limit)),
        blocks(b, budget, "a block of window rings and open groups", layout.block_bytes, 1) {}

  /// take(), again and again while it fails for memory and something could be given back.
  template <class Take>
  auto within_budget(const Take& take) {
    for (;;) {
      try {
        return take();
      } catch (const Error& e) {
        if (e.code() != Errc::out_of_memory || !make_room()) throw;
      }
    }
  }

  B& backend;
  const ModelConfig config;
  const CacheLayout layout;
  CacheBudget budget;
  PagePool<B> pages;
  PagePool<B> blocks;             ///< each in a slab of its own, so that its floats are aligned
  CacheReserve* spare = nullptr;  ///< asked when the budget is short; null: there is none

 private:
  /// Few enough allocations, and not much more memory than is needed: 64 pages in the release, one where a page is huge. A slab takes at
  /// most a 64th of the budget, so that free pages do not keep blocks and page tables out of it.
  static std::int64_t slab_pages(std::int64_t page_bytes, std::int64_t limit) {
    constexpr std::int64_t kMostPages = 64, kSlabBytes = 4 << 20, kLeastSlabs = 64;
    const std::int64_t bytes = limit == 0 ? kSlabBytes : std::min(kSlabBytes, limit / kLeastSlabs);
    return std::clamp<std::int64_t>(bytes / std::max<std::int64_t>(page_bytes, 1), 1, kMostPages);
  }

  bool make_room() {
    const bool trimmed_pages = pages.trim(), trimmed_blocks = blocks.trim();
    return trimmed_pages || trimmed_blocks || (spare != nullptr && spare->give_up());
  }
};

/// One sequence's caches. Positions are addresses: going back is a smaller position, and what lies behind it is written again.
template <class B>
class State {
 public:
  /// Room in the page table for `max_context` positions; blocks and pages come with reserve(). Errors: out_of_memory.
  State(CachePool<B>& pool, std::int64_t max_context)
      : pool_(&pool), max_context_(max_context), sequence_(std::make_unique<SequenceState>()) {
    table_ = pool.within_budget([&] {
      return ChargedArena<B>(pool.backend, pool.budget, "a page table",
                             [&](Cursor& cursor) { cursor.take(addresses_, {1 + pool.layout.pages(max_context)}); });
    });
    lay_out();
    carry_from_.resize(pool.layout.sources.size());
  }
  State(State&& other) noexcept = default;
  State& operator=(State&& other) noexcept {
    State taken(std::move(other));
    std::swap(pool_, taken.pool_);
    std::swap(max_context_, taken.max_context_);
    std::swap(sequence_, taken.sequence_);
    std::swap(addresses_, taken.addresses_);
    std::swap(table_, taken.table_);
    std::swap(pages_, taken.pages_);
    std::swap(block_, taken.block_);
    std::swap(ring_from_, taken.ring_from_);
    std::swap(carry_from_, taken.carry_from_);
    std::swap(draft_, taken.draft_);
    return *this;
  }
  ~State() {
    if (!sequence_) return;  // moved from
    if (block_ != kNoPage) pool_->blocks.release(block_);
    drop_pages(0);
  }

  /// Another sequence that remembers the same. Both share all memory until one of them writes. Errors: out_of_memory.
  State fork() const {
    State copy(*pool_, max_context_);
    copy.pages_.reserve(pages_.size());
    for (const PageId page : pages_) {
      pool_->pages.share(page);
      copy.pages_.push_back(page);
    }
    if (block_ != kNoPage) {
      pool_->blocks.share(block_);
      copy.set_block(block_);
    }
    copy.upload_pages(0);
    copy.sequence_->position = position();
    copy.ring_from_ = ring_from_;
    copy.carry_from_ = carry_from_;
    copy.draft_.position = draft_.position;
    copy.draft_.first = draft_.first;
    return copy;
  }

  const CachePool<B>& pool() const { return *pool_; }
  SequenceState& sequence() { return *sequence_; }
  /// The drafter's context; without rings where the pool has none. It goes back with the sequence; who runs a step moves it on.
  DraftState& draft() { return draft_; }
  const DraftState& draft() const { return draft_; }
  std::int64_t position() const { return sequence_->position; }
  std::int64_t max_context() const { return max_context_; }
  const std::vector<PageId>& pages() const { return pages_; }
  PageId block() const { return block_; }  ///< kNoPage before the first reserve()
  std::int64_t table_bytes() const { return table_.bytes(); }

  /// Makes the block and the next `count` positions writable: the sequence's own. They must not exceed max_context().
  /// Errors: out_of_memory; the sequence is as it was, with a block.
  void reserve(std::int64_t count) {
    DSV41_DCHECK(count >= 0 && position() + count <= max_context_);
    const CacheLayout& layout = pool_->layout;
    set_block(
        pool_->within_budget([&] { return block_ == kNoPage ? pool_->blocks.acquire() : pool_->blocks.own(block_); }));
    const std::size_t end = pages_of(position() + count), had = pages_.size(),
                      full = pages_of(position() / layout.page_positions * layout.page_positions);
    if (end > pages_.capacity()) pages_.reserve(std::max(end, 2 * pages_.capacity()));
    std::size_t changed = end;  // the first one that is another page now
    try {
      for (std::size_t i = full; i < end; ++i) {
        pool_->within_budget([&] {
          if (i == pages_.size()) {
            pages_.push_back(pool_->pages.acquire());
          } else if (const PageId own = pool_->pages.own(pages_[i]); own != pages_[i]) {
            pages_[i] = own;
          } else {
            return;
          }
          changed = std::min(changed, i);
        });
      }
    } catch (...) {
      drop_pages(had);
      upload_pages(changed);
      throw;
    }
    upload_pages(changed);
  }

  /// The next `count` positions, reserved before, have been run through every layer.
  void advance(std::int64_t count) {
    overwrote(position() + count);
    sequence_->position += count;
  }

  /// The rings and open groups hold rows of positions up to `end`, in whatever state.
  void overwrote(std::int64_t end) {
    ring_from_ = std::max(ring_from_, end - pool_->layout.ring_slots);
    for (std::size_t i = 0; i < carry_from_.size(); ++i)
      carry_from_[i] = std::max(carry_from_[i], end - pool_->layout.carries[i].slots);
  }

  /// The rings and open groups hold nothing of use. The drafter's rings are not among them: a step writes them when it is through.
  void spoiled() {
    ring_from_ = kNever;
    std::fill(carry_from_.begin(), carry_from_.end(), kNever);
  }

  /// Rows of [first, position) have been run again and are all that rings hold; the open groups are whole (model/prefill.hpp, plan_replay).
  void replayed(std::int64_t first) {
    ring_from_ = std::max(first, position() - pool_->layout.ring_slots);
    for (std::size_t i = 0; i < carry_from_.size(); ++i)
      carry_from_[i] = position() - position() % pool_->layout.sources[i].ratio;
  }

  /// Whether the rings hold all window rows of positions from `first` on.
  bool holds_rows(std::int64_t first) const { return first >= ring_from_; }

  /// Whether the rings and open groups are those of a sequence of `position` tokens, which must not be ahead of the sequence.
  bool intact(std::int64_t position) const {
    if (position == 0) return true;
    if (!holds_rows(std::max<std::int64_t>(0, position - pool_->config.window + 1))) return false;
    for (std::size_t i = 0; i < carry_from_.size(); ++i) {
      const std::int64_t open = position % pool_->layout.sources[i].ratio;
      if (open > 0 && position - open < carry_from_[i]) return false;
    }
    return true;
  }

  /// Whether the drafter's rings hold the whole window before `position`, which must not be ahead of the sequence.
  bool draft_intact(std::int64_t position) const {
    return draft_.position >= position && draft_.first <= std::max<std::int64_t>(0, position - pool_->config.window);
  }

  /// Back to `position`, which must not be ahead of the sequence. Pages without a remaining token are given back.
  void rewind(std::int64_t position) {
    sequence_->position = position;
    if (draft_.position > position) draft_.rewind(position);
    drop_pages(pages_of(position));
    if (position == 0) ring_from_ = 0;  // whatever follows is written anew, and so is a group that begins here
    for (std::size_t i = 0; i < carry_from_.size(); ++i) {
      if (position % pool_->layout.sources[i].ratio == 0) carry_from_[i] = std::min(carry_from_[i], position);
    }
  }

  /// Takes over pages and a block that were counted for it, as those of its first `position` tokens, with windows of all of them, the
  /// drafter's included. kNoPage: rings and open groups are not there. The sequence must be empty.
  void adopt(std::vector<PageId> pages, PageId block, std::int64_t position) noexcept {
    pages_ = std::move(pages);
    upload_pages(0);
    sequence_->position = position;
    draft_.restart(position);
    if (block == kNoPage) {
      if (position > 0) spoiled();
      return;
    }
    if (block_ != kNoPage) pool_->blocks.release(block_);
    set_block(block);
    replayed(std::max<std::int64_t>(0, position - pool_->config.window + 1));
    draft_.first = std::max<std::int64_t>(0, position - pool_->config.window);
  }

  /// First byte of a run of each_cache_run().
  std::byte* data(const CacheRun& run) const {
    return run.offset +
           (run.page < 0 ? pool_->blocks.data(block_) : pool_->pages.data(pages_[static_cast<std::size_t>(run.page)]));
  }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  void lay_out() {
    const CacheLayout& layout = pool_->layout;
    const ModelConfig& c = pool_->config;
    const auto ring = [&](std::int64_t offset) {
      return CacheRows{.format = CacheFormat::window,
                       .rows = layout.ring_slots,
                       .width = c.head_dim,
                       .pages = addresses_.rows(0, 1),
                       .page_rows = layout.ring_slots,
                       .offset = offset};
    };
    for (const std::int64_t offset : layout.rings) sequence_->rings.push_back(ring(offset));
    for (const std::int64_t offset : layout.draft_rings) draft_.rings.push_back(ring(offset));
    for (const PagedSource& source : layout.sources) {
      const auto cache = [&](CacheFormat format, std::int64_t width, std::int64_t offset) {
        return CacheRows{.format = format,
                         .rows = max_context_ / source.ratio,
                         .width = width,
                         .pages = addresses_.rows(1, addresses_.extent(0) - 1),
                         .page_rows = source.rows,
                         .offset = offset};
      };
      sequence_->sources.push_back({.entries = cache(CacheFormat::entry, c.head_dim, source.entries),
                                    .index_keys = cache(CacheFormat::index, c.index_dim, source.index_keys),
                                    .carry_kv = {},
                                    .carry_gate = {}});
    }
  }

  std::size_t pages_of(std::int64_t positions) const {
    return static_cast<std::size_t>(pool_->layout.pages(positions));
  }

  void set_block(PageId block) {
    if (block == block_) return;
    block_ = block;
    std::byte* data = pool_->blocks.data(block);
    pool_->backend.upload(addresses_.data(), &data, sizeof data);
    for (std::size_t i = 0; i < carry_from_.size(); ++i) {
      const BlockCarry& carry = pool_->layout.carries[i];
      if (carry.slots == 0) continue;
      const auto rows = [&](std::int64_t offset) {
        return Out<float, 2>(reinterpret_cast<float*>(data + offset), {carry.slots, pool_->config.head_dim});
      };
      sequence_->sources[i].carry_kv = rows(carry.kv);
      sequence_->sources[i].carry_gate = rows(carry.gate);
    }
  }

  void drop_pages(std::size_t kept) noexcept {
    while (pages_.size() > kept) {
      pool_->pages.release(pages_.back());
      pages_.pop_back();
    }
  }

  /// Brings the addresses of pages from number `first` on into the table.
  void upload_pages(std::size_t first) {
    std::byte* data[64];
    while (first < pages_.size()) {
      const std::size_t count = std::min(std::size(data), pages_.size() - first);
      for (std::size_t i = 0; i < count; ++i) data[i] = pool_->pages.data(pages_[first + i]);
      pool_->backend.upload(addresses_.data() + 1 + first, data, count * sizeof data[0]);
      first += count;
    }
  }

  CachePool<B>* pool_;
  std::int64_t max_context_;
  std::unique_ptr<SequenceState> sequence_;  // segments point to it, so it does not move
  Out<std::byte*, 1> addresses_;             // page table: of the block, then of the pages
  ChargedArena<B> table_;
  std::vector<PageId> pages_;  // as many as hold positions, and those reserved
  PageId block_ = kNoPage;
  std::int64_t ring_from_ = 0;            // rows of older positions are not in the rings
  std::vector<std::int64_t> carry_from_;  // likewise the open groups' rows, per source
  DraftState draft_;
};

}  // namespace dsv41
