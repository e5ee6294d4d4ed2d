// SPDX-License-Identifier: MIT
//
// The verifier: which drafts of a block the target accepts, and the token behind them, so that what comes out is distributed as the target
// alone would have it; and the draw of the drafts that it judges. Pure functions of one request's rows: no backend, no state, no
// allocation, nothing shared with batch mates (case B68). Commits and caches are the caller's.
//
// A round: the anchor x_0 stands at position P, is the last emitted token and has not run through the target. Drafts x_1 .. x_m take
// P+1 .. P+m. The target runs m + 1 rows, x_0 .. x_m; its row i is the law of position P+1+i, so row 0 judges the first draft (case B70).
// With k accepted, x_1 .. x_k and a next token y are emitted, y at P+k+1. cut_block() says where emission ends; of n emitted tokens the
// last is the next anchor, and exactly the rows 0 .. n-1 are committed: caches, taps, n-gram history, penalties. What later rows wrote is
// hidden by the length and overwritten.
// Source: dspark.md 4, 5, 7.
#pragma once

#include <cstdint>

#include "dsv41/core/hd.hpp"
#include "dsv41/core/view.hpp"
#include "dsv41/numerics/draw.hpp"
#include "dsv41/numerics/rng.hpp"

namespace dsv41 {

/// How the drafts of a request are judged. `rejection` and `block` give the target's law at any temperature. A request at temperature 0
/// takes `greedy`, whatever its mates do.
enum class Verification : std::int32_t {
  greedy = 0,     ///< equality with the largest probability's lowest id; for rows at temperature 0 only
  rejection = 1,  ///< token by token (arXiv 2211.17192)
  block = 2,      ///< jointly; accepts at least as many on average, reads two rows a draft (arXiv 2403.10444)
};

/// One request's drafts, and what target and drafter thought of them.
///
/// Shapes: drafts [m] i32; target [m + 1, vocab] f64; proposal [m, vocab] f64 or empty.
/// Rules:  target: row i is the law of the position behind draft i, after all sampling parameters of the request, as
///         Sampler::probabilities gives it; penalties count the drafts before. proposal: row i is what draft i was drawn from, as
///         draw_draft() left it or draft_law() gives it again, whatever filters the target has. Empty: every draft was certain (greedy
///         drafts, a lookup).
///         Rows sum to 1 up to rounding and hold no NaN.
///         An id outside [0, vocab) ends the drafts: padding, for which nothing was drawn; it and what follows are as if they were not
///         there, and no memory is read for them. A draft that was drawn and then turned out to be forbidden stays as it is: the
///         target's probability of 0 rejects it, and its row of the proposal must still be subtracted.
///         m may depend on anything that is known before draft m is drawn, on nothing later (dspark.md 6.7).
struct DraftBlock {
  In<std::int32_t, 1> drafts;
  In<double, 2> target;
  In<double, 2> proposal = {};
  std::int64_t anchor = 0;  ///< position of x_0
  std::uint64_t seed = 0;   ///< of the request
};

/// What a round gives: x_1 .. x_accepted, then `next`.
struct Verdict {
  std::int64_t accepted = 0;  ///< k
  std::int32_t next = 0;      ///< y: correction or, behind the last draft, bonus

  /// The i-th emitted token, i in [0, accepted].
  DSV41_HD std::int32_t token(In<std::int32_t, 1> drafts, std::int64_t i) const noexcept {
    return i < accepted ? drafts[i] : next;
  }
};

/// u in [0, 1) of the draft `step` behind the anchor (1, 2, ..), or of the token that replaces it.
///
/// Rules: one block for each (seed, position, purpose, step). The step is part of the key although position and purpose are: rejected
///        positions are drafted again from a later anchor, and block verification has then looked at what was drawn there before. The
///        same u twice would bias the later round (iid p = (1/3, 2/3), q = (2/3, 1/3): a second draft would always repeat the first).
DSV41_HD constexpr double round_uniform(std::uint64_t seed, std::int64_t anchor, std::int64_t step,
                                        numerics::Purpose purpose) noexcept {
  return numerics::uniform_below_one(
      numerics::random_block(seed, anchor + step, purpose, static_cast<std::uint32_t>(step)));
}

/// The law of a draft. A function of logits and temperature alone: who keeps the logits (half of q's bytes) has q again at verification,
/// bit for bit.
///
/// Shapes: logits [vocab] f32, Markov bias included, before temperature; q [vocab] f64, empty allowed at temperature 0.
/// Rules:  q = softmax(logits / temperature), float64, no other filter. At temperature 0 q is left alone, and the block has no proposal.
///         Returns the lowest id with the largest logit, which at temperature 0 is the draft; -1 for a row with a NaN or nothing above
///         -infinity, which has no law: q is unspecified then.
/// Cost:   one exp and 24 bytes an id; no allocation.
/// Source: dspark.md 4, 5.6.
DSV41_HD inline std::int32_t draft_law(In<float, 1> logits, double temperature, Out<double, 1> q) noexcept {
  const std::int64_t vocab = logits.extent(0), top = numerics::argmax(logits.data(), vocab);
  for (std::int64_t v = 0; v < vocab; ++v) {
    if (logits[v] != logits[v]) return -1;
  }
  if (top >= 0 && temperature != 0) {
    for (std::int64_t v = 0; v < vocab; ++v) q[v] = numerics::softmax_weight(logits[v], logits[top], temperature);
    numerics::normalise(q.data(), vocab);
  }
  return static_cast<std::int32_t>(top);
}

/// Draws one draft, and leaves the distribution that it was drawn from (case B62).
///
/// Shapes: those of draft_law().
/// Rules:  the id is drawn from q = draft_law() by the inverse distribution function with round_uniform(.., Purpose::draft); at
///         temperature 0 it is draft_law()'s. A row without a law gives -1, which ends this request's drafts; Drafter::next takes it.
/// Cost:   that of draft_law() and one pass over q; no allocation.
DSV41_HD inline std::int32_t draw_draft(In<float, 1> logits, double temperature, std::uint64_t seed,
                                        std::int64_t anchor, std::int64_t step, Out<double, 1> q) noexcept {
  const std::int32_t top = draft_law(logits, temperature, q);
  if (top < 0 || temperature == 0) return top;
  const double u = round_uniform(seed, anchor, step, numerics::Purpose::draft);
  return static_cast<std::int32_t>(numerics::draw(q.data(), logits.extent(0), u));
}

/// Drafts worth a row of the target: those before the first id outside [0, vocab), and at most remaining - 1, for the round emits one
/// token more than it accepts (case B67). `remaining`: tokens that may still be emitted, at least 1, by the request's limit and by the
/// positions behind the anchor.
DSV41_HD inline std::int64_t useful_drafts(In<std::int32_t, 1> drafts, std::int64_t vocab,
                                           std::int64_t remaining) noexcept {
  DSV41_DCHECK(remaining >= 1);
  std::int64_t m = 0;
  while (m < drafts.extent(0) && m < remaining - 1 && drafts[m] >= 0 && drafts[m] < vocab) ++m;
  return m;
}

/// min(scale p / q, 1), the probability to accept what was drawn with probability q; 0 where the target forbids it.
DSV41_HD constexpr double acceptance(double scale, double p, double q) noexcept {
  const double wanted = scale * p;
  return wanted < q ? wanted / q : wanted > 0 ? 1.0 : 0.0;
}

/// What a draft's own law does not cover of the target's: weights max(scale p(v) - q(v), 0), the residual of speculative sampling before it
/// is normalised. With nothing to subtract and scale 1 they are p.
struct Leftover {
  In<double, 1> p;
  const double* q = nullptr;  // null: 1 at `certain`, 0 elsewhere
  std::int32_t certain = -1;  // the draft that took its place for sure; -1: none
  double scale = 1;

  DSV41_HD double operator()(std::int64_t v) const noexcept {
    const double left = scale * p[v] - (q != nullptr ? q[v] : v == certain ? 1.0 : 0.0);
    return left > 0 ? left : 0.0;
  }

  /// Their sum, in ascending id.
  DSV41_HD double mass() const noexcept {
    double total = 0;
    for (std::int64_t v = 0; v < p.extent(0); ++v) total += (*this)(v);
    return total;
  }
};

/// What is left for draft i (from 0) of the block when `scale` is the running ratio before it; token by token that is 1.
DSV41_HD inline Leftover leftover(const DraftBlock& block, std::int64_t i, double scale) noexcept {
  const double* q = block.proposal.empty() ? nullptr : block.proposal.row(i).data();
  return {.p = block.target.row(i), .q = q, .certain = block.drafts[i], .scale = scale};
}

/// Probability that draft i (from 0) is accepted behind accepted ones with the running ratio `scale`: min(scale p / q, 1) at its id. In
/// block verification this is the next running ratio.
DSV41_HD inline double draft_ratio(const DraftBlock& block, std::int64_t i, double scale) noexcept {
  const std::int32_t id = block.drafts[i];
  return acceptance(scale, block.target(i, id), block.proposal.empty() ? 1.0 : block.proposal(i, id));
}

/// Block verification: probability that the block's first i + 1 drafts are accepted, unless more are.
///
/// Rules: S / (S + 1 - ratio), and 1 where that is 0 / 0; S = what is left for the next draft, `ratio` = draft_ratio up to draft i. Of the
///        last draft: its ratio.
DSV41_HD inline double prefix_acceptance(const DraftBlock& block, std::int64_t i, double ratio) noexcept {
  if (i + 1 == block.drafts.extent(0)) return ratio;
  const double left = leftover(block, i + 1, ratio).mass(), all = left + (1 - ratio);
  return all > 0 ? left / all : 1.0;
}

/// Law of the token behind the accepted drafts: probability of v = weights(v) / mass.
struct NextLaw {
  Leftover weights;
  double mass;
};

/// A residual of at most this mass is taken for rounding noise, its draft for one that was rejected although p = q. DeepSpec's guard.
///
/// Rules: a small `scale` (certain drafts judged jointly) makes such a mass of a true residual too. Under both rules the mass is just the
///        probability that a round ends at this draft, given the drafts before it; so taking the target's row instead moves the law of
///        a round's text by at most 1e-8 a draft in total variation.
inline constexpr double kLeastLeftover = 1e-8;

/// Behind all drafts the last row of the target as it is (the bonus); behind fewer the residual of the rejected draft, or its row of the
/// target where the residual's mass is at most kLeastLeftover. `scale` as for leftover().
DSV41_HD inline NextLaw next_law(const DraftBlock& block, std::int64_t accepted, double scale) noexcept {
  if (accepted < block.drafts.extent(0)) {
    const Leftover weights = leftover(block, accepted, scale);
    const double mass = weights.mass();
    if (mass > kLeastLeftover) return {weights, mass};
  }
  return {{.p = block.target.row(accepted)}, 1.0};
}

/// Draws the token behind the accepted drafts. A bonus is the draw of plain decoding: the same u, over the same row, gives the same id as
/// Sampler::sample at that position; so a round without drafts is plain decoding.
DSV41_HD inline std::int32_t draw_next(const DraftBlock& block, std::int64_t accepted, double scale) noexcept {
  const NextLaw law = next_law(block, accepted, scale);
  const std::int64_t step = accepted + 1;
  const bool bonus = accepted == block.drafts.extent(0);
  const double u = bonus ? numerics::uniform_below_one(
                               numerics::random_block(block.seed, block.anchor + step, numerics::Purpose::sample))
                         : round_uniform(block.seed, block.anchor, step, numerics::Purpose::residual);
  return static_cast<std::int32_t>(numerics::draw(law.weights.p.extent(0), law.weights, u * law.mass));
}

/// Greedy: the longest prefix of drafts that equal their row's argmax, and the argmax behind it.
///
/// Shapes: target [m + 1, vocab], logits (f32, NaN refused before) or probabilities; both give the ids of plain greedy decoding, which is
///         the same numerics::argmax. Ties go to the lowest id. Nothing equals the argmax of a row with nothing above -infinity; it
///         ends the round, with -1 as the next token. Nor does an id outside the vocabulary equal any.
/// Cost:   one pass over each of accepted + 1 rows.
template <class T>
DSV41_HD Verdict verify_greedy(In<std::int32_t, 1> drafts, In<T, 2> target) noexcept {
  for (std::int64_t k = 0;; ++k) {
    const auto best = static_cast<std::int32_t>(numerics::argmax(target.row(k).data(), target.extent(1)));
    if (k == drafts.extent(0) || best < 0 || drafts[k] != best) return {.accepted = k, .next = best};
  }
}

/// Judges the drafts of one request.
///
/// Rules:  rejection: draft i is accepted while u < min(p / q, 1), u of Purpose::acceptance; the first that is not ends the block.
///         block: the largest prefix whose u is below its prefix_acceptance(), of all prefixes.
///         The next token is draw_next(). At most one draw of each purpose a position, so a verdict depends on this block alone.
///         Where the target's rows are certain (temperature 0) all three agree; greedy reads logits as well (verify_greedy).
/// Errors: none. Changes nothing: what follows from the verdict happens when the caller commits it (case B72).
/// Cost:   no allocation. Rejection: two passes over one row of p and q. Block: one pass over each row, and those two.
DSV41_HD inline Verdict verify(Verification how, DraftBlock block) noexcept {
  const std::int64_t rows = block.target.extent(0), vocab = block.target.extent(1);
  const std::int64_t m = useful_drafts(block.drafts, vocab, rows);  // without padding
  block.drafts = block.drafts.rows(0, m);
  if (how == Verification::greedy) return verify_greedy(block.drafts, block.target);
  const auto u = [&block](std::int64_t i) {
    return round_uniform(block.seed, block.anchor, i + 1, numerics::Purpose::acceptance);
  };
  std::int64_t accepted = 0;
  double scale = 1;
  if (how == Verification::rejection) {
    while (accepted < m && u(accepted) < draft_ratio(block, accepted, 1)) ++accepted;
  } else {
    double ratio = 1;
    for (std::int64_t i = 0; i < m && ratio > 0; ++i) {  // a ratio of 0 stays 0, and so does the acceptance
      ratio = draft_ratio(block, i, ratio);
      if (u(i) < prefix_acceptance(block, i, ratio)) {
        accepted = i + 1;
        scale = ratio;
      }
    }
  }
  return {.accepted = accepted, .next = draw_next(block, accepted, scale)};
}

/// Where a round's emission ends.
struct BlockCut {
  /// Emitted, at least 1. The last one is the next anchor; as many rows, from the anchor's on, are committed.
  std::int64_t tokens = 0;
  bool stopped = false;  ///< the last one is a stop token
};

/// Cuts what a verdict emits where plain decoding would have stopped: behind the first stop token, which is emitted, and at `remaining`
/// tokens. A stop token that is the last allowed one counts as stopped.
///
/// Rules: remaining >= 1: a request that may emit nothing has no round. Counters, penalties, matchers and texts advance by `tokens` after
///        the cut (case B67). The last emitted token has not run as far as the state is concerned, as in plain decoding, even where it
///        was an accepted draft and its row is there.
DSV41_HD inline BlockCut cut_block(In<std::int32_t, 1> drafts, const Verdict& verdict, In<std::int32_t, 1> stop_ids,
                                   std::int64_t remaining) noexcept {
  DSV41_DCHECK(remaining >= 1);
  BlockCut cut;
  while (cut.tokens <= verdict.accepted && cut.tokens < remaining && !cut.stopped) {
    const std::int32_t id = verdict.token(drafts, cut.tokens++);
    for (std::int64_t s = 0; s < stop_ids.extent(0); ++s) cut.stopped = cut.stopped || id == stop_ids[s];
  }
  return cut;
}

}  // namespace dsv41
