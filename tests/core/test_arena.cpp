// SPDX-License-Identifier: MIT
//
// Arena: one allocation, counted and bound by the same layout, released once.
#include "dsv41/core/arena.hpp"

#include <cstdint>
#include <cstdlib>
#include <utility>

#include "dsv41/core/error.hpp"
#include "support/failure.hpp"

using namespace dsv41;

namespace {

/// Host memory that counts what is alive.
struct Counting {
  int alive = 0;
  std::size_t last_bytes = 0;
  bool full = false;

  void* allocate(std::size_t bytes) {
    if (full) throw Error(Errc::out_of_memory, "no room");
    ++alive, last_bytes = bytes;
    return std::aligned_alloc(256, (bytes + 256) / 256 * 256);
  }
  void release(void* data) noexcept {
    --alive;
    std::free(data);
  }
};

struct Buffers {
  View<float, 2> a;
  View<std::int64_t, 1> b;
  View<std::uint8_t, 1> none;

  void layout(Cursor& cursor) {
    cursor.take(a, {3, 5});
    cursor.take(none, {0});
    cursor.take(b, {7});
  }
};

}  // namespace

TEST_CASE("an arena binds aligned buffers that do not overlap, in one allocation") {
  Counting backend;
  {
    Buffers buffers;
    const Arena<Counting> arena(backend, [&](Cursor& c) { buffers.layout(c); });
    CHECK(backend.alive == 1);
    CHECK(arena.bytes() == 512);
    CHECK(backend.last_bytes == 512);
    CHECK(reinterpret_cast<std::uintptr_t>(buffers.a.data()) % Cursor::kAlignment == 0);
    CHECK(reinterpret_cast<std::byte*>(buffers.b.data()) - reinterpret_cast<std::byte*>(buffers.a.data()) == 256);
    CHECK(buffers.none.empty());
    buffers.a(2, 4) = 1;
    buffers.b[6] = 2;
  }
  CHECK(backend.alive == 0);
}

TEST_CASE("an arena moves its memory and leaves nothing behind") {
  Counting backend;
  {
    Buffers buffers, others;
    Arena<Counting> first(backend, [&](Cursor& c) { buffers.layout(c); });
    const float* const at = buffers.a.data();
    Arena<Counting> second(std::move(first));
    CHECK(second.bytes() == 512);
    CHECK(buffers.a.data() == at);
    Arena<Counting> third(backend, [&](Cursor& c) { others.layout(c); });
    CHECK(backend.alive == 2);
    third = std::move(second);
    CHECK(third.bytes() == 512);
  }
  CHECK(backend.alive == 0);
}

TEST_CASE("a cursor without memory only counts, and a failed allocation leaves no arena") {
  Buffers buffers;
  Cursor count;
  buffers.layout(count);
  CHECK(count.used() == 512);
  CHECK(buffers.a.data() == nullptr);
  Counting backend;
  backend.full = true;
  const test::Failure failure =
      test::failure_of([&] { Arena<Counting>(backend, [&](Cursor& c) { buffers.layout(c); }); });
  CHECK(failure.code == Errc::out_of_memory);
  CHECK(backend.alive == 0);
}
