// SPDX-License-Identifier: MIT
//
// Judge: from rows of logits to tokens, one request at a time: its first token, and the verdict on its drafts. Private to src/runtime.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dsv41/modules/dspark/verifier.hpp"
#include "dsv41/runtime/sampler.hpp"

namespace dsv41::runtime {

/// A request's rows of a step.
///
/// Shapes: logits [drafts + 1, choices]; drafts [m]; draft_logits [m, choices] that they were drawn from, at a temperature above 0.
struct RoundRows {
  In<float, 2> logits;
  In<std::int32_t, 1> drafts;
  const float* draft_logits = nullptr;
  Verification verification = Verification::block;
  std::int64_t position = 0;  ///< of the anchor
};

/// Holds memory only, for blocks of up to `draft` tokens, so that a verdict needs none.
class Judge {
 public:
  Judge(std::int64_t draft, std::int64_t choices)
      : choices_(choices),
        sampler_({}, choices),
        target_(static_cast<std::size_t>((draft + 1) * choices)),
        proposal_(static_cast<std::size_t>(draft * choices)) {}

  /// The token behind the last one, which has no drafts. Errors: invalid_argument for a row of no use.
  std::int32_t first_token(In<float, 1> logits, const SamplerOptions& options, std::int64_t position) {
    sampler_.set_options(options);
    return sampler_.sample(logits, position);
  }

  /// What the target says of the drafts. A draft whose own row is of no use (NaN) is the last one that is judged: whether one is follows
  /// from those before it, so no law feels it. Where all are accepted it is the round's last token, and fails the next round as it would
  /// fail plain decoding.
  /// Errors: invalid_argument: the anchor's own row is of no use.
  Verdict verdict(const RoundRows& round, const SamplerOptions& options) {
    const std::int64_t drafts = round.drafts.extent(0);
    std::int64_t useful = 0;  // rows
    while (useful <= drafts && is_of_use(round.logits.row(useful))) ++useful;
    if (useful == 0) {
      check_logits(round.logits.row(0), round.position);
      argmax(round.logits.row(0));  // says why there is none
    }
    if (useful > drafts) return judged(round, options, drafts, drafts + 1);
    const Verdict verdict = judged(round, options, useful, useful);
    return verdict.accepted < useful ? verdict : Verdict{.accepted = useful - 1, .next = round.drafts[useful - 1]};
  }

 private:
  static bool is_of_use(In<float, 1> row) noexcept {
    for (std::int64_t v = 0; v < row.extent(0); ++v) {
      if (row[v] != row[v]) return false;
    }
    return numerics::argmax(row.data(), row.extent(0)) >= 0;
  }

  /// The verdict on the first `drafts`. With as few `rows`, the last one stands in for the row behind, of which no token is kept.
  Verdict judged(const RoundRows& round, const SamplerOptions& options, std::int64_t drafts, std::int64_t rows) {
    const In<std::int32_t, 1> ids = round.drafts.rows(0, drafts);
    if (options.temperature == 0) return verify_greedy(ids, round.logits.rows(0, drafts + 1));
    sampler_.set_options(options);
    for (std::int64_t i = 0; i <= drafts; ++i) {
      const double* law = i < rows ? sampler_.probabilities(round.logits.row(i)).data() : target(i - 1);
      std::copy_n(law, choices_, target(i));
    }
    for (std::int64_t i = 0; i < drafts; ++i) {
      draft_law({round.draft_logits + i * choices_, {choices_}}, options.temperature,
                {proposal_.data() + i * choices_, {choices_}});
    }
    return verify(round.verification, {.drafts = ids,
                                       .target = {target_.data(), {drafts + 1, choices_}},
                                       .proposal = {proposal_.data(), {drafts, choices_}},
                                       .anchor = round.position,
                                       .seed = options.seed});
  }

  double* target(std::int64_t i) { return target_.data() + i * choices_; }

  std::int64_t choices_;
  Sampler sampler_;
  std::vector<double> target_, proposal_;  // [draft + 1, choices], [draft, choices]
};

}  // namespace dsv41::runtime
