// SPDX-License-Identifier: MIT
//
// The library's one order of scores and a bounded heap that keeps the best k under it. Larger score first, then the lower index;
// -0 equals +0; NaN and -infinity are never selected. The result is a set: it does not depend on the order of arrival.
// Source: architecture.md 4 (tie rule).
#pragma once

#include <cstdint>
#include <limits>

#include "dsv41/core/hd.hpp"

namespace dsv41::numerics {

DSV41_HD inline bool ranks_before(float a, std::int32_t a_idx, float b, std::int32_t b_idx) {
  return a > b || (a == b && a_idx < b_idx);
}

/// Keeps the best `limit` of the indices offered. `ids` has room for `limit`; score(index) is read whenever indices are compared.
/// Cost: O(log limit) an offer, no allocation.
template <class Score>
class BestK {
 public:
  DSV41_HD BestK(std::int32_t* ids, std::int64_t limit, const Score& score) : ids_(ids), limit_(limit), score_(score) {}

  DSV41_HD void offer(std::int32_t idx) {
    const float s = score_(idx);
    if (!(s >= floor_) || limit_ == 0) return;  // where most of a long row's end
    if (count_ < limit_) {
      ids_[count_] = idx;
      for (std::int64_t at = count_++; at > 0 && worse(ids_[at], ids_[(at - 1) / 2]); at = (at - 1) / 2)
        swap(at, (at - 1) / 2);
    } else if (ranks_before(s, idx, score_(ids_[0]), ids_[0])) {
      ids_[0] = idx;
      sink(count_);
    }
    if (count_ == limit_) floor_ = score_(ids_[0]);
  }

  /// Orders the kept indices best first; nothing may be offered afterwards. Returns how many there are.
  DSV41_HD std::int64_t finish_best_first() {
    for (std::int64_t n = count_; n > 1; --n) {
      swap(0, n - 1);
      sink(n - 1);
    }
    return count_;
  }

  DSV41_HD std::int64_t count() const { return count_; }

 private:
  DSV41_HD bool worse(std::int32_t a, std::int32_t b) const { return ranks_before(score_(b), b, score_(a), a); }
  DSV41_HD void swap(std::int64_t i, std::int64_t j) {
    const std::int32_t t = ids_[i];
    ids_[i] = ids_[j], ids_[j] = t;
  }
  DSV41_HD void sink(std::int64_t n) {  // restores the heap (worst at the root) after its root changed
    for (std::int64_t at = 0, child; (child = 2 * at + 1) < n; at = child) {
      if (child + 1 < n && worse(ids_[child + 1], ids_[child])) ++child;
      if (!worse(ids_[child], ids_[at])) return;
      swap(at, child);
    }
  }

  std::int32_t* ids_;
  std::int64_t limit_;
  const Score& score_;
  std::int64_t count_ = 0;
  float floor_ = std::numeric_limits<float>::lowest();  // what scores less than this, or NaN, is not kept
};

}  // namespace dsv41::numerics
