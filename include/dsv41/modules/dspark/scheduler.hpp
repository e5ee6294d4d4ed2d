// SPDX-License-Identifier: MIT
//
// How many drafts of each request the next step verifies. Runs on the host, once a step, on plain numbers: it touches no model and no
// device, so an engine with a batch loop of its own can use it alone. Verifying few drafts wastes what was drafted; verifying many makes
// the step longer for everybody. Source: dspark.md 6.
//
// Lossless: rejection keeps the target's law only if whether a draft is verified does not depend on that draft or on later ones of its
// request. Every policy here keeps to that: lengths follow from numbers fixed before the drafts were made, and from confidences of which
// the k-th is a function of the drafts before the k-th. A search for the best number of drafts over the confidences of the very drafts
// that it admits does not (dspark.md 6.7); `delayed` searches over those of two steps ago for this reason.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/core/view.hpp"
#include "dsv41/modules/dspark/cost_table.hpp"

namespace dsv41 {

/// What a step's lengths follow from.
struct DraftPolicy {
  enum class Kind : std::uint8_t {
    off,        ///< verifies nothing
    fixed,      ///< the first `drafts` of every request
    threshold,  ///< those before the first confidence below `threshold`
    alg1,       ///< the paper's Algorithm 1: best survival first, until a draft that does not speed the batch up
    delayed,    ///< a budget from the confidences of two steps ago, handed out by those of now
  };
  Kind kind = Kind::delayed;
  std::int32_t drafts = 0;  ///< fixed only; at least 0
  float threshold = 0;      ///< threshold only; 0 .. 1, and 0 keeps every draft

  bool operator==(const DraftPolicy&) const = default;
  bool needs_costs() const noexcept { return kind == Kind::alg1 || kind == Kind::delayed; }
};

/// Reads "off", "fixed:N", "threshold:C", "alg1" or "delayed". Errors: invalid_argument.
inline DraftPolicy parse_draft_policy(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const char *first = colon == text.npos ? nullptr : text.data() + colon + 1, *last = text.data() + text.size();
  const auto whole = [&](auto& value) {
    const auto [end, error] = std::from_chars(first, last, value);
    return error == std::errc() && end == last;
  };
  DraftPolicy policy;
  if (first == nullptr) {
    constexpr std::pair<std::string_view, DraftPolicy::Kind> kNames[] = {
        {"off", DraftPolicy::Kind::off}, {"alg1", DraftPolicy::Kind::alg1}, {"delayed", DraftPolicy::Kind::delayed}};
    for (const auto& [known, kind] : kNames) {
      if (name == known) return {.kind = kind};
    }
  } else if (name == "fixed" && whole(policy.drafts) && policy.drafts >= 0) {
    policy.kind = DraftPolicy::Kind::fixed;
    return policy;
  } else if (name == "threshold" && whole(policy.threshold) && policy.threshold >= 0 && policy.threshold <= 1) {
    policy.kind = DraftPolicy::Kind::threshold;
    return policy;
  }
  throw Error(Errc::invalid_argument,
              "policy: got '" + std::string(text.substr(0, 40)) +
                  "', expected off, fixed:N (N at least 0), threshold:C (C in 0 .. 1), alg1 or delayed");
}

/// The confidences of one request with the delay that the budget needs: a step's budget reads what the step before the previous one
/// ended with. Until then, and for drafts that were not made, it reads 1: new requests ask for everything.
class StaleConfidences {
 public:
  explicit StaleConfidences(std::int64_t draft)
      : older_(static_cast<std::size_t>(draft), 1.0f), newer_(static_cast<std::size_t>(draft), 1.0f) {}

  /// At the end of every step: confidences of the drafts just made, at most `draft`.
  void publish(std::span<const float> confidences) noexcept {
    DSV41_DCHECK(confidences.size() <= older_.size());
    std::swap(older_, newer_);
    std::fill(std::copy(confidences.begin(), confidences.end(), newer_.begin()), newer_.end(), 1.0f);
  }

  std::span<const float> stale() const noexcept { return older_; }  ///< [draft]

 private:
  std::vector<float> older_, newer_;
};

/// The requests of one step.
struct StepDrafts {
  In<float, 2> confidences;              // [requests, draft] of the drafts at hand
  In<float, 2> stale;                    // [requests, draft] of two steps ago (StaleConfidences); delayed only
  std::span<const std::int32_t> drafts;  // [requests] drafts at hand, 0 .. draft: useful_drafts() of verifier.hpp
  std::int64_t plain_rows = 0;           // rows that are no drafts: 1 a decoding request, a chunk's length in prefill
  std::int64_t sampling = 0;             // requests that will sample a token in this step
  std::int64_t draft_limit = std::numeric_limits<std::int64_t>::max();  // most drafts that the step has rows for
};

/// Lengths, and how they came about: plain data for logs and plots. Kept by the caller from step to step, so that nothing is allocated.
struct StepPlan {
  /// A draft that may be verified.
  struct Candidate {
    double survival = 0;       ///< probability that it and all before it are accepted: product of confidences
    std::int32_t request = 0;  ///< row of StepDrafts
    std::int32_t step = 0;     ///< 1 .. draft
  };
  /// What verifying the first so many candidates would give.
  struct Prefix {
    double tokens = 0;         ///< expected tokens of the step: tau
    double step_ms = 0;        ///< cost of the step
    double tokens_per_ms = 0;  ///< the objective: Theta / 1000
  };
  /// Why no more drafts are verified.
  enum class Stopped : std::uint8_t {
    by_policy,          ///< off, fixed, threshold: nothing is weighed
    next_is_no_better,  ///< alg1: the next candidate does not raise the objective
    best_of_all,        ///< delayed: the budget is the best of all prefixes
    no_more_drafts,     ///< alg1, delayed: every admissible draft is verified
    draft_limit,        ///< StepDrafts::draft_limit
  };

  std::vector<std::int32_t> lengths;  ///< [requests] drafts to verify, from the first on
  std::int64_t verified = 0;          ///< their sum
  std::int64_t budget = 0;            ///< delayed: K, at least `verified`; otherwise `verified`
  Stopped stopped = Stopped::by_policy;
  // alg1 and delayed; empty otherwise.
  std::vector<Candidate> candidates;  ///< drafts at hand by rank; the first `verified` are verified
  std::vector<Prefix> prefixes;  ///< [b] for the first b candidates, as far as they were tried; delayed: of `stale`
  std::vector<Candidate> stale;  ///< delayed: those of two steps ago by rank
  /// The objective of a step without drafter and drafts, 0 without a table: where it is above prefixes[budget], drafting does not pay.
  double undrafted_tokens_per_ms = 0;

  void reserve(std::int64_t requests, std::int64_t draft) {
    const std::size_t all = static_cast<std::size_t>(requests * draft);
    lengths.reserve(static_cast<std::size_t>(requests));
    candidates.reserve(all);
    stale.reserve(all);
    prefixes.reserve(all + 1);
  }
};

/// The policies as one call.
///
/// Rules:  candidates rank by survival, falling; ties to the earlier draft, then to the lower request. A confidence that is NaN or not
///         above 0 makes its draft and all later ones of the request inadmissible; above 1 it counts as 1. Survivals are products in
///         float64, in order.
///         fixed, threshold: threshold takes NaN for 0. Where draft_limit is short, all first drafts come before all second ones.
///         alg1: over candidates in rank order; each must raise tokens per ms strictly, the first that does not ends it.
///         delayed: budget = the first maximum of tokens per ms over all prefixes of the stale candidates; the drafts at hand are then
///         ranked by their own survival and the first `budget` verified, fewer where fewer are admissible.
///         A step with b drafts is expected to give `sampling` + the sum of their survivals, in table.step_ms(requests, plain_rows + b).
/// Cost:   n log n for n drafts at hand; no allocation once the plan's buffers are large enough.
/// Source: dspark.md 6.1 to 6.3, 6.6; the tie rule is the smaller budget.
class DraftScheduler {
  using Kind = DraftPolicy::Kind;
  using Candidate = StepPlan::Candidate;
  using Prefix = StepPlan::Prefix;
  using Stopped = StepPlan::Stopped;

 public:
  /// Errors: invalid_argument: values of the policy out of range; alg1 or delayed without a table.
  explicit DraftScheduler(DraftPolicy policy, std::optional<CostTable> table = std::nullopt)
      : policy_(policy), table_(std::move(table)) {
    const auto expect = [](bool holds, const std::string& what) {
      if (!holds) throw Error(Errc::invalid_argument, "scheduler: " + what);
    };
    expect(policy.drafts >= 0, "fixed:" + std::to_string(policy.drafts) + ", expected at least 0 drafts");
    expect(policy.threshold >= 0 && policy.threshold <= 1,
           "threshold:" + std::to_string(policy.threshold) + ", expected 0 .. 1");
    expect(!policy.needs_costs() || table_.has_value(),
           "alg1 and delayed weigh drafts against the cost of a step: they need a cost table, got none");
  }

  void plan(const StepDrafts& step, StepPlan& out) const {
    DSV41_DCHECK(static_cast<std::int64_t>(step.drafts.size()) == step.confidences.extent(0));
    DSV41_DCHECK(step.plain_rows >= 0 && step.sampling >= 0 && step.draft_limit >= 0);
    out.lengths.assign(step.drafts.size(), 0);
    out.candidates.clear();
    out.stale.clear();
    out.prefixes.clear();
    out.undrafted_tokens_per_ms = table_ ? static_cast<double>(step.sampling) / table_->verify_ms(step.plain_rows) : 0;
    switch (policy_.kind) {
      case Kind::off: out.stopped = Stopped::by_policy; break;
      case Kind::fixed:
      case Kind::threshold: take_by_rule(step, out); break;
      case Kind::alg1: take_while_better(step, out); break;
      case Kind::delayed: take_budget(step, out); break;
    }
    out.verified = 0;
    for (const std::int32_t length : out.lengths) out.verified += length;
    if (!policy_.needs_costs()) out.budget = out.verified;
  }

  const DraftPolicy& policy() const noexcept { return policy_; }
  const std::optional<CostTable>& table() const noexcept { return table_; }

 private:
  static double probability(float confidence) noexcept {
    return confidence > 0 ? std::min(static_cast<double>(confidence), 1.0) : 0.0;  // NaN: 0
  }

  static std::int32_t at_hand(const StepDrafts& step, std::size_t request) noexcept {
    DSV41_DCHECK(step.drafts[request] >= 0 && step.drafts[request] <= step.confidences.extent(1));
    return step.drafts[request];
  }

  static void rank(const StepDrafts& step, In<float, 2> confidences, std::vector<Candidate>& out) {
    for (std::size_t r = 0; r < step.drafts.size(); ++r) {
      double survival = 1;
      for (std::int32_t k = 0; k < at_hand(step, r); ++k) {
        survival *= probability(confidences(r, k));
        if (survival <= 0) break;
        out.push_back({survival, static_cast<std::int32_t>(r), k + 1});
      }
    }
    std::sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) {
      if (a.survival != b.survival) return a.survival > b.survival;
      return a.step != b.step ? a.step < b.step : a.request < b.request;
    });
  }

  /// The objective of the prefix after the last one.
  void add_prefix(const StepDrafts& step, const std::vector<Candidate>& candidates,
                  std::vector<Prefix>& prefixes) const {
    const std::size_t drafts = prefixes.size();
    const double tokens =
        drafts == 0 ? static_cast<double>(step.sampling) : prefixes.back().tokens + candidates[drafts - 1].survival;
    const double ms = table_->step_ms(static_cast<std::int64_t>(step.drafts.size()),
                                      step.plain_rows + static_cast<std::int64_t>(drafts));
    prefixes.push_back({tokens, ms, tokens / ms});
  }

  /// Counts winners: a request's candidates rank in the order of its drafts, so the count is a prefix of them.
  static void take(const std::vector<Candidate>& candidates, std::size_t count, std::vector<std::int32_t>& lengths) {
    for (std::size_t i = 0; i < count; ++i) ++lengths[static_cast<std::size_t>(candidates[i].request)];
  }

  /// fixed, threshold: whether a draft is verified where those before it are.
  bool wanted(float confidence, std::int32_t before) const noexcept {
    if (policy_.kind == Kind::fixed) return before < policy_.drafts;
    return probability(confidence) >= static_cast<double>(policy_.threshold);
  }

  void take_by_rule(const StepDrafts& step, StepPlan& out) const {
    out.stopped = Stopped::by_policy;
    std::int64_t left = step.draft_limit;
    for (std::int32_t k = 0; k < step.confidences.extent(1); ++k) {
      for (std::size_t r = 0; r < step.drafts.size(); ++r) {
        if (out.lengths[r] != k || k >= at_hand(step, r) || !wanted(step.confidences(r, k), k)) continue;
        if (left == 0) {
          out.stopped = Stopped::draft_limit;
          return;
        }
        ++out.lengths[r], --left;
      }
    }
  }

  void take_while_better(const StepDrafts& step, StepPlan& out) const {
    rank(step, step.confidences, out.candidates);
    const std::size_t most = limited(out.candidates, step);
    out.stopped = most < out.candidates.size() ? Stopped::draft_limit : Stopped::no_more_drafts;
    add_prefix(step, out.candidates, out.prefixes);
    std::size_t taken = 0;
    while (taken < most) {
      add_prefix(step, out.candidates, out.prefixes);
      if (out.prefixes[taken + 1].tokens_per_ms <= out.prefixes[taken].tokens_per_ms) {
        out.stopped = Stopped::next_is_no_better;
        break;
      }
      ++taken;
    }
    out.budget = static_cast<std::int64_t>(taken);
    take(out.candidates, taken, out.lengths);
  }

  void take_budget(const StepDrafts& step, StepPlan& out) const {
    DSV41_DCHECK(step.stale.extents() == step.confidences.extents());
    rank(step, step.stale, out.stale);
    const std::size_t most = limited(out.stale, step);
    std::size_t budget = 0;
    for (std::size_t b = 0; b <= most; ++b) {
      add_prefix(step, out.stale, out.prefixes);
      if (out.prefixes[b].tokens_per_ms > out.prefixes[budget].tokens_per_ms) budget = b;
    }
    rank(step, step.confidences, out.candidates);
    const std::size_t taken = std::min(budget, out.candidates.size());
    out.budget = static_cast<std::int64_t>(budget);
    out.stopped = taken == out.candidates.size()              ? Stopped::no_more_drafts
                  : budget == most && most < out.stale.size() ? Stopped::draft_limit
                                                              : Stopped::best_of_all;
    take(out.candidates, taken, out.lengths);
  }

  static std::size_t limited(const std::vector<Candidate>& candidates, const StepDrafts& step) noexcept {
    return static_cast<std::size_t>(std::min(static_cast<std::int64_t>(candidates.size()), step.draft_limit));
  }

  DraftPolicy policy_;
  std::optional<CostTable> table_;
};

}  // namespace dsv41
