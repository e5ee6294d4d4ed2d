// SPDX-License-Identifier: MIT
//
// Memory of caches: pages of one size, counted, within a declared budget.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/core/view.hpp"

namespace dsv41 {

/// Bytes that the caches of all sequences may take together, whatever holds them.
class CacheBudget {
 public:
  /// `limit` 0: what the backend's memory has.
  explicit CacheBudget(std::int64_t limit = 0) : limit_(limit) {}

  std::int64_t limit() const { return limit_; }
  std::int64_t used() const { return used_; }
  std::int64_t left() const { return limit_ == 0 ? INT64_MAX - used_ : limit_ - used_; }
  void charge(std::int64_t bytes) { used_ += bytes; }
  void refund(std::int64_t bytes) { used_ -= bytes; }

  [[noreturn]] void refuse(std::string_view what, std::int64_t bytes) const {
    throw Error(Errc::out_of_memory, "cache budget: " + std::string(what) + " needs " + std::to_string(bytes) +
                                         " bytes, expected at most the " + std::to_string(left()) + " left of " +
                                         std::to_string(limit_));
  }

 private:
  std::int64_t limit_, used_ = 0;
};

/// An allocation that is charged to a budget while it lives. Both references must outlive it.
template <class B>
class ChargedArena {
 public:
  ChargedArena() = default;

  /// Errors: out_of_memory, by the budget or by the backend; nothing is charged then.
  template <class Layout>
  ChargedArena(B& b, CacheBudget& budget, std::string_view what, const Layout& layout) {
    Cursor count;
    layout(count);
    const auto bytes = static_cast<std::int64_t>(count.used());
    if (bytes > budget.left()) budget.refuse(what, bytes);
    memory_ = Arena<B>(b, layout);
    budget_ = &budget;
    budget.charge(bytes);
  }
  ChargedArena(ChargedArena&& other) noexcept { swap(other); }
  ChargedArena& operator=(ChargedArena&& other) noexcept {
    swap(other);
    return *this;
  }
  ~ChargedArena() {
    if (budget_ != nullptr) budget_->refund(bytes());
  }

  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.bytes()); }

 private:
  void swap(ChargedArena& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(budget_, other.budget_);
  }

  Arena<B> memory_;
  CacheBudget* budget_ = nullptr;
};

using PageId = std::int32_t;
inline constexpr PageId kNoPage = -1;

/// Pages of `page_bytes`, cut from slabs. A page lives while it is counted; one that is counted twice is shared and must not be written.
/// Slabs are charged to the budget as they are allocated, and given back by trim() once no page of theirs lives. Pages never move.
template <class B>
class PagePool {
 public:
  /// Slabs of at most `slab_pages`, fewer when the budget holds no more. Both references must outlive the pool.
  PagePool(B& b, CacheBudget& budget, std::string_view what, std::int64_t page_bytes, std::int64_t slab_pages)
      : backend_(&b), budget_(&budget), what_(what), page_bytes_(page_bytes), slab_pages_(slab_pages) {}
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// A page with a count of one and any contents. Errors: out_of_memory, with nothing changed.
  PageId acquire() {
    if (free_.empty()) grow();
    const PageId id = free_.back();
    free_.pop_back();
    counts_[at(id)] = 1;
    ++used_;
    return id;
  }

  void share(PageId id) { ++counts_[at(id)]; }

  void release(PageId id) noexcept {
    DSV41_DCHECK(counts_[at(id)] > 0);
    if (--counts_[at(id)] > 0) return;
    free_.push_back(id);  // grow() has made room for every page
    --used_;
  }

  bool shared(PageId id) const { return counts_[at(id)] > 1; }
  std::byte* data(PageId id) const { return addresses_[at(id)]; }

  /// Makes `id` the caller's alone: itself, or a copy that replaces the caller's count of it. Errors: as acquire.
  PageId own(PageId id) {
    if (!shared(id)) return id;
    const PageId copy = acquire();
    backend_->copy(data(copy), data(id), static_cast<std::size_t>(page_bytes_));
    release(id);
    return copy;
  }

  std::int64_t page_bytes() const { return page_bytes_; }
  std::int64_t used() const { return used_; }  ///< pages that live

  /// Gives back slabs without living pages. Returns whether there was one.
  bool trim() noexcept {
    bool freed = false;
    for (std::size_t s = 0; s < slabs_.size(); ++s) {
      Slab& slab = slabs_[s];
      const auto first = counts_.begin() + static_cast<std::ptrdiff_t>(at(first_of(s)));
      if (slab.pages == 0 || std::any_of(first, first + slab.pages, [](std::int32_t count) { return count > 0; }))
        continue;
      std::erase_if(free_, [&](PageId id) { return static_cast<std::size_t>(id / slab_pages_) == s; });
      slab = {};
      freed = true;
    }
    return freed;
  }

 private:
  /// Pages first_of(s) .. + pages - 1; without memory after trim(), and then its ids are the next slab's.
  struct Slab {
    std::int64_t pages = 0;
    ChargedArena<B> memory;
  };

  static std::size_t at(PageId id) { return static_cast<std::size_t>(id); }
  PageId first_of(std::size_t slab) const { return static_cast<PageId>(static_cast<std::int64_t>(slab) * slab_pages_); }

  void grow() {
    constexpr auto kRounding = static_cast<std::int64_t>(Cursor::kAlignment);  // what an allocation is rounded up to
    const std::int64_t pages = std::min(slab_pages_, budget_->left() / kRounding * kRounding / page_bytes_);
    if (pages < 1) budget_->refuse(what_, page_bytes_);
    const auto empty = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& s) { return s.pages == 0; });
    const auto s = static_cast<std::size_t>(empty - slabs_.begin());
    if (s == slabs_.size()) {
      slabs_.reserve(s + 1);
      const std::size_t ids = at(first_of(s + 1));
      addresses_.resize(ids);
      counts_.resize(ids);
      free_.reserve(ids);  // release() cannot fail
      slabs_.emplace_back();
    }
    Out<std::byte, 1> bytes;
    slabs_[s].memory =
        ChargedArena<B>(*backend_, *budget_, what_, [&](Cursor& cursor) { cursor.take(bytes, {pages * page_bytes_}); });
    slabs_[s].pages = pages;
    for (std::int64_t i = pages; i-- > 0;) {  // the first page is taken first
      const PageId id = first_of(s) + static_cast<PageId>(i);
      addresses_[at(id)] = bytes.data() + i * page_bytes_;
      free_.push_back(id);
    }
  }

  B* backend_;
  CacheBudget* budget_;
  std::string what_;
  std::int64_t page_bytes_, slab_pages_, used_ = 0;
  std::vector<Slab> slabs_;
  std::vector<std::byte*> addresses_;  // per id
  std::vector<std::int32_t> counts_;   // per id; 0: free, or without memory
  std::vector<PageId> free_;
};

}  // namespace dsv41
