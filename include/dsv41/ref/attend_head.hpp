// SPDX-License-Identifier: MIT
//
// One head of one query, as the references of ops::SparseAttention and ops::BlockAttention share it: which slots there are is theirs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv41/core/numeric.hpp"
#include "dsv41/numerics/attention.hpp"

namespace dsv41::ref {

/// q [width] over the rows [slots, width] that hold something -> out [width]. `each_slot(visit)` calls visit(slot) for these, ascending.
template <class EachSlot>
void attend_head(Numeric numeric, const float* q, const float* rows, float sink, std::int64_t width,
                 const EachSlot& each_slot, float* out) {
  const float scale = numerics::inverse_root(width);
  std::fill_n(out, width, 0.0f);
  numerics::RunningSoftmax softmax;
  float logits[numerics::kSoftmaxBlock];
  const float* values[numerics::kSoftmaxBlock];
  std::int64_t count = 0, block = 0;
  auto add_block = [&] {
    const float shrink = softmax.add(logits, count);
    numerics::attention_add(numeric, shrink, logits, values, count, width, out);
    count = 0;
  };
  each_slot([&](std::int64_t slot) {
    if (slot / numerics::kSoftmaxBlock != block && count > 0) add_block();
    block = slot / numerics::kSoftmaxBlock;
    const float* row = rows + slot * width;
    logits[count] = numerics::attention_logit(q, row, width, scale);
    values[count++] = row;
  });
  add_block();
  numerics::attention_finish(numeric, softmax.denominator(sink), width, out);
}

}  // namespace dsv41::ref
