// SPDX-License-Identifier: MIT
//
// The last rows of a step as a batch of their own, for layers that run no others (model/prefill.hpp).
#pragma once

#include <cstdint>

#include "dsv41/core/view.hpp"
#include "dsv41/model/scratch.hpp"
#include "dsv41/modules/sequence.hpp"

namespace dsv41 {

/// Rows [first, rows) of a batch and its scratch; `first` is 0 unless the batch is one segment. Both must outlive it.
class StepRows {
 public:
  StepRows(const Batch& batch, const ScratchViews& t, std::int64_t first)
      : first_(first), count_(batch.rows() - first), batch_(batch), scratch_(t.rows(first, count_)) {
    if (first == 0) return;
    DSV41_DCHECK(batch.segments.size() == 1);
    segment_ = {.state = batch.segments[0].state,
                .first_row = 0,
                .rows = count_,
                .first_position = batch.segments[0].first_position + first};
    batch_ = {.ids = batch.ids.rows(first, count_),
              .image = batch.image.rows(first, count_),
              .image_rows = {},  // read by the embedding only, which runs every row
              .positions = batch.positions.rows(first, count_),
              .history = {},  // read by the hash only, which runs every row; it ends before the step's first one
              .segments = {&segment_, 1}};
  }
  StepRows(const StepRows&) = delete;  // the batch points to the segment
  StepRows& operator=(const StepRows&) = delete;

  std::int64_t count() const { return count_; }
  const Batch& batch() const { return batch_; }
  const ScratchViews& scratch() const { return scratch_; }

  /// These rows of x [rows of the step, dim], or nothing of nothing.
  In<float, 2> of(In<float, 2> x) const { return x.empty() ? x : x.rows(first_, count_); }

 private:
  std::int64_t first_, count_;
  Segment segment_;
  Batch batch_;
  ScratchViews scratch_;
};

}  // namespace dsv41
