// SPDX-License-Identifier: MIT
//
// EngineOptions::weight_bytes: what of a model must be in memory, and how many experts the rest holds. Private to src/runtime.
#pragma once

#include <cstdint>
#include <memory>

#include "dsv41/runtime/engine.hpp"

namespace dsv41::runtime {

class ExpertCache;

class WeightBudget {
 public:
  /// Errors: those of Engine's constructor for weight_bytes.
  WeightBudget(const Checkpoint& checkpoint, const EngineOptions& options);
  ~WeightBudget();

  ExpertTier& tier() noexcept;
  WeightTier report() const noexcept;

 private:
  WeightTier facts_;
  std::unique_ptr<ExpertCache> cache_;
};

}  // namespace dsv41::runtime
