// SPDX-License-Identifier: MIT
//
// ops::SparseAttention and ops::BlockAttention on the CPU: which slots there are is the references' enumeration, heads and queries are cut
// into pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/context.hpp"
#include "cpu/kernels/attention.hpp"
#include "dsv41/ops/block_attention.hpp"
#include "dsv41/ops/sparse_attention.hpp"
#include "dsv41/ref/block_attention.hpp"
#include "dsv41/ref/sparse_attention.hpp"

namespace dsv41::cpu {

/// Heads over the same slots that make a piece: whole groups of kHeads. `all` of them share the unpacking of rows where there are pieces
/// enough without cutting them, `others` times as many.
inline std::int64_t piece_heads(std::int64_t all, std::int64_t others) {
  constexpr std::int64_t kPieces = 16;
  const std::int64_t each = std::max<std::int64_t>((all * others + kPieces - 1) / kPieces, 1);
  return std::min((each + kHeads - 1) / kHeads * kHeads, (all + kHeads - 1) / kHeads * kHeads);
}

/// What a worker needs for pieces of so many heads.
constexpr std::int64_t attention_scratch(std::int64_t heads, std::int64_t width) {
  return block_floats(width) + heads / kHeads * HeadGroup::floats(width);
}

/// Heads [first, end) over the slots that `each_slot(visit)` visits as visit(slot, row), ascending. q(h), sink(h), out(h) are a head's.
template <class EachSlot, class Q, class Sink, class Out>
void attend_heads(Target target, Numeric numeric, std::int64_t width, std::int64_t first, std::int64_t end,
                  const EachSlot& each_slot, const Q& q, const Sink& sink, const Out& out, float* scratch) {
  const std::int64_t groups = (end - first + kHeads - 1) / kHeads;
  float* const rows = scratch;
  const auto group = [&](std::int64_t g) {
    return HeadGroup(scratch + block_floats(width) + g * HeadGroup::floats(width), width);
  };
  const auto heads = [&](std::int64_t g) { return std::min(kHeads, end - first - g * kHeads); };
  for (std::int64_t g = 0; g < groups; ++g) {
    const float* queries[kHeads];
    for (std::int64_t i = 0; i < heads(g); ++i) queries[i] = q(first + g * kHeads + i);
    begin_heads(group(g), queries, heads(g));
  }
  PackedRow packed[numerics::kSoftmaxBlock];
  std::int64_t count = 0, block = 0;
  const auto add_block = [&] {
    if (count == 0) return;
    unpack_rows(target, packed, count, width, rows);
    for (std::int64_t g = 0; g < groups; ++g) add_slots(target, numeric, group(g), rows, count);
    count = 0;
  };
  each_slot([&](std::int64_t slot, const PackedRow& row) {
    if (slot / numerics::kSoftmaxBlock != block) add_block();
    block = slot / numerics::kSoftmaxBlock;
    packed[count++] = row;
  });
  add_block();
  for (std::int64_t g = 0; g < groups; ++g) {
    float sinks[kHeads], *results[kHeads];
    for (std::int64_t i = 0; i < heads(g); ++i) {
      sinks[i] = sink(first + g * kHeads + i);
      results[i] = out(first + g * kHeads + i);
    }
    end_heads(target, numeric, group(g), sinks, results, heads(g));
  }
}

inline PackedRow packed_row(const CacheRows& cache, std::int64_t row) {
  return {cache.row(row), stored_format(cache.format, cache.width)};
}

/// Heads of a piece of the op.
inline std::int64_t piece_heads(const ops::SparseAttention& op) {
  return piece_heads(op.q.extent(1), op.q.extent(0));
}

/// The same; here all heads of all queries are over the same slots.
inline std::int64_t piece_heads(const ops::BlockAttention& op) {
  return piece_heads(op.q.extent(0) * op.q.extent(1), 1);
}

inline std::size_t workspace_floats(const ops::SparseAttention& op, const Context& context) {
  return static_cast<std::size_t>(context.workers.count() * attention_scratch(piece_heads(op), op.q.extent(2)));
}

inline std::size_t workspace_floats(const ops::BlockAttention& op, const Context& context) {
  return static_cast<std::size_t>(context.workers.count() * attention_scratch(piece_heads(op), op.q.extent(2)));
}

inline void run(const ops::SparseAttention& op, const Context& context, float* workspace) {
  const std::int64_t heads = op.q.extent(1), width = op.q.extent(2), each = piece_heads(op);
  if (op.q.empty()) return;
  const std::int64_t parts = (heads + each - 1) / each;
  context.each(op.q.extent(0) * parts, [&](std::int64_t piece, std::int64_t worker) {
    const std::int64_t t = piece / parts, first = piece % parts * each;
    const auto each_slot = [&](const auto& visit) {
      ref::visit_slots(op, t, [&](std::int64_t slot, const CacheRows& cache, std::int64_t row) {
        visit(slot, packed_row(cache, row));
      });
    };
    attend_heads(
        context.target, op.numeric, width, first, std::min(heads, first + each), each_slot,
        [&](std::int64_t h) { return op.q.row(t).row(h).data(); }, [&](std::int64_t h) { return op.sink[h]; },
        [&](std::int64_t h) { return op.out.row(t).row(h).data(); },
        workspace + worker * attention_scratch(each, width));
  });
}

inline void run(const ops::BlockAttention& op, const Context& context, float* workspace) {
  const std::int64_t tokens = op.q.extent(0), heads = op.q.extent(1), width = op.q.extent(2), each = piece_heads(op);
  if (op.q.empty()) return;
  context.each_part(tokens * heads, each, [&](std::int64_t first, std::int64_t end, std::int64_t worker) {
    const auto each_slot = [&](const auto& visit) {
      ref::visit_context(op, [&](std::int64_t slot, std::int64_t position) {
        visit(slot, packed_row(op.ring, position % op.ring.rows));
      });
      for (std::int64_t i = 0; i < tokens; ++i) {
        const auto* const row = reinterpret_cast<const std::byte*>(op.block.row(i).data());
        visit(op.context_slots() + i, PackedRow{row, CacheFormat::f32});
      }
    };
    attend_heads(
        context.target, op.numeric, width, first, end, each_slot,
        [&](std::int64_t i) { return op.q.row(i / heads).row(i % heads).data(); },
        [&](std::int64_t i) { return op.sink[i % heads]; },
        [&](std::int64_t i) { return op.out.row(i / heads).row(i % heads).data(); },
        workspace + worker * attention_scratch(each, width));
  });
}

}  // namespace dsv41::cpu
