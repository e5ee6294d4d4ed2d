// SPDX-License-Identifier: MIT
//
// How a decode step reads a part of the weights. Private to src/plan.
#pragma once

#include <cstdint>

#include "dsv41/runtime/inventory.hpp"

namespace dsv41::plan {

enum class Reading : std::uint8_t { whole, chosen, no_step };

inline Reading reading(runtime::Part part) {
  using runtime::Part;
  switch (part) {
    case Part::embed:
    case Part::experts:
    case Part::engram_table: return Reading::chosen;
    case Part::draft:
    case Part::draft_experts:
    case Part::vision: return Reading::no_step;
    default: return Reading::whole;
  }
}

}  // namespace dsv41::plan
