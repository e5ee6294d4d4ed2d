// SPDX-License-Identifier: MIT
//
// Instruction sets by name. Private to src/cpu.
#pragma once

#include <string_view>

#include "cpu/context.hpp"

namespace dsv41::cpu {

struct NamedTarget {
  std::string_view name;
  Target target;
};

/// One of cpu_targets(), the best for an empty name. Errors: invalid_argument.
NamedTarget target_named(std::string_view name);

}  // namespace dsv41::cpu
