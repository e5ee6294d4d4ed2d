// SPDX-License-Identifier: MIT
//
// Copies for hot experts, then greedy packing. Global placement is the hierarchical one with a single node and group.
#include "dsv41/plan/placement.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "dsv41/core/error.hpp"

namespace dsv41::plan {
namespace {

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// Bin of each item: heaviest first, onto the lightest bin with room for one more; every bin takes items / bins.
/// Two bins differ by at most the heaviest item: while both have room the lighter one takes the next, and when one is full its items are
/// at least as many and as heavy as those that the other still takes.
std::vector<std::int64_t> pack(std::span<const double> weights, std::int64_t bins) {
  const std::int64_t room = std::ssize(weights) / bins;
  std::vector<std::int64_t> order(weights.size()), bin_of(weights.size()), count(at(bins));
  std::vector<double> load(at(bins));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return weights[at(a)] > weights[at(b)]; });
  for (const std::int64_t item : order) {
    std::int64_t lightest = -1;
    for (std::int64_t bin = 0; bin < bins; ++bin) {
      if (count[at(bin)] < room && (lightest < 0 || load[at(bin)] < load[at(lightest)])) lightest = bin;
    }
    bin_of[at(item)] = lightest;
    load[at(lightest)] += weights[at(item)];
    ++count[at(lightest)];
  }
  return bin_of;
}

/// Copies of each expert: one, and the slots left over one by one where a copy carries most.
std::vector<std::int32_t> copies_of(std::span<const double> load, std::int64_t slots) {
  std::vector<std::int32_t> copies(load.size(), 1);
  for (std::int64_t left = slots - std::ssize(load); left > 0; --left) {
    std::size_t hottest = 0;
    for (std::size_t e = 1; e < load.size(); ++e) {
      if (load[e] / copies[e] > load[hottest] / copies[hottest]) hottest = e;
    }
    ++copies[hottest];
  }
  return copies;
}

[[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& got) {
  throw Error(Errc::invalid_argument, "place_experts: " + what + " is " + got + ", expected " + expected);
}

std::string shown(double value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void expect_multiple(const char* what, std::int64_t value, const char* of, std::int64_t divisor) {
  if (value % divisor != 0) {
    refuse(what, "a multiple of " + std::string(of) + ", " + std::to_string(divisor), std::to_string(value));
  }
}

void check(In<double, 2> load, const PlacementTarget& target, bool hierarchical) {
  const std::int64_t experts = load.extent(1);
  const auto at_least = [](const char* what, std::int64_t value, std::int64_t least) {
    if (value < least) refuse(what, "at least " + std::to_string(least), std::to_string(value));
  };
  at_least("number of experts", experts, 1);
  at_least("devices", target.devices, 1);
  at_least("nodes", target.nodes, 1);
  at_least("groups", target.groups, 1);
  at_least("slots", target.slots, experts);
  if (target.slots > std::numeric_limits<std::int32_t>::max()) {
    refuse("slots", "a 32-bit number", std::to_string(target.slots));
  }
  expect_multiple("slots", target.slots, "devices", target.devices);
  expect_multiple("devices", target.devices, "nodes", target.nodes);
  if (hierarchical) {
    expect_multiple("number of experts", experts, "groups", target.groups);
    expect_multiple("groups", target.groups, "nodes", target.nodes);
  }
  for (std::int64_t layer = 0; layer < load.extent(0); ++layer) {
    double total = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      total += load(layer, e);
      if (std::isfinite(load(layer, e)) && load(layer, e) >= 0) continue;
      refuse("load of expert " + std::to_string(e) + " in layer " + std::to_string(layer),
             "a finite number of at least 0", shown(load(layer, e)));
    }
    constexpr double kMost = std::numeric_limits<double>::max() / 2;  // half: other orders of adding round otherwise
    if (total > kMost)
      refuse("sum of the loads of layer " + std::to_string(layer), "at most " + shown(kMost), shown(total));
  }
}

class LayerPlacer {
 public:
  LayerPlacer(In<double, 1> load, const PlacementTarget& target) : load_(load), target_(target) {
    out_.expert_of.resize(at(target.slots));
    out_.device_of.resize(at(target.slots));
    out_.slots_of.resize(at(load.extent(0)));
    out_.copies.resize(at(load.extent(0)));
    out_.device_load.resize(at(target.devices));
  }

  /// With `nodes` bins for `groups` groups; (1, 1) is global.
  Placement place(std::int64_t nodes, std::int64_t groups) {
    const std::int64_t size = load_.extent(0) / groups;
    std::vector<double> group_load(at(groups));
    for (std::int64_t e = 0; e < load_.extent(0); ++e) group_load[at(e / size)] += load_[e];
    const std::vector<std::int64_t> node_of = pack(group_load, nodes);
    for (std::int64_t node = 0; node < nodes; ++node) {
      std::vector<std::int32_t> experts;
      for (std::int64_t e = 0; e < load_.extent(0); ++e) {
        if (node_of[at(e / size)] == node) experts.push_back(static_cast<std::int32_t>(e));
      }
      fill(experts, node, target_.devices / nodes);
    }
    return std::move(out_);
  }

 private:
  /// Puts these experts into the slots of one node.
  void fill(const std::vector<std::int32_t>& experts, std::int64_t node, std::int64_t devices) {
    const std::int64_t per_device = target_.slots / target_.devices;
    std::vector<double> load;
    for (const std::int32_t e : experts) load.push_back(load_[e]);
    const std::vector<std::int32_t> copies = copies_of(load, per_device * devices);
    std::vector<double> weights;  // of copies, those of the lower expert first
    std::vector<std::int32_t> expert_of;
    for (std::size_t i = 0; i < experts.size(); ++i) {
      weights.insert(weights.end(), at(copies[i]), load[i] / copies[i]);
      expert_of.insert(expert_of.end(), at(copies[i]), experts[i]);
      out_.copies[at(experts[i])] = copies[i];
    }
    const std::vector<std::int64_t> bin_of = pack(weights, devices);
    std::vector<std::int64_t> used(at(devices));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const std::int64_t device = node * devices + bin_of[i];
      const std::int64_t slot = device * per_device + used[at(bin_of[i])]++;
      out_.expert_of[at(slot)] = expert_of[i];
      out_.device_of[at(slot)] = static_cast<std::int32_t>(device);
      out_.slots_of[at(expert_of[i])].push_back(static_cast<std::int32_t>(slot));
      out_.device_load[at(device)] += weights[i];
    }
    for (const std::int32_t e : experts) std::sort(out_.slots_of[at(e)].begin(), out_.slots_of[at(e)].end());
  }

  In<double, 1> load_;
  PlacementTarget target_;
  Placement out_;
};

}  // namespace

std::vector<Placement> place_experts(In<double, 2> load, const PlacementTarget& target) {
  const bool divides = target.nodes > 0 && target.groups % target.nodes == 0;
  const bool hierarchical =
      target.policy == PlacementPolicy::hierarchical || (target.policy == PlacementPolicy::automatic && divides);
  check(load, target, hierarchical);
  std::vector<Placement> out;
  for (std::int64_t layer = 0; layer < load.extent(0); ++layer) {
    LayerPlacer placer(load.row(layer), target);
    out.push_back(hierarchical ? placer.place(target.nodes, target.groups) : placer.place(1, 1));
  }
  return out;
}

}  // namespace dsv41::plan
