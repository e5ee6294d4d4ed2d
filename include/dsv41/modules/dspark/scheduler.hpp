// SPDX-License-Identifier: MIT
//
// How many drafts of each request the next step verifies. Runs on the host, once a step, on plain numbers: it touches no model and no
// device, so an engine with a batch loop of its own can use it alone. Verifying few drafts wastes what was drafted; verifying many makes
// the step longer for everybody. Source: dspark.md 6.
//
// Lossless: rejection keeps the target's law only if whether a draft is verified does not depend on that draft or on later ones of its
// request. Every policy here keeps to that: lengths follow from numbers fixed before the drafts were made, and from confidences and counts
// of which the k-th is a function of the drafts before the k-th. A search for the best number of drafts over the confidences of the very
// drafts that it admits does not (dspark.md 6.7), nor does one over how many of them came; for this reason `delayed` searches over the
// confidences of the drafting before, of as many drafts as were asked for.
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
///
/// Rules:  with early_stop and delayed, and with any policy where draft_limit is short, a request's length depends on the requests beside
///         it. Its law does not, but at a temperature above 0 the text that its seed gives may: another length means other draws. With
///         off, fixed and threshold and rows for all, and at temperature 0 with any policy, the text does not depend on them either.
struct DraftPolicy {
  enum class Kind : std::uint8_t {
    off,         ///< verifies nothing
    fixed,       ///< the first `drafts` of every request
    threshold,   ///< those before the first confidence below `threshold`
    early_stop,  ///< the paper's Algorithm 1: best survival first, until a draft that does not speed the batch up
    delayed,     ///< a budget from the confidences of the drafting before, handed out by those of now
  };
  Kind kind = Kind::delayed;
  std::int32_t drafts = 0;  ///< fixed only; at least 0
  float threshold = 0;      ///< threshold only; 0 .. 1, and 0 keeps every draft

  bool operator==(const DraftPolicy&) const = default;
  bool needs_costs() const noexcept { return kind == Kind::early_stop || kind == Kind::delayed; }
  bool needs_confidences() const noexcept { return kind == Kind::threshold || needs_costs(); }
};

/// Reads "off", "fixed:N", "threshold:C", "alg1" (early_stop) or "delayed". Errors: invalid_argument.
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
    constexpr std::pair<std::string_view, DraftPolicy::Kind> kNames[] = {{"off", DraftPolicy::Kind::off},
                                                                         {"alg1", DraftPolicy::Kind::early_stop},
                                                                         {"delayed", DraftPolicy::Kind::delayed}};
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

/// The confidences of one request with the delay that the budget needs: while drafts are at hand, the budget reads those of the drafting
/// before. Until there was one, and for drafts that were not made, it reads 1: new requests ask for everything.
///
/// Rules:  stale() is never of the newest drafting, whatever is published, for its drafts are what the budget decides about. A drafting is
///         told by its anchor, which every round moves on: publishing for the newest anchor again (a request sat out a step with its
///         drafts at hand, or drafted anew from there) replaces what was published for it and leaves stale() alone. No confidences are no
///         drafting: they change nothing.
/// Shapes: anchor at least 0 and never below the newest.
class StaleConfidences {
 public:
  explicit StaleConfidences(std::int64_t draft) : older_(length(draft), 1.0f), newer_(length(draft), 1.0f) {}

  /// Once for each drafting of this request: the position that it drafts behind, and confidences of the drafts, at most `draft`.
  void publish(std::int64_t anchor, std::span<const float> confidences) noexcept {
    DSV41_DCHECK(confidences.size() <= newer_.size());
    DSV41_DCHECK(anchor >= 0 && anchor >= anchor_);
    if (confidences.empty()) return;
    if (anchor != anchor_) std::swap(older_, newer_);
    anchor_ = anchor;
    std::fill(std::copy(confidences.begin(), confidences.end(), newer_.begin()), newer_.end(), 1.0f);
  }

  std::span<const float> stale() const noexcept { return older_; }  ///< [draft]

 private:
  static std::size_t length(std::int64_t draft) noexcept {
    DSV41_DCHECK(draft >= 0);
    return static_cast<std::size_t>(draft);
  }

  std::vector<float> older_, newer_;
  std::int64_t anchor_ = -1;  // of newer_; -1: none yet
};

/// The requests of one step.
///
/// Rules:  `asked`, `stale`, plain_rows, sampling and draft_limit are fixed before the drafts at hand are made. `drafts` may depend on
///         them, of each request whether there is a k-th on those before it only (a padded row, nothing drafted behind a stop token).
struct StepDrafts {
  In<float, 2> confidences;              // [requests, draft] of the drafts at hand; empty for off and fixed
  In<float, 2> stale;                    // [requests, draft] of the drafting before (StaleConfidences); delayed only
  std::span<const std::int32_t> drafts;  // [requests] drafts at hand, 0 .. draft: useful_drafts() of verifier.hpp
  std::span<const std::int32_t> asked;   // [requests] drafts asked for: min(draft, remaining - 1); delayed only
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
    next_is_no_better,  ///< early_stop: the next candidate does not raise the objective
    best_of_all,        ///< delayed: the budget is the best of all prefixes
    no_more_drafts,     ///< early_stop, delayed: every admissible draft is verified
    draft_limit,        ///< StepDrafts::draft_limit
  };

  std::vector<std::int32_t> lengths;  ///< [requests] drafts to verify, from the first on
  std::int64_t verified = 0;          ///< their sum
  std::int64_t budget = 0;            ///< delayed: K, at least `verified`; otherwise `verified`
  Stopped stopped = Stopped::by_policy;
  // early_stop and delayed; empty and 0 otherwise.
  std::vector<Candidate> candidates;  ///< drafts at hand by rank; the first `verified` are verified
  std::vector<Prefix> prefixes;  ///< [b] for the first b candidates, as far as they were tried; delayed: of `stale`
  std::vector<Candidate> stale;  ///< delayed: those asked for by rank of the drafting before
  /// The objective of a step without drafter and drafts: where it is above that of prefixes[budget], drafting does not pay.
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
///         early_stop: over candidates in rank order; each must raise tokens per ms strictly, the first that does not ends it.
///         delayed: budget = the first maximum of tokens per ms over all prefixes of the stale candidates, which are the drafts asked
///         for: how many came of them may be known by what they are. The drafts at hand are then ranked by their own survival and the
///         first `budget` verified, fewer where fewer are admissible.
///         A step with b drafts is expected to give `sampling` + the sum of their survivals, in table.step_ms(requests, plain_rows + b).
/// Cost:   n log n for n drafts at hand; no allocation once the plan's buffers are large enough.
/// Source: dspark.md 6.1 to 6.3, 6.6; the tie rule is the smaller budget.
class DraftScheduler {
  using Kind = DraftPolicy::Kind;
  using Candidate = StepPlan::Candidate;
  using Prefix = StepPlan::Prefix;
  using Stopped = StepPlan::Stopped;

 public:
  /// Errors: invalid_argument: values of the policy out of range; early_stop or delayed without a table.
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

  /// Errors: invalid_argument: the policy reads confidences that the step does not have (a drafter without its confidence head).
  void plan(const StepDrafts& step, StepPlan& out) const {
    if (policy_.needs_confidences()) expect_rows("confidences", step.confidences, step.drafts, step.drafts.size());
    if (policy_.kind == Kind::delayed) expect_rows("stale", step.stale, step.asked, step.drafts.size());
    DSV41_DCHECK(step.plain_rows >= 0 && step.sampling >= 0 && step.draft_limit >= 0);
    out.lengths.assign(step.drafts.size(), 0);
    out.candidates.clear();
    out.stale.clear();
    out.prefixes.clear();
    out.undrafted_tokens_per_ms =
        policy_.needs_costs() ? static_cast<double>(step.sampling) / table_->verify_ms(step.plain_rows) : 0;
    switch (policy_.kind) {
      case Kind::off: out.stopped = Stopped::by_policy; break;
      case Kind::fixed:
      case Kind::threshold: take_by_rule(step, out); break;
      case Kind::early_stop: take_while_better(step, out); break;
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

  static std::int32_t largest(std::span<const std::int32_t> counts) noexcept {
    return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  }

  /// Not left to debug builds: without rows every draft would look inadmissible, and nothing be verified in silence (case B77).
  static void expect_rows(const char* name, In<float, 2> rows, std::span<const std::int32_t> counts,
                          std::size_t requests) {
    const std::int64_t longest = largest(counts);
    if (counts.size() == requests && rows.extent(0) == static_cast<std::int64_t>(requests) && rows.extent(1) >= longest)
      return;
    throw Error(Errc::invalid_argument,
                std::string("scheduler: ") + name + " of [" + std::to_string(rows.extent(0)) + ", " +
                    std::to_string(rows.extent(1)) + "] for " + std::to_string(counts.size()) + " counts of up to " +
                    std::to_string(longest) + " drafts, expected a row and a count for each of " +
                    std::to_string(requests) + " requests: off and fixed need none");
  }

  /// Candidates by rank: the first counts[r] of each request.
  static void rank(In<float, 2> confidences, std::span<const std::int32_t> counts, std::vector<Candidate>& out) {
    for (std::size_t r = 0; r < counts.size(); ++r) {
      DSV41_DCHECK(counts[r] >= 0);
      double survival = 1;
      for (std::int32_t k = 0; k < counts[r]; ++k) {
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

  /// fixed, threshold: whether draft k (from 0) at hand is verified where those before it are.
  bool wanted(const StepDrafts& step, std::size_t request, std::int32_t k) const noexcept {
    if (policy_.kind == Kind::fixed) return k < policy_.drafts;
    return probability(step.confidences(request, k)) >= static_cast<double>(policy_.threshold);
  }

  void take_by_rule(const StepDrafts& step, StepPlan& out) const {
    out.stopped = Stopped::by_policy;
    std::int64_t left = step.draft_limit;
    const std::int32_t most = largest(step.drafts);
    for (std::int32_t k = 0; k < most; ++k) {
      for (std::size_t r = 0; r < step.drafts.size(); ++r) {
        if (out.lengths[r] != k || k >= step.drafts[r] || !wanted(step, r, k)) continue;
        if (left == 0) {
          out.stopped = Stopped::draft_limit;
          return;
        }
        ++out.lengths[r], --left;
      }
    }
  }

  void take_while_better(const StepDrafts& step, StepPlan& out) const {
    rank(step.confidences, step.drafts, out.candidates);
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
    rank(step.stale, step.asked, out.stale);
    const std::size_t most = limited(out.stale, step);
    std::size_t budget = 0;
    for (std::size_t b = 0; b <= most; ++b) {
      add_prefix(step, out.stale, out.prefixes);
      if (out.prefixes[b].tokens_per_ms > out.prefixes[budget].tokens_per_ms) budget = b;
    }
    rank(step.confidences, step.drafts, out.candidates);
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

/// Whether the next step drafts at all. A budget of 0 still pays for the drafter; where drafts keep earning less than that, steps are
/// plain for a while. Judges by what steps gave, not by what confidences promised.
///
/// Rules:  after kTried drafted steps in which tokens per millisecond were not above those of plain steps, the next `pause` steps are
///         plain; then it tries again. The pause begins at kFirstPause and doubles up to kLongestPause each time; a try that paid ends
///         that, and the next kTried steps are the next try. At the longest pause trying takes one step in 33.
///         Lossless: it looks at steps that are over (dspark.md 6.7).
class DraftPause {
 public:
  static constexpr std::int64_t kTried = 8, kFirstPause = 8, kLongestPause = 256;

  /// Asked once before each step that could draft.
  bool drafts() noexcept {
    if (left_ == 0) return true;
    --left_;
    return false;
  }

  /// After a step that drafted: tokens it gave and would have given without drafts, and what either costs by the table.
  void observe(double tokens, double ms, double plain_tokens, double plain_ms) noexcept {
    tokens_ += tokens, ms_ += ms, plain_tokens_ += plain_tokens, plain_ms_ += plain_ms;
    if (++tried_ < kTried) return;
    const bool paid = tokens_ * plain_ms_ > plain_tokens_ * ms_;
    pause_ = paid ? kFirstPause / 2 : std::min(2 * pause_, kLongestPause);
    left_ = paid ? 0 : pause_;
    tried_ = 0;
    tokens_ = ms_ = plain_tokens_ = plain_ms_ = 0;
  }

 private:
  double tokens_ = 0, ms_ = 0, plain_tokens_ = 0, plain_ms_ = 0;
  std::int64_t tried_ = 0, left_ = 0, pause_ = kFirstPause / 2;
};

}  // namespace dsv41
