// SPDX-License-Identifier: MIT
//
// Where experts go when a layer's experts are spread over devices: hot ones get copies, and the copies are packed so that devices
// serve about equal loads. The planner works on numbers alone; it moves no weights.
#pragma once

#include <cstdint>
#include <vector>

#include "dsv41/core/view.hpp"

namespace dsv41::plan {

enum class PlacementPolicy : std::uint8_t {
  automatic,     ///< hierarchical when the nodes divide the groups, otherwise global
  global,        ///< any expert may go to any device
  hierarchical,  ///< an expert group stays in one node, with all copies of its experts
};

/// The machines to place on. The defaults are for a model without expert groups.
struct PlacementTarget {
  std::int64_t slots = 0;    ///< expert copies of a layer that all devices hold together; above the experts: redundant
  std::int64_t devices = 1;  ///< each holds slots / devices copies
  std::int64_t nodes = 1;    ///< each has devices / nodes consecutive devices
  std::int64_t groups = 1;   ///< groups of experts / groups consecutive experts that routing treats as one
  PlacementPolicy policy = PlacementPolicy::automatic;
};

/// One layer's experts on the devices. Slot s is on device s / (slots / devices); a device's slots ascend by expert.
struct Placement {
  std::vector<std::int32_t> expert_of;              ///< [slots] expert that a slot holds
  std::vector<std::int32_t> device_of;              ///< [slots]
  std::vector<std::vector<std::int32_t>> slots_of;  ///< [experts] slots that hold the expert, ascending
  std::vector<std::int32_t> copies;                 ///< [experts] how many these are, at least 1
  std::vector<double> device_load;                  ///< [devices] when an expert's copies share its load evenly
};

/// Places every layer, each by itself.
///
/// Shapes:  load [layers, experts] f64, in any unit, at least 0; result [layers].
/// Rules:   copies: each expert has one; the slots left over go one by one to the expert with the largest load / copies.
///          packing: heaviest first, each onto the lightest bin that has room; all bins take equally many items.
///          global: copies over all slots, packed onto the devices. hierarchical: groups packed onto nodes by their load, copies
///          over the node's slots, packed onto the node's devices. Ties go to the lower expert, group, device and node.
///          Two copies of an expert may share a device.
/// Match:   exact (float64, one order). The devices of a node differ by at most their heaviest copy.
/// Errors:  invalid_argument: sizes below 1, slots below experts, slots that devices do not divide, devices that nodes do not divide;
///          hierarchical: groups that do not divide the experts, or that the nodes do not divide; a load that is negative or not finite; a
///          layer whose loads sum to more than half of the largest double, so that none of their sums is infinite in any order.
/// Cost:    slots (experts + devices) steps a layer.
/// Source:  serving.md 4.6, architecture.md 5.
std::vector<Placement> place_experts(In<double, 2> load, const PlacementTarget& target);

}  // namespace dsv41::plan
