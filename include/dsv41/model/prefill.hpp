// SPDX-License-Identifier: MIT
//
// Prefill modes: which rows of a prompt each layer runs, and which of a replay that restores what a sequence had at an earlier position.
// Numbers only, before any step; Model::step takes the plan.
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

/// Rows that a layer must run for the last `window` rows `above` layers higher to be exact: each layer between needs a window of each.
inline std::int64_t trapezoid_rows(const ModelConfig& c, std::int64_t above) {
  return c.window + above * (c.window - 1);
}

/// Rows of a prompt of `rows` rows whose attention and experts `layer` runs; they are its last ones.
///
/// Rules:  from the boundary on, exact: min(rows, trapezoid_rows(layers - 1 - layer)), and one more for each of the `wanted` last rows
///         behind the first; replay: min(rows, window).
/// Source: serving.md 1.3. The boundary counts as the table there does, although exact needs window - 1 rows less of its queries.
inline std::int64_t prefill_rows(const ModelConfig& c, const Schedule& schedule, Prefill mode, std::int32_t layer,
                                 std::int64_t rows, std::int64_t wanted = 1) {
  if (mode == Prefill::full || schedule.boundary < 0 || layer < schedule.boundary) return rows;
  if (mode == Prefill::replay) return std::min(rows, c.window);
  return std::min(rows, trapezoid_rows(c, c.layers - 1 - layer) + std::max<std::int64_t>(wanted, 1) - 1);
}

/// What one layer runs of a step's rows, which are consecutive positions of one sequence.
struct LayerRows {
  std::int64_t keys = 0;           ///< first row that enters: its window KV
  std::int64_t entries = 0;        ///< first row that becomes part of entries and index keys; not below `keys`
  std::int64_t queries = 0;        ///< first row that attends and visits experts; not below `keys`
  std::int64_t first_visible = 0;  ///< position before which queries see no window row: the layer skipped those
};

/// Rows [first, first + rows) of a prompt that takes positions [begin, end).
struct PromptPart {
  std::int64_t begin = 0, end = 0;
  std::int64_t first = 0, rows = 0;
  std::int64_t wanted = 1;  ///< last rows of the prompt whose logits are wanted
};

/// What each layer runs of a part of a prompt, into plan [layers]. The rows depend on the prompt, not on how it is cut into parts.
///
/// Why `exact` is exact, f(l) being the first position that enters layer l:
///   1. Above the boundary f(l + 1) = f(l) + window - 1, so the window of each row that goes on begins at f(l) or later: all of it was
///      written by rows that entered. By induction over layers, every row that enters is the full mode's.
///   2. The boundary has its whole window and all entries. The last layer lets in the window of every wanted row: their logits are exact.
///   3. So each ring ends with at least `window` exact rows, or with all there are. A later row reads window - 1 of them: decoding and
///      further prompts of any length, also shorter ones, which a layer then runs whole, start from what full would have left
///      (serving.md 1.3).
/// Rows that enter but do not go on see a cut window (first_visible) and are read by nothing.
///
/// In replay rows see no window row from before the replay, but the boundary keeps its complete window: the last kv source writes all
/// of it first, as vLLM does (serving.md 1.4). A prompt no longer than the window is run whole and sees what came before it.
inline void plan_prefill(const ModelConfig& c, const Schedule& schedule, Prefill mode, const PromptPart& part,
                         std::vector<LayerRows>& plan) {
  plan.resize(static_cast<std::size_t>(c.layers));
  for (std::int32_t l = 0; l < c.layers; ++l) {
    const std::int64_t start = part.end - prefill_rows(c, schedule, mode, l, part.end - part.begin, part.wanted);
    const std::int64_t row = std::clamp<std::int64_t>(start - part.first, 0, part.rows);
    const bool skips = l > schedule.boundary && start > part.begin;
    const std::int64_t keys = skips ? row : 0;
    plan[static_cast<std::size_t>(l)] = {
        .keys = keys, .entries = keys, .queries = row, .first_visible = skips ? start : 0};
  }
}

/// Rows [first, first + rows) of a replay that brings a sequence back to position `end`.
struct ReplayPart {
  std::int64_t end = 0;
  std::int64_t first = 0, rows = 0;
};

/// Rows before position `end` that enter `layer` in a replay.
///
/// Rules:  full, exact: min(end, trapezoid_rows(layers - 1 - layer)). replay: `window` above the boundary; from there down the trapezoid
///         of the first layer above it, or of the boundary if it is the last layer. Never fewer than an open group needs, of this layer
///         or, through the windows between, of one above; a window shorter than a ratio could leave it cut.
inline std::int64_t replay_rows(const ModelConfig& c, const Schedule& schedule, Prefill mode, std::int32_t layer,
                                std::int64_t end) {
  const bool bounded = mode == Prefill::replay && schedule.boundary >= 0;
  const std::int32_t last = c.layers - 1, top = bounded ? std::min(schedule.boundary + 1, last) : last;
  std::int64_t rows = trapezoid_rows(c, std::max(0, top - layer));
  for (std::int32_t l = layer; l < c.layers; ++l) {
    const LayerPlan& plan = schedule.layers[static_cast<std::size_t>(l)];
    if (plan.kind == LayerKind::full) rows = std::max(rows, end % plan.ratio + (l - layer) * (c.window - 1));
  }
  return std::min(rows, end);
}

/// First position that a replay to `end` must run again.
inline std::int64_t replay_start(const ModelConfig& c, const Schedule& schedule, Prefill mode, std::int64_t end) {
  return end - replay_rows(c, schedule, mode, 0, end);
}

/// What each layer runs of a part of a replay, into plan [layers]. A replay makes rings and open groups those of a sequence that has run
/// [0, end) and no more, as one prompt in this mode. Whatever they held is overwritten or read by nothing. The entries and index keys of
/// the groups that are complete before `end` must still be in the caches; they are read, never written. There are no logits.
///
/// Why that is exact, f(l) = end - replay_rows(l) being the first position that enters layer l:
///   1. Rows [f(l + 1), end) of layer l answer, those that go on. In full and exact f(l + 1) >= f(l) + window - 1 or f(l) = 0, so their
///      windows lie in rows that entered again; the entries they read are those of complete groups. By induction over layers, from the
///      embeddings on, every row that enters is a fresh run's. In replay so it is up to the boundary and one layer above it.
///   2. So each ring ends with `window` rows of a fresh run, or with all there are, and each open group has all its rows.
///   3. In replay the layers above the boundary run the last `window` rows and see none before them (first_visible), which is what
///      plan_prefill has them do for a prompt [0, end).
/// The compressor begins at the open group: no row that it sees completes one. The last layer's rows only enter.
inline void plan_replay(const ModelConfig& c, const Schedule& schedule, Prefill mode, const ReplayPart& part,
                        std::vector<LayerRows>& plan) {
  plan.resize(static_cast<std::size_t>(c.layers));
  const auto row = [&](std::int64_t position) { return std::clamp<std::int64_t>(position - part.first, 0, part.rows); };
  for (std::int32_t l = 0; l < c.layers; ++l) {
    const LayerPlan& layer = schedule.layers[static_cast<std::size_t>(l)];
    const std::int64_t start = part.end - replay_rows(c, schedule, mode, l, part.end);
    const bool cut = mode == Prefill::replay && schedule.boundary >= 0 && l > schedule.boundary;
    LayerRows& rows = plan[static_cast<std::size_t>(l)];
    rows.keys = row(start);
    rows.entries = layer.kind == LayerKind::full ? row(part.end - part.end % layer.ratio) : rows.keys;
    rows.queries = l + 1 < c.layers ? row(part.end - replay_rows(c, schedule, mode, l + 1, part.end)) : part.rows;
    rows.first_visible = cut ? start : 0;
  }
}

}  // namespace dsv41
