// SPDX-License-Identifier: MIT
//
// Redundant-expert placement: small cases worked by hand, what must hold for any load, and the best of all placements where these can
// be tried out.
#include "dsv41/plan/placement.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/random.hpp"

using namespace dsv41;
using namespace dsv41::test;
using plan::Placement;
using plan::PlacementPolicy;
using plan::PlacementTarget;

namespace {

using Ids = std::vector<std::int32_t>;
using Numbers = std::vector<double>;

Placement place(const Numbers& load, const PlacementTarget& target) {
  const std::vector<Placement> out =
      plan::place_experts(In<double, 2>(load.data(), {1, static_cast<std::int64_t>(load.size())}), target);
  REQUIRE(out.size() == 1);
  return out[0];
}

double largest(const Numbers& values) {
  return *std::max_element(values.begin(), values.end());
}

double smallest(const Numbers& values) {
  return *std::min_element(values.begin(), values.end());
}

double sum(const Numbers& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// A few hot experts and many cold ones: about 1 / rank, shuffled by chance.
Numbers skewed(Random& random, std::int64_t experts) {
  Numbers load;
  for (std::int64_t e = 0; e < experts; ++e) load.push_back(100.0 / static_cast<double>(1 + random.below(experts)));
  return load;
}

Numbers copy_loads(const Numbers& load, const Placement& p) {
  Numbers out;
  for (const std::int32_t e : p.expert_of) {
    out.push_back(load[static_cast<std::size_t>(e)] / p.copies[static_cast<std::size_t>(e)]);
  }
  return out;
}

/// What any placement must satisfy: its maps agree with each other, and each device has its share of slots.
void check_maps(const Numbers& load, const PlacementTarget& target, const Placement& p) {
  REQUIRE(std::ssize(p.expert_of) == target.slots);
  REQUIRE(std::ssize(p.device_of) == target.slots);
  REQUIRE(std::ssize(p.device_load) == target.devices);
  REQUIRE(p.copies.size() == load.size());
  REQUIRE(p.slots_of.size() == load.size());
  Ids seen;
  for (std::size_t e = 0; e < load.size(); ++e) {
    CHECK(p.copies[e] >= 1);
    CHECK(std::ssize(p.slots_of[e]) == p.copies[e]);
    CHECK(std::is_sorted(p.slots_of[e].begin(), p.slots_of[e].end()));
    for (const std::int32_t slot : p.slots_of[e])
      CHECK(p.expert_of.at(static_cast<std::size_t>(slot)) == std::int32_t(e));
    seen.insert(seen.end(), p.slots_of[e].begin(), p.slots_of[e].end());
  }
  std::sort(seen.begin(), seen.end());
  Ids every(p.expert_of.size());
  std::iota(every.begin(), every.end(), 0);
  CHECK(seen == every);
  const std::int64_t per_device = target.slots / target.devices;
  const Numbers weights = copy_loads(load, p);
  Numbers device_load(p.device_load.size(), 0.0);
  for (std::size_t slot = 0; slot < p.device_of.size(); ++slot) {
    CHECK(p.device_of[slot] == std::int64_t(slot) / per_device);
    if (slot % static_cast<std::size_t>(per_device) != 0) CHECK(p.expert_of[slot - 1] <= p.expert_of[slot]);
    device_load[static_cast<std::size_t>(p.device_of[slot])] += weights[slot];
  }
  for (std::size_t d = 0; d < device_load.size(); ++d) {
    CHECK(std::abs(p.device_load[d] - device_load[d]) <= 1e-9 * (1 + device_load[d]));
  }
}

/// No slot would serve better as another copy of the heaviest expert: taking a copy from f makes f at least as heavy. `same` says which
/// experts compete for the same slots.
template <class Same>
void check_copies(const Numbers& load, const Placement& p, const Same& same) {
  for (std::size_t e = 0; e < load.size(); ++e) {
    for (std::size_t f = 0; f < load.size(); ++f) {
      if (!same(e, f) || p.copies[f] == 1) continue;
      CHECK(load[e] / p.copies[e] <= load[f] / (p.copies[f] - 1));
    }
  }
}

/// Smallest possible maximum over bins of equal room; tries every assignment.
double best_packing(const Numbers& weights, std::size_t bins, std::size_t next, std::vector<std::size_t>& count,
                    Numbers& load) {
  if (next == weights.size()) return largest(load);
  double best = std::numeric_limits<double>::infinity();
  for (std::size_t bin = 0; bin < bins; ++bin) {
    if (count[bin] == weights.size() / bins) continue;
    ++count[bin], load[bin] += weights[next];
    best = std::min(best, best_packing(weights, bins, next + 1, count, load));
    --count[bin], load[bin] -= weights[next];
  }
  return best;
}

double best_packing(const Numbers& weights, std::size_t bins) {
  std::vector<std::size_t> count(bins, 0);
  Numbers load(bins, 0.0);
  return best_packing(weights, bins, 0, count, load);
}

/// The same over every number of copies too.
double best_placement(const Numbers& load, std::int64_t slots, std::size_t devices, std::size_t next, Numbers weights) {
  const std::int64_t left = slots - std::ssize(weights), experts = std::ssize(load) - std::int64_t(next);
  if (experts == 0) return left == 0 ? best_packing(weights, devices) : std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t copies = 1; copies <= left - (experts - 1); ++copies) {
    Numbers with = weights;
    with.insert(with.end(), static_cast<std::size_t>(copies), load[next] / static_cast<double>(copies));
    best = std::min(best, best_placement(load, slots, devices, next + 1, with));
  }
  return best;
}

}  // namespace

TEST_CASE(
    "global placement by hand: the hottest expert gets the copies, the heaviest copies go to the lightest devices") {
  // Copies: 12 -> 6 + 6, then 6 (expert 0) and 6 (expert 1) tie: expert 0 again, 4 + 4 + 4. Order: 1 (6), 0 0 0 (4 each), 2 (3), 3 (1).
  // Devices: 1 | 0 0; then 0 to device 0 (6 < 8), 2 to device 1 (8 < 10), which is full; 3 to device 0.
  const PlacementTarget target{.slots = 6, .devices = 2};
  const Placement p = place({12, 6, 3, 1}, target);
  CHECK(p.copies == Ids{3, 1, 1, 1});
  CHECK(p.expert_of == Ids{0, 1, 3, 0, 0, 2});
  CHECK(p.device_of == Ids{0, 0, 0, 1, 1, 1});
  CHECK(p.slots_of == std::vector<Ids>{{0, 3, 4}, {1}, {5}, {2}});
  CHECK(p.device_load == Numbers{11, 11});
}

TEST_CASE("hierarchical placement by hand: groups to nodes, copies inside a node") {
  // Groups of two: 10, 9, 3, 2. Nodes: group 0 | group 1; group 2 to node 1 (9 < 10); group 3 to node 0. Node 0 has experts 0 1 6 7 (8 2
  // 1 1), the two spare slots go to expert 0: 8/3 each; node 1 has 2 3 4 5 (5 4 2 1): 5 -> 2.5, then 4 -> 2.
  const Numbers load = {8, 2, 5, 4, 2, 1, 1, 1};
  const PlacementTarget target{.slots = 12, .devices = 4, .nodes = 2, .groups = 4};
  const Placement p = place(load, target);
  CHECK(p.copies == Ids{3, 1, 2, 2, 1, 1, 1, 1});
  // Node 0: 0 | 0, then 0 to device 0, 1 to device 1 (full after one more), 6 to device 1, 7 to device 0.
  // Node 1: 2 | 2, 3 | 3, 4 to device 2, 5 to device 3.
  CHECK(p.expert_of == Ids{0, 0, 7, 0, 1, 6, 2, 3, 4, 2, 3, 5});
  check_maps(load, target, p);
  CHECK(place(load, {.slots = 12, .devices = 4, .nodes = 2, .groups = 4, .policy = PlacementPolicy::hierarchical})
            .expert_of == p.expert_of);
}

TEST_CASE("automatic placement is global when the nodes do not divide the groups") {
  const Numbers load = {8, 2, 5, 4, 2, 1, 1, 1};
  PlacementTarget target{.slots = 12, .devices = 4, .nodes = 4, .groups = 2};
  const Placement automatic = place(load, target);
  target.policy = PlacementPolicy::global;
  CHECK(automatic.expert_of == place(load, target).expert_of);
  target.nodes = 1;
  CHECK(automatic.expert_of == place(load, target).expert_of);  // global placement looks at devices only
  target = {.slots = 12, .devices = 4, .nodes = 2, .groups = 4, .policy = PlacementPolicy::global};
  CHECK(place(load, target).expert_of == automatic.expert_of);
  target.policy = PlacementPolicy::automatic;
  CHECK(place(load, target).expert_of != automatic.expert_of);
}

TEST_CASE("ties go to the lower expert, device, group and node") {
  CHECK(place({1, 1, 1, 1}, {.slots = 6, .devices = 3}).expert_of == Ids{1, 2, 1, 3, 0, 0});
  CHECK(place({0, 0}, {.slots = 4, .devices = 2}).copies == Ids{3, 1});
  CHECK(place({5, 5, 5, 5}, {.slots = 4, .devices = 4, .nodes = 2, .groups = 2}).expert_of == Ids{0, 1, 2, 3});
}

TEST_CASE("one device, one expert, one copy each: the plain cases") {
  CHECK(place({3}, {.slots = 1}).device_load == Numbers{3});
  CHECK(place({4}, {.slots = 4, .devices = 4}).device_load == Numbers{1, 1, 1, 1});
  CHECK(place({3, 1, 2}, {.slots = 3, .devices = 3}).expert_of == Ids{0, 2, 1});
  CHECK(place({3, 1, 2}, {.slots = 3, .devices = 1}).expert_of == Ids{0, 1, 2});
}

TEST_CASE("layers are placed one by one") {
  const Numbers load = {4, 1, 1, 1, 1, 4};
  const PlacementTarget target{.slots = 4, .devices = 2};
  const std::vector<Placement> both = plan::place_experts(In<double, 2>(load.data(), {2, 3}), target);
  REQUIRE(both.size() == 2);
  CHECK(both[0].expert_of == place({4, 1, 1}, target).expert_of);
  CHECK(both[1].expert_of == place({1, 1, 4}, target).expert_of);
  CHECK(plan::place_experts(In<double, 2>(load.data(), {0, 3}), target).empty());
}

TEST_CASE("global placement of any load: maps agree, copies cannot be spent better, devices differ by a copy") {
  Random random(72);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t devices = 1 + random.below(8), experts = devices * (1 + random.below(6));
    const PlacementTarget target{.slots = experts + devices * random.below(4), .devices = devices};
    const Numbers load = skewed(random, experts);
    INFO("round " << round << ": " << experts << " experts, " << target.slots << " slots, " << devices << " devices");
    const Placement p = place(load, target);
    check_maps(load, target, p);
    check_copies(load, p, [](std::size_t, std::size_t) { return true; });
    CHECK(std::abs(sum(p.device_load) - sum(load)) <= 1e-9 * sum(load));
    const double heaviest = largest(copy_loads(load, p));
    CHECK(largest(p.device_load) - smallest(p.device_load) <= heaviest * (1 + 1e-9));
    CHECK(largest(p.device_load) <=
          largest(place(load, {.slots = experts, .devices = devices}).device_load) * (1 + 1e-12));
  }
}

TEST_CASE("hierarchical placement of any load keeps all copies of a group's experts in one node") {
  Random random(73);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t nodes = 1 + random.below(4), devices = nodes * (1 + random.below(3));
    const std::int64_t groups = nodes * (1 + random.below(3)), experts = groups * devices * (1 + random.below(2));
    const PlacementTarget target{
        .slots = experts + devices * random.below(4), .devices = devices, .nodes = nodes, .groups = groups};
    const Numbers load = skewed(random, experts);
    INFO("round " << round << ": " << experts << " experts, " << target.slots << " slots, " << devices << " devices, "
                  << nodes << " nodes, " << groups << " groups");
    const Placement p = place(load, target);
    check_maps(load, target, p);
    std::vector<std::set<std::int64_t>> nodes_of(static_cast<std::size_t>(groups)),
        groups_in(static_cast<std::size_t>(nodes));
    const auto node_of = [&](std::size_t e) {
      return p.device_of[static_cast<std::size_t>(p.slots_of[e][0])] / (devices / nodes);
    };
    for (std::size_t slot = 0; slot < p.expert_of.size(); ++slot) {
      const std::int64_t group = p.expert_of[slot] / (experts / groups), node = p.device_of[slot] / (devices / nodes);
      nodes_of[static_cast<std::size_t>(group)].insert(node);
      groups_in[static_cast<std::size_t>(node)].insert(group);
    }
    for (const auto& own : nodes_of) CHECK(own.size() == 1);
    for (const auto& own : groups_in) CHECK(std::ssize(own) == groups / nodes);
    check_copies(load, p, [&](std::size_t e, std::size_t f) { return node_of(e) == node_of(f); });
    const std::ptrdiff_t per_node = devices / nodes;
    const double heaviest = largest(copy_loads(load, p));
    for (auto first = p.device_load.begin(); first != p.device_load.end(); first += per_node) {
      const Numbers own(first, first + per_node);
      CHECK(largest(own) - smallest(own) <= heaviest * (1 + 1e-9));
    }
  }
}

TEST_CASE("small global placements: below twice the best of all, and half of them the best") {
  // Devices differ by at most the heaviest copy, so none exceeds the mean by more than (1 - 1/devices) of it. The mean is a lower bound of
  // every placement, and so is the heaviest copy: no other numbers of copies have a lighter one. Hence (2 - 1/devices) times at most.
  Random random(74);
  int best = 0, rounds = 0;
  while (rounds < 60) {
    const std::int64_t devices = 2 + random.below(2), experts = 2 + random.below(3), per_device = 2 + random.below(2);
    const PlacementTarget target{.slots = devices * per_device, .devices = devices};
    if (target.slots < experts || target.slots > 6) continue;
    ++rounds;
    Numbers load;
    for (std::int64_t e = 0; e < experts; ++e) load.push_back(static_cast<double>(1 + random.below(40)));
    const Placement p = place(load, target);
    const double optimum = best_placement(load, target.slots, static_cast<std::size_t>(devices), 0, {});
    const double packed = best_packing(copy_loads(load, p), static_cast<std::size_t>(devices));
    INFO("round " << rounds << ": " << largest(p.device_load) << ", best " << optimum << ", of these copies "
                  << packed);
    CHECK(largest(p.device_load) >= optimum * (1 - 1e-12));
    CHECK(packed >= optimum * (1 - 1e-12));
    CHECK(largest(p.device_load) <= (2 - 1.0 / static_cast<double>(devices)) * optimum * (1 + 1e-12));
    best += largest(p.device_load) <= optimum * (1 + 1e-12);
  }
  CHECK(best >= 30);
}

TEST_CASE("place_experts refuses impossible numbers, naming what it expected and got") {
  const Numbers load(8, 1.0);
  const PlacementTarget good{.slots = 12, .devices = 4, .nodes = 2, .groups = 2};
  CHECK_NOTHROW(place(load, good));
  const auto refuses = [&](PlacementTarget target, const std::string& message) {
    const Failure failure = failure_of([&] { place(load, target); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.message == "place_experts: " + message);
  };
  const auto with = [&](auto member, std::int64_t value) {
    PlacementTarget target = good;
    target.*member = value;
    return target;
  };
  refuses(with(&PlacementTarget::slots, 4), "slots is 4, expected at least 8");
  refuses(with(&PlacementTarget::slots, 14), "slots is 14, expected a multiple of devices, 4");
  refuses(with(&PlacementTarget::slots, std::int64_t{1} << 31), "slots is 2147483648, expected a 32-bit number");
  refuses(with(&PlacementTarget::devices, 3), "devices is 3, expected a multiple of nodes, 2");
  refuses(with(&PlacementTarget::devices, 0), "devices is 0, expected at least 1");
  refuses(with(&PlacementTarget::nodes, 0), "nodes is 0, expected at least 1");
  refuses(with(&PlacementTarget::groups, 0), "groups is 0, expected at least 1");
  refuses({.slots = 12, .devices = 6, .nodes = 3, .groups = 6},
          "number of experts is 8, expected a multiple of groups, 6");
  refuses({.slots = 12, .devices = 4, .nodes = 4, .groups = 2, .policy = PlacementPolicy::hierarchical},
          "groups is 2, expected a multiple of nodes, 4");
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const Numbers row = {1, bad, 1};
    const Failure failure = failure_of([&] { place(row, {.slots = 3}); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("load of expert 1 in layer 0 is "));
  }
  // Each is finite, their sum is not; half of the largest double is where the line is.
  const Failure infinite = failure_of([] { place({1e308, 1e308, 1e308, 1e308}, {.slots = 4, .devices = 2}); });
  CHECK(infinite.code == Errc::invalid_argument);
  CHECK(infinite.says("sum of the loads of layer 0 is inf, expected at most 8.98"));
  CHECK(failure_of([] { place({8e307, 8e307}, {.slots = 2}); }).code == Errc::invalid_argument);
  CHECK(place({4e307, 4e307}, {.slots = 2}).device_load[0] == 8e307);
  CHECK(failure_of([] { place({}, {.slots = 1}); }).message ==
        "place_experts: number of experts is 0, expected at least 1");
}
