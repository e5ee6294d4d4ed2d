// SPDX-License-Identifier: MIT
//
// How a caller stops work that is under way.
#pragma once

#include <atomic>

namespace dsv41 {

/// A flag that any thread or signal handler may set. Whoever runs steps looks at it between steps and, inside one, between layers, so it
/// is honoured within the time of one layer. It stays set until reset().
class CancelToken {
 public:
  void request() noexcept { requested_.store(true, std::memory_order_relaxed); }
  void reset() noexcept { requested_.store(false, std::memory_order_relaxed); }
  bool requested() const noexcept { return requested_.load(std::memory_order_relaxed); }

 private:
  static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler may touch nothing else
  std::atomic<bool> requested_{false};
};

}  // namespace dsv41
