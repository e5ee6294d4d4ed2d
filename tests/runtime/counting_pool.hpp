// SPDX-License-Identifier: MIT
//
// What the tests of the prefix cache put into it: pages that are only counted, and sequences on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <vector>

#include "dsv41/model/page_pool.hpp"
#include "runtime/content.hpp"

namespace dsv41::test {

inline constexpr std::int64_t kPageBytes = 10, kBlockBytes = 25;

/// Counts pages that are nowhere.
class CountingPool {
 public:
  explicit CountingPool(std::int64_t page_bytes) : page_bytes_(page_bytes) {}

  PageId acquire() {
    counts_[next_] = 1;
    return next_++;
  }
  std::vector<PageId> acquire(std::int64_t count) {
    std::vector<PageId> out;
    while (static_cast<std::int64_t>(out.size()) < count) out.push_back(acquire());
    return out;
  }
  void share(PageId id) {
    if (fails_at == 0) throw std::bad_alloc();
    --fails_at;
    ++counts_.at(id);
  }
  void release(PageId id) noexcept {
    if (--counts_[id] == 0) counts_.erase(id);
  }
  void release(const std::vector<PageId>& ids) {
    for (const PageId id : ids) release(id);
  }
  bool shared(PageId id) const { return counts_.at(id) > 1; }
  std::int64_t page_bytes() const { return page_bytes_; }

  std::int64_t count(PageId id) const { return counts_.count(id) > 0 ? counts_.at(id) : 0; }
  std::int64_t live() const { return static_cast<std::int64_t>(counts_.size()); }

  std::int64_t fails_at = -1;  ///< calls of share() that still succeed; negative: all

 private:
  std::int64_t page_bytes_;
  PageId next_ = 0;
  std::map<PageId, std::int64_t> counts_;
};

inline runtime::ImageDigest image_at(std::int64_t position, int row) {
  return {.position = position, .digest = {static_cast<std::byte>(row)}};
}

/// The tokens of a sequence; marked as text unless it says otherwise.
struct Sequence {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> marks = std::vector<std::uint8_t>(ids.size(), 0);
  std::vector<runtime::ImageDigest> images{};

  runtime::Content content() const { return {ids, marks, images}; }
  std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
};

}  // namespace dsv41::test
