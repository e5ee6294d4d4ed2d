// SPDX-License-Identifier: MIT
//
// Indices that ops read from memory, held against what they index: a stray one must not become a read beside a table (cases B07, B28 and
// B54). Ids that mark an empty slot are not faults; the ops' contracts name them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "dsv41/ops/op.hpp"

namespace dsv41::ref {

/// An index outside [first, end), and where it was found; no op: none.
struct IndexFault {
  std::string_view op, field;
  std::int64_t got = 0, first = 0, end = 0;
  explicit operator bool() const { return !op.empty(); }
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

inline IndexFault index_fault(const ops::Embed& op) {
  return outside(op.name, "ids", op.ids, 0, op.table.rows);
}

inline IndexFault index_fault(const ops::EngramHash& op) {
  return outside(op.name, "ids", op.ids, 0, op.token_map.extent(0));
}

inline IndexFault index_fault(const ops::EngramGather& op) {
  return outside(op.name, "table_rows", op.table_rows, 0, op.table.rows);
}

inline IndexFault index_fault(const ops::HashRoute& op) {
  return outside(op.name, "token_ids", op.token_ids, 0, op.table.extent(0));
}

inline IndexFault index_fault(const ops::SwigluExperts& op) {
  constexpr std::int64_t kAnyNegative = std::numeric_limits<std::int32_t>::min();  // an empty slot
  return outside(op.name, "ids", op.ids, kAnyNegative, static_cast<std::int64_t>(op.experts.size()));
}

inline IndexFault index_fault(const ops::SparseAttention& op) {
  return outside(op.name, "counts", op.counts, 0, op.ids.extent(1) + 1);
}

inline IndexFault index_fault(const ops::IndexSelect& op) {
  if (op.candidates != ops::CandidateUse::limited) return {};
  return outside(op.name, "block_counts", op.block_counts, 0, op.blocks.extent(1) + 1);
}

}  // namespace dsv41::ref
