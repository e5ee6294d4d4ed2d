// SPDX-License-Identifier: MIT
//
// What would live where: a model's weights and caches, distributed over a device, host memory and the files, before anything is loaded.
#pragma once

#include <cstdint>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/plan/sizes.hpp"

namespace dsv41::plan {

/// Memory that may be filled. What fits in neither stays in the mapped files.
struct Budgets {
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;
};

/// Where one part's bytes live.
struct PartMemory {
  runtime::Part part = runtime::Part::embed;
  double step_bytes = 0;
  std::int64_t device_bytes = 0, host_bytes = 0, file_bytes = 0;
};

struct MemoryPlan {
  std::int64_t cache_bytes = 0;  ///< entries, index keys, rings (the drafter's too) and open groups of all sequences
  bool caches_fit = false;
  bool caches_on_device = false;                  ///< otherwise, if they fit, in host memory
  std::vector<PartMemory> parts;                  ///< in the order in which they were placed
  std::int64_t device_bytes = 0, host_bytes = 0;  ///< used, caches included
  std::int64_t file_bytes = 0;
};

/// Distributes caches and weights for `batch` sequences of `context` tokens.
///
/// Rules:  caches come first: on the device if they fit, else in host memory, else nowhere (caches_fit). Then parts, by bytes that a step
///         reads per byte they have, most first; of equal ones those that every step reads whole, then the order of runtime::Part. A
///         part is cut into units that stay whole (an expert, an Engram module's table, a layer's share of any other part); each goes to
///         the device while it fits, else to host memory, else it stays in its file. So always-read weights precede all others, whatever
///         the batch, and at the release's sizes experts precede tables. Weights that a step does not run (drafter, vision) come last.
/// Errors: what validate() throws; invalid_argument for a negative budget, context or batch; unsupported beyond 2^63 - 1 bytes of caches.
MemoryPlan plan_memory(const ModelConfig& config, const ModelSizes& sizes, const Budgets& budgets, std::int64_t context,
                       std::int64_t batch);

}  // namespace dsv41::plan
