// SPDX-License-Identifier: MIT
//
// What a sequence remembers between steps, and how the rows of a step belong to sequences. Everything here is views: the memory is
// the runtime's (model/state.hpp lays it out). Sizes: serving.md 2.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/view.hpp"

namespace dsv41 {

/// Caches of one kv source. The carries hold the tokens of the open group and, for going back, of groups before it: position p in slot
/// p % slots, slots a multiple of ratio; at ratio 1 they are empty.
struct SourceCache {
  CacheRows entries;         // [max_context / ratio, head_dim]   compressed KV, rotated and packed
  CacheRows index_keys;      // [max_context / ratio, index_dim]  index keys, likewise
  Out<float, 2> carry_kv;    // [slots, head_dim]
  Out<float, 2> carry_gate;  // [slots, head_dim]
};

/// One sequence. `position` tokens have been committed.
struct SequenceState {
  std::int64_t position = 0;
  std::vector<CacheRows> rings;      // per layer [window + room, head_dim]; position p in slot p % slots
  std::vector<SourceCache> sources;  // per kv source
  std::vector<Out<float, 3>>
      convolution_rings;  // per Engram layer [slots, hc, dim]; none without the paper's convolution
};

/// Consecutive rows of a step that belong to one sequence, at consecutive positions.
struct Segment {
  SequenceState* state = nullptr;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  std::int64_t first_position = 0;  // of the first row; the sequence's own position when the rows continue it
};

/// The rows of a step: any number of sequences, each with any number of rows. Segments cover the rows in order, each sequence
/// once. Ids lie in [0, vocab), positions below the max_context of their State. All views are in the backend's memory.
struct Batch {
  In<std::int32_t, 1> ids;        // [rows]
  In<std::uint8_t, 1> image;      // [rows]  not zero: a token of an image span
  In<float, 2> image_rows;        // [n, dim] embeddings of the first n image tokens; may be empty
  In<std::int64_t, 1> positions;  // [rows]
  In<std::int32_t, 2> history;    // [segments, max_ngram - 1] token ids before each one's first row, oldest first,
                                  // negative: of an image span or before the start; empty without Engram layers
  std::span<const Segment> segments;

  std::int64_t rows() const { return ids.extent(0); }
};

/// What index sources publish to the layers after them, within a step.
struct Selection {
  Out<std::int32_t, 2> ids;           // [rows, index_topk] entries, ascending
  Out<std::int32_t, 1> counts;        // [rows]
  Out<std::int32_t, 2> blocks;        // [rows, candidate_blocks] ascending; empty without candidates
  Out<std::int32_t, 1> block_counts;  // [rows]
  Out<float, 2> scores;               // [Limits::score_rows, max_context]  workspace (ops/index_select.hpp)
  Out<float, 2> block_scores;         // [Limits::score_rows, blocks of max_context]
};

}  // namespace dsv41
