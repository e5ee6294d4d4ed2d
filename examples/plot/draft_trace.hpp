// SPDX-License-Identifier: MIT
//
// What the steps of a generator did with drafts, as a JSON file for plots: writer and reader side by side. generate --trace writes one,
// 07_drafts draws it.
//
//   {"format": "dsv41-draft-trace", "version": 1, "draft": 5, "policy": "delayed", "steps": [
//   {"requests": 1, "rows": 3, "prompt_rows": 0, "drafting": true, "draft_ms": 1.25, "step_ms": 20.5, "budget": 2,
//    "stopped": "best_of_all", "undrafted_tokens_per_ms": 0.05, "tokens_per_ms": [0.04, 0.06],
//    "rounds": [{"request": 0, "anchor": 17, "drafted": 4, "verified": 2, "accepted": 1, "emitted": 2,
//                "confidences": [0.9, 0.8, 0.4, 0.4, null]}]}
//   ]}
//
// Names and meanings are those of runtime::StepReport and StepPlan; requests: how many decoded, one a round; tokens_per_ms: of the plan's
// prefixes; a confidence that there is none of is null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/modules/dspark/scheduler.hpp"
#include "dsv41/runtime/generator.hpp"

namespace dsv41::plot {

class DraftTrace {
 public:
  struct Round : runtime::RoundReport {
    std::vector<float> confidences;  ///< [draft] calibrated; NaN where there is none
  };
  struct Step {
    std::int64_t rows = 0, prompt_rows = 0;  ///< of the target's forward; of these, of prompts
    bool drafting = false;
    double draft_ms = 0, step_ms = 0;
    std::int64_t budget = 0;
    StepPlan::Stopped stopped = StepPlan::Stopped::by_policy;
    double undrafted_tokens_per_ms = 0;
    std::vector<double> tokens_per_ms;
    std::vector<Round> rounds;
  };

  /// `draft`: EngineOptions::draft, the columns of StepReport::confidences.
  DraftTrace(std::int64_t draft, const DraftPolicy& policy) : draft_(draft), policy_(policy) {}

  /// Reads the text of such a file. `origin` names it in messages.
  /// Errors: format (not JSON, a key missing, unknown or twice, more than 32 levels, a wrong type, lengths and sums that no step gives),
  ///         unsupported (another version); each message gives origin, place, expected and found.
  static DraftTrace parse(std::string_view text, const std::string& origin);

  void add(const runtime::StepReport& report);

  /// The text that parses to an equal trace. One step a line.
  std::string json() const;

  std::int64_t draft() const noexcept { return draft_; }
  const DraftPolicy& policy() const noexcept { return policy_; }
  const std::vector<Step>& steps() const noexcept { return steps_; }

 private:
  std::int64_t draft_;
  DraftPolicy policy_;
  std::vector<Step> steps_;
};

/// The text that parse_draft_policy() reads as this policy.
std::string policy_text(const DraftPolicy& policy);

}  // namespace dsv41::plot
