// SPDX-License-Identifier: MIT
//
// The library's own threads. Ops are short and follow each other, so a thread that has nothing to do looks for a while before it sleeps. A
// call waits only for threads that have joined it: on a busy machine one that does not get a processor holds nobody up.
#include <atomic>
#include <cstdint>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "cpu/context.hpp"
#include "dsv41/backend/cpu.hpp"
#include "dsv41/core/error.hpp"

namespace dsv41 {

namespace {

/// Looks before sleeping: some tens of microseconds.
constexpr int kLooks = 4000;

inline void relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Threads final : public Workers {
 public:
  explicit Threads(std::int64_t count) : count_(count) {
    try {
      for (std::int64_t i = 1; i < count; ++i) threads_.emplace_back([this, i] { serve(i); });
    } catch (const std::system_error& e) {
      end();
      throw Error(Errc::out_of_memory, "cpu: the system gives " + std::to_string(threads_.size()) + " of " +
                                           std::to_string(count - 1) + " threads: " + e.what());
    }
  }
  ~Threads() override { end(); }

  std::int64_t count() const noexcept override { return count_; }

  void run(std::int64_t count, Pieces& pieces) noexcept override {
    if (count <= 1 || threads_.empty()) return cpu::alone().run(count, pieces);
    pieces_ = &pieces;
    end_ = count;
    next_.store(0, std::memory_order_relaxed);
    turn_.fetch_add(1);  // odd: open
    turn_.notify_all();
    take(0);
    turn_.fetch_add(1);  // closed: nobody joins any more
    look([&] { return joined_.load() == 0; });
    for (std::uint32_t left; (left = joined_.load()) != 0;) joined_.wait(left);
  }

 private:
  static bool is_open(std::uint32_t turn) noexcept { return turn % 2 == 1; }

  /// Looks for a while whether something has come.
  template <class Came>
  static void look(const Came& came) noexcept {
    for (int i = 0; i < kLooks && !came(); ++i) relax();
  }

  /// Pieces are taken as they come: which worker runs one changes nothing in it.
  void take(std::int64_t worker) noexcept {
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < end_;) pieces_->run(i, worker);
  }

  void serve(std::int64_t worker) noexcept {
    for (std::uint32_t seen = 0;;) {
      look([&] { return turn_.load() != seen; });
      turn_.wait(seen);
      seen = turn_.load();
      if (ended_.load()) return;
      if (!is_open(seen)) continue;
      // Joins, and looks again: either this sees that the call was closed, or the call sees that somebody joined (both sequentially
      // consistent).
      joined_.fetch_add(1);
      if (turn_.load() == seen) take(worker);
      if (joined_.fetch_sub(1) == 1) joined_.notify_one();  // a system call only if the caller sleeps
    }
  }

  void end() noexcept {
    ended_.store(true);
    turn_.fetch_add(2);
    turn_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  std::int64_t count_;
  std::vector<std::thread> threads_;
  Pieces* pieces_ = nullptr;
  std::int64_t end_ = 0;
  std::atomic<bool> ended_{false};
  alignas(64) std::atomic<std::uint32_t> turn_{0};
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<std::uint32_t> joined_{0};
};

class Alone final : public Workers {
 public:
  std::int64_t count() const noexcept override { return 1; }
  void run(std::int64_t count, Pieces& pieces) noexcept override {
    for (std::int64_t i = 0; i < count; ++i) pieces.run(i, 0);
  }
};

}  // namespace

namespace cpu {
Workers& alone() noexcept {
  static Alone& caller = *new Alone;  // never destroyed: a program may end while another thread runs an op
  return caller;
}
}  // namespace cpu

std::unique_ptr<Workers> make_workers(std::int64_t threads) {
  if (threads < 1)
    throw Error(Errc::invalid_argument, "cpu: " + std::to_string(threads) + " threads, expected at least 1");
  return std::make_unique<Threads>(threads);
}

}  // namespace dsv41
