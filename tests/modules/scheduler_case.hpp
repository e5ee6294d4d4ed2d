// SPDX-License-Identifier: MIT
//
// One step's numbers for the scheduler's tests, and the rules of dspark.md 6 once more: sorted by pairs and maximised by trying, with no
// line of the library's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "dsv41/modules/dspark/scheduler.hpp"
#include "support/random.hpp"

namespace dsv41::test {

using Lengths = std::vector<std::int32_t>;
using Rows = std::vector<std::vector<float>>;  // [requests][draft]

/// Confidences of a batch that decodes: one plain row and one sampled token a request.
struct Step {
  Rows fresh, stale;
  Lengths drafts, asked;
  std::int64_t draft_limit = std::numeric_limits<std::int64_t>::max();

  explicit Step(Rows confidences) : fresh(confidences), stale(std::move(confidences)) {
    drafts.assign(fresh.size(), fresh.empty() ? 0 : static_cast<std::int32_t>(fresh[0].size()));
    asked = drafts;
  }
  std::int64_t requests() const { return static_cast<std::int64_t>(fresh.size()); }

  StepPlan plan(const DraftScheduler& scheduler) const {
    StepPlan out;
    const std::vector<float> now = flat(fresh), then = flat(stale);
    const std::int64_t draft = fresh.empty() ? 0 : static_cast<std::int64_t>(fresh[0].size());
    scheduler.plan({.confidences = {now.data(), {requests(), draft}},
                    .stale = {then.data(), {requests(), draft}},
                    .drafts = drafts,
                    .asked = asked,
                    .plain_rows = requests(),
                    .sampling = requests(),
                    .draft_limit = draft_limit},
                   out);
    return out;
  }

 private:
  static std::vector<float> flat(const Rows& rows) {
    std::vector<float> all;
    for (const std::vector<float>& row : rows) all.insert(all.end(), row.begin(), row.end());
    return all;
  }
};

/// A table of a forward's ms for 1, 2, .. rows and a drafter that costs the same for any batch.
inline CostTable table_of(const std::vector<double>& verify_ms, double draft_ms) {
  std::vector<CostPoint> verify;
  for (std::size_t i = 0; i < verify_ms.size(); ++i) verify.push_back({static_cast<std::int64_t>(i) + 1, verify_ms[i]});
  return CostTable(verify, static_cast<std::int64_t>(verify_ms.size()), {{1, draft_ms}});
}

/// The same from steps per second, SPS(1), SPS(2), .., in units of 1000.
inline CostTable table_of_rates(std::vector<double> rates) {
  for (double& rate : rates) rate = 1 / rate;
  return table_of(rates, 0);
}

inline CostTable random_table(Random& random, std::int64_t rows) {
  std::vector<double> ms;
  double at = random.uniform(1, 3);
  for (std::int64_t i = 0; i < rows; ++i) {
    ms.push_back(at);
    if (random.below(2) == 0) at += random.uniform(0, 1.5);  // stairs
  }
  return table_of(ms, random.uniform(0, 1));
}

/// (survival, step, request) by rank: each slot's survival on its own, then a sort of pairs.
inline std::vector<std::tuple<double, std::int32_t, std::int32_t>> ranked(const Rows& confidences,
                                                                          const Lengths& drafts) {
  std::vector<std::tuple<double, std::int32_t, std::int32_t>> all;
  for (std::size_t r = 0; r < confidences.size(); ++r) {
    for (std::int32_t k = 1; k <= drafts[r]; ++k) {
      double a = 1;
      for (std::int32_t i = 0; i < k; ++i) {
        const double c = confidences[r][static_cast<std::size_t>(i)];
        a *= c > 0 ? c : 0;
      }
      if (a > 0) all.emplace_back(-a, k, static_cast<std::int32_t>(r));
    }
  }
  std::sort(all.begin(), all.end());
  for (auto& [a, k, r] : all) a = -a;
  return all;
}

/// Objective of each prefix of the ranked slots, b = 0 .. min(all, limit).
inline std::vector<double> objectives(const Rows& confidences, const Lengths& drafts, std::int64_t limit,
                                      const CostTable& table) {
  const auto slots = ranked(confidences, drafts);
  const auto requests = static_cast<std::int64_t>(confidences.size());
  std::vector<double> out;
  for (std::int64_t b = 0; b <= std::min<std::int64_t>(limit, static_cast<std::int64_t>(slots.size())); ++b) {
    double tau = static_cast<double>(requests);
    for (std::int64_t i = 0; i < b; ++i) tau += std::get<0>(slots[static_cast<std::size_t>(i)]);
    out.push_back(tau / (table.draft_ms(requests) + table.verify_ms(requests + b)));
  }
  return out;
}

inline std::size_t first_maximum(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

/// Lengths when the first `count` ranked slots are verified; each slot must follow the one before it.
inline Lengths top(const Rows& confidences, const Lengths& drafts, std::size_t count) {
  const auto slots = ranked(confidences, drafts);
  Lengths lengths(confidences.size(), 0);
  for (std::size_t i = 0; i < std::min(count, slots.size()); ++i) {
    lengths[static_cast<std::size_t>(std::get<2>(slots[i]))] = std::get<1>(slots[i]);
  }
  return lengths;
}

/// What nobody may do (dspark.md 6.7): the best prefix over the confidences of the drafts that it admits.
inline Lengths best_of_fresh(const Step& step, const CostTable& table) {
  return top(step.fresh, step.drafts, first_maximum(objectives(step.fresh, step.drafts, step.draft_limit, table)));
}

}  // namespace dsv41::test
