// SPDX-License-Identifier: MIT
//
// Pages that are not there: null is no fault where an op uses none of a page's rows, and an error at sync() that names it where one does.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/memory.hpp"

using namespace dsv41;
using namespace dsv41::test;
using ops::CandidateUse;

namespace {

constexpr std::int64_t kPageRows = 4, kPages = 5, kRows = kPageRows * kPages, kWidth = 32;

/// A cache of five pages of four rows, and the page that a run of the op on it without one page says is missing, for each of them; -1:
/// the op ran.
template <class Op>
std::vector<std::int64_t> faults(RefBackend& backend, Memory<RefBackend>& memory, Op op, CacheRows Op::*field,
                                 const std::string& name) {
  std::vector<std::int64_t> found;
  const CacheRows whole = op.*field;
  for (std::int64_t missing = 0; missing < kPages; ++missing) {
    std::vector<std::byte*> pages = memory.get(whole.pages);
    pages[static_cast<std::size_t>(missing)] = nullptr;
    (op.*field).pages = memory.put(pages);
    op.check();
    backend.run(op);
    const Failure failure = failure_of([&] { backend.sync(); });
    found.push_back(failure.message.empty() ? -1 : missing);
    if (!failure.message.empty()) {
      CHECK(failure.code == Errc::invalid_argument);
      CHECK(failure.message == std::string(Op::name) + ": " + name + " has no page " + std::to_string(missing) +
                                   ", expected one for every row that the op uses");
    }
    CHECK_NOTHROW(backend.sync());  // it is said once
  }
  return found;
}

using Pages = std::vector<std::int64_t>;

CacheRows cache_of(Memory<RefBackend>& memory, CacheFormat format) {
  return memory.put(format, Array<float, 2>({kRows, kWidth}, 1.0f), {kPageRows, 0});
}

}  // namespace

TEST_CASE("index_select uses the pages of the visible entries, or of the candidate blocks' visible ones") {
  RefBackend backend;
  Memory memory(backend);
  ops::IndexSelect op{.q = memory.put(Array<float, 3>({2, 1, kWidth}, 1.0f)),
                      .weights = memory.put(Array<float, 2>({2, 1}, 1.0f)),
                      .keys = cache_of(memory, CacheFormat::index),
                      .ids = memory.put(Array<std::int32_t, 2>({2, 3})),
                      .counts = memory.put(Array<std::int32_t, 1>({2})),
                      .blocks = memory.put(Array<std::int32_t, 2>({2, 2})),
                      .block_counts = memory.put(Array<std::int32_t, 1>({2})),
                      .scores = memory.put(Array<float, 2>({1, kRows})),
                      .block_scores = memory.put(Array<float, 2>({1, kRows})),
                      .first_position = 10,
                      .block = 2,
                      .candidates = CandidateUse::publish};
  const auto run = [&] { return faults(backend, memory, op, &ops::IndexSelect::keys, "keys"); };
  CHECK(run() == Pages{0, 1, 2, -1, -1});  // 12 entries
  op.first_position = 11;
  CHECK(run() == Pages{0, 1, 2, 3, -1});  // 13
  op.ratio = 2, op.first_position = 14;
  CHECK(run() == Pages{0, 1, -1, -1, -1});  // 8
  op.ratio = 1, op.candidates = CandidateUse::limited;
  op.blocks =
      memory.put(Array<std::int32_t, 2>({2, 2}, {-1, 2, 7, 0}));  // row 0: 4 and 5; row 1: of 14 and 15 the first
  op.block_counts = memory.put(Array<std::int32_t, 1>({2}, {2, 1}));
  op.first_position = 13;
  CHECK(run() == Pages{-1, 1, -1, 3, -1});
  op.first_position = 12;
  CHECK(run() == Pages{-1, 1, -1, -1, -1});  // entry 14 is invisible
}

TEST_CASE("sparse_attention uses the pages of its window rows and of its selected entries") {
  RefBackend backend;
  Memory memory(backend);
  ops::SparseAttention op{.q = memory.put(Array<float, 3>({2, 1, kWidth}, 1.0f)),
                          .ring = cache_of(memory, CacheFormat::window),
                          .entries = cache_of(memory, CacheFormat::entry),
                          .ids = memory.put(Array<std::int32_t, 2>({2, 3}, {3, 8, 0, -1, 20, 16})),
                          .counts = memory.put(Array<std::int32_t, 1>({2}, {2, 3})),
                          .sink = memory.put(std::vector<float>{0}),
                          .out = memory.put(Array<float, 3>({2, 1, kWidth})),
                          .first_position = 5,
                          .window = 6};
  const auto entries = [&] { return faults(backend, memory, op, &ops::SparseAttention::entries, "entries"); };
  const auto ring = [&] { return faults(backend, memory, op, &ops::SparseAttention::ring, "ring"); };
  CHECK(entries() == Pages{0, -1, 2, -1, 4});
  op.counts = memory.put(Array<std::int32_t, 1>({2}, {1, 2}));
  CHECK(entries() == Pages{0, -1, -1, -1, -1});
  CHECK(ring() == Pages{0, 1, -1, -1, -1});  // positions 0 to 6
  op.first_position = 38;
  CHECK(ring() == Pages{-1, -1, -1, 3, 4});  // 33 to 39, slots 13 to 19
  op.first_position = 41;
  CHECK(ring() == Pages{0, -1, -1, -1, 4});  // 36 to 42, around the end
  op.first_visible = 40;
  CHECK(ring() == Pages{0, -1, -1, -1, -1});
}

TEST_CASE("block_attention uses the pages of the window before its block") {
  RefBackend backend;
  Memory memory(backend);
  ops::BlockAttention op{.q = memory.put(Array<float, 3>({2, 1, kWidth}, 1.0f)),
                         .ring = cache_of(memory, CacheFormat::window),
                         .block = memory.put(Array<float, 2>({2, kWidth}, 1.0f)),
                         .sink = memory.put(std::vector<float>{0}),
                         .out = memory.put(Array<float, 3>({2, 1, kWidth})),
                         .first_position = 5,
                         .window = 6};
  const auto ring = [&] { return faults(backend, memory, op, &ops::BlockAttention::ring, "ring"); };
  CHECK(ring() == Pages{0, 1, -1, -1, -1});  // positions 0 to 4
  op.first_position = 40;
  CHECK(ring() == Pages{-1, -1, -1, 3, 4});  // 34 to 39, slots 14 to 19
  op.first_position = 41;
  CHECK(ring() == Pages{0, -1, -1, 3, 4});  // 35 to 40, around the end
  op.first_visible = 40;
  CHECK(ring() == Pages{0, -1, -1, -1, -1});
  op.first_visible = 41;
  CHECK(ring() == Pages{-1, -1, -1, -1, -1});
  op.first_position = op.first_visible = 0;
  CHECK(ring() == Pages{-1, -1, -1, -1, -1});
}

TEST_CASE("cache_append uses the pages that it writes") {
  RefBackend backend;
  Memory memory(backend);
  ops::CacheAppend op{.rows = memory.put(Array<float, 2>({5, kWidth}, 1.0f)),
                      .frequencies = memory.put(std::vector<float>{0.5f}),
                      .cache = cache_of(memory, CacheFormat::entry)};
  const auto run = [&] { return faults(backend, memory, op, &ops::CacheAppend::cache, "cache"); };
  CHECK(run() == Pages{0, 1, -1, -1, -1});
  op.first_slot = 47;
  CHECK(run() == Pages{-1, 1, 2, -1, -1});  // slots 7 to 11
  op.first_slot = 37;
  CHECK(run() == Pages{0, -1, -1, -1, 4});  // 17 to 19, 0 and 1
  op.rows = memory.put(Array<float, 2>({kRows, kWidth}, 1.0f));
  CHECK(run() == Pages{0, 1, 2, 3, 4});
  op.rows = memory.put(Array<float, 2>({0, kWidth}));
  CHECK(run() == Pages{-1, -1, -1, -1, -1});
}
