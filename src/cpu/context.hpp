// SPDX-License-Identifier: MIT
//
// What an op on the CPU runs with: workers, the instruction set, and how an op is cut into pieces. Private to src/cpu.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dsv41/backend/cpu.hpp"

namespace dsv41::cpu {

/// Which kernels run: an index into the tables that HWY_EXPORT makes, the same in every file.
struct Target {
  std::size_t index = 0;
};

/// The caller alone, as workers.
Workers& alone() noexcept;

struct Context {
  Workers& workers;
  Target target;
  ExpertTier* tier = nullptr;  ///< where weights of experts come from; null: they are where their views point

  /// What to run an op of so many multiply-adds with: handing over less than some microseconds of work costs more than it saves. That an
  /// op runs alone changes no bit of it.
  Context for_work(std::int64_t products) const noexcept {
    constexpr std::int64_t kWorthSharing = 1 << 18;
    return products < kWorthSharing ? Context{.workers = alone(), .target = target, .tier = tier} : *this;
  }

  /// Calls work(piece, worker) for every piece of [0, count).
  template <class Work>
  void each(std::int64_t count, const Work& work) const noexcept {
    struct Call final : Workers::Pieces {
      explicit Call(const Work& w) : work(w) {}
      void run(std::int64_t piece, std::int64_t worker) noexcept override { work(piece, worker); }
      const Work& work;
    } call(work);
    if (count == 1) return call.run(0, 0);
    workers.run(count, call);
  }

  /// Calls work(first, end, worker) for the parts of [0, count), each of `size` but the last.
  template <class Work>
  void each_part(std::int64_t count, std::int64_t size, const Work& work) const noexcept {
    each((count + size - 1) / size, [&](std::int64_t piece, std::int64_t worker) {
      work(piece * size, std::min(count, (piece + 1) * size), worker);
    });
  }
};

/// Rows of a piece: about so many values keep a worker busy for long enough.
constexpr std::int64_t piece_rows(std::int64_t width) noexcept {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(width, 1));
}

/// Hands out parts of a workspace, or counts what they take.
class Cut {
 public:
  explicit Cut(float* at = nullptr) : at_(at) {}

  /// `count` elements, 64-byte aligned where the workspace is.
  template <class T>
  T* take(std::int64_t count) {
    T* const part = reinterpret_cast<T*>(at_);
    const std::size_t floats = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 16;
    at_ = at_ == nullptr ? nullptr : at_ + floats;
    taken_ += floats;
    return part;
  }

  std::size_t floats() const { return taken_; }

 private:
  float* at_;
  std::size_t taken_ = 0;
};

}  // namespace dsv41::cpu
