// SPDX-License-Identifier: MIT
//
// scheduler [CALLS]: nanoseconds of one call of each policy, for one request and for 256 requests of five drafts (2,000 calls by
// default). Not a unit test: the times are printed; what must hold is that every budget lies within what there is.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "dsv41/modules/dspark/scheduler.hpp"
#include "support/random.hpp"

namespace {

using namespace dsv41;

constexpr std::int64_t kDraft = 5;

/// Stairs of captured sizes, and three points beyond them.
CostTable table() {
  std::vector<CostPoint> verify;
  for (std::int64_t size = 1; size <= 512; size += size < 32 ? 1 : 16) {
    verify.push_back({size, 10 + 0.02 * static_cast<double>(size)});
  }
  for (const std::int64_t size : {768, 1024, 2048}) verify.push_back({size, 0.05 * static_cast<double>(size)});
  return CostTable(verify, 512, {{1, 1}, {64, 2}, {256, 4}});
}

}  // namespace

int main(int argc, char** argv) {
  const long calls = argc > 1 ? std::atol(argv[1]) : 2000;
  if (calls < 1) {
    std::cerr << "scheduler: expected at least one call\n";
    return 1;
  }
  test::Random random(1);
  for (const std::int64_t requests : {std::int64_t{1}, std::int64_t{256}}) {
    const auto size = static_cast<std::size_t>(requests * kDraft);
    std::vector<float> fresh(size), stale(size);
    for (std::size_t i = 0; i < size; ++i) fresh[i] = random.uniform(0.3, 1), stale[i] = random.uniform(0.3, 1);
    const std::vector<std::int32_t> drafts(static_cast<std::size_t>(requests), kDraft);
    for (const char* name : {"off", "fixed:3", "threshold:0.6", "alg1", "delayed"}) {
      const DraftScheduler scheduler(parse_draft_policy(name), table());
      StepPlan plan;
      plan.reserve(requests, kDraft);
      std::int64_t verified = 0;
      const auto start = std::chrono::steady_clock::now();
      for (long i = 0; i < calls; ++i) {
        scheduler.plan({.confidences = {fresh.data(), {requests, kDraft}},
                        .stale = {stale.data(), {requests, kDraft}},
                        .drafts = drafts,
                        .asked = drafts,
                        .plain_rows = requests,
                        .sampling = requests},
                       plan);
        verified += plan.verified;
      }
      const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
      std::cout << requests << " x " << kDraft << " " << name << ": " << ns / static_cast<double>(calls)
                << " ns a call, " << plan.verified << " drafts\n";
      if (verified != calls * plan.verified || plan.budget < plan.verified || plan.budget > requests * kDraft) {
        std::cerr << "scheduler: the same step was planned in different ways, or beyond its drafts\n";
        return 1;
      }
    }
  }
  return std::cout.flush() ? 0 : 1;
}
