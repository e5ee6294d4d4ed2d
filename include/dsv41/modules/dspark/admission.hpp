// SPDX-License-Identifier: MIT
//
// Which rows a step takes in when there is not room for all: the target's rows and the drafter's have a budget each. One budget for both
// would let draft rows push prompts aside (case B75).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "dsv41/core/view.hpp"

namespace dsv41 {

/// What a request asks of a step, and what it gets.
struct RowRequest {
  std::int64_t wanted_rows = 0;    ///< target rows that are no drafts: the rest of its prompt, or 1
  std::int64_t wanted_drafts = 0;  ///< rows of its draft block; 0: it does not draft
  std::int64_t rows = 0;           ///< admitted, at most wanted_rows
  bool drafts = false;             ///< whether its block is drafted: whole or not at all
};

/// Admits rows.
///
/// Rules:  requests have their turn in order, from request turn % requests on and around. Target rows: first one row for each, so that a
///         long prompt keeps nobody from decoding; then to each what it still wants, as far as row_budget goes. Draft blocks: each whose
///         wanted rows were all admitted and whose block fits into what is left of draft_budget.
///         The caller counts turn up by one a step, so that every request is first in its turn and none waits for ever. Where the budget
///         is below one row a request, all get equally many; prompts, and blocks of fewer requests than have a turn, need not.
/// Shapes: budgets and wishes at least 0, turn at least 0.
inline void admit_rows(std::span<RowRequest> requests, std::int64_t row_budget, std::int64_t draft_budget,
                       std::int64_t turn) noexcept {
  DSV41_DCHECK(row_budget >= 0 && draft_budget >= 0 && turn >= 0);
  const auto in_turn = [&](auto&& give) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      give(requests[(static_cast<std::size_t>(turn) + i) % requests.size()]);
    }
  };
  in_turn([&](RowRequest& request) {
    DSV41_DCHECK(request.wanted_rows >= 0 && request.wanted_drafts >= 0);
    request.rows = std::min({std::int64_t{1}, request.wanted_rows, row_budget});
    row_budget -= request.rows;
  });
  in_turn([&](RowRequest& request) {
    const std::int64_t more = std::min(request.wanted_rows - request.rows, row_budget);
    request.rows += more;
    row_budget -= more;
    const bool complete = request.rows == request.wanted_rows;
    request.drafts = complete && request.wanted_drafts > 0 && request.wanted_drafts <= draft_budget;
    if (request.drafts) draft_budget -= request.wanted_drafts;
  });
}

}  // namespace dsv41
