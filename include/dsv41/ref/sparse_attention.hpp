// SPDX-License-Identifier: MIT
//
// Reference of ops::SparseAttention.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dsv41/numerics/packed.hpp"
#include "dsv41/ops/sparse_attention.hpp"
#include "dsv41/ref/attend_head.hpp"

namespace dsv41::ref {

/// One row for every slot of a query.
inline std::size_t workspace_floats(const ops::SparseAttention& op) {
  const std::int64_t selected = op.counts.empty() ? 0 : op.ids.extent(1);
  return static_cast<std::size_t>((op.window + selected) * op.q.extent(2));
}

/// Calls visit(slot, cache, row) for the slots of token t, in their order.
template <class Visit>
void visit_slots(const ops::SparseAttention& op, std::int64_t t, const Visit& visit) {
  const std::int64_t p = op.first_position + t, selected = op.counts.empty() ? 0 : op.counts[t];
  const std::int64_t window_rows = std::min(p + 1 - op.first_visible, op.window);
  for (std::int64_t s = 0; s < window_rows; ++s) visit(s, op.ring, (p - window_rows + 1 + s) % op.ring.rows);
  for (std::int64_t s = 0; s < selected; ++s) {
    const std::int64_t id = op.ids(t, s);
    if (id >= 0 && id < op.entries.rows) visit(op.window + s, op.entries, id);
  }
}

/// `workspace`: workspace_floats(op) floats. A token's rows are decoded once, for all its heads.
inline void run(const ops::SparseAttention& op, float* workspace) {
  const std::int64_t width = op.q.extent(2);
  for (std::int64_t t = 0; t < op.q.extent(0); ++t) {
    visit_slots(op, t, [&](std::int64_t slot, const CacheRows& cache, std::int64_t row) {
      numerics::load_row(cache, row, workspace + slot * width);
    });
    const auto each_slot = [&](const auto& visit) {
      visit_slots(op, t, [&](std::int64_t slot, const CacheRows&, std::int64_t) { visit(slot); });
    };
    for (std::int64_t h = 0; h < op.q.extent(1); ++h) {
      attend_head(op.numeric, op.q.row(t).row(h).data(), workspace, op.sink[h], width, each_slot,
                  op.out.row(t).row(h).data());
    }
  }
}

}  // namespace dsv41::ref
