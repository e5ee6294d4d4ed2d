// SPDX-License-Identifier: MIT
//
// What the drafter remembers of a sequence, and what it is asked to draft. Views and numbers only: the memory is the caller's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "dsv41/core/cache_rows.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/core/view.hpp"

namespace dsv41 {

/// Context of one sequence: rows of committed tokens only, made of the target's taps and never changed. Draft blocks leave no trace, so
/// there is nothing to roll back, and rings of `window` slots suffice; with more a sequence goes back without losing rows.
struct DraftState {
  std::int64_t position = 0;     ///< committed tokens whose rows the rings hold: where the next anchor stands
  std::int64_t first = 0;        ///< rows of positions before it are not in the rings and not seen
  std::vector<CacheRows> rings;  ///< per stage, equally many slots [>= window, head_dim]; position p in slot p % slots

  /// The rows of the next `count` positions have been written.
  void advance(std::int64_t count) {
    position += count;
    if (!rings.empty()) first = std::max(first, position - rings[0].rows);
  }

  /// Back to `to`, in [0, position]. Rows that newer ones had overwritten are lost; acceptance suffers, no text does.
  void rewind(std::int64_t to) {
    DSV41_DCHECK(to >= 0 && to <= position);
    position = to;
    first = std::min(first, to);
  }

  /// What is remembered ends here; rows go on at position `to`. For a prompt of whose rows only the last have taps.
  void restart(std::int64_t to) { position = first = to; }
};

/// Consecutive rows of a step whose tokens are committed and continue state->position.
struct DraftContext {
  const DraftState* state = nullptr;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};

/// Blocks to draft, one a request, equally many rows each: row i of request r is row r * block + i. Views are in the backend's memory.
struct DraftBatch {
  In<std::int32_t, 1> ids;        // [requests * block]  anchor, then noise tokens (draft_block)
  In<std::int64_t, 1> positions;  // [requests * block]
  std::span<const DraftState* const> requests;

  std::int64_t block() const { return requests.empty() ? 0 : ids.extent(0) / std::ssize(requests); }
};

/// One request's rows of ids and positions, in host memory: the anchor at the state's committed end, noise behind it.
///
/// Rules:  a position beyond the model's last is clamped to it; a draft for such a position is of no use (dspark.md 3.4).
///         A block may have any number of rows from 1 on that scratch has room for: none of them enters a ring. The released drafter was
///         trained with draft.block; of rows behind these the confidence is of no use (dspark.md 4).
inline void draft_block(const ModelConfig& c, std::int32_t anchor, const DraftState& state, std::span<std::int32_t> ids,
                        std::span<std::int64_t> positions) {
  DSV41_DCHECK(ids.size() == positions.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = i == 0 ? anchor : c.draft.noise_token;
    positions[i] = std::min(state.position + static_cast<std::int64_t>(i), c.max_positions - 1);
  }
}

}  // namespace dsv41
