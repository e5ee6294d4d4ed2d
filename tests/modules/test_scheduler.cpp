// SPDX-License-Identifier: MIT
//
// How many drafts a step verifies: the worked examples of dspark.md 8.1, every policy against a second statement of its rule, edges, and
// the budgets of a step. That output keeps the target's law: test_scheduler_law.cpp.
#include "dsv41/modules/dspark/scheduler.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "dsv41/modules/dspark/admission.hpp"
#include "dsv41/modules/dspark/verifier.hpp"
#include "modules/scheduler_case.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"

using namespace dsv41;
using namespace dsv41::test;
using Kind = DraftPolicy::Kind;
using Stopped = StepPlan::Stopped;

namespace {

const float kNan = std::numeric_limits<float>::quiet_NaN();

DraftScheduler fixed(std::int32_t drafts) {
  return DraftScheduler({.kind = Kind::fixed, .drafts = drafts});
}

DraftScheduler threshold(float least) {
  return DraftScheduler({.kind = Kind::threshold, .threshold = least});
}

DraftScheduler early_stop(CostTable table) {
  return DraftScheduler({.kind = Kind::early_stop}, std::move(table));
}

DraftScheduler delayed(CostTable table) {
  return DraftScheduler({.kind = Kind::delayed}, std::move(table));
}

/// Forwards of any size cost the same: every draft pays.
CostTable flat_table() {
  return CostTable({{1, 1.0}}, 1, {{1, 0.0}});
}

/// The batch of examples 6 and 7.
Step example() {
  return Step({{.9f, .8f, .5f}, {.6f, .5f, .9f}});
}

std::vector<double> rates(const StepPlan& plan) {
  std::vector<double> out;
  for (const StepPlan::Prefix& prefix : plan.prefixes) out.push_back(prefix.tokens_per_ms);
  return out;
}

void check_close(const std::vector<double>& got, const std::vector<double>& expected, double margin) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).margin(margin));
}

/// A batch with ties, certain drafts, zeros and NaN now and then, and requests with fewer drafts than others.
Step random_step(Random& random) {
  const std::int64_t requests = 1 + random.below(5), draft = 1 + random.below(5);
  const auto draw = [&] {
    Rows rows(static_cast<std::size_t>(requests), std::vector<float>(static_cast<std::size_t>(draft)));
    for (std::vector<float>& row : rows) {
      for (float& c : row) {
        const std::int64_t kind = random.below(12);
        c = kind == 0 ? 0.0f : kind == 1 ? kNan : kind < 4 ? 1.0f : kind < 7 ? 0.5f : random.uniform(0.05, 1);
      }
    }
    return rows;
  };
  Step step(draw());
  step.stale = draw();
  for (std::size_t r = 0; r < step.drafts.size(); ++r) {
    step.asked[r] = static_cast<std::int32_t>(random.below(draft + 1));
    step.drafts[r] = static_cast<std::int32_t>(random.below(step.asked[r] + 1));
  }
  if (random.below(3) == 0) step.draft_limit = random.below(requests * draft + 1);
  return step;
}

}  // namespace

TEST_CASE("example 5: Algorithm 1 stops at the first draft that does not pay, whatever comes behind it") {
  for (const float second : {.9f, 0.f}) {
    const StepPlan plan = Step({{.8f, second}}).plan(early_stop(table_of_rates({1, .5, .45})));
    CHECK(plan.lengths == Lengths{0});
    CHECK(plan.stopped == Stopped::next_is_no_better);
    check_close(rates(plan), {1.0, 0.9}, 1e-7);
  }
}

TEST_CASE("example 6: Algorithm 1, and the allocations of every budget") {
  const CostTable table = table_of_rates({1, 1, .95, .9, .66, .655, .65, .645});
  const StepPlan plan = example().plan(early_stop(table));
  CHECK(plan.lengths == Lengths{2, 0});
  CHECK(plan.verified == 2);
  CHECK(plan.budget == 2);
  CHECK(plan.stopped == Stopped::next_is_no_better);
  check_close(rates(plan), {2, 2.755, 3.258, 2.7852}, 1e-6);
  std::vector<double> survivals;
  for (const StepPlan::Candidate& c : plan.candidates) survivals.push_back(c.survival);
  check_close(survivals, {.9, .72, .6, .36, .3, .27}, 1e-7);

  const Step step = example();
  check_close(objectives(step.fresh, step.drafts, 6, table), {2, 2.755, 3.258, 2.7852, 2.9999, 3.172, 3.32175}, 1e-6);
  const Lengths expected[] = {{0, 0}, {1, 0}, {2, 0}, {2, 1}, {3, 1}, {3, 2}, {3, 3}};
  for (std::int64_t k = 0; k <= 6; ++k) {
    Step limited = example();
    limited.draft_limit = k;
    const StepPlan got = limited.plan(delayed(flat_table()));
    CHECK(got.lengths == expected[k]);
    CHECK(got.stopped == (k < 6 ? Stopped::draft_limit : Stopped::no_more_drafts));
  }
}

TEST_CASE("example 7: the budget from a table with stairs") {
  const CostTable table({{1, 10}, {2, 10}, {4, 11}, {8, 16}}, 8, {{1, 1}});
  const StepPlan plan = example().plan(delayed(table));
  check_close(rates(plan), {.18182, .24167, .30167, .24824, .26941, .28706, .30294}, 5e-6);
  CHECK(plan.budget == 6);
  CHECK(plan.lengths == Lengths{3, 3});
  CHECK(plan.prefixes[0].step_ms == 11.0);
  CHECK(plan.prefixes[6].step_ms == 17.0);
  CHECK(plan.undrafted_tokens_per_ms == 2.0 / 10.0);
}

TEST_CASE("example 12: expected tokens are one and the survivals' sum") {
  const std::vector<double> marginal = {.739, .478, .261, .174, .130, .087, .043};
  std::vector<float> confidences;
  for (std::size_t k = 0; k < marginal.size(); ++k) {
    confidences.push_back(static_cast<float>(k == 0 ? marginal[k] : marginal[k] / marginal[k - 1]));
  }
  const StepPlan plan = Step({confidences}).plan(delayed(flat_table()));
  CHECK(plan.lengths == Lengths{7});
  CHECK(plan.prefixes.back().tokens == Approx(2.912).margin(1e-6));
}

TEST_CASE("off, fixed and threshold need no costs") {
  const Step step({{.9f, .8f, .5f}, {.6f, .95f, .9f}, {.9f, .9f, .9f}});
  CHECK(step.plan(DraftScheduler({.kind = Kind::off})).lengths == Lengths{0, 0, 0});
  CHECK(step.plan(fixed(0)).lengths == Lengths{0, 0, 0});
  CHECK(step.plan(fixed(2)).lengths == Lengths{2, 2, 2});
  CHECK(step.plan(fixed(9)).lengths == Lengths{3, 3, 3});
  CHECK(step.plan(threshold(.8f)).lengths == Lengths{2, 0, 3});
  CHECK(step.plan(threshold(0)).lengths == Lengths{3, 3, 3});
  CHECK(Step({{0.f, kNan}}).plan(threshold(0)).lengths == Lengths{2});
  CHECK(Step({{1.f, kNan, 1.f}}).plan(threshold(.1f)).lengths == Lengths{1});
  CHECK(step.plan(threshold(0)).stopped == Stopped::by_policy);

  Step capped = step;
  capped.drafts = {1, 0, 3};
  CHECK(capped.plan(fixed(2)).lengths == Lengths{1, 0, 2});
  CHECK(capped.plan(threshold(.8f)).lengths == Lengths{1, 0, 3});

  Step limited = step;  // all first drafts, then second ones
  limited.draft_limit = 4;
  const StepPlan plan = limited.plan(fixed(3));
  CHECK(plan.lengths == Lengths{2, 1, 1});
  CHECK(plan.stopped == Stopped::draft_limit);
  CHECK(limited.plan(threshold(.8f)).lengths == Lengths{2, 0, 2});
}

TEST_CASE("both weighing policies equal their rules said otherwise, on random batches") {
  Random random(61);
  int stopped_early = 0, partial = 0;
  for (int i = 0; i < 4000; ++i) {
    const Step step = random_step(random);
    const CostTable table = random_table(random, 31);
    CAPTURE(i);
    const std::vector<double> fresh = objectives(step.fresh, step.drafts, step.draft_limit, table);
    std::size_t taken = 0;
    while (taken + 1 < fresh.size() && fresh[taken + 1] > fresh[taken]) ++taken;
    const StepPlan greedy = step.plan(early_stop(table));
    REQUIRE(greedy.lengths == top(step.fresh, step.drafts, taken));
    REQUIRE(greedy.verified == static_cast<std::int64_t>(taken));
    stopped_early += greedy.stopped == Stopped::next_is_no_better;

    const std::vector<double> stale = objectives(step.stale, step.asked, step.draft_limit, table);
    const StepPlan plan = step.plan(delayed(table));
    REQUIRE(rates(plan) == stale);  // the same sums in the same order
    REQUIRE(plan.budget == static_cast<std::int64_t>(first_maximum(stale)));
    REQUIRE(plan.lengths == top(step.fresh, step.drafts, first_maximum(stale)));
    REQUIRE(plan.verified <= plan.budget);
    REQUIRE(plan.budget <= step.draft_limit);
    partial += plan.verified > 0 && plan.verified < static_cast<std::int64_t>(plan.candidates.size());
    for (const StepPlan* p : {&greedy, &plan}) {
      REQUIRE(std::accumulate(p->lengths.begin(), p->lengths.end(), std::int64_t{0}) == p->verified);
      Lengths seen(step.fresh.size(), 0);
      for (std::int64_t c = 0; c < p->verified; ++c) {  // each winner follows its request's winners before it
        const StepPlan::Candidate& winner = p->candidates[static_cast<std::size_t>(c)];
        REQUIRE(winner.step == ++seen[static_cast<std::size_t>(winner.request)]);
      }
      REQUIRE(seen == p->lengths);
    }
  }
  CHECK(stopped_early > 500);
  CHECK(partial > 500);
}

TEST_CASE("equal survivals go to the earlier draft, then to the lower request") {
  Step step({{1, 1, 1}, {1, 1, 1}, {1, 1, 1}});
  const Lengths expected[] = {{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {1, 1, 1}, {2, 1, 1}, {2, 2, 1}};
  for (std::int64_t k = 0; k < 6; ++k) {
    step.draft_limit = k;
    CHECK(step.plan(delayed(flat_table())).lengths == expected[k]);
    CHECK(step.plan(early_stop(flat_table())).lengths == expected[k]);
  }
}

TEST_CASE("a draft that gains nothing is not verified: equal objectives go to fewer drafts") {
  // Rows cost 1 ms each and a draft is certain: 1 / 1, 2 / 2, 3 / 3.
  const CostTable table = table_of({1, 2, 3}, 0);
  CHECK(Step({{1, 1}}).plan(early_stop(table)).lengths == Lengths{0});
  CHECK(Step({{1, 1}}).plan(delayed(table)).budget == 0);
}

TEST_CASE("the budget jumps over a stair that stops Algorithm 1") {
  const CostTable stairs({{1, 10}, {2, 14}, {8, 14}}, 8, {{1, 0}});
  const Step step({{.3f, 1, 1, 1, 1}});
  CHECK(step.plan(early_stop(stairs)).lengths == Lengths{0});
  const StepPlan plan = step.plan(delayed(stairs));
  CHECK(plan.lengths == Lengths{5});
  CHECK(plan.prefixes[1].tokens_per_ms < plan.prefixes[0].tokens_per_ms);
}

TEST_CASE("no confidence, a negative one and NaN end a request's drafts") {
  for (const float bad : {0.f, -1.f, kNan}) {
    Step step({{.5f, bad, 1.f}, {bad, 1.f, 1.f}, {.5f, .5f, .5f}});
    CHECK(step.plan(early_stop(flat_table())).lengths == Lengths{1, 0, 3});
    step.stale = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    const StepPlan plan = step.plan(delayed(flat_table()));
    CHECK(plan.budget == 9);
    CHECK(plan.lengths == Lengths{1, 0, 3});
    CHECK(plan.stopped == Stopped::no_more_drafts);
    std::swap(step.stale, step.fresh);  // of two steps ago: they shrink the budget
    CHECK(step.plan(delayed(flat_table())).lengths == Lengths{2, 1, 1});
  }
  const StepPlan above = Step({{2.f, .5f}}).plan(early_stop(flat_table()));
  CHECK(above.candidates[0].survival == 1.0);
  CHECK(above.candidates[1].survival == 0.5);
}

TEST_CASE("survivals are float64 products") {
  const std::vector<float> tiny(5, 1e-30f);  // 1e-150 is no float32
  const StepPlan plan = Step({tiny}).plan(early_stop(flat_table()));
  CHECK(plan.candidates.size() == 5);
  CHECK(plan.candidates[4].survival == Approx(1e-150).epsilon(1e-6));
  CHECK(plan.candidates[4].survival > 0);
}

TEST_CASE("nothing to verify: no requests, no drafts, no budget") {
  for (const DraftScheduler& scheduler :
       {DraftScheduler({.kind = Kind::off}), fixed(5), threshold(0), early_stop(flat_table()), delayed(flat_table())}) {
    CHECK(Step({}).plan(scheduler).lengths.empty());
    Step without = example();
    without.drafts = {0, 0};
    CHECK(without.plan(scheduler).lengths == Lengths{0, 0});
    Step limited = example();
    limited.draft_limit = 0;
    CHECK(limited.plan(scheduler).lengths == Lengths{0, 0});
  }
}

TEST_CASE("drafts behind padding, and those past a request's end, are never planned for") {
  const std::vector<std::int32_t> padded = {7, -1, 9, 9, 9}, whole = {7, 8, 9, 9, 9};
  Step step({std::vector<float>(5, 1.f), std::vector<float>(5, 1.f)});
  const auto useful = [](const std::vector<std::int32_t>& ids, std::int64_t remaining) {
    return static_cast<std::int32_t>(useful_drafts({ids.data(), {5}}, 100, remaining));
  };
  step.drafts = {useful(padded, 50), useful(whole, 4)};
  step.asked = {5, 3};
  for (const DraftScheduler& scheduler : {fixed(5), threshold(0), early_stop(flat_table()), delayed(flat_table())}) {
    CHECK(step.plan(scheduler).lengths == Lengths{1, 3});
  }
}

TEST_CASE("one request on an idle machine verifies everything; a slow drafter shows as drafting that does not pay") {
  const CostTable idle({{1, 20}, {6, 21}}, 6, {{1, 2}});
  const StepPlan good = Step({{.9f, .8f, .8f, .7f, .7f}}).plan(delayed(idle));
  CHECK(good.lengths == Lengths{5});
  CHECK(good.prefixes[static_cast<std::size_t>(good.budget)].tokens_per_ms > good.undrafted_tokens_per_ms);

  const CostTable slow({{1, 20}, {6, 21}}, 6, {{1, 60}});
  const StepPlan bad = Step({{.5f, .5f, .5f, .5f, .5f}}).plan(delayed(slow));
  CHECK(bad.prefixes[static_cast<std::size_t>(bad.budget)].tokens_per_ms < bad.undrafted_tokens_per_ms);
}

TEST_CASE("rows of prompts count as cost and promise nothing until they are sampled") {
  const CostTable table = table_of({1, 1, 1, 1, 1, 1, 5, 9, 13}, 0);
  const std::vector<float> confidences = {.9f, .9f, .9f};
  const std::vector<std::int32_t> drafts = {3};
  StepDrafts step{.confidences = {confidences.data(), {1, 3}},
                  .stale = {confidences.data(), {1, 3}},
                  .drafts = drafts,
                  .asked = drafts};
  StepPlan plan;
  step.plain_rows = 1, step.sampling = 1;
  delayed(table).plan(step, plan);
  CHECK(plan.budget == 3);
  step.plain_rows = 5;  // four of them a prompt's
  delayed(table).plan(step, plan);
  CHECK(plan.budget == 1);
  CHECK(plan.prefixes[0].tokens == 1.0);
  CHECK(plan.prefixes[2].step_ms == 5.0);
}

TEST_CASE("the budget reads confidences of the drafting before; new requests ask for everything") {
  StaleConfidences history(3);
  const auto stale = [&] { return std::vector<float>(history.stale().begin(), history.stale().end()); };
  const std::vector<float> first = {.1f, .2f, .3f}, second = {.4f, .5f}, third = {.6f, .7f, .8f};
  CHECK(stale() == std::vector<float>{1, 1, 1});
  history.publish(0, first);  // anchors start at 0
  CHECK(stale() == std::vector<float>{1, 1, 1});
  history.publish(3, second);
  CHECK(stale() == first);
  history.publish(4, third);
  CHECK(stale() == std::vector<float>{.4f, .5f, 1});
  CHECK(StaleConfidences(0).stale().empty());
}

TEST_CASE("the budget never reads the drafts at hand, also of a request that sits out steps with them") {
  StaleConfidences history(3);
  const auto stale = [&] { return std::vector<float>(history.stale().begin(), history.stale().end()); };
  const std::vector<float> old = {.1f, .2f, .3f}, at_hand = {.4f, .5f, .6f}, next = {.7f, .8f, .9f};
  history.publish(7, old);
  history.publish(9, at_hand);
  for (int step = 0; step < 3; ++step) {  // steps without it: nothing was drafted, or the same is published again
    history.publish(9, {});
    CHECK(stale() == old);
    history.publish(9, at_hand);
    CHECK(stale() == old);
  }
  history.publish(12, {});
  CHECK(stale() == old);
  history.publish(12, next);
  CHECK(stale() == at_hand);

  StaleConfidences anew(3);  // thrown away and drafted again from the same anchor
  anew.publish(7, old);
  anew.publish(7, at_hand);
  CHECK(std::vector<float>(anew.stale().begin(), anew.stale().end()) == std::vector<float>{1, 1, 1});
}

TEST_CASE("the budget follows from what was asked for, not from what came") {
  // One draft does not pay, two do: with one at hand the budget stays two.
  const CostTable table({{1, 10}, {2, 25}, {3, 25}}, 3, {{1, 0}});
  Step step({{1, 1}});
  step.drafts = {1};
  StepPlan plan = step.plan(delayed(table));
  CHECK(plan.budget == 2);
  CHECK(plan.lengths == Lengths{1});
  CHECK(plan.stopped == Stopped::no_more_drafts);
  step.asked = {1};  // known before: the request has two tokens left
  CHECK(step.plan(delayed(table)).budget == 0);
}

TEST_CASE("B77: off and fixed need no confidences; policies that do are refused without") {
  const std::vector<std::int32_t> drafts = {3, 1};
  const std::vector<float> two = {.9f, .9f, .9f, .9f}, six(6, .9f);
  StepDrafts step{.drafts = drafts, .plain_rows = 2, .sampling = 2};
  StepPlan plan;
  DraftScheduler({.kind = Kind::off}).plan(step, plan);
  CHECK(plan.lengths == Lengths{0, 0});
  fixed(2).plan(step, plan);
  CHECK(plan.lengths == Lengths{2, 1});
  step.draft_limit = 3;
  fixed(5).plan(step, plan);
  CHECK(plan.lengths == Lengths{2, 1});
  for (const DraftScheduler& scheduler : {threshold(0), early_stop(flat_table()), delayed(flat_table())}) {
    CHECK(scheduler.policy().needs_confidences());
    const auto failure = [&] { return failure_of([&] { scheduler.plan(step, plan); }); };
    step.confidences = {}, step.stale = {six.data(), {2, 3}}, step.asked = drafts;
    CHECK(failure().code == Errc::invalid_argument);
    CHECK(failure().says("confidences of [0, 0] for 2 counts of up to 3 drafts"));
    step.confidences = {two.data(), {2, 2}};  // a draft more than confidences
    CHECK(failure().says("confidences of [2, 2]"));
    step.confidences = {six.data(), {2, 3}};
    scheduler.plan(step, plan);
    CHECK(plan.lengths == Lengths{2, 1});
  }
  step.asked = {};
  CHECK(failure_of([&] { delayed(flat_table()).plan(step, plan); }).says("stale of [2, 3] for 0 counts"));
  step.asked = drafts, step.stale = {};
  CHECK(failure_of([&] { delayed(flat_table()).plan(step, plan); }).says("stale of [0, 0]"));
  CHECK_FALSE(DraftPolicy{.kind = Kind::off}.needs_confidences());
  CHECK_FALSE(DraftPolicy{.kind = Kind::fixed}.needs_confidences());
}

TEST_CASE("only policies that weigh costs say what a step without drafts is worth") {
  const CostTable table = table_of({1, 2, 3, 4}, 0);
  for (const DraftPolicy policy : {DraftPolicy{.kind = Kind::off}, DraftPolicy{.kind = Kind::fixed, .drafts = 1},
                                   DraftPolicy{.kind = Kind::threshold}}) {
    const StepPlan plan = Step({{.9f, .9f}}).plan(DraftScheduler(policy, table));
    CHECK(plan.prefixes.empty());
    CHECK(plan.undrafted_tokens_per_ms == 0.0);
  }
  CHECK(Step({{.9f, .9f}}).plan(early_stop(table)).undrafted_tokens_per_ms == 1.0);
}

TEST_CASE("a plan that is kept allocates nothing") {
  Random random(62);
  StepPlan plan;
  plan.reserve(64, 5);
  const auto buffers = [&] {
    return std::vector<const void*>{plan.lengths.data(), plan.candidates.data(), plan.stale.data(),
                                    plan.prefixes.data()};
  };
  const std::vector<const void*> before = buffers();
  std::vector<float> confidences(64 * 5);
  const DraftScheduler schedulers[] = {fixed(3), early_stop(flat_table()), delayed(flat_table())};
  for (const std::int32_t requests : {64, 3, 64}) {
    for (float& c : confidences) c = random.uniform(0.5, 1);
    const std::vector<std::int32_t> drafts(static_cast<std::size_t>(requests), 5);
    for (const DraftScheduler& scheduler : schedulers) {
      scheduler.plan({.confidences = {confidences.data(), {requests, 5}},
                      .stale = {confidences.data(), {requests, 5}},
                      .drafts = drafts,
                      .asked = drafts,
                      .plain_rows = requests,
                      .sampling = requests},
                     plan);
      CHECK(buffers() == before);
    }
  }
}

TEST_CASE("policies have names") {
  CHECK(parse_draft_policy("off") == DraftPolicy{.kind = Kind::off});
  CHECK(parse_draft_policy("alg1") == DraftPolicy{.kind = Kind::early_stop});
  CHECK(parse_draft_policy("delayed") == DraftPolicy{});
  CHECK(parse_draft_policy("fixed:3") == DraftPolicy{.kind = Kind::fixed, .drafts = 3});
  CHECK(parse_draft_policy("threshold:0.25") == DraftPolicy{.kind = Kind::threshold, .threshold = .25f});
  for (const char* text :
       {"", "on", "off:", "fixed", "fixed:", "fixed:-1", "fixed:3x", "fixed:99999999999", "threshold:", "threshold:1.5",
        "threshold:nan", "threshold:-0.1", "Alg1", "alg1:2", "delayed "}) {
    const Failure failure = failure_of([&] { parse_draft_policy(text); });
    CAPTURE(text);
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.says("got '" + std::string(text) + "', expected off, fixed:N"));
  }
}

TEST_CASE("a policy out of range, or without the costs that it weighs, is refused") {
  CHECK(failure_of([] { fixed(-1); }).says("fixed:-1, expected at least 0"));
  CHECK(failure_of([] { threshold(1.5f); }).says("expected 0 .. 1"));
  CHECK(failure_of([] { threshold(kNan); }).code == Errc::invalid_argument);
  for (const Kind kind : {Kind::early_stop, Kind::delayed}) {
    CHECK(failure_of([&] { DraftScheduler({.kind = kind}); }).says("need a cost table"));
  }
}

TEST_CASE("B75: draft rows and prompts have budgets of their own") {
  std::vector<RowRequest> prompts(2, RowRequest{.wanted_rows = 8, .wanted_drafts = 4});
  admit_rows(prompts, 16, 16, 0);
  CHECK(prompts[0].rows == 8);
  CHECK(prompts[1].rows == 8);
  CHECK((prompts[0].drafts && prompts[1].drafts));

  std::vector<RowRequest> decoding(5, RowRequest{.wanted_rows = 1, .wanted_drafts = 4});
  admit_rows(decoding, 16, 16, 0);
  std::vector<int> drafted;
  for (const RowRequest& r : decoding) drafted.push_back(r.drafts);
  CHECK(drafted == std::vector<int>{1, 1, 1, 1, 0});

  std::vector<int> rounds(5, 0);
  for (std::int64_t turn = 0; turn < 10; ++turn) {
    admit_rows(decoding, 16, 16, turn);
    for (std::size_t r = 0; r < 5; ++r) {
      CHECK(decoding[r].rows == 1);
      rounds[r] += decoding[r].drafts;
    }
  }
  CHECK(rounds == std::vector<int>(5, 8));
}

TEST_CASE("B75: a budget that ends cuts a prompt, not others' drafts; a cut prompt has no anchor to draft from") {
  std::vector<RowRequest> requests = {{.wanted_rows = 8, .wanted_drafts = 4},
                                      {.wanted_rows = 8, .wanted_drafts = 4},
                                      {.wanted_rows = 1, .wanted_drafts = 4}};
  admit_rows(requests, 12, 8, 2);  // the decoding request has its turn first
  CHECK(requests[2].rows == 1);
  CHECK(requests[0].rows == 8);
  CHECK(requests[1].rows == 3);
  CHECK((requests[2].drafts && requests[0].drafts && !requests[1].drafts));
  admit_rows(std::span<RowRequest>{}, 1, 1, 7);
}

TEST_CASE("B75: a long prompt keeps nobody behind it from decoding, whoever has the first turn") {
  constexpr std::int64_t kBudget = 64, kSteps = 80;
  for (std::size_t prompt = 0; prompt < 8; ++prompt) {
    std::vector<RowRequest> requests(8, RowRequest{.wanted_rows = 1, .wanted_drafts = 4});
    requests[prompt] = {.wanted_rows = 1'000'000, .wanted_drafts = 4};
    std::vector<std::int64_t> served(8, 0), drafted(8, 0);
    for (std::int64_t turn = 0; turn < kSteps; ++turn) {
      admit_rows(requests, kBudget, 7 * 4, turn);
      for (std::size_t r = 0; r < 8; ++r) served[r] += requests[r].rows, drafted[r] += requests[r].drafts;
    }
    std::vector<std::int64_t> rows(8, kSteps), blocks(8, kSteps);
    rows[prompt] = kSteps * (kBudget - 7), blocks[prompt] = 0;
    CHECK(served == rows);
    CHECK(drafted == blocks);
  }
}

TEST_CASE("B75: fewer rows than requests go round: each gets as many as the others") {
  std::vector<RowRequest> requests(8, RowRequest{.wanted_rows = 1});
  requests[3].wanted_rows = 1000;
  std::vector<std::int64_t> served(8, 0);
  for (std::int64_t turn = 0; turn < 80; ++turn) {
    admit_rows(requests, 3, 0, turn);
    for (std::size_t r = 0; r < 8; ++r) served[r] += requests[r].rows;
  }
  CHECK(served == std::vector<std::int64_t>(8, 30));
}

TEST_CASE("B75: drafts to verify are not taken from a step's prompt rows") {
  // 16 prompt rows beside one decoding request: as many drafts as without them when rows cost nothing more.
  const std::vector<float> confidences(10, .9f);
  const std::vector<std::int32_t> drafts = {5, 0};
  StepDrafts step{.confidences = {confidences.data(), {2, 5}},
                  .stale = {confidences.data(), {2, 5}},
                  .drafts = drafts,
                  .asked = drafts};
  StepPlan plan;
  for (const std::int64_t rows : {1, 17}) {
    step.plain_rows = rows, step.sampling = 1, step.draft_limit = 4;
    for (const DraftScheduler& scheduler : {fixed(5), early_stop(flat_table()), delayed(flat_table())}) {
      scheduler.plan(step, plan);
      CHECK(plan.lengths == Lengths{4, 0});
    }
  }
}

TEST_CASE(
    "drafting pauses where tries did not pay, twice as long each time, up to 256 steps; one that pays ends that") {
  DraftPause pause;
  const auto try_once = [&](double tokens, double ms) {
    for (std::int64_t i = 0; i < DraftPause::kTried; ++i) {
      REQUIRE(pause.drafts());
      pause.observe(tokens, ms, 8, 10);
    }
    std::int64_t plain = 0;
    while (plain < 1000 && !pause.drafts()) ++plain;
    return plain;
  };
  CHECK(try_once(9, 10) == 0);
  CHECK(try_once(8, 10) == 8);  // no better is not better
  CHECK(try_once(16, 21) == 16);
  CHECK(try_once(12, 20) == 32);
  CHECK(try_once(17, 20) == 0);
  CHECK(try_once(17, 20) == 0);
  for (const std::int64_t steps : {8, 16, 32, 64, 128, 256, 256, 256}) CHECK(try_once(1, 10) == steps);
}

TEST_CASE("a try is judged by the sums of its steps, and each by its own") {
  DraftPause pause;
  for (int run = 0; run < 3; ++run) {  // seven that lose a little and one that wins more
    for (std::int64_t i = 0; i < DraftPause::kTried; ++i) {
      REQUIRE(pause.drafts());
      i == 3 ? pause.observe(100, 10, 8, 10) : pause.observe(7, 10, 8, 10);
    }
  }
  CHECK(pause.drafts());
  for (std::int64_t i = 0; i < DraftPause::kTried; ++i)
    pause.observe(7, 10, 8, 10);  // what was won before does not count
  CHECK_FALSE(pause.drafts());
  for (std::int64_t i = 1; i < DraftPause::kFirstPause; ++i) CHECK_FALSE(pause.drafts());
  CHECK(pause.drafts());
  pause.observe(7, 1, 8, 10);  // fewer tokens, in a tenth of the time: pays
  for (std::int64_t i = 1; i < DraftPause::kTried; ++i) pause.observe(8, 9, 8, 10);
  CHECK(pause.drafts());
}
