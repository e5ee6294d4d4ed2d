// SPDX-License-Identifier: MIT
//
// Reference of ops::SparseAttention.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv41/numerics/attention.hpp"
#include "dsv41/ops/sparse_attention.hpp"

namespace dsv41::ref {

inline void attend_head(const ops::SparseAttention& op, std::int64_t t, std::int64_t h) {
  const std::int64_t width = op.q.extent(2), p = op.first_position + t;
  const std::int64_t window_rows = std::min(p + 1, op.window), selected = op.counts.empty() ? 0 : op.counts[t];
  const float* q = op.q.row(t).row(h).data();
  float* out = op.out.row(t).row(h).data();
  const float scale = numerics::inverse_root(width);
  std::fill_n(out, width, 0.0f);
  numerics::RunningSoftmax softmax;
  float logits[numerics::kSoftmaxBlock];
  const float* values[numerics::kSoftmaxBlock];
  std::int64_t count = 0, block = 0;
  auto add_block = [&] {
    const float shrink = softmax.add(logits, count);
    numerics::attention_add(op.numeric, shrink, logits, values, count, width, out);
    count = 0;
  };
  auto visit = [&](std::int64_t slot, const float* row) {
    if (slot / numerics::kSoftmaxBlock != block && count > 0) add_block();
    block = slot / numerics::kSoftmaxBlock;
    logits[count] = numerics::attention_logit(q, row, width, scale);
    values[count++] = row;
  };
  for (std::int64_t s = 0; s < window_rows; ++s)
    visit(s, op.ring.row((p - window_rows + 1 + s) % op.ring.extent(0)).data());
  for (std::int64_t s = 0; s < selected; ++s) {
    const std::int64_t id = op.ids(t, s);
    if (id >= 0 && id < op.entries.extent(0)) visit(op.window + s, op.entries.row(id).data());
  }
  add_block();
  numerics::attention_finish(op.numeric, softmax.denominator(op.sink[h]), width, out);
}

inline void run(const ops::SparseAttention& op) {
  for (std::int64_t t = 0; t < op.q.extent(0); ++t) {
    for (std::int64_t h = 0; h < op.q.extent(1); ++h) attend_head(op, t, h);
  }
}

}  // namespace dsv41::ref
