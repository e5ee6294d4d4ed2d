// SPDX-License-Identifier: MIT
//
// The figures of one run, and the forms they are written in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/plan/memory.hpp"
#include "dsv41/plan/shards.hpp"
#include "dsv41/plan/sizes.hpp"
#include "dsv41/runtime/config_file.hpp"

namespace inspect {

struct Figures {
  std::string name;  ///< of the config, for people: one line of text
  dsv41::ModelConfig config;
  std::string missing_vision_key;  ///< runtime::ConfigNotes
  std::int64_t context = 0, batch = 0;
  dsv41::plan::ModelSizes sizes;
  std::int64_t kv_bytes = 0;                      ///< of one sequence of `context` tokens
  std::vector<dsv41::plan::StepCost> steps;       ///< by batch: powers of two, and `batch`
  std::optional<dsv41::plan::MemoryPlan> memory;  ///< absent without budgets
};

/// `budgets` absent: no memory plan. Errors: those of model_sizes and plan_memory.
Figures make_figures(std::string name, const dsv41::ModelConfig& config, const dsv41::runtime::ConfigNotes& notes,
                     std::int64_t context, std::int64_t batch, const std::optional<dsv41::plan::Budgets>& budgets);

/// For people. --json has the same figures.
std::string report(const Figures& figures);
std::string json(const Figures& figures);

/// Experts and weight bytes of a step against the batch, as SVG.
std::string plot(const Figures& figures);

/// What --shards writes.
std::string shards_json(const std::vector<dsv41::plan::Shard>& shards);

}  // namespace inspect
