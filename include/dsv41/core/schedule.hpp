// SPDX-License-Identifier: MIT
//
// What each layer does, derived once from a valid ModelConfig. Source: architecture.md 1 and 8.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dsv41/core/config.hpp"

namespace dsv41 {

enum class LayerKind : std::uint8_t {
  window,   ///< ratio 0: the sliding window only
  full,     ///< owns a compressor and an indexer: publishes entries, index keys and a selection
  reindex,  ///< scores its source's keys again and publishes a new selection
  reuse,    ///< attends with the entries and the selection of the layers before it
};

struct LayerPlan {
  LayerKind kind = LayerKind::window;
  std::int32_t ratio = 0;
  std::int32_t source = -1;  ///< index into the sequence's source caches; -1 for a window layer
  bool publishes_candidates = false;
  bool limited_to_candidates = false;
  std::int32_t engram = -1;  ///< index into engram.layers; -1: no table here
  std::int32_t tap = -1;     ///< index into draft.tap_layers; -1: not tapped
};

struct Schedule {
  std::vector<LayerPlan> layers;
  /// The last kv source; -1: none. Prefill modes that skip rows do so from here on (architecture.md 8, model/prefill.hpp).
  std::int32_t boundary = -1;
};

inline Schedule make_schedule(const ModelConfig& c) {
  auto position = [](const std::vector<std::int32_t>& list, std::int32_t layer) {
    const auto it = std::find(list.begin(), list.end(), layer);
    return it == list.end() ? -1 : static_cast<std::int32_t>(it - list.begin());
  };
  Schedule schedule;
  std::int32_t source = -1;
  for (std::int32_t l = 0; l < c.layers; ++l) {
    LayerPlan plan;
    plan.ratio = c.ratios[l];
    const bool owns = position(c.kv_sources, l) >= 0;
    const bool scores = position(c.index_sources, l) >= 0;
    if (owns) source = position(c.kv_sources, l);
    if (plan.ratio > 0) {
      plan.kind = owns ? LayerKind::full : scores ? LayerKind::reindex : LayerKind::reuse;
      plan.source = source;
    }
    plan.publishes_candidates = l == c.candidate_source;
    plan.limited_to_candidates = c.candidate_source >= 0 && l > c.candidate_source && scores;
    plan.engram = position(c.engram.layers, l);
    plan.tap = position(c.draft.tap_layers, l);
    schedule.layers.push_back(plan);
  }
  if (!c.kv_sources.empty()) schedule.boundary = c.kv_sources.back();
  return schedule;
}

}  // namespace dsv41
