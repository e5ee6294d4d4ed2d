// SPDX-License-Identifier: MIT
//
// Reference of ops::BlockAttention.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dsv41/numerics/packed.hpp"
#include "dsv41/ops/block_attention.hpp"
#include "dsv41/ref/attend_head.hpp"

namespace dsv41::ref {

/// One row for every slot.
inline std::size_t workspace_floats(const ops::BlockAttention& op) {
  return static_cast<std::size_t>((op.context_slots() + op.q.extent(0)) * op.q.extent(2));
}

/// Calls visit(slot, position) for the visible context, slots ascending.
template <class Visit>
void visit_context(const ops::BlockAttention& op, const Visit& visit) {
  const std::int64_t slots = op.context_slots(), oldest = op.first_position - slots;
  for (std::int64_t s = 0; s < slots; ++s) {
    const std::int64_t p = oldest + (s - oldest % op.window + op.window) % op.window;  // the one of slot s
    if (p >= op.first_visible) visit(s, p);
  }
}

/// `workspace`: workspace_floats(op) floats. The rows are decoded once, for all queries and heads.
inline void run(const ops::BlockAttention& op, float* workspace) {
  const std::int64_t tokens = op.q.extent(0), width = op.q.extent(2), context = op.context_slots();
  visit_context(op, [&](std::int64_t slot, std::int64_t position) {
    numerics::load_row(op.ring, position % op.ring.rows, workspace + slot * width);
  });
  for (std::int64_t i = 0; i < tokens; ++i)
    std::copy_n(op.block.row(i).data(), width, workspace + (context + i) * width);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto each_slot = [&](const auto& visit) {
      visit_context(op, [&](std::int64_t slot, std::int64_t) { visit(slot); });
      for (std::int64_t i = 0; i < tokens; ++i) visit(context + i);
    };
    for (std::int64_t h = 0; h < op.q.extent(1); ++h) {
      attend_head(op.numeric, op.q.row(t).row(h).data(), workspace, op.sink[h], width, each_slot,
                  op.out.row(t).row(h).data());
    }
  }
}

}  // namespace dsv41::ref
