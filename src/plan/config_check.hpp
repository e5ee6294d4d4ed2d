// SPDX-License-Identifier: MIT
//
// What a config must satisfy before it is planned with: what loading asks of it. Private to src/plan.
#pragma once

#include "dsv41/core/config_rules.hpp"
#include "dsv41/numerics/engram_hash.hpp"

namespace dsv41::plan {

/// Errors: what validate() and checked_engram_layout() throw.
inline void check_config(const ModelConfig& config) {
  validate(config);
  if (!config.engram.layers.empty()) numerics::checked_engram_layout(config.engram);
}

}  // namespace dsv41::plan
