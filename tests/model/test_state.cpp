// SPDX-License-Identifier: MIT
//
// State: what sequences take to the byte, what forks share and when they stop, and memory that runs out in the middle.
#include "dsv41/model/state.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "dsv41/core/v41_flash.hpp"
#include "dsv41/numerics/packed.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "model/counted_memory.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/formulas.hpp"
#include "support/random.hpp"
#include "support/temp_folder.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

using Pool = CachePool<CountedMemory>;
using Sequence = State<CountedMemory>;

constexpr std::int64_t kRoom = 2, kContext = 1000;

/// A window layer and two sources: pages of 64 positions, 81 bytes a token, and a block of 6 * 1024 + 3 * 7 * 33 bytes.
ModelConfig small_config() {
  ModelConfig c;
  c.layers = 3, c.head_dim = 32, c.index_dim = 32, c.window = 5;
  c.ratios = {0, 4, 1}, c.kv_sources = {1, 2};
  return c;
}
constexpr std::int64_t kPageBytes = 16 * 35 + 64 * 35, kBlockBytes = 2 * 8 * 32 * 4 + 3 * 7 * 33, kTableBytes = 256;

std::int64_t rounded(std::int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

struct Setting {
  CountedMemory memory;
  Pool pool;

  explicit Setting(std::int64_t limit = 0, const ModelConfig& config = small_config(), std::int64_t room = kRoom)
      : pool(memory, config, room, limit) {}

  Sequence open(std::int64_t tokens, std::int64_t max_context = kContext) {
    Sequence out(pool, max_context);
    grow(out, tokens);
    return out;
  }
  static void grow(Sequence& s, std::int64_t tokens) {
    s.reserve(tokens);
    s.advance(tokens);
  }
};

/// Bytes of everything that a sequence remembers.
std::vector<std::byte> contents(const Setting& s, const Sequence& sequence) {
  std::vector<std::byte> out;
  each_cache_run(s.pool.layout, s.pool.config, sequence.position(), true, [&](const CacheRun& run) {
    out.insert(out.end(), sequence.data(run), sequence.data(run) + run.bytes);
  });
  return out;
}

/// Sets all of that to `tag`.
void fill(const Setting& s, const Sequence& sequence, int tag) {
  each_cache_run(s.pool.layout, s.pool.config, sequence.position(), true, [&](const CacheRun& run) {
    std::memset(sequence.data(run), tag, static_cast<std::size_t>(run.bytes));
  });
}

/// Whether the views of the sequence lead to its pages and its block.
bool well_viewed(const Setting& s, Sequence& sequence) {
  const CacheLayout& layout = s.pool.layout;
  const std::byte* block = s.pool.blocks.data(sequence.block());
  SequenceState& views = sequence.sequence();
  for (std::size_t l = 0; l < layout.rings.size(); ++l) {
    const CacheRows& ring = views.rings[l];
    if (ring.rows != layout.ring_slots || ring.row(0) != block + layout.rings[l]) return false;
    if (ring.row(ring.rows - 1) - ring.row(0) != (ring.rows - 1) * row_bytes(ring.format, ring.width)) return false;
  }
  for (std::size_t i = 0; i < layout.sources.size(); ++i) {
    const PagedSource& source = layout.sources[i];
    const SourceCache& cache = views.sources[i];
    for (std::size_t n = 0; n < sequence.pages().size(); ++n) {
      const std::byte* page = s.pool.pages.data(sequence.pages()[n]);
      const std::int64_t row = static_cast<std::int64_t>(n) * source.rows;
      if (row >= cache.entries.rows) continue;
      if (cache.entries.row(row) != page + source.entries) return false;
      if (cache.index_keys.row(row) != page + source.index_keys) return false;
    }
    const BlockCarry& carry = layout.carries[i];
    if (cache.carry_kv.extent(0) != carry.slots || cache.carry_gate.extent(0) != carry.slots) return false;
    if (carry.slots == 0) continue;
    if (reinterpret_cast<std::byte*>(cache.carry_kv.data()) != block + carry.kv) return false;
    if (reinterpret_cast<std::byte*>(cache.carry_gate.data()) != block + carry.gate) return false;
  }
  return true;
}

/// Somebody who keeps pages for later.
struct Keeper final : CacheReserve {
  PagePool<CountedMemory>* pool = nullptr;
  std::vector<PageId> pages;
  bool give_up() noexcept override {
    if (pages.empty()) return false;
    pool->release(pages.back());
    pages.pop_back();
    return true;
  }
};

}  // namespace

TEST_CASE("the release takes 890 bytes a token, counted at 65,536 tokens and at 1,048,576") {
  struct Case {
    std::int64_t tokens, pages, table;
  };
  for (const Case& t : {Case{65536, 58327040, 8448}, Case{1048576, 933232640, 131328}}) {
    Setting s(0, v41_flash(), 8);
    Sequence sequence(s.pool, t.tokens);
    CHECK(s.pool.budget.used() == t.table);
    for (std::int64_t chunk = 1; sequence.position() < t.tokens; chunk = chunk * 3 % 1009)
      Setting::grow(sequence, std::min(chunk, t.tokens - sequence.position()));
    CHECK(s.pool.pages.used() * s.pool.pages.page_bytes() == 890 * t.tokens);
    CHECK(890 * t.tokens == t.pages);
    CHECK(s.pool.blocks.used() == 1);
    // Whole slabs of 64 pages; the block is 40 * 136 window rows and 3 * 2 * 10 open rows.
    CHECK(s.pool.budget.used() == t.pages + 40 * 136 * 528 + 3 * 2 * 10 * 2048 + t.table);
    CHECK(s.memory.bytes == s.pool.budget.used());
    CHECK(sequence.table_bytes() == t.table);
  }
}

TEST_CASE(
    "what a sequence of the release remembers beside its tokens: 2,703,360 bytes of windows, 12,288 of open groups") {
  Setting s(0, v41_flash(), 8);
  Sequence sequence = s.open(999);
  std::int64_t bytes = 0, grown = 0;
  const auto add_to = [](std::int64_t& sum) { return [&sum](const CacheRun& run) { sum += run.bytes; }; };
  each_cache_run(s.pool.layout, s.pool.config, 999, true, add_to(bytes));
  each_cache_run(s.pool.layout, s.pool.config, 999, false, add_to(grown));
  CHECK(bytes - grown == 2703360 + 12288);
  CHECK(grown == 890 * 998 + 356);
}

TEST_CASE("the demo's sequences take what its own config says") {
  const std::filesystem::path file = std::filesystem::path(DSV41_DEMO_DIR) / "config.json";
  const ModelConfig c = runtime::parse_config(read_file(file), "config.json");
  Setting s(0, c, 8);
  Sequence sequence = s.open(c.max_positions, c.max_positions);
  // Entries of 64 channels and keys of 32, for one source of ratio 2 and one of ratio 1.
  CHECK(2 * s.pool.pages.used() * s.pool.pages.page_bytes() == 3 * ((32 + 4) + (16 + 1)) * c.max_positions);
  const std::int64_t slab = 64 * 64 / 2 * 3 * 53, rings = 6 * (32 + 8) * (64 + 2), carry = 2 * 10 * 64 * 4;
  CHECK(s.pool.budget.used() == rounded(slab) + rounded(rings + carry) + rounded(8 * (1 + 2048 / 64)));
  CHECK(s.memory.bytes == s.pool.budget.used());
}

TEST_CASE("a sequence has pages for its tokens and what it reserved, and gives back what rewind leaves empty") {
  Setting s;
  Sequence sequence(s.pool, kContext);
  CHECK(sequence.block() == kNoPage);
  CHECK(s.memory.blocks == 1);  // the table
  for (const std::int64_t tokens : {1, 63, 1, 64, 300}) {
    Setting::grow(sequence, tokens);
    CHECK(std::ssize(sequence.pages()) == (sequence.position() + 63) / 64);
    CHECK(s.pool.pages.used() == std::ssize(sequence.pages()));
    CHECK(well_viewed(s, sequence));
  }
  for (const std::int64_t position : {429, 385, 384, 65, 64, 1}) {
    sequence.rewind(position);
    CHECK(sequence.position() == position);
    CHECK(s.pool.pages.used() == (position + 63) / 64);
  }
  sequence.reserve(100);
  CHECK(s.pool.pages.used() == 2);
  sequence.rewind(0);
  CHECK(s.pool.pages.used() == 0);
  CHECK(s.pool.blocks.used() == 1);
  Setting::grow(sequence, kContext);
  CHECK(s.pool.pages.used() == 16);
  CHECK(well_viewed(s, sequence));
}

TEST_CASE("a fork shares everything, and writing copies the touched page and the block, nothing else") {
  Setting s;
  Sequence first = s.open(150);
  fill(s, first, 1);
  const std::vector<std::byte> before = contents(s, first);
  Sequence second = first.fork();
  CHECK(s.pool.pages.used() == 3);
  CHECK(s.pool.blocks.used() == 1);
  CHECK(s.memory.copied == 0);
  CHECK(second.pages() == first.pages());
  CHECK(second.block() == first.block());
  CHECK(second.position() == 150);
  CHECK(second.max_context() == kContext);
  CHECK(well_viewed(s, second));

  second.reserve(1);
  CHECK(s.pool.pages.used() == 4);
  CHECK(s.pool.blocks.used() == 2);
  CHECK(s.memory.copied == kPageBytes + kBlockBytes);
  CHECK(second.pages()[0] == first.pages()[0]);
  CHECK(second.pages()[1] == first.pages()[1]);
  CHECK(second.pages()[2] != first.pages()[2]);
  CHECK(well_viewed(s, first));
  CHECK(well_viewed(s, second));
  CHECK(contents(s, second) == before);
  std::memset(s.pool.pages.data(second.pages()[2]), 2, static_cast<std::size_t>(kPageBytes));
  std::memset(s.pool.blocks.data(second.block()), 2, static_cast<std::size_t>(kBlockBytes));
  CHECK(contents(s, first) == before);

  first.reserve(1);  // alone again where the other one left
  CHECK(s.memory.copied == kPageBytes + kBlockBytes);
  CHECK(s.pool.pages.used() == 4);
  second.rewind(100);  // into a page that is still shared
  second.reserve(1);
  CHECK(s.memory.copied == 2 * kPageBytes + kBlockBytes);
  CHECK(second.pages()[1] != first.pages()[1]);
  CHECK(contents(s, first) == before);
  CHECK(well_viewed(s, second));
}

TEST_CASE("a fork at the end of a page copies no page") {
  Setting s;
  Sequence first = s.open(128);
  Sequence second = first.fork();
  Setting::grow(second, 64);
  CHECK(s.memory.copied == kBlockBytes);
  CHECK(s.pool.pages.used() == 3);
  CHECK(second.pages()[1] == first.pages()[1]);
}

TEST_CASE("forks of forks outlive each other, and the last one frees the memory") {
  Setting s;
  {
    Sequence last = s.open(0);
    {
      Sequence first = s.open(100);
      fill(s, first, 3);
      Sequence second = first.fork();
      Sequence third = second.fork();
      Setting::grow(second, 100);
      last = third.fork();
    }
    CHECK(s.pool.pages.used() == 2);
    CHECK(s.pool.blocks.used() == 1);
    CHECK(contents(s, last) == std::vector<std::byte>(contents(s, last).size(), std::byte{3}));
    CHECK(well_viewed(s, last));
  }
  CHECK(s.pool.pages.used() == 0);
  CHECK(s.pool.blocks.used() == 0);
  s.pool.pages.trim();
  s.pool.blocks.trim();
  CHECK(s.memory.bytes == 0);
}

TEST_CASE("states move, also onto one another and back into one that was moved from") {
  Setting s;
  Sequence first = s.open(100), second = s.open(300);
  const SequenceState* const views = &first.sequence();
  const std::vector<PageId> pages = first.pages();
  CHECK(s.pool.pages.used() == 7);
  Sequence moved(std::move(first));
  CHECK(&moved.sequence() == views);  // segments point to it
  CHECK(moved.pages() == pages);
  second = std::move(moved);
  CHECK(s.pool.pages.used() == 2);
  CHECK(s.pool.blocks.used() == 1);
  CHECK(&second.sequence() == views);
  first = std::move(second);
  Sequence& same = first;
  first = std::move(same);
  CHECK(first.position() == 100);
  CHECK(first.pages() == pages);
  CHECK(well_viewed(s, first));
  Setting::grow(first, 100);
  CHECK(s.pool.pages.used() == 4);
  {
    std::vector<Sequence> many;
    for (int i = 0; i < 5; ++i) many.push_back(first.fork());
    many.erase(many.begin() + 1);
    CHECK(s.pool.pages.used() == 4);
  }
  CHECK(s.pool.blocks.used() == 1);
  CHECK_FALSE(s.pool.pages.shared(first.pages().front()));
}

TEST_CASE("memory that runs out in the middle of a reserve leaves the sequence as it was") {
  Setting s(2 * kTableBytes + 2 * rounded(kBlockBytes) + 6 * rounded(kPageBytes));
  Sequence first = s.open(100), second = first.fork();
  fill(s, first, 5);
  const std::vector<std::byte> before = contents(s, first);
  for (int again = 0; again < 2; ++again) {
    const Failure failure = failure_of([&] { second.reserve(600); });
    CHECK(failure.code == Errc::out_of_memory);
    CHECK(failure.says("a page of entries and index keys needs 2800 bytes, expected at most the 0 left"));
    CHECK(second.position() == 100);
    CHECK(second.pages().size() == 2);
    CHECK(s.pool.pages.used() == 3);  // with the copy of the page that both would write
    CHECK(contents(s, first) == before);
    CHECK(contents(s, second) == before);
    CHECK(well_viewed(s, first));
    CHECK(well_viewed(s, second));
  }
  second.reserve(92);
  CHECK(s.pool.pages.used() == 4);
  CHECK(failure_of([&] { second.reserve(600); }).code == Errc::out_of_memory);
  CHECK(second.pages().size() == 3);  // what it had reserved
  CHECK(well_viewed(s, second));
  Setting::grow(second, 92 + 2 * 64);
  CHECK(well_viewed(s, second));
  CHECK(s.pool.budget.left() == 0);
  CHECK(s.memory.bytes == s.pool.budget.limit());
}

TEST_CASE("a block or a table that does not fit is refused by its name, and nothing is held") {
  Setting none(kTableBytes - 1);
  CHECK(failure_of([&] { none.open(0); }).says("a page table needs 256 bytes"));
  CHECK(none.memory.bytes == 0);
  Setting s(2 * kTableBytes + rounded(kBlockBytes) + rounded(kPageBytes));
  Sequence first = s.open(10);
  {
    Sequence second = first.fork();
    const std::int64_t used = s.pool.budget.used();
    const Failure failure = failure_of([&] { second.reserve(1); });
    CHECK(failure.says("a block of window rings and open groups needs " + std::to_string(kBlockBytes) + " bytes"));
    CHECK(second.block() == first.block());
    CHECK(second.pages() == first.pages());
    CHECK(s.pool.budget.used() == used);
  }
  Setting endless;
  Sequence third = endless.open(10, 10000);
  endless.memory.left = 0;
  CHECK(failure_of([&] { third.reserve(9000); }).says("counted: no room"));
  CHECK(third.pages().size() == 1);
  CHECK(endless.pool.pages.used() == 1);
}

TEST_CASE("who keeps pages for later is asked when the budget is short, as often as it takes, and no more") {
  Setting s(kTableBytes + rounded(kBlockBytes) + 12 * rounded(kPageBytes));
  Keeper keeper;
  keeper.pool = &s.pool.pages;
  s.pool.spare = &keeper;
  Sequence sequence(s.pool, kContext);
  for (int i = 0; i < 8; ++i) keeper.pages.push_back(s.pool.pages.acquire());
  Setting::grow(sequence, 4 * 64);
  CHECK(keeper.pages.size() == 8);
  Setting::grow(sequence, 3 * 64);
  CHECK(keeper.pages.size() == 5);
  CHECK(well_viewed(s, sequence));
  keeper.pages.resize(2);  // the others stay taken
  CHECK(failure_of([&] { sequence.reserve(5 * 64); }).code == Errc::out_of_memory);
  CHECK(keeper.pages.empty());
  CHECK(sequence.pages().size() == 7);
  Setting::grow(sequence, 2 * 64);
  CHECK(s.pool.budget.left() == 0);
}

TEST_CASE("free slabs of pages make room for a block, and free blocks for pages") {
  Setting s(2 * kTableBytes + rounded(kBlockBytes) + rounded(kPageBytes));
  Sequence second(s.pool, kContext);
  {
    Sequence first(s.pool, kContext);
    std::vector<PageId> pages;
    while (failure_of([&] { pages.push_back(s.pool.pages.acquire()); }).code == Errc::ok) continue;
    CHECK(pages.size() == 2);
    CHECK(failure_of([&] { first.reserve(1); }).says("a block"));
    for (const PageId page : pages) s.pool.pages.release(page);
    Setting::grow(first, 64);
    CHECK(failure_of([&] { first.reserve(1); }).says("a page"));
  }
  const PageId page = s.pool.within_budget([&] { return s.pool.pages.acquire(); });
  CHECK(s.pool.within_budget([&] { return s.pool.pages.acquire(); }) != page);
  CHECK(s.memory.bytes == s.pool.budget.used());
}

TEST_CASE("slabs take at most a 64th of a budget, and a page that is larger is a slab of its own") {
  const auto first_slab = [](std::int64_t limit, const ModelConfig& config) {
    Setting s(limit, config);
    s.pool.pages.acquire();
    return s.memory.bytes;
  };
  CHECK(first_slab(0, small_config()) == 64 * kPageBytes);
  CHECK(first_slab(1 << 30, small_config()) == 64 * kPageBytes);
  CHECK(first_slab(64 * 3 * kPageBytes, small_config()) == rounded(3 * kPageBytes));
  CHECK(first_slab(64 * 3 * kPageBytes - 1, small_config()) == rounded(2 * kPageBytes));
  CHECK(first_slab(10 * kPageBytes, small_config()) == rounded(kPageBytes));
  ModelConfig wide = small_config();
  wide.ratios = {0, 1 << 16, 1};
  CHECK(first_slab(0, wide) == 35 * (1 + (1 << 16)) / 256 * 256 + 256);
}

TEST_CASE("a drafter's rings are a sequence's own: they go back, are forked, adopted and given up with it") {
  ModelConfig c = small_config();
  c.draft.stages = 2;
  constexpr std::int64_t kSlots = 5 + kRoom, kRings = 2 * kSlots * 33;
  CountedMemory memory;
  Pool pool(memory, c, kRoom, 0, true);
  CHECK(pool.layout.block_bytes == kBlockBytes + kRings);
  Sequence s(pool, kContext);
  Setting::grow(s, 20);
  REQUIRE(std::ssize(s.draft().rings) == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    const CacheRows& ring = s.draft().rings[i];
    CHECK(ring.rows == kSlots);
    CHECK(ring.row(0) == pool.blocks.data(s.block()) + pool.layout.draft_rings[i]);
  }
  CHECK_FALSE(s.draft_intact(20));  // nobody has written rows
  s.draft().advance(20);
  CHECK(s.draft().first == 20 - kSlots);
  CHECK(s.draft_intact(20));
  CHECK(s.draft_intact(18));  // room to go back
  CHECK_FALSE(s.draft_intact(17));
  CHECK_FALSE(s.draft_intact(21));
  Sequence fork = s.fork();
  CHECK(fork.draft_intact(20));
  CHECK_FALSE(fork.draft_intact(17));
  CHECK(fork.block() == s.block());
  Setting::grow(fork, 1);  // writes: a page and a block of its own, rings and all
  CHECK(memory.copied == kPageBytes + kBlockBytes + kRings);
  CHECK(fork.draft().rings[0].row(0) != s.draft().rings[0].row(0));
  CHECK(fork.draft().position == 20);
  s.rewind(19);
  CHECK(s.draft().position == 19);
  CHECK(s.draft_intact(19));
  s.rewind(3);
  CHECK(s.draft().position == 3);
  CHECK(s.draft().first == 3);
  CHECK_FALSE(s.draft_intact(3));
  Sequence moved(pool, kContext);
  moved = std::move(fork);
  CHECK(moved.draft().position == 20);
  CHECK(moved.draft_intact(20));
  moved.spoiled();  // rings of layers, not the drafter's
  CHECK(moved.draft_intact(20));

  Sequence parent(pool, kContext), whole(pool, kContext), bare(pool, kContext);
  Setting::grow(parent, 128);
  parent.draft().advance(128);
  for (Sequence* adopting : {&whole, &bare}) {
    for (const PageId page : parent.pages()) pool.pages.share(page);
    if (adopting == &whole) pool.blocks.share(parent.block());
    adopting->adopt(parent.pages(), adopting == &whole ? parent.block() : kNoPage, 128);
    CHECK(adopting->draft().position == 128);
    CHECK(adopting->draft_intact(128) == (adopting == &whole));
  }
  CHECK(whole.draft().first == 123);
  CHECK(bare.draft().first == 128);
  Setting without;
  CHECK(without.open(3).draft().rings.empty());
}

TEST_CASE("adopted pages and block become the sequence's, with what windows they bring") {
  Setting s;
  Sequence first = s.open(128);
  fill(s, first, 4);
  const auto share = [&](bool block) {
    for (const PageId page : first.pages()) s.pool.pages.share(page);
    if (block) s.pool.blocks.share(first.block());
    return block ? first.block() : kNoPage;
  };
  Sequence whole(s.pool, kContext), bare(s.pool, kContext), used = s.open(10), empty(s.pool, kContext);
  whole.adopt(first.pages(), share(true), 128);
  CHECK(contents(s, whole) == contents(s, first));
  CHECK(well_viewed(s, whole));
  CHECK(whole.intact(128));
  CHECK_FALSE(whole.intact(127));
  bare.adopt(first.pages(), share(false), 128);
  CHECK(bare.position() == 128);
  CHECK_FALSE(bare.intact(128));
  used.rewind(0);
  used.adopt(first.pages(), share(true), 128);
  CHECK(used.block() == first.block());
  CHECK(s.pool.blocks.used() == 1);
  empty.adopt({}, kNoPage, 0);  // nothing was found: a sequence like any other
  Setting::grow(empty, 20);
  CHECK(empty.intact(20));
  CHECK(s.pool.pages.used() == 3);
  Setting::grow(whole, 1);
  CHECK(s.memory.copied == kBlockBytes);
  CHECK(contents(s, used) == contents(s, first));
}

TEST_CASE("B94: rows of several caches in one page are where its layout says, for lengths around 1 to 4 pages") {
  Random random(94);
  constexpr std::int64_t kWidth = 32, kEntry = 16 + 2,
                         kKey = 16 + 1;  // bytes of a packed row: its values, then its scales
  for (const std::int64_t tokens : {63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256}) {
    INFO(tokens << " tokens");
    Setting s;
    Sequence sequence = s.open(tokens);
    const SequenceState& views = sequence.sequence();
    std::vector<float> written, read;
    std::vector<std::byte> in_order;
    std::int64_t before = 0;  // bytes of a page before the cache's rows: source by source, entries, then index keys
    for (std::size_t i = 0; i < 2; ++i) {
      const std::int64_t ratio = i == 0 ? 4 : 1, page_rows = 64 / ratio;
      for (const bool keys : {false, true}) {
        const CacheRows& cache = keys ? views.sources[i].index_keys : views.sources[i].entries;
        const std::int64_t bytes = keys ? kKey : kEntry;
        for (std::int64_t row = 0; row < tokens / ratio; ++row) {
          const std::vector<float> values = random.normals(kWidth, 1 + static_cast<double>(row % 7));
          numerics::store_row(cache, row, values.data());
          const std::byte* page = s.pool.pages.data(sequence.pages()[static_cast<std::size_t>(row / page_rows)]);
          const std::byte* at = page + before + row % page_rows * bytes;
          const auto got = unpacked(cache.format, kWidth, reinterpret_cast<const std::uint8_t*>(at));
          const Doubles want = quantised(quantiser_behind(cache.format), {values.begin(), values.end()});
          for (const double x : want) written.push_back(static_cast<float>(x));
          read.insert(read.end(), got.begin(), got.end());
          in_order.insert(in_order.end(), at, at + bytes);
        }
        before += page_rows * bytes;
      }
    }
    CHECK(read == written);
    const std::vector<std::byte> all = contents(s, sequence);
    CHECK(std::vector<std::byte>(all.end() - std::ssize(in_order), all.end()) == in_order);
  }
}
