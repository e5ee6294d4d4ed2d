// SPDX-License-Identifier: MIT
//
// Prefill modes: which rows of a prompt each layer runs. Numbers only, before any step; Model::step takes the plan.
//
// The decoder half of the model begins at the last kv source, the boundary: every layer above it reads the boundary's entries and, of its
// own past, a window. So all rows must run below the boundary, and only the prompt's last ones above it (architecture.md 8, serving.md 1).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/core/schedule.hpp"

namespace dsv41 {

enum class Prefill : std::uint8_t {
  full,   ///< every row through every layer: the canonical result
  exact,  ///< the rows that the last one and all later tokens depend on: the same bits as full
  replay  ///< bounded replay: the last window of rows above the boundary; an approximation
};

inline std::string_view prefill_name(Prefill mode) {
  return mode == Prefill::full ? "full" : mode == Prefill::exact ? "exact" : "replay";
}

/// Why a mode that skips rows is off for this schedule; empty: it is not.
inline std::string prefill_obstacle(const Schedule& schedule) {
  if (schedule.boundary >= 0) return {};
  return "the config has no kv source, so there is no decoder half whose rows could be skipped";
}

/// Rows of a prompt of `rows` rows whose attention and experts `layer` runs; they are its last ones.
///
/// Rules:  exact: min(rows, window + (layers - 1 - layer) * (window - 1)) from the boundary on; replay: min(rows, window).
/// Source: serving.md 1.3. The boundary counts as the table there does, although exact needs window - 1 rows less of its queries.
inline std::int64_t prefill_rows(const ModelConfig& c, const Schedule& schedule, Prefill mode, std::int32_t layer,
                                 std::int64_t rows) {
  if (mode == Prefill::full || schedule.boundary < 0 || layer < schedule.boundary) return rows;
  const std::int64_t above = mode == Prefill::exact ? c.layers - 1 - layer : 0;
  return std::min(rows, c.window + above * (c.window - 1));
}

/// What one layer runs of a step's rows, which are consecutive positions of one sequence.
struct LayerRows {
  std::int64_t keys = 0;           ///< first row that enters: its window KV, its entries
  std::int64_t queries = 0;        ///< first row that attends and visits experts; not below `keys`
  std::int64_t first_visible = 0;  ///< position before which queries see no window row: the layer skipped those
};

/// Rows [first, first + rows) of a prompt that takes positions [begin, end).
struct PromptPart {
  std::int64_t begin = 0, end = 0;
  std::int64_t first = 0, rows = 0;
};

/// What each layer runs of a part of a prompt, into plan [layers]. The rows depend on the prompt, not on how it is cut into parts.
///
/// Why `exact` is exact, f(l) being the first position that enters layer l:
///   1. Above the boundary f(l + 1) = f(l) + window - 1, so the window of each row that goes on begins at f(l) or later: all of it was
///      written by rows that entered. By induction over layers, every row that enters is the full mode's.
///   2. The boundary has its whole window and all entries. The last layer lets `window` rows in: the last one's logits are exact.
///   3. So each ring ends with `window` exact rows, or with all there are. A later row reads window - 1 of them: decoding and further
///      prompts of any length, also shorter ones, which a layer then runs whole, start from what full would have left (serving.md 1.3).
/// Rows that enter but do not go on see a cut window (first_visible) and are read by nothing.
///
/// In replay rows see no window row from before the replay, but the boundary keeps its complete window: the last kv source writes all
/// of it first, as vLLM does (serving.md 1.4). A prompt no longer than the window is run whole and sees what came before it.
inline void plan_prefill(const ModelConfig& c, const Schedule& schedule, Prefill mode, const PromptPart& part,
                         std::vector<LayerRows>& plan) {
  plan.resize(static_cast<std::size_t>(c.layers));
  for (std::int32_t l = 0; l < c.layers; ++l) {
    const std::int64_t start = part.end - prefill_rows(c, schedule, mode, l, part.end - part.begin);
    const std::int64_t row = std::clamp<std::int64_t>(start - part.first, 0, part.rows);
    const bool skips = l > schedule.boundary && start > part.begin;
    plan[static_cast<std::size_t>(l)] = {.keys = skips ? row : 0, .queries = row, .first_visible = skips ? start : 0};
  }
}

}  // namespace dsv41
