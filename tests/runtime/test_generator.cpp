// SPDX-License-Identifier: MIT
//
// One request on a generator: at temperature 0 it is plain decoding, to the bit; above, it is the rounds that its policy asks for; it ends
// exactly where plain decoding ends; and what a step reports adds up.
#include "dsv41/runtime/generator.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "dsv41/modules/dspark/calibration.hpp"
#include "small_model.hpp"
#include "speculation.hpp"
#include "support/failure.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Emission;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::Finish;
using runtime::Generator;
using runtime::GeneratorOptions;
using runtime::ModelFolder;
using runtime::RequestOptions;
using Kind = DraftPolicy::Kind;

namespace {

constexpr std::int64_t kDraft = 4;

EngineOptions with_drafts(std::int64_t max_context = 96) {
  return {.max_context = max_context, .room = kDraft, .draft = kDraft};
}

std::vector<GeneratorOptions> policies() {
  std::vector<GeneratorOptions> out;
  for (const char* text : {"off", "fixed:0", "fixed:1", "fixed:4", "threshold:0.3", "alg1", "delayed"})
    out.push_back({.policy = parse_draft_policy(text), .costs = some_costs()});
  return out;
}

/// A model whose greedy text does not go round in a circle at once and whose drafts are right now and then.
struct Setting {
  SmallModel model{9, larger_config()};
  const ModelFolder& folder = model.folder();
  Ids prompt{3, 1, 4, 1, 5, 9, 2, 6};

  Wish wish(double temperature, std::int64_t max_tokens = 48) const {
    return {.options = {.sampler = {.temperature = temperature, .seed = 11}, .max_tokens = max_tokens},
            .prompt = prompt};
  }
};

std::string name_of(const GeneratorOptions& options) {
  return "policy " + std::to_string(static_cast<int>(options.policy.kind)) + ":" +
         std::to_string(options.policy.drafts);
}

}  // namespace

TEST_CASE("B64: at temperature 0 a text and its logits are those of plain decoding, to the bit, under every policy") {
  const Setting s;
  for (const Prefill prefill : {Prefill::full, Prefill::exact}) {
    for (const Numeric numeric : {Numeric::exact, Numeric::deployed}) {
      EngineOptions options = with_drafts();
      options.numeric = numeric, options.prefill = prefill;
      const Told want = plain(s.folder, s.wish(0), options);
      REQUIRE(std::set<std::int32_t>(want.tokens.begin(), want.tokens.end()).size() > 5);
      Engine engine(s.folder, options);
      for (const GeneratorOptions& policy : policies()) {
        INFO(name_of(policy) << ", " << numeric_name(numeric));
        CHECK(alone(engine, s.wish(0), policy) == want);
      }
    }
  }
}

TEST_CASE("B64: the demo's greedy text is the same with its trained drafter, whose drafts are mostly right") {
  const ModelFolder folder = ModelFolder::open(DSV41_DEMO_DIR);
  const Wish wish{.options = {.max_tokens = 40},
                  .prompt = folder.tokenizer->encode("And the LORD said unto Moses, Speak unto the children of")};
  const Told want = plain(folder, wish, {.max_context = 128});
  Engine engine(folder, {.max_context = 128, .draft = 5});
  Generator generator(engine, {.policy = {.kind = Kind::fixed, .drafts = 5}});
  const std::int64_t id = generator.add(engine.open_session(), wish.options, wish.prompt);
  CHECK(finish_all(generator)[id] == want);
  CHECK(generator.stats().emitted > 2 * generator.stats().rounds);
}

TEST_CASE("B68: sampled without drafts a text is Sampler::sample's of plain decoding, token for token") {
  const Setting s;
  Engine with(s.folder, with_drafts()), without(s.folder, {.max_context = 96});
  for (const std::uint64_t seed : {1, 2, 3}) {
    Wish wish = s.wish(1.1);
    wish.options.sampler.seed = seed;
    wish.options.sampler.top_k = 12;
    const Told want = plain(s.folder, wish, {.max_context = 96});
    CHECK(alone(with, wish, {}) == want);
    CHECK(alone(without, wish, {}) == want);
    CHECK(alone(with, wish, {.policy = {.kind = Kind::fixed, .drafts = 0}}) == want);
    const Told few = plain(s.folder, wish, {.max_context = 96}, 7);
    CHECK(alone(with, wish, {.choices = 7}) == few);
    CHECK(std::ranges::max(few.tokens) < 7);
  }
}

TEST_CASE("B62, B67: sampled rounds are those that an engine of its own would run, and end where it would end them") {
  // Every number of tokens, stop tokens at any place of a block, positions that run out: the reference cuts by hand (speculation.hpp).
  const Setting s;
  for (const Verification how : {Verification::rejection, Verification::block}) {
    for (const std::int32_t drafts : {1, 3, 4}) {
      Engine engine(s.folder, with_drafts());
      const GeneratorOptions policy{.policy = {.kind = Kind::fixed, .drafts = drafts}};
      const auto check = [&](Engine& on, const Wish& wish) {
        const Told want = rounds(on, wish, drafts), got = alone(on, wish, policy);
        CHECK(got == want);
        return got;
      };
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        Wish wish = s.wish(0.9, 30);
        wish.options.verification = how;
        wish.options.sampler.seed = seed;
        const Told whole = check(engine, wish);
        CHECK(whole.finish == Finish::length);
        for (std::int64_t most = 1; most <= 9; ++most) {
          wish.options.max_tokens = most;
          CHECK(std::ssize(check(engine, wish).tokens) == most);
        }
        wish.options.max_tokens = 30;
        for (std::size_t at = 0; at < 12; ++at) {
          wish.options.stop_ids = {23, whole.tokens[at]};
          const Told stopped = check(engine, wish);
          const auto first = std::find_if(whole.tokens.begin(), whole.tokens.end(),
                                          [&](std::int32_t id) { return id == 23 || id == whole.tokens[at]; });
          // A stop token ends emission, never what was drafted before it: the text up to there is the same.
          CHECK(stopped.finish == Finish::stop);
          CHECK(stopped.tokens == Ids(whole.tokens.begin(), first + 1));
        }
        wish.options.stop_ids.clear();
        for (std::int64_t context = std::ssize(s.prompt) + 1; context < std::ssize(s.prompt) + 9; ++context) {
          Engine small(s.folder, with_drafts(context));
          const Told out = check(small, wish);
          CHECK(out.finish == Finish::context);
          CHECK(std::ssize(out.tokens) == context - std::ssize(s.prompt));
        }
      }
    }
  }
}

TEST_CASE("B67: at temperature 0 every limit cuts where it cuts plain decoding") {
  const Setting s;
  const Told whole = plain(s.folder, s.wish(0), with_drafts());
  for (const GeneratorOptions& policy : policies()) {
    Engine engine(s.folder, with_drafts());
    for (std::int64_t most = 1; most <= 12; ++most) {
      const Wish wish = s.wish(0, most);
      const Told got = alone(engine, wish, policy);
      INFO(name_of(policy) << ", " << most << " tokens");
      CHECK(got == plain(s.folder, wish, with_drafts()));
      CHECK(got.finish == Finish::length);
      Wish last = wish;  // the last allowed token is a stop token: it counts as stopped
      last.options.stop_ids = {whole.tokens[static_cast<std::size_t>(most - 1)]};
      const Told stopped = alone(engine, last, policy);
      CHECK(stopped == plain(s.folder, last, with_drafts()));
      CHECK(stopped.finish == Finish::stop);
      Engine small(s.folder, with_drafts(std::ssize(s.prompt) + most));
      CHECK(alone(small, s.wish(0), policy) == plain(s.folder, s.wish(0), small.options()));
    }
  }
}

TEST_CASE("a session that has its logits goes on without a prompt, and comes back with all tokens but the last") {
  const Setting s;
  Engine engine(s.folder, with_drafts());
  const Told want = plain(s.folder, s.wish(0), with_drafts());
  runtime::Session session = engine.open_session();
  session.append({.ids = s.prompt, .logit_rows = 4});  // the last of them counts
  Generator generator(engine, {.policy = {.kind = Kind::fixed, .drafts = 4}});
  const std::int64_t first = generator.add(std::move(session), s.wish(0, 20).options);
  CHECK(first == 0);
  Told told = finish_all(generator)[first];
  CHECK(told.begins(want));
  CHECK(generator.active() == 0);
  CHECK(generator.session(first).position() == std::ssize(s.prompt) + 19);
  session = generator.remove(first);
  CHECK(failure_of([&] { generator.session(first); }).code == Errc::invalid_argument);
  CHECK(session.position() == std::ssize(s.prompt) + 19);
  // Its last token is the next prompt; another number, for numbers are never used twice.
  const std::int64_t second = generator.add(std::move(session), s.wish(0, 28).options, {{told.tokens.back()}});
  CHECK(second == 1);
  const Told rest = finish_all(generator)[second];
  told.tokens.insert(told.tokens.end(), rest.tokens.begin(), rest.tokens.end());
  told.rows.insert(told.rows.end(), rest.rows.begin(), rest.rows.end());
  CHECK(told.tokens == want.tokens);
  CHECK(told.rows == want.rows);
}

TEST_CASE("temperatures of confidences, given or learnt, change lengths and never a greedy text") {
  const Setting s;
  const Told want = plain(s.folder, s.wish(0), with_drafts());
  Engine engine(s.folder, with_drafts());
  std::set<std::int64_t> verified;
  const std::vector<double> low(kDraft, 0.05), high(kDraft, 20.0);
  for (const char* policy : {"threshold:0.4", "alg1", "delayed"}) {
    for (int variant = 0; variant < 4; ++variant) {
      Generator generator(engine, {.policy = parse_draft_policy(policy),
                                   .costs = some_costs(),
                                   .temperatures = variant == 1   ? low
                                                   : variant == 2 ? high
                                                                  : std::vector<double>(),
                                   .calibrate_online = variant == 3});
      const std::int64_t id = generator.add(engine.open_session(), s.wish(0).options, s.prompt);
      CHECK(finish_all(generator)[id] == want);
      if (generator.options().policy.kind == Kind::threshold) verified.insert(generator.stats().verified);
    }
  }
  CHECK(verified.size() >= 3);
}

TEST_CASE(
    "what is learnt online is what OnlineTemperatures learns of the verdicts, and what confidences are divided by") {
  const Setting s;
  Engine engine(s.folder, with_drafts()), again(s.folder, with_drafts());
  Generator generator(engine, {.policy = {.kind = Kind::fixed, .drafts = 3}, .calibrate_online = true});
  generator.add(engine.open_session(), s.wish(0.9, 60).options, s.prompt);
  OnlineTemperatures learnt(kDraft);
  std::int64_t judged = 0;
  runtime::Session session = again.open_session();
  session.append({.ids = s.prompt});
  Ids text;
  while (generator.active() > 0) {
    const auto step = generator.step();
    const runtime::StepReport& report = generator.last();
    if (!report.rounds.empty() && report.rounds[0].drafted > 0) {
      const runtime::RoundReport& round = report.rounds[0];
      std::vector<float> z(static_cast<std::size_t>(round.drafted)), c(z.size());
      Ids drafts(z.size());
      const runtime::SessionDraft one{.session = &session,
                                      .anchor = text.back(),
                                      .temperature = 0.9,
                                      .seed = 11,
                                      .tokens = drafts,
                                      .confidences = z};
      again.draft({&one, 1});
      calibrate_confidences(z, learnt.temperatures(), c);
      CHECK(std::equal(c.begin(), c.end(), report.confidences.begin()));
      for (std::size_t k = c.size(); k < report.confidences.size(); ++k) CHECK(std::isnan(report.confidences[k]));
      if (round.verified > 0) {
        z.resize(kDraft, 0.0f);
        learnt.update({z.data(), {1, kDraft}}, {{round.verified}}, {{round.accepted}});
        ++judged;
      }
    }
    for (const std::int32_t id : step[0].tokens) {
      if (!text.empty()) session.append({.ids = {&text.back(), 1}});
      text.push_back(id);
    }
  }
  CHECK(judged > 10);
  CHECK(learnt.temperatures()[0] != 1);
}

TEST_CASE("reports and sums add up, step by step") {
  const Setting s;
  for (const GeneratorOptions& policy : policies()) {
    INFO(name_of(policy));
    Engine engine(s.folder, with_drafts(200));
    Generator generator(engine, policy);
    Random random(8);
    std::int64_t requests = 0, told = 0, rounds = 0, forwards = 0, drafted = 0, verified = 0, accepted = 0, emitted = 0;
    double plain_ms = 0, plain_tokens = 0, ms = 0, tokens = 0;
    for (; requests < 5; ++requests) {
      Wish wish = s.wish(requests % 2 == 0 ? 0 : 1, 40 + requests);
      generator.add(engine.open_session(), wish.options, random_ids(5 + 3 * requests, 24, random));
    }
    while (generator.active() > 0) {
      const std::int64_t before = generator.stats().drafted;
      for (const Emission& e : generator.step()) told += std::ssize(e.tokens);
      const runtime::StepReport& r = generator.last();
      forwards += r.rounds.empty() ? 0 : 1;
      REQUIRE(r.plan.lengths.size() == r.rounds.size());
      REQUIRE(r.confidences.size() == r.rounds.size() * kDraft);
      std::int64_t rows = r.prompt_rows, fresh = 0;
      for (std::size_t i = 0; i < r.rounds.size(); ++i) {
        const runtime::RoundReport& round = r.rounds[i];
        CHECK((0 <= round.accepted && round.accepted <= round.verified && round.verified <= round.drafted));
        CHECK((1 <= round.emitted && round.emitted <= round.accepted + 1));
        CHECK(round.verified == r.plan.lengths[i]);
        CHECK(generator.session(round.request).position() == round.anchor + round.emitted);
        ++rounds, verified += round.verified, accepted += round.accepted, emitted += round.emitted;
        rows += 1 + round.verified, fresh += round.drafted;
      }
      CHECK(rows == r.rows);
      CHECK(generator.stats().drafted - before == fresh);  // rows for all: nobody waits with drafts at hand
      drafted += fresh;
      CHECK(((r.draft_ms > 0) == (fresh > 0)));
      CHECK(r.step_ms > 0);
      CHECK((policy.policy.kind == Kind::off ? !r.drafting : true));
      CHECK((fresh > 0 ? r.drafting : true));
      if (!policy.policy.needs_costs()) continue;
      const double plain_rows = static_cast<double>(r.rounds.size());  // each samples; prompts end in the first step
      const double sampling = r.prompt_rows > 0 ? 5 : plain_rows;
      const std::int64_t undrafted = r.rows - r.plan.verified;
      if (r.rounds.empty()) continue;
      plain_tokens += sampling, plain_ms += policy.costs->verify_ms(undrafted);
      if (r.drafting) {
        const StepPlan::Prefix& chosen = r.plan.prefixes[static_cast<std::size_t>(r.plan.budget)];
        tokens += chosen.tokens, ms += chosen.step_ms;
      } else {
        tokens += sampling, ms += policy.costs->verify_ms(undrafted);
      }
    }
    const runtime::GeneratorStats& t = generator.stats();
    CHECK(t.target_forwards == forwards);
    CHECK(t.rounds == rounds);
    CHECK(t.drafted == drafted);
    CHECK(t.verified == verified);
    CHECK(t.accepted == accepted);
    CHECK(t.emitted == emitted);
    CHECK(told == emitted + requests);
    CHECK(told == 40 + 41 + 42 + 43 + 44);
    CHECK(t.verified <= t.drafted);
    CHECK(std::accumulate(t.verified_at.begin(), t.verified_at.end(), std::int64_t{0}) == verified);
    CHECK(std::accumulate(t.accepted_at.begin(), t.accepted_at.end(), std::int64_t{0}) == accepted);
    CHECK(std::ranges::is_sorted(t.accepted_at, std::greater<>()));
    CHECK(std::ranges::is_sorted(t.verified_at, std::greater<>()));
    CHECK((policy.policy.kind == Kind::fixed && policy.policy.drafts > 0 ? accepted > 0 : true));
    CHECK(t.predicted_gain().has_value() == policy.policy.needs_costs());
    if (!policy.policy.needs_costs()) continue;
    CHECK(t.plain_tokens == Approx(plain_tokens));
    CHECK(t.plain_ms == Approx(plain_ms));
    CHECK(t.expected_tokens == Approx(tokens));
    CHECK(t.expected_ms == Approx(ms));
    CHECK(*t.predicted_gain() == Approx(tokens / ms / (plain_tokens / plain_ms)));
  }
}

TEST_CASE("B63: a delayed budget reads the confidences of the drafting before, a request's first steps ask for all") {
  const Setting s;
  Engine engine(s.folder, with_drafts(200));
  const CostTable costs({{1, 20}, {256, 40}}, 0, {{1, 0}});
  Generator generator(engine, {.policy = {.kind = Kind::delayed}, .costs = costs});
  generator.add(engine.open_session(), s.wish(1, 40).options, s.prompt);
  std::vector<float> before;  // of the last drafting
  std::int64_t seen = 0;
  while (generator.active() > 0) {
    generator.step();
    const runtime::StepReport& r = generator.last();
    if (r.rounds.empty() || r.rounds[0].drafted == 0) continue;
    double survival = 1;
    for (std::size_t k = 0; k < r.plan.stale.size(); ++k) {
      survival *= k < before.size() ? static_cast<double>(before[k]) : 1.0;
      CHECK(r.plan.stale[k].survival == Approx(survival));
    }
    seen += !before.empty() && !r.plan.stale.empty();
    before.assign(r.confidences.begin(), r.confidences.begin() + r.rounds[0].drafted);
  }
  CHECK(seen > 5);
}

TEST_CASE("a delayed generator whose drafts earn less than they cost goes plain for a while, and then tries again") {
  const Setting s;
  Engine engine(s.folder, with_drafts(200));
  // Drafting costs as much as a step and confidences say that it pays: only what came of it tells otherwise.
  const CostTable costs({{1, 10}, {256, 10}}, 0, {{1, 40}});
  const std::vector<double> sure(kDraft, 1e-3);
  Generator generator(engine, {.policy = {.kind = Kind::delayed}, .costs = costs, .temperatures = sure});
  generator.add(engine.open_session(), s.wish(0, 60).options, s.prompt);
  std::vector<bool> drafting;
  while (generator.active() > 0) {
    generator.step();
    if (!generator.last().rounds.empty()) drafting.push_back(generator.last().drafting);
  }
  REQUIRE(drafting.size() > DraftPause::kTried + DraftPause::kFirstPause + 1);
  for (std::size_t i = 0; i < DraftPause::kTried; ++i) CHECK(drafting[i]);
  for (std::size_t i = 0; i < DraftPause::kFirstPause; ++i) CHECK_FALSE(drafting[DraftPause::kTried + i]);
  CHECK(drafting[DraftPause::kTried + DraftPause::kFirstPause]);
}
