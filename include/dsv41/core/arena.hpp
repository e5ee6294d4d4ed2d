// SPDX-License-Identifier: MIT
//
// Every buffer of a step comes from one allocation made up front. A layout function names the buffers twice: first against a counting
// cursor, then against the memory. Pointers never move afterwards, and a step never allocates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "dsv41/core/view.hpp"

namespace dsv41 {

/// Hands out consecutive aligned arrays; without a base it only counts.
class Cursor {
 public:
  /// A device's widest access, and a multiple of a cache line.
  static constexpr std::size_t kAlignment = 256;

  explicit Cursor(std::byte* base = nullptr) : base_(base) {}

  template <class T, std::size_t Rank>
  void take(View<T, Rank>& view, const std::array<std::int64_t, Rank>& extents) {
    T* data = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    view = View<T, Rank>(data, extents);
    const std::size_t bytes = static_cast<std::size_t>(view.size()) * sizeof(T);
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

/// One allocation in a backend's memory, released with it. The backend must outlive the arena.
template <class B>
class Arena {
 public:
  Arena() = default;

  /// Runs `layout(cursor)` to count, allocates, and runs it again to bind. Throws what the backend's allocate throws; the views
  /// that the layout takes then have extents but no memory.
  template <class Layout>
  Arena(B& backend, const Layout& layout) : backend_(&backend) {
    Cursor count;
    layout(count);
    bytes_ = count.used();
    data_ = backend.allocate(bytes_);
    Cursor bind(static_cast<std::byte*>(data_));
    layout(bind);
  }

  Arena(Arena&& other) noexcept { swap(other); }
  Arena& operator=(Arena&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Arena() {
    if (data_ != nullptr) backend_->release(data_);
  }

  std::size_t bytes() const { return bytes_; }

 private:
  void swap(Arena& other) {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  B* backend_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace dsv41
