// SPDX-License-Identifier: MIT
//
// Caches and tables beyond what 32 bits of bytes or of elements can address: the first, the middle and the last place. The memory is
// reserved, not used: only the pages that are touched exist.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kWidth = 512, kElements = (std::int64_t{1} << 31) + (1 << 18);

class Reserved {
 public:
  Reserved()
      : data_(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() { ::munmap(data_, kBytes); }

  float* floats() const { return static_cast<float*>(data_); }

  static constexpr std::size_t kBytes = static_cast<std::size_t>(kElements) * sizeof(float);

 private:
  void* data_;
};

}  // namespace

TEST_CASE("B90: a cache of more than 2^32 bytes is written and read at its first, middle and last slot") {
  const Reserved reserved;
  RefBackend backend;
  Memory memory(backend);
  Random random(1);
  const std::int64_t slots = static_cast<std::int64_t>(Reserved::kBytes) / row_bytes(CacheFormat::entry, kWidth);
  const std::vector<std::byte*> page{reinterpret_cast<std::byte*>(reserved.floats())};
  const CacheRows cache{
      .format = CacheFormat::entry, .rows = slots, .width = kWidth, .pages = memory.put(page), .page_rows = slots};
  const std::vector<float> query = random.normals(kWidth), sink{0}, frequencies{0.5f, 0.25f};
  for (const std::int64_t slot : {std::int64_t{0}, slots / 2, slots - 1}) {
    const Array<float, 2> row = random_array<2>(random, {1, kWidth});
    const Out<float, 2> rows = memory.put(row);
    const ops::CacheAppend append{.rows = rows,
                                  .frequencies = memory.put(frequencies),
                                  .cache = cache,
                                  .first_position = slot,
                                  .first_slot = slot};
    append.check();
    backend.run(append);
    const std::vector<float> stored = memory.get(rows);
    CHECK(same_bits(memory.get(cache, slot, 1), stored));
    // Attention to that entry and a window row, in the large cache and in one of a single row.
    const auto attend = [&](const CacheRows& entries, std::int64_t id) {
      const Out<float, 3> out = memory.put(Array<float, 3>({1, 1, kWidth}));
      const ops::SparseAttention op{.q = memory.put(Array<float, 3>({1, 1, kWidth}, query)),
                                    .ring = memory.put(CacheFormat::window, Array<float, 2>({1, kWidth}, 0.5f)),
                                    .entries = entries,
                                    .ids = memory.put(Array<std::int32_t, 2>({1, 1}, static_cast<std::int32_t>(id))),
                                    .counts = memory.put(Array<std::int32_t, 1>({1}, 1)),
                                    .sink = memory.put(sink),
                                    .out = out,
                                    .window = 1};
      op.check();
      backend.run(op);
      backend.sync();
      return memory.get(out);
    };
    CHECK(same_bits(attend(cache, slot), attend(memory.put(CacheFormat::f32, {{1, kWidth}, stored}), 0)));
  }
}

TEST_CASE("B90: index keys and scores of more than 2^32 bytes are read at their first, middle and last block") {
  const Reserved keys_memory, scores_memory;
  RefBackend backend;
  Memory memory(backend);
  Random random(2);
  constexpr std::int64_t kIndexWidth = 32, kBlock = 8;
  const std::int64_t entries = static_cast<std::int64_t>(Reserved::kBytes) / row_bytes(CacheFormat::index, kIndexWidth);
  const std::vector<std::byte*> page{reinterpret_cast<std::byte*>(keys_memory.floats())};
  const CacheRows keys{.format = CacheFormat::index,
                       .rows = entries,
                       .width = kIndexWidth,
                       .pages = memory.put(page),
                       .page_rows = entries};
  const auto last = static_cast<std::int32_t>((entries - 1) / kBlock);
  const std::vector<std::int32_t> blocks{0, last / 2, last};
  std::vector<std::int32_t> want;
  for (const std::int32_t b : blocks) {
    const std::int64_t entry = std::int64_t{b} * kBlock + 1;
    const std::vector<float> key(kIndexWidth, 1.0f);  // the others are zero, and so are their scores
    numerics::store_row(keys, entry, key.data());
    want.push_back(static_cast<std::int32_t>(entry));
  }
  const ops::IndexSelect op{.q = memory.put(Array<float, 3>({1, 1, kIndexWidth}, 1.0f)),
                            .weights = memory.put(Array<float, 2>({1, 1}, 1.0f)),
                            .keys = keys,
                            .ids = memory.put(Array<std::int32_t, 2>({1, 3})),
                            .counts = memory.put(Array<std::int32_t, 1>({1})),
                            .blocks = memory.put(Array<std::int32_t, 2>({1, 3}, blocks)),
                            .block_counts = memory.put(Array<std::int32_t, 1>({1}, 3)),
                            .scores = {scores_memory.floats(), {1, entries}},
                            .first_position = entries - 1,
                            .block = kBlock,
                            .candidates = ops::CandidateUse::limited};
  op.check();
  backend.run(op);
  backend.sync();
  CHECK(memory.get(op.ids) == want);
  CHECK(scores_memory.floats()[want[2]] == 32.0f);
}

TEST_CASE("B90: a table of more than 2^31 bytes is read at its first, middle and last row") {
  const Reserved reserved;
  RefBackend backend;
  Memory memory(backend);
  const std::int64_t rows = kElements / kWidth;
  const Matrix table{.format = Format::f32,
                     .rows = rows,
                     .cols = kWidth,
                     .data = reinterpret_cast<const std::byte*>(reserved.floats())};
  const std::vector<std::int64_t> wanted{0, rows / 2, rows - 1};
  for (const std::int64_t row : wanted) reserved.floats()[row * kWidth + 7] = static_cast<float>(row + 1);
  const Out<float, 2> out = memory.put(Array<float, 2>({3, kWidth}));
  backend.run(
      ops::EngramGather{.table_rows = memory.put(Array<std::int64_t, 2>({3, 1}, wanted)), .table = table, .out = out});
  backend.sync();
  const std::vector<float> got = memory.get(out);
  for (std::size_t i = 0; i < 3; ++i) CHECK(got[i * kWidth + 7] == static_cast<float>(wanted[i] + 1));
}
