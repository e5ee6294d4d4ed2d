// SPDX-License-Identifier: MIT
//
// Replaces this test program's operator new with one that counts and can fail. In a file of its own: inlined into a caller, GCC takes
// the pair of replaced new and free for a mismatch.
#include "model/counted_new.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> count{0}, failing{0};
std::atomic<std::ptrdiff_t> live{0};

void* counted(std::size_t bytes, std::size_t alignment) {
  const std::size_t number = count.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::size_t fails = failing.load(std::memory_order_relaxed);
  if (number == fails) return nullptr;
  live.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (bytes + alignment) / alignment * alignment;  // aligned_alloc wants a multiple, never 0
  return std::aligned_alloc(alignment, rounded);
}

void* counted_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* data = counted(bytes, alignment)) return data;
  throw std::bad_alloc();
}

void give_back(void* p) {
  if (p == nullptr) return;
  live.fetch_sub(1, std::memory_order_relaxed);
  std::free(p);
}

constexpr std::size_t kPlain = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t n) {
  return counted_or_throw(n, kPlain);
}
void* operator new[](std::size_t n) {
  return counted_or_throw(n, kPlain);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return counted_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return counted_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return counted(n, kPlain);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return counted(n, kPlain);
}
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return counted(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept {
  give_back(p);
}
void operator delete[](void* p) noexcept {
  give_back(p);
}
void operator delete(void* p, std::size_t) noexcept {
  give_back(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  give_back(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  give_back(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  give_back(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  give_back(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  give_back(p);
}

std::size_t dsv41::test::allocations() {
  return count.load();
}

std::ptrdiff_t dsv41::test::live_allocations() {
  return live.load();
}

void dsv41::test::fail_allocation(std::size_t n) {
  failing = n == 0 ? 0 : count + n;
}
