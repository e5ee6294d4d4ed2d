// SPDX-License-Identifier: MIT
//
// Instruction sets that the kernels are compiled for, as far as the machine has them.
#include "cpu/targets.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "dsv41/core/error.hpp"
#include "hwy/highway.h"

namespace dsv41 {

namespace cpu {
namespace {

struct Targets {
  std::vector<NamedTarget> all;
  std::vector<std::string_view> names;

  Targets() {
    // A lower bit is a better target; the static baseline is always there, though the machine need not name it.
    for (std::int64_t left = (hwy::SupportedTargets() & HWY_TARGETS) | HWY_STATIC_TARGET; left != 0; left &= left - 1) {
      const std::int64_t bit = left & -left;
      hwy::ChosenTarget chosen;
      chosen.Update(bit);
      all.push_back({.name = hwy::TargetName(bit), .target = {.index = chosen.GetIndex()}});
      names.push_back(all.back().name);
    }
  }
};

const Targets& targets() {
  static const Targets& found = *new Targets;  // never destroyed, as alone() in workers.cpp
  return found;
}

}  // namespace

NamedTarget target_named(std::string_view name) {
  std::string known;
  for (const NamedTarget& t : targets().all) {
    if (name.empty() || t.name == name) return t;
    known += (known.empty() ? "" : ", ") + std::string(t.name);
  }
  throw Error(Errc::invalid_argument, "cpu: target '" + std::string(name) + "', expected one of " + known);
}

}  // namespace cpu

std::span<const std::string_view> cpu_targets() {
  return cpu::targets().names;
}

}  // namespace dsv41
