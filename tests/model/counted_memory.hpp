// SPDX-License-Identifier: MIT
//
// What the tests of pages and sequences allocate from: host memory that counts what is held and can be full. Nothing is written into it
// before a test does, so it may be larger than the machine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "dsv41/core/error.hpp"

namespace dsv41::test {

struct CountedMemory {
  static constexpr std::int64_t kPlenty = INT64_MAX / 2;

  std::int64_t blocks = 0, bytes = 0;  ///< held
  std::int64_t unit = 1, units = 0;    ///< whole units that the held allocations have, one by one
  std::int64_t copied = 0;             ///< bytes, by copy()
  std::int64_t left = kPlenty;         ///< bytes that may still be allocated

  void* allocate(std::size_t count) {
    const auto size = static_cast<std::int64_t>(count);
    if (size > left) throw Error(Errc::out_of_memory, "counted: no room for " + std::to_string(size));
    auto* start = static_cast<std::byte*>(std::aligned_alloc(kHeader, (count / kHeader + 2) * kHeader));
    if (start == nullptr) throw Error(Errc::out_of_memory, "counted: the machine has no room");
    std::memcpy(start, &size, sizeof size);
    ++blocks, bytes += size, units += size / unit, left -= size;
    return start + kHeader;
  }
  void release(void* data) noexcept {
    std::byte* const start = static_cast<std::byte*>(data) - kHeader;
    std::int64_t size = 0;
    std::memcpy(&size, start, sizeof size);
    --blocks, bytes -= size, units -= size / unit, left += size;
    std::free(start);
  }
  void upload(void* to, const void* from, std::size_t count) noexcept { std::memcpy(to, from, count); }
  void copy(void* to, const void* from, std::size_t count) noexcept {
    std::memcpy(to, from, count);
    copied += static_cast<std::int64_t>(count);
  }

 private:
  static constexpr std::size_t kHeader = 256;  // the size stands before the memory, so that its alignment stays
};

}  // namespace dsv41::test
