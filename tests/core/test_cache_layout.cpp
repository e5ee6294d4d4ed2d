// SPDX-License-Identifier: MIT
//
// CacheLayout: nothing overlaps and nothing is wasted, at the release's numbers and at odd ones; and what a sequence remembers comes out
// the same, in the same order, whatever the page size and the room.
#include "dsv41/core/cache_layout.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "dsv41/core/v41_flash.hpp"
#include "support/cache_config.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::int64_t kWindow = 5;

/// Bytes of one row or of one token of a row: values, then scales (cache_rows.hpp), at head_dim = index_dim = 32.
constexpr std::int64_t kWindowRow = 33, kEntryRow = 18, kIndexRow = 17, kFloatRow = 128;

/// Ranges [first, second) that cover [0, bytes) once, in any order.
bool tile(std::vector<std::pair<std::int64_t, std::int64_t>> ranges, std::int64_t bytes) {
  std::sort(ranges.begin(), ranges.end());
  std::int64_t end = 0;
  for (const auto& [first, last] : ranges) {
    if (first != end || last < first) return false;
    end = last;
  }
  return end == bytes;
}

void check_tiled(const CacheLayout& layout, const ModelConfig& c) {
  std::vector<std::pair<std::int64_t, std::int64_t>> page, block;
  for (const PagedSource& s : layout.sources) {
    page.emplace_back(s.entries, s.entries + s.rows * row_bytes(CacheFormat::entry, c.head_dim));
    page.emplace_back(s.index_keys, s.index_keys + s.rows * row_bytes(CacheFormat::index, c.index_dim));
  }
  for (const std::int64_t ring : layout.rings)
    block.emplace_back(ring, ring + layout.ring_slots * row_bytes(CacheFormat::window, c.head_dim));
  for (const BlockCarry& carry : layout.carries) {
    if (carry.slots == 0) continue;
    for (const std::int64_t first : {carry.kv, carry.gate}) {
      block.emplace_back(first, first + carry.slots * c.head_dim * 4);
      CHECK(first % 4 == 0);
    }
  }
  CHECK(tile(page, layout.page_bytes));
  CHECK(tile(block, layout.block_bytes));
}

std::int64_t run_bytes(const CacheLayout& layout, const ModelConfig& c, std::int64_t position, bool bounded) {
  std::int64_t bytes = 0;
  each_cache_run(layout, c, position, bounded, [&](const CacheRun& run) { bytes += run.bytes; });
  return bytes;
}

/// What is remembered.
enum class Kind : std::uint64_t { window, carry_kv, carry_gate, entry, index_key };

/// Byte `i` of a row, different for every row that a mistake could put in its place.
std::uint8_t code(Kind kind, std::int64_t index, std::int64_t row, std::int64_t i) {
  std::uint64_t x = static_cast<std::uint64_t>(kind) * 1000003 + static_cast<std::uint64_t>(index) * 10007 +
                    static_cast<std::uint64_t>(row) * 101 + static_cast<std::uint64_t>(i);
  x = (x ^ (x >> 15)) * 0x9E3779B97F4A7C15u;
  return static_cast<std::uint8_t>(x >> 56);
}

void put(Bytes& memory, std::int64_t at, Kind kind, std::int64_t index, std::int64_t row, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; ++i) memory.at(static_cast<std::size_t>(at + i)) = code(kind, index, row, i);
}

/// A sequence's caches after `position` tokens, written one by one.
struct Filled {
  Bytes block;
  std::vector<Bytes> pages;

  Filled(const CacheLayout& layout, std::int64_t position)
      : block(static_cast<std::size_t>(layout.block_bytes)),
        pages(static_cast<std::size_t>(layout.pages(position)), Bytes(static_cast<std::size_t>(layout.page_bytes))) {
    for (std::int64_t p = 0; p < position; ++p) {
      for (std::size_t l = 0; l < layout.rings.size(); ++l)
        put(block, layout.rings[l] + p % layout.ring_slots * kWindowRow, Kind::window, std::int64_t(l), p, kWindowRow);
      for (std::size_t s = 0; s < layout.sources.size(); ++s) write_source(layout, s, p);
    }
  }

  Bytes gathered(const CacheLayout& layout, const ModelConfig& c, std::int64_t position, bool bounded) const {
    Bytes out;
    each_cache_run(layout, c, position, bounded, [&](const CacheRun& run) {
      const Bytes& from = run.page < 0 ? block : pages.at(static_cast<std::size_t>(run.page));
      REQUIRE(run.bytes > 0);
      REQUIRE(run.offset >= 0);
      REQUIRE(run.offset + run.bytes <= static_cast<std::int64_t>(from.size()));
      out.insert(out.end(), from.begin() + run.offset, from.begin() + run.offset + run.bytes);
    });
    return out;
  }

 private:
  void write_source(const CacheLayout& layout, std::size_t s, std::int64_t p) {
    const PagedSource& source = layout.sources[s];
    const BlockCarry& carry = layout.carries[s];
    const auto index = static_cast<std::int64_t>(s);
    if (source.ratio > 1) {
      put(block, carry.kv + p % carry.slots * kFloatRow, Kind::carry_kv, index, p, kFloatRow);
      put(block, carry.gate + p % carry.slots * kFloatRow, Kind::carry_gate, index, p, kFloatRow);
    }
    if ((p + 1) % source.ratio != 0) return;
    const std::int64_t row = p / source.ratio;
    Bytes& page = pages.at(static_cast<std::size_t>(row / source.rows));
    put(page, source.entries + row % source.rows * kEntryRow, Kind::entry, index, row, kEntryRow);
    put(page, source.index_keys + row % source.rows * kIndexRow, Kind::index_key, index, row, kIndexRow);
  }
};

/// What each_cache_run says that it visits, written out.
Bytes expected(const ModelConfig& c, std::int64_t position, bool bounded) {
  Bytes out;
  const auto add = [&](Kind kind, std::int64_t index, std::int64_t row, std::int64_t bytes) {
    for (std::int64_t i = 0; i < bytes; ++i) out.push_back(code(kind, index, row, i));
  };
  const auto sources = static_cast<std::int64_t>(c.kv_sources.size());
  const auto ratio = [&](std::int64_t s) -> std::int64_t {
    return c.ratios[static_cast<std::size_t>(c.kv_sources[static_cast<std::size_t>(s)])];
  };
  if (bounded) {
    for (std::int64_t l = 0; l < c.layers; ++l)
      for (std::int64_t p = std::max<std::int64_t>(0, position - 5); p < position; ++p)
        add(Kind::window, l, p, kWindowRow);
    for (std::int64_t s = 0; s < sources; ++s)
      for (const Kind kind : {Kind::carry_kv, Kind::carry_gate})
        for (std::int64_t p = position / ratio(s) * ratio(s); p < position; ++p) add(kind, s, p, kFloatRow);
  }
  for (std::int64_t s = 0; s < sources; ++s) {
    for (std::int64_t row = 0; row < position / ratio(s); ++row) add(Kind::entry, s, row, kEntryRow);
    for (std::int64_t row = 0; row < position / ratio(s); ++row) add(Kind::index_key, s, row, kIndexRow);
  }
  return out;
}

/// The same with pages of `times` as many positions, and index keys before entries.
CacheLayout with_larger_pages(CacheLayout layout, std::int64_t times) {
  layout.page_positions *= times;
  layout.page_bytes = 0;
  for (PagedSource& s : layout.sources) {
    s.rows *= times;
    s.index_keys = layout.page_bytes;
    s.entries = s.index_keys + s.rows * kIndexRow;
    layout.page_bytes = s.entries + s.rows * kEntryRow;
  }
  return layout;
}

}  // namespace

TEST_CASE("the release: pages of 64 positions and 890 bytes a token, a block of rings and open groups") {
  const ModelConfig c = v41_flash();
  for (const std::int64_t room : {0, 1, 7, 8, 100}) {
    INFO("room " << room);
    const CacheLayout layout = make_cache_layout(c, room);
    CHECK(layout.page_positions == 64);
    CHECK(layout.page_bytes == 56960);
    CHECK(layout.page_bytes == 64 * 890);
    CHECK(layout.ring_slots == 128 + room);
    REQUIRE(layout.sources.size() == 4);
    REQUIRE(layout.carries.size() == 4);
    REQUIRE(layout.rings.size() == 40);
    for (std::size_t s = 0; s < 4; ++s) {
      CHECK(layout.sources[s].ratio == (s < 3 ? 2 : 1));
      CHECK(layout.sources[s].rows == (s < 3 ? 32 : 64));
      CHECK(layout.carries[s].slots == (s < 3 ? 2 + (room + 1) / 2 * 2 : 0));
    }
    CHECK(layout.block_bytes == 40 * (128 + room) * 528 + 3 * 2 * (2 + (room + 1) / 2 * 2) * 512 * 4);
    check_tiled(layout, c);
  }
  const CacheLayout bare = make_cache_layout(c, 0);
  CHECK(bare.block_bytes - bare.rings.front() == 2703360);  // serving.md 1.7
  CHECK(bare.pages(0) == 0);
  CHECK(bare.pages(1) == 1);
  CHECK(bare.pages(64) == 1);
  CHECK(bare.pages(65) == 2);
  CHECK(bare.pages(1048576) * bare.page_bytes == 933232640);
}

TEST_CASE("what a released sequence remembers: 890 bytes a token, its windows, and at odd positions one open token") {
  const ModelConfig c = v41_flash();
  for (const std::int64_t room : {0, 8}) {
    const CacheLayout layout = make_cache_layout(c, room);
    for (const std::int64_t n : {0, 1, 2, 63, 64, 65, 127, 128, 129, 136, 1000, 1001, 65536}) {
      INFO(n << " tokens, room " << room);
      const std::int64_t odd = n % 2;
      CHECK(run_bytes(layout, c, n, false) == 890 * (n - odd) + 356 * odd);
      CHECK(run_bytes(layout, c, n, true) ==
            890 * (n - odd) + 356 * odd + 40 * std::min<std::int64_t>(n, 128) * 528 + 12288 * odd);
    }
  }
}

TEST_CASE("pages hold whole groups of every ratio: the smallest common multiple that is not below 64") {
  struct Case {
    std::vector<std::int32_t> ratios;
    std::int64_t positions;
  };
  for (const Case& t : {Case{{1}, 64}, Case{{2}, 64}, Case{{3}, 66}, Case{{3, 4}, 72}, Case{{4, 3, 1}, 72},
                        Case{{5, 7, 2}, 70}, Case{{64}, 64}, Case{{65}, 65}, Case{{100, 3}, 300}, Case{{128}, 128}}) {
    for (const std::int64_t room : {0, 1, 8}) {
      const ModelConfig c = cache_config(kWindow, t.ratios);
      const CacheLayout layout = make_cache_layout(c, room);
      INFO(t.positions << " positions, room " << room);
      CHECK(layout.page_positions == t.positions);
      check_tiled(layout, c);
      for (std::size_t s = 0; s < t.ratios.size(); ++s) {
        const std::int64_t ratio = t.ratios[s], slots = layout.carries[s].slots;
        CHECK(layout.sources[s].rows * ratio == t.positions);
        CHECK(slots % ratio == 0);
        CHECK((ratio == 1 ? slots == 0 : slots >= ratio + room && slots < 2 * ratio + room));
      }
    }
  }
}

TEST_CASE("without sources nothing grows: no pages, a block of rings") {
  const ModelConfig c = cache_config(kWindow, {});
  const CacheLayout layout = make_cache_layout(c, 3);
  CHECK(layout.page_bytes == 0);
  CHECK(layout.pages(1000000) == 0);
  CHECK(layout.block_bytes == 8 * kWindowRow);
  CHECK(run_bytes(layout, c, 1000, true) == 5 * kWindowRow);
  CHECK(run_bytes(layout, c, 1000, false) == 0);
}

TEST_CASE("ratios without a common multiple of reasonable size are refused, and no number wraps around") {
  CHECK(make_cache_layout(cache_config(kWindow, {1 << 20}), 0).page_positions == 1 << 20);
  CHECK(make_cache_layout(cache_config(kWindow, {1024, 1023}), 0).page_positions == 1024 * 1023);
  const Failure two = failure_of([] { make_cache_layout(cache_config(kWindow, {1024, 1025}), 0); });
  CHECK(two.code == Errc::unsupported);
  CHECK(two.message ==
        "caches: the ratios of the kv sources have the common multiple 1049600, expected at most 1048576, for pages of "
        "whole groups");
  std::vector<std::int32_t> many;  // their product is far beyond 2^63
  for (std::int32_t ratio = 1 << 19; many.size() < 20; ratio += 2) many.push_back(ratio + 1);
  CHECK(failure_of([&] { make_cache_layout(cache_config(kWindow, many), 0); }).code == Errc::unsupported);
}

TEST_CASE("runs give what a sequence remembers in an order of its own, whatever the room and the page size") {
  for (const std::vector<std::int32_t>& ratios :
       std::vector<std::vector<std::int32_t>>{{}, {1}, {2, 1}, {3, 4}, {7, 1, 2}, {70}}) {
    const ModelConfig c = cache_config(kWindow, ratios);
    for (const std::int64_t room : {0, 1, 4, 9}) {
      const CacheLayout small = make_cache_layout(c, room);
      for (const CacheLayout& layout : {small, with_larger_pages(small, 2)}) {
        for (std::int64_t n = 0; n <= 160; n += n < 40 ? 1 : 13) {
          INFO(ratios.size() << " sources, room " << room << ", pages of " << layout.page_positions << ", " << n
                             << " tokens");
          const Filled filled(layout, n);
          CHECK(filled.gathered(layout, c, n, true) == expected(c, n, true));
          CHECK(filled.gathered(layout, c, n, false) == expected(c, n, false));
        }
      }
    }
  }
}

TEST_CASE("a sequence that has gone on still gives what it was up to `room` tokens ago") {
  const ModelConfig c = cache_config(kWindow, {3, 1});
  for (const std::int64_t room : {0, 1, 4, 9}) {
    const CacheLayout layout = make_cache_layout(c, room);
    for (std::int64_t end = 1; end <= 60; ++end) {
      const Filled filled(layout, end);
      for (std::int64_t n = std::max<std::int64_t>(0, end - room); n < end; ++n) {
        INFO("room " << room << ", " << end << " tokens, back at " << n);
        CHECK(filled.gathered(layout, c, n, true) == expected(c, n, true));
      }
    }
  }
}

TEST_CASE(
    "draft stages have rings like the layers', behind them in the block; nothing else moves, and no run visits them") {
  for (const std::vector<std::int32_t>& ratios : std::vector<std::vector<std::int32_t>>{{}, {3, 1}}) {
    for (const std::int64_t room : {0, 4}) {
      ModelConfig c = cache_config(kWindow, ratios);
      const CacheLayout without = make_cache_layout(c, room);
      for (const std::int32_t stages : {0, 1, 3}) {
        c.draft.stages = stages;
        CHECK(make_cache_layout(c, room).draft_rings.empty());  // the model could, the engine does not
        CHECK(make_cache_layout(c, room).block_bytes == without.block_bytes);
        const CacheLayout with = make_cache_layout(c, room, true);
        REQUIRE(std::ssize(with.draft_rings) == stages);
        for (std::size_t s = 0; s < with.draft_rings.size(); ++s)
          CHECK(with.draft_rings[s] ==
                without.block_bytes + static_cast<std::int64_t>(s) * (kWindow + room) * kWindowRow);
        CHECK(with.block_bytes == without.block_bytes + stages * (kWindow + room) * kWindowRow);
        CHECK(with.rings == without.rings);
        CHECK(with.page_bytes == without.page_bytes);
        CHECK(with.ring_slots == without.ring_slots);
        for (const std::int64_t n : {1, 17, 90}) CHECK(run_bytes(with, c, n, true) == run_bytes(without, c, n, true));
      }
    }
  }
}
