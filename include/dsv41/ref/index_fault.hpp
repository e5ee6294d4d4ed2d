// SPDX-License-Identifier: MIT
//
// Indices and pages that ops read from memory: a stray index must not become a read beside a table, nor a page that is not there a crash
// (cases B07, B28 and B54). Ids that mark an empty slot are not faults; the ops' contracts name them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "dsv41/ops/op.hpp"

namespace dsv41::ref {

/// An index outside [first, end), or a page of a cache that is not there, and where it was found; no op: none.
struct IndexFault {
  std::string_view op, field;
  std::int64_t got = 0, first = 0, end = 0;
  bool is_page = false;  ///< `got` is the page
  explicit operator bool() const { return !op.empty(); }

  std::string text() const {
    const std::string at = std::string(op) + ": " + std::string(field), what = std::to_string(got);
    if (is_page) return at + " has no page " + what + ", expected one for every row that the op uses";
    return at + " holds " + what + ", expected at least " + std::to_string(std::max<std::int64_t>(first, -1)) +
           " and less than " + std::to_string(end);
  }
};

template <class T, std::size_t Rank>
IndexFault outside(std::string_view op, std::string_view field, const View<T, Rank>& indices, std::int64_t first,
                   std::int64_t end) {
  for (std::int64_t i = 0; i < indices.extent(0); ++i) {
    if constexpr (Rank > 1) {
      if (const IndexFault fault = outside(op, field, indices.row(i), first, end)) return fault;
    } else if (indices[i] < first || indices[i] >= end) {
      return {op, field, indices[i], first, end};
    }
  }
  return {};
}

/// A page of rows [first, last) that is not there.
inline IndexFault absent(std::string_view op, std::string_view field, const CacheRows& cache, std::int64_t first,
                         std::int64_t last) {
  for (std::int64_t row = first; row < last; row += cache.page_rows - row % cache.page_rows) {
    const std::int64_t page = row / cache.page_rows;
    if (cache.pages[page] == nullptr) return {.op = op, .field = field, .got = page, .is_page = true};
  }
  return {};
}

/// The same of `count` > 0 rows from slot `first` % rows on, around the end.
inline IndexFault absent_around(std::string_view op, std::string_view field, const CacheRows& cache, std::int64_t first,
                                std::int64_t count) {
  const std::int64_t slot = first % cache.rows, last = slot + std::min(count, cache.rows);
  if (const IndexFault fault = absent(op, field, cache, slot, std::min(last, cache.rows))) return fault;
  return absent(op, field, cache, 0, last - cache.rows);
}

/// First legal index where any negative one marks an empty slot.
inline constexpr std::int64_t kAnyNegative = std::numeric_limits<std::int32_t>::min();

inline IndexFault index_fault(const ops::Embed& op) {
  return outside(op.name, "ids", op.ids, 0, op.table.rows);
}

inline IndexFault index_fault(const ops::EngramHash& op) {
  const std::int64_t ids = op.token_map.extent(0);
  if (const IndexFault fault = outside(op.name, "ids", op.ids, 0, ids)) return fault;
  return outside(op.name, "history", op.history, kAnyNegative, ids);
}

inline IndexFault index_fault(const ops::EngramGather& op) {
  return outside(op.name, "table_rows", op.table_rows, 0, op.table.rows);
}

inline IndexFault index_fault(const ops::HashRoute& op) {
  return outside(op.name, "token_ids", op.token_ids, 0, op.table.extent(0));
}

inline IndexFault index_fault(const ops::SwigluExperts& op) {
  return outside(op.name, "ids", op.ids, kAnyNegative, static_cast<std::int64_t>(op.experts.size()));
}

inline IndexFault index_fault(const ops::CacheAppend& op) {
  if (op.rows.extent(0) == 0) return {};
  return absent_around(op.name, "cache", op.cache, op.first_slot, op.rows.extent(0));
}

inline IndexFault index_fault(const ops::SparseAttention& op) {
  if (const IndexFault fault = outside(op.name, "counts", op.counts, 0, op.ids.extent(1) + 1)) return fault;
  const std::int64_t end = op.first_position + op.q.extent(0);
  const std::int64_t oldest = std::max(op.first_visible, op.first_position - op.window + 1);
  if (oldest < end && op.window > 0) {
    if (const IndexFault fault = absent_around(op.name, "ring", op.ring, oldest, end - oldest)) return fault;
  }
  for (std::int64_t t = 0; t < op.counts.extent(0); ++t) {
    for (std::int64_t s = 0; s < op.counts[t]; ++s) {
      const std::int64_t id = op.ids(t, s);
      if (id < 0 || id >= op.entries.rows) continue;  // an empty slot
      if (const IndexFault fault = absent(op.name, "entries", op.entries, id, id + 1)) return fault;
    }
  }
  return {};
}

inline IndexFault index_fault(const ops::BlockAttention& op) {
  const std::int64_t oldest = std::max(op.first_visible, op.first_position - op.context_slots());
  if (op.q.extent(0) == 0 || oldest == op.first_position) return {};
  return absent_around(op.name, "ring", op.ring, oldest, op.first_position - oldest);
}

inline IndexFault index_fault(const ops::Markov& op) {
  return outside(op.name, "tokens", op.tokens, kAnyNegative, op.embed.rows);
}

inline IndexFault index_fault(const ops::IndexSelect& op) {
  const std::int64_t tokens = op.q.extent(0);
  if (op.candidates != ops::CandidateUse::limited)
    return absent(op.name, "keys", op.keys, 0, (op.first_position + tokens) / op.ratio);
  if (const IndexFault fault = outside(op.name, "block_counts", op.block_counts, 0, op.blocks.extent(1) + 1))
    return fault;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t visible = (op.first_position + t + 1) / op.ratio;
    for (std::int64_t i = 0; i < op.block_counts[t]; ++i) {
      const std::int64_t first = std::max<std::int64_t>(op.blocks(t, i) * op.block, 0);
      const std::int64_t last = std::min((op.blocks(t, i) + 1) * op.block, visible);
      if (const IndexFault fault = absent(op.name, "keys", op.keys, first, last)) return fault;
    }
  }
  return {};
}

}  // namespace dsv41::ref
