// SPDX-License-Identifier: MIT
//
// Losslessness of the scheduler, by enumeration (dspark.md 6.7). Two requests, two drafts each, two tokens; confidences, and whether there
// is a next draft, depend on the tokens before them. All sixteen outcomes of drafting are planned for. A policy must not look at what it
// decides about, and behind the verifier, token by token or jointly, each request's output must have the target's law. The forbidden
// search, over the confidences of the drafts that it admits, must be caught at it.
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "dsv41/modules/dspark/verifier.hpp"
#include "modules/scheduler_case.hpp"
#include "support/catch.hpp"

using namespace dsv41;
using namespace dsv41::test;
using Kind = DraftPolicy::Kind;

namespace {

constexpr std::size_t kDraft = 2, kEmitted = 3;
using Law = std::array<double, 8>;  // of three tokens, the first one the highest bit

/// Probabilities of token 1 behind every prefix: the target's for three positions, the drafter's for two, and confidences.
struct Request {
  std::array<double, 7> p;  // [prefix]: "", 0, 1, 00, 01, 10, 11
  std::array<double, 3> q;
  std::array<float, 3> c;                          // c_1; c_2 behind 0; behind 1
  std::array<bool, 3> there = {true, true, true};  // of the same drafts: not padded, not trimmed
};

/// Index of a prefix of so many of the tokens.
std::size_t prefix(std::array<int, 3> tokens, std::size_t count) {
  std::size_t index = 0;
  for (std::size_t i = 0; i < count; ++i) index = 2 * index + static_cast<std::size_t>(tokens[i]);
  return (std::size_t{1} << count) - 1 + index;
}

double of(double one, int token) {
  return token == 1 ? one : 1 - one;
}

Law target_law(const Request& request) {
  Law law{};
  for (std::size_t i = 0; i < law.size(); ++i) {
    const std::array<int, 3> x = {int(i >> 2 & 1), int(i >> 1 & 1), int(i & 1)};
    law[i] = 1;
    for (std::size_t k = 0; k < kEmitted; ++k) law[i] *= of(request.p[prefix(x, k)], x[k]);
  }
  return law;
}

/// Adds the law of three tokens given these drafts and how many of them are verified; what follows a round comes from the target. The
/// probabilities of acceptance and what is left behind them are the verifier's own.
void add_output(const Request& request, std::array<int, 3> drafts, std::int32_t verified, Verification how,
                double weight, Law& law) {
  const auto continue_from = [&](std::array<int, 3> x, std::size_t count, double w, auto&& self) -> void {
    if (count == kEmitted) {
      law[static_cast<std::size_t>(4 * x[0] + 2 * x[1] + x[2])] += w;
      return;
    }
    for (const int token : {0, 1}) {
      x[count] = token;
      self(x, count + 1, w * of(request.p[prefix(x, count)], token), self);
    }
  };
  std::array<double, 6> target{}, proposal{};
  std::array<std::int32_t, kDraft> ids{};
  for (std::size_t k = 0; k < kEmitted; ++k) {
    for (const int token : {0, 1}) target[2 * k + token] = of(request.p[prefix(drafts, k)], token);
    if (k == kDraft) continue;
    ids[k] = drafts[k];
    for (const int token : {0, 1}) proposal[2 * k + token] = of(request.q[prefix(drafts, k)], token);
  }
  const DraftBlock block{.drafts = {ids.data(), {verified}},
                         .target = {target.data(), {verified + 1, 2}},
                         .proposal = {proposal.data(), {verified, 2}}};
  // reached[k]: the first k drafts are accepted; at least, token by token, and exactly so unless more are, in a block.
  const bool jointly = how == Verification::block;
  std::array<double, kDraft + 1> scale{1, 1, 1}, reached{1, 0, 0}, exactly{};
  for (std::int32_t k = 0; k < verified; ++k) {
    const double ratio = draft_ratio(block, k, scale[k]);
    reached[k + 1] = jointly ? prefix_acceptance(block, k, ratio) : reached[k] * ratio;
    if (jointly) scale[k + 1] = ratio;
  }
  double more = 0;
  for (std::int32_t k = verified; k >= 0; --k) {
    exactly[k] = jointly ? (1 - more) * reached[k] : reached[k] - more;
    more = jointly ? more + exactly[k] : reached[k];
  }
  for (std::int32_t k = 0; k <= verified; ++k) {
    const NextLaw next = next_law(block, k, scale[k]);
    for (const int token : {0, 1}) {
      std::array<int, 3> x = drafts;
      x[k] = token;
      continue_from(x, static_cast<std::size_t>(k) + 1, weight * exactly[k] * next.weights(token) / next.mass,
                    continue_from);
    }
  }
}

struct Model {
  std::array<Request, 2> requests;
};

using Planner = std::function<Lengths(const Rows&, const Lengths&)>;

/// How the sixteen plans of a policy fare.
struct Findings {
  bool looks_ahead = false;  // some draft's fate depends on itself or on later drafts of its request
  double bias = 0;           // largest deviation of an output's probability
};

Findings enumerate(const Model& model, const Planner& planner, Verification how = Verification::rejection) {
  std::array<Lengths, 16> plans;
  std::array<double, 16> weights{};
  const auto drafts_of = [](std::size_t i, std::size_t r) {
    return std::array<int, 3>{int(i >> (2 * r + 1) & 1), int(i >> (2 * r) & 1), 0};
  };
  for (std::size_t i = 0; i < 16; ++i) {
    Rows confidences;
    Lengths at_hand;
    weights[i] = 1;
    for (std::size_t r = 0; r < 2; ++r) {
      const Request& request = model.requests[r];
      const std::array<int, 3> x = drafts_of(i, r);
      confidences.push_back({request.c[0], request.c[prefix(x, 1)]});
      at_hand.push_back(!request.there[0] ? 0 : request.there[prefix(x, 1)] ? 2 : 1);
      for (std::size_t k = 0; k < kDraft; ++k) weights[i] *= of(request.q[prefix(x, k)], x[k]);
    }
    plans[i] = planner(confidences, at_hand);
  }
  Findings findings;
  for (std::size_t r = 0; r < 2; ++r) {
    Law law{};
    for (std::size_t i = 0; i < 16; ++i) {
      add_output(model.requests[r], drafts_of(i, r), plans[i][r], how, weights[i], law);
      for (std::size_t k = 0; k < kDraft; ++k) {
        for (std::size_t later = 0; later < 16; ++later) {  // equal but for draft k of r and those behind it
          bool same = drafts_of(i, 1 - r) == drafts_of(later, 1 - r);
          for (std::size_t b = 0; b < k; ++b) same = same && drafts_of(i, r)[b] == drafts_of(later, r)[b];
          const auto step = static_cast<std::int32_t>(k + 1);
          if (same && (plans[i][r] >= step) != (plans[later][r] >= step)) findings.looks_ahead = true;
        }
      }
    }
    const Law expected = target_law(model.requests[r]);
    for (std::size_t i = 0; i < law.size(); ++i) {
      findings.bias = std::max(findings.bias, std::fabs(law[i] - expected[i]));
    }
  }
  return findings;
}

Model random_model(Random& random) {
  Model model;
  for (Request& request : model.requests) {
    for (double& p : request.p) p = random.uniform(0.05, 0.95);
    for (double& q : request.q) q = random.uniform(0.05, 0.95);
    for (float& c : request.c) c = random.below(6) == 0 ? 0.0f : random.below(6) == 0 ? 1.0f : random.uniform(0.1, 1);
  }
  return model;
}

/// The same with drafts missing behind some prefixes, so that how many there are tells what they are.
Model trimmed(Model model, Random& random) {
  for (Request& request : model.requests)
    request.there = {random.below(8) > 0, random.below(2) > 0, random.below(2) > 0};
  return model;
}

Rows random_confidences(Random& random) {
  return {{random.uniform(0, 1), random.uniform(0, 1)}, {random.uniform(0, 1), random.uniform(0, 1)}};
}

Planner by(const DraftScheduler& scheduler, const Rows& stale = {}, std::int64_t limit = 100) {
  return [=](const Rows& fresh, const Lengths& drafts) {
    Step step(fresh);  // asks for both drafts
    step.drafts = drafts;
    if (!stale.empty()) step.stale = stale;
    step.draft_limit = limit;
    return step.plan(scheduler).lengths;
  };
}

void check_exact(const Model& model, const Planner& planner) {
  for (const Verification how : {Verification::rejection, Verification::block}) {
    const Findings findings = enumerate(model, planner, how);
    REQUIRE_FALSE(findings.looks_ahead);
    REQUIRE(findings.bias < 1e-12);
  }
}

}  // namespace

TEST_CASE("policies without costs keep the target's law, also where rows run short") {
  Random random(63);
  for (int i = 0; i < 60; ++i) {
    const Model whole = random_model(random), model = i % 2 == 0 ? whole : trimmed(whole, random);
    check_exact(model, by(DraftScheduler({.kind = Kind::off})));
    for (std::int64_t limit = 0; limit <= 4; ++limit) {
      for (const std::int32_t drafts : {1, 2}) {
        check_exact(model, by(DraftScheduler({.kind = Kind::fixed, .drafts = drafts}), {}, limit));
      }
      for (const float least : {0.f, .4f, .7f}) {
        check_exact(model, by(DraftScheduler({.kind = Kind::threshold, .threshold = least}), {}, limit));
      }
    }
  }
}

TEST_CASE("Algorithm 1 keeps the target's law on 300 random tables") {
  Random random(64);
  for (int i = 0; i < 300; ++i) {
    const Model model = random_model(random);
    const Planner planner =
        by(DraftScheduler({.kind = Kind::early_stop}, random_table(random, 6)), {}, random.below(6));
    check_exact(model, planner);
    check_exact(trimmed(model, random), planner);
  }
}

TEST_CASE("a delayed budget keeps the target's law, whatever it is") {
  Random random(65);
  std::array<int, 5> seen{};
  for (int i = 0; i < 300; ++i) {
    const Model model = random_model(random);
    const DraftScheduler scheduler({.kind = Kind::delayed}, random_table(random, 6));
    const Rows stale = random_confidences(random);
    check_exact(model, by(scheduler, stale));
    check_exact(trimmed(model, random), by(scheduler, stale));
    const StepPlan plan = Step(stale).plan(scheduler);
    ++seen[static_cast<std::size_t>(plan.budget)];
  }
  for (const int count : seen) CHECK(count > 0);
}

TEST_CASE("the best prefix of the drafts' own confidences is no lossless policy") {
  Random random(66);
  int biased = 0;
  for (int i = 0; i < 300; ++i) {
    const Model model = random_model(random);
    const CostTable table = random_table(random, 6);
    const Planner searching = [&](const Rows& fresh, const Lengths&) { return best_of_fresh(Step(fresh), table); };
    const Findings findings = enumerate(model, searching);
    if (findings.bias > 1e-6) {
      ++biased;
      CHECK(findings.looks_ahead);
    }
    // The same misuse of the library: fresh confidences handed in as those of two steps ago.
    CHECK(enumerate(model, by(DraftScheduler({.kind = Kind::delayed}, table))).bias == findings.bias);
  }
  CHECK(biased >= 3);
}

TEST_CASE("how many drafts came may tell what they are: no policy's law feels it") {
  // One request; a first draft of 0 ends its drafts. With one draft no step pays, with two it does: a budget over the drafts at hand would
  // verify nothing behind 0 and both behind 1, and give token 1 first with .45 in place of .3.
  const CostTable table({{1, 10}, {2, 25}, {3, 25}}, 3, {{1, 0}});
  const Request request{.p = {.3, .3, .3, .3, .3, .3, .3}, .q = {.5, .5, .5}, .c = {1, 1, 1}};
  const Law expected = target_law(request);
  const auto law_of = [&](const auto& lengths) {
    Law law{};
    for (std::size_t i = 0; i < 4; ++i) {
      const std::array<int, 3> x = {int(i >> 1), int(i & 1), 0};
      add_output(request, x, lengths(x[0] == 0 ? 1 : 2), Verification::rejection, .25, law);
    }
    return law;
  };
  for (const char* policy : {"off", "fixed:1", "fixed:2", "threshold:0.5", "alg1", "delayed"}) {
    CAPTURE(policy);
    const DraftScheduler scheduler(parse_draft_policy(policy), table);
    const Law law = law_of([&](std::int32_t at_hand) {
      Step step({{1, 1}});
      step.drafts = {at_hand};
      return step.plan(scheduler).lengths[0];
    });
    for (std::size_t i = 0; i < law.size(); ++i) CHECK(law[i] == Approx(expected[i]).margin(1e-12));
  }
  const Law misused = law_of([&](std::int32_t at_hand) {  // what came, said to be what was asked for
    Step step({{1, 1}});
    step.drafts = step.asked = {at_hand};
    return step.plan(DraftScheduler({.kind = Kind::delayed}, table)).lengths[0];
  });
  CHECK(misused[4] + misused[5] + misused[6] + misused[7] == Approx(.45).epsilon(1e-12));
}

TEST_CASE("example 5: the law that the search on fresh confidences leaves is (.85, .15)") {
  const CostTable table = table_of_rates({1, .5, .45});
  Law law{};
  const Request request{.p = {.3, .3, .3, .3, .3, .3, .3}, .q = {.5, .5, .5}, .c = {.8f, .9f, 0.f}};
  for (const int first : {0, 1}) {
    const Step step({{request.c[0], request.c[first == 0 ? 1 : 2]}});
    const Lengths lengths = best_of_fresh(step, table);
    CHECK(lengths[0] == (first == 0 ? 2 : 0));
    for (const int second : {0, 1})
      add_output(request, {first, second, 0}, lengths[0], Verification::rejection, .25, law);
  }
  CHECK(law[0] + law[1] + law[2] + law[3] == Approx(.85).epsilon(1e-12));
  CHECK(objectives({{.8f, .9f}}, {2}, 2, table)[2] == Approx(1.134).epsilon(1e-6));
  CHECK(objectives({{.8f, .0f}}, {2}, 2, table).size() == 2);  // nothing behind a draft that is never accepted
}

TEST_CASE("cutting a sampled draft off because of what it is changes the law: refused samples go to the verifier") {
  const Request request{.p = {.5, .2, .6, .5, .5, .5, .5}, .q = {.5, .6, .5}, .c = {1, 1, 1}};
  Law cut{}, verified{};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::array<int, 3> x = {int(i >> 1), int(i & 1), 0};
    const double weight = of(request.q[0], x[0]) * of(request.q[prefix(x, 1)], x[1]);
    add_output(request, x, x[1] == 1 ? 1 : 2, Verification::rejection, weight, cut);  // a grammar that dislikes token 1
    add_output(request, x, 2, Verification::rejection, weight, verified);
  }
  const Law expected = target_law(request);
  double bias = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(verified[i] == Approx(expected[i]).margin(1e-12));
    bias = std::max(bias, std::fabs(cut[i] - expected[i]));
  }
  CHECK(bias > .01);
}
