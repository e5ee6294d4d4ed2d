// SPDX-License-Identifier: MIT
//
// Where a sequence's caches lie: what a page and a block hold, and at which byte. Numbers only; model/state.hpp points into memory with
// them. Source: serving.md 2.2 and 1.7, dspark.md 7.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/core/error.hpp"

namespace dsv41 {

/// A page covers the smallest multiple of every ratio that is not below this many positions, so no group of any source spans two pages.
inline constexpr std::int64_t kLeastPagePositions = 64;
/// The largest ratio that a config may have; a common multiple beyond it is refused.
inline constexpr std::int64_t kMostPagePositions = 1 << 20;

/// Entries and index keys of one kv source within a page.
struct PagedSource {
  std::int64_t ratio = 1;
  std::int64_t rows = 0;                     ///< of each of the two, a page
  std::int64_t entries = 0, index_keys = 0;  ///< first byte in the page
};

/// Tokens of one source's open group, in the block. Slot of a position: position % slots.
struct BlockCarry {
  std::int64_t slots = 0;         ///< a multiple of the ratio; 0 at ratio 1, where no group is ever open
  std::int64_t kv = 0, gate = 0;  ///< first byte in the block, of f32 rows [slots, head_dim]
};

/// A sequence owns one block, for what is bounded, and pages, for what grows with it.
struct CacheLayout {
  std::int64_t page_positions = 0;
  std::int64_t page_bytes = 0;  ///< page_positions times the bytes of a token (890 in the release); 0: no sources
  std::vector<PagedSource> sources;

  std::int64_t ring_slots = 0;  ///< window + room; slot of a position: position % ring_slots
  std::int64_t block_bytes = 0;
  std::vector<BlockCarry> carries;        ///< per source
  std::vector<std::int64_t> rings;        ///< per layer: first byte in the block
  std::vector<std::int64_t> draft_rings;  ///< per draft stage likewise; empty: nothing drafts

  /// Pages that cover this many positions.
  std::int64_t pages(std::int64_t positions) const {
    return page_bytes == 0 ? 0 : (positions + page_positions - 1) / page_positions;
  }
};

/// `room`: positions that a ring holds beyond the window. A sequence can go back by room + 1 positions, and a step of one sequence write
/// room + 1 rows, before a row is overwritten that a query still needs (dspark.md 7: at least the draft length).
/// `drafts`: the block also holds the context of the draft stages, in rings like the layers'.
/// Errors: unsupported for ratios that no page of kMostPagePositions has whole groups of. No number overflows for a valid config.
inline CacheLayout make_cache_layout(const ModelConfig& c, std::int64_t room, bool drafts = false) {
  CacheLayout out;
  std::int64_t multiple = 1;
  for (const std::int32_t layer : c.kv_sources) {
    multiple = std::lcm(multiple, static_cast<std::int64_t>(c.ratios[static_cast<std::size_t>(layer)]));
    if (multiple > kMostPagePositions) {
      throw Error(Errc::unsupported, "caches: the ratios of the kv sources have the common multiple " +
                                         std::to_string(multiple) + ", expected at most " +
                                         std::to_string(kMostPagePositions) + ", for pages of whole groups");
    }
  }
  out.page_positions = (kLeastPagePositions + multiple - 1) / multiple * multiple;
  const auto take = [](std::int64_t& end, std::int64_t bytes) {
    end += bytes;
    return end - bytes;
  };
  for (const std::int32_t layer : c.kv_sources) {
    const std::int64_t ratio = c.ratios[static_cast<std::size_t>(layer)], rows = out.page_positions / ratio;
    PagedSource& source = out.sources.emplace_back(PagedSource{.ratio = ratio, .rows = rows});
    source.entries = take(out.page_bytes, rows * row_bytes(CacheFormat::entry, c.head_dim));
    source.index_keys = take(out.page_bytes, rows * row_bytes(CacheFormat::index, c.index_dim));
    BlockCarry& carry = out.carries.emplace_back();
    if (ratio == 1) continue;
    carry.slots = (ratio + room + ratio - 1) / ratio * ratio;
    const std::int64_t bytes = carry.slots * c.head_dim * static_cast<std::int64_t>(sizeof(float));
    carry.kv = take(out.block_bytes, bytes);  // before the rings, whose rows have any length: floats stay aligned
    carry.gate = take(out.block_bytes, bytes);
  }
  out.ring_slots = c.window + room;
  const std::int64_t ring_bytes = out.ring_slots * row_bytes(CacheFormat::window, c.head_dim);
  for (std::int32_t l = 0; l < c.layers; ++l) out.rings.push_back(take(out.block_bytes, ring_bytes));
  for (std::int64_t s = 0; drafts && s < c.draft.stages; ++s)
    out.draft_rings.push_back(take(out.block_bytes, ring_bytes));
  return out;
}

/// Consecutive bytes of a sequence's caches.
struct CacheRun {
  std::int64_t page = -1;  ///< number of the sequence's page; -1: the block
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};

/// Calls visit(run) for all that the target remembers of a sequence of `position` tokens on the device, in an order that depends on neither
/// page size nor room (a drafter's context is not part of it: it is made anew, and no text depends on it): with `bounded`, per layer the
/// last token's window rows, oldest first, then per source the open group's projections and gates; then per source its entries and its
/// index keys.
template <class Visit>
void each_cache_run(const CacheLayout& layout, const ModelConfig& c, std::int64_t position, bool bounded,
                    const Visit& visit) {
  if (bounded) {
    const std::int64_t row = row_bytes(CacheFormat::window, c.head_dim), slots = layout.ring_slots;
    for (const std::int64_t ring : layout.rings) {
      for (std::int64_t p = std::max<std::int64_t>(0, position - c.window), n = 0; p < position; p += n) {
        n = std::min(position - p, slots - p % slots);
        visit(CacheRun{.offset = ring + p % slots * row, .bytes = n * row});
      }
    }
    for (std::size_t i = 0; i < layout.carries.size(); ++i) {
      const BlockCarry& carry = layout.carries[i];
      const std::int64_t open = position % layout.sources[i].ratio;
      if (open == 0) continue;
      const std::int64_t floats = c.head_dim * static_cast<std::int64_t>(sizeof(float));
      const std::int64_t slot = (position - open) % carry.slots;  // groups do not wrap
      for (const std::int64_t rows : {carry.kv, carry.gate})
        visit(CacheRun{.offset = rows + slot * floats, .bytes = open * floats});
    }
  }
  for (const PagedSource& source : layout.sources) {
    const auto each_page = [&](std::int64_t offset, std::int64_t row) {
      const std::int64_t rows = position / source.ratio;
      for (std::int64_t first = 0; first < rows; first += source.rows) {
        visit(CacheRun{
            .page = first / source.rows, .offset = offset, .bytes = std::min(source.rows, rows - first) * row});
      }
    };
    each_page(source.entries, row_bytes(CacheFormat::entry, c.head_dim));
    each_page(source.index_keys, row_bytes(CacheFormat::index, c.index_dim));
  }
}

}  // namespace dsv41
