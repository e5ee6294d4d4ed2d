// SPDX-License-Identifier: MIT
//
// Greedy by bytes read per byte held.
#include "dsv41/plan/memory.hpp"

#include <algorithm>
#include <utility>

#include "checked.hpp"
#include "reading.hpp"

namespace dsv41::plan {

using runtime::Part;

namespace {

/// Sizes of the pieces that a part is cut into.
std::vector<std::int64_t> units(const ModelConfig& c, const ModelSizes& sizes, const PartSize& part) {
  if (part.part == Part::experts)
    return std::vector<std::int64_t>(static_cast<std::size_t>(c.layers * c.experts), sizes.expert_bytes);
  if (part.part == Part::draft_experts) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(c.draft.stages * c.draft.experts), sizes.expert_bytes);
  }
  return part.layer_bytes;
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const ModelSizes& sizes, const Budgets& budgets, std::int64_t context,
                       std::int64_t batch) {
  for (const std::int64_t value : {budgets.device_bytes, budgets.host_bytes, context, batch}) {
    expect_count("plan_memory", "a budget, context or batch", value);
  }
  MemoryPlan out;
  const std::int64_t rings = sum(sizes.window_bytes, sizes.draft_window_bytes);
  const std::int64_t sequence = sum(sum(kv_bytes(config, sizes, context), rings), sizes.carry_bytes);
  out.cache_bytes = product(sequence, batch);
  out.caches_on_device = out.cache_bytes <= budgets.device_bytes;
  out.caches_fit = out.caches_on_device || out.cache_bytes <= budgets.host_bytes;
  if (out.caches_fit) (out.caches_on_device ? out.device_bytes : out.host_bytes) = out.cache_bytes;

  std::vector<const PartSize*> order;
  for (const PartSize& part : sizes.parts) order.push_back(&part);
  const auto rank = [&](const PartSize* part) {
    const double density = part_step_bytes(config, sizes, *part, batch) / static_cast<double>(part->bytes);
    return std::pair(density, reading(part->part) == Reading::whole);  // a large batch reads chosen parts whole too
  };
  std::stable_sort(order.begin(), order.end(), [&](const PartSize* a, const PartSize* b) { return rank(a) > rank(b); });
  for (const PartSize* part : order) {
    PartMemory& placed = out.parts.emplace_back();
    placed.part = part->part;
    placed.step_bytes = part_step_bytes(config, sizes, *part, batch);
    for (const std::int64_t unit : units(config, sizes, *part)) {
      if (unit <= budgets.device_bytes - out.device_bytes) {
        placed.device_bytes += unit;
        out.device_bytes += unit;
      } else if (unit <= budgets.host_bytes - out.host_bytes) {
        placed.host_bytes += unit;
        out.host_bytes += unit;
      } else {
        placed.file_bytes += unit;
      }
    }
    out.file_bytes += placed.file_bytes;
  }
  return out;
}

}  // namespace dsv41::plan
