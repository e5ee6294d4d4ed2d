// SPDX-License-Identifier: MIT
//
// What generators and drafting engines refuse, and what goes wrong in the middle of a step: whatever ends it, no request has lost or won a
// token, and the next step goes on as if nothing had been.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "session_texts.hpp"
#include "small_model.hpp"
#include "speculation.hpp"
#include "support/failure.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::Finish;
using runtime::Generator;
using runtime::GeneratorOptions;
using runtime::ModelFolder;
using runtime::RequestOptions;
using runtime::Session;
using runtime::SessionDraft;
using Kind = DraftPolicy::Kind;

namespace {

constexpr std::int64_t kDraft = 4;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

EngineOptions with_drafts(std::int64_t max_context = 64) {
  return {.max_context = max_context, .room = kDraft, .draft = kDraft};
}

struct Setting {
  SmallModel model{9, larger_config()};
  const ModelFolder& folder = model.folder();
  Engine engine{folder, with_drafts()};
  Ids prompt{3, 1, 4, 1, 5};

  Session session(std::int64_t logit_rows = 1) {
    Session out = engine.open_session();
    out.append({.ids = prompt, .logit_rows = logit_rows});
    return out;
  }
};

void check_refused(const std::function<void()>& call, Errc code, const std::string& part) {
  const Failure failure = failure_of(call);
  INFO(failure.message << " | must say: " << part);
  CHECK(failure.code == code);
  CHECK(failure.says(part));
}

/// Three requests, one greedy, two sampled under either rule.
std::vector<Wish> three(const Ids& prompt) {
  std::vector<Wish> out(3);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].prompt = prompt;
    out[i].prompt.resize(prompt.size() + 8 * i, 7);
    out[i].options = {.sampler = {.temperature = i == 0 ? 0.0 : 0.9, .seed = i},
                      .verification = i == 1 ? Verification::rejection : Verification::block,
                      .max_tokens = 20};
  }
  return out;
}

/// Ends a call at its n-th step.
struct Thrower final : runtime::StepListener {
  std::int64_t left;
  explicit Thrower(std::int64_t n) : left(n) {}
  void step_done(std::int64_t) override {
    if (--left <= 0) throw std::runtime_error("the listener has seen enough");
  }
};

}  // namespace

TEST_CASE("B77: a generator refuses options that it could only ignore") {
  Setting s;
  const SmallModel no_head(9, larger_config(), {.without = "confidence_head.proj.weight"});
  Engine plain_engine(s.folder, {.max_context = 64}), headless(no_head.folder(), with_drafts());
  const auto refused = [](Engine& engine, const GeneratorOptions& options, Errc code, const std::string& part) {
    check_refused([&] { Generator(engine, options); }, code, part);
  };
  const DraftPolicy fixed{.kind = Kind::fixed, .drafts = 2};
  refused(s.engine, {.temperatures = {1, 1, 1}}, Errc::invalid_argument, "3 temperatures, expected 4");
  refused(s.engine, {.temperatures = {1, 1, 1, 1}, .calibrate_online = true}, Errc::invalid_argument, "learnt");
  for (const double bad : {0.0, -1.0, kNan, HUGE_VAL})
    refused(s.engine, {.temperatures = {1, bad, 1, 1}}, Errc::invalid_argument, "temperature of draft 2");
  refused(s.engine, {.choices = -1}, Errc::invalid_argument, "choices is -1, expected 1 to 24");
  refused(s.engine, {.choices = 25}, Errc::invalid_argument, "choices is 25");
  refused(s.engine, {.policy = {.kind = Kind::early_stop}}, Errc::invalid_argument, "cost table");
  refused(s.engine, {.policy = {.kind = Kind::delayed}}, Errc::invalid_argument, "cost table");
  refused(s.engine, {.policy = {.kind = Kind::fixed, .drafts = -1}}, Errc::invalid_argument, "fixed:-1");
  refused(s.engine, {.policy = {.kind = Kind::threshold, .threshold = 2}}, Errc::invalid_argument, "threshold:2");
  refused(plain_engine, {.policy = fixed}, Errc::unsupported, "no drafter (EngineOptions::draft is 0)");
  CHECK_FALSE(headless.has_confidence());
  CHECK(s.engine.has_confidence());
  for (const char* policy : {"threshold:0.5", "alg1", "delayed"}) {
    refused(headless, {.policy = parse_draft_policy(policy), .costs = some_costs()}, Errc::unsupported,
            "no confidence head: off and fixed need none");
  }
  // Those two work without it, learning or not, and report no confidence.
  const Wish wish{.options = {.max_tokens = 12}, .prompt = s.prompt};
  const Told want = plain(no_head.folder(), wish, with_drafts());
  for (const bool learns : {false, true}) {
    Generator generator(headless, {.policy = fixed, .calibrate_online = learns});
    const std::int64_t id = generator.add(headless.open_session(), wish.options, wish.prompt);
    Record told;
    while (generator.active() > 0) {
      record(generator, generator.step(), told);
      for (const float c : generator.last().confidences) CHECK(std::isnan(c));
    }
    CHECK(told[id] == want);
    CHECK(generator.stats().verified > 0);
  }
}

TEST_CASE("add refuses what could not run, and the session is the caller's again") {
  Setting s;
  Engine other(s.folder, with_drafts());
  Generator generator(s.engine, {.policy = {.kind = Kind::fixed, .drafts = 2}});
  Session session = s.session();
  const auto refused = [&](const RequestOptions& options, const Ids& prompt, Errc code, const std::string& part) {
    check_refused([&] { generator.add(std::move(session), options, prompt); }, code, part);
    CHECK(generator.active() == 0);
    CHECK(session.position() == std::ssize(s.prompt));
    CHECK(session.logits().extent(0) == 1);
  };
  refused({.sampler = {.temperature = -1}}, {}, Errc::invalid_argument, "temperature");
  refused({.sampler = {.temperature = 1, .top_p = 0}}, {}, Errc::invalid_argument, "top_p");
  refused({.max_tokens = 0}, {}, Errc::invalid_argument, "max_tokens is 0, expected at least 1");
  refused({.stop_ids = {1, 24}}, {}, Errc::invalid_argument, "stop id 24, expected 0 to 23");
  refused({.stop_ids = {-1}}, {}, Errc::invalid_argument, "stop id -1");
  refused({.sampler = {.temperature = 1}, .verification = Verification::greedy}, {}, Errc::invalid_argument,
          "greedy verification at temperature 1");
  refused({}, {1, 24}, Errc::invalid_argument, "token id 24 at index 1");
  refused({}, Ids(60, 1), Errc::out_of_memory, "max_context = 64");
  Session silent = s.session(0);
  check_refused([&] { generator.add(std::move(silent), {}); }, Errc::invalid_argument, "without logits and no prompt");
  CHECK(silent.position() == std::ssize(s.prompt));
  Session foreign = other.open_session(), moved = s.session(), kept = std::move(moved);
  check_refused([&] { generator.add(std::move(foreign), {}, s.prompt); }, Errc::invalid_argument, "another engine");
  check_refused([&] { generator.add(std::move(moved), {}, s.prompt); }, Errc::invalid_argument, "moved from");
  // No position for a first token: behind what the session holds, or behind the prompt.
  Session full = s.engine.open_session(), almost = s.engine.open_session();
  full.append({.ids = Ids(64, 2)});
  check_refused([&] { generator.add(std::move(full), {}); }, Errc::out_of_memory, "max_context = 64");
  check_refused([&] { generator.add(std::move(almost), {}, Ids(64, 2)); }, Errc::out_of_memory, "max_context = 64");
  for (const std::int64_t id : {0, -1}) {
    check_refused([&] { generator.remove(id); }, Errc::invalid_argument, "no request " + std::to_string(id));
    check_refused([&] { generator.session(id); }, Errc::invalid_argument, "no request " + std::to_string(id));
  }
  CHECK(generator.step().empty());  // nobody is there
  CHECK(generator.add(std::move(session), {.max_tokens = 3}) == 0);
  CHECK(finish_all(generator)[0].tokens.size() == 3);
}

TEST_CASE("Engine::draft and EngineOptions::draft refuse with a reason, and draft nothing") {
  Setting s;
  Engine plain_engine(s.folder, {.max_context = 64});
  const SmallModel no_head(9, larger_config(), {.without = "confidence_head.proj.weight"});
  Engine headless(no_head.folder(), with_drafts());
  Session session = s.session(), empty = s.engine.open_session(), bare = plain_engine.open_session();
  Session no_confidence = headless.open_session();
  bare.append({.ids = s.prompt});
  no_confidence.append({.ids = s.prompt});
  Ids ids(kDraft, -7), more(kDraft + 1, -7);
  std::vector<float> logits(5 * 24), confidences(kDraft);
  const SessionDraft good{.session = &session, .anchor = 1, .tokens = ids};
  const auto refused = [&](const SessionDraft& bad, const std::string& part, Engine* engine = nullptr) {
    const SessionDraft both[] = {good, bad};
    check_refused(
        [&] { (engine == nullptr ? s.engine : *engine).draft(engine == nullptr ? both : std::span(&bad, 1)); },
        Errc::invalid_argument, part);
    CHECK(ids == Ids(kDraft, -7));
  };
  Session fork = session.fork();
  const auto with = [&](const auto& change) {
    SessionDraft out{.session = &fork, .anchor = 1, .tokens = ids};
    change(out);
    return out;
  };
  refused(with([&](SessionDraft& d) { d.session = &session; }), "request 1: its session is given twice");
  refused(with([&](SessionDraft& d) { d.session = nullptr; }), "request 1: the session is none");
  refused(with([&](SessionDraft& d) { d.session = &bare; }), "another engine");
  refused(with([&](SessionDraft& d) { d.session = &empty; }), "the session is empty");
  refused(with([&](SessionDraft& d) { d.anchor = -1; }), "anchor is -1, expected 0 to 23");
  refused(with([&](SessionDraft& d) { d.anchor = 24; }), "anchor is 24");
  refused(with([&](SessionDraft& d) { d.tokens = more; }), "5 drafts, expected at most EngineOptions::draft = 4");
  refused(with([&](SessionDraft& d) { d.choices = 25; }), "choices is 25");
  refused(with([&](SessionDraft& d) { d.choices = -1; }), "choices is -1");
  for (const double bad : {-0.5, kNan, HUGE_VAL})
    refused(with([&](SessionDraft& d) { d.temperature = bad; }), "expected a finite number of at least 0");
  refused(with([&](SessionDraft& d) { d.logits = {logits.data(), {kDraft, 23}}; }), "logits is [4, 23], expected");
  refused(with([&](SessionDraft& d) { d.logits = {logits.data(), {5, 24}}; }), "nothing or [4, 24]");
  refused(with([&](SessionDraft& d) { d.confidences = std::span(confidences).first(3); }), "3 confidences, expected");
  const SessionDraft none{.session = &bare, .anchor = 1, .tokens = ids};
  refused(none, "the engine has no drafter (EngineOptions::draft is 0)", &plain_engine);
  const SessionDraft unsure{.session = &no_confidence, .anchor = 1, .tokens = ids, .confidences = confidences};
  refused(unsure, "no confidence head", &headless);
  s.engine.draft({});  // nobody asks
  s.engine.draft({&good, 1});
  CHECK(std::ranges::min(ids) >= 0);

  const auto options = [&](const ModelFolder& folder, std::int64_t room, std::int64_t draft, Errc code,
                           const char* part) {
    check_refused([&] { Engine(folder, {.max_context = 8, .room = room, .draft = draft}); }, code, part);
  };
  options(s.folder, 4, 5, Errc::invalid_argument, "draft is 5, expected 0 to room = 4");
  options(s.folder, 4, -1, Errc::invalid_argument, "draft is -1");
  const std::int64_t window = s.folder.checkpoint.config().window;
  for (const Prefill prefill : {Prefill::exact, Prefill::replay}) {  // a round's rows all need logits (case B95)
    check_refused([&] { Engine(s.folder, {.max_context = 64, .prefill = prefill, .room = window, .draft = window}); },
                  Errc::invalid_argument, "a step gives the logits of at most a window of them");
  }
  nlohmann::json c = small_config();
  for (const char* key : {"num_nextn_predict_layers", "dspark_block_size", "dspark_markov_rank"}) c[key] = 0;
  const SmallModel no_stages(1, c);
  options(no_stages.folder(), 4, 1, Errc::unsupported, "the model has no draft stages");
}

TEST_CASE("a listener may look at the generator, and change nothing of it") {
  Setting s;
  Generator generator(s.engine, {.policy = {.kind = DraftPolicy::Kind::fixed, .drafts = 4}});
  const std::int64_t id = generator.add(s.engine.open_session(), {.max_tokens = 9}, s.prompt);
  Session spare = s.session();
  struct Meddler final : runtime::StepListener {
    Generator& generator;
    Session& spare;
    std::int64_t id;
    int refused = 0;
    Meddler(Generator& generator, Session& spare, std::int64_t id) : generator(generator), spare(spare), id(id) {}
    void step_done(std::int64_t) override {
      CHECK(generator.session(id).position() > 0);
      refused += failure_of([&] { generator.add(std::move(spare), {}); }).code == Errc::busy ? 1 : 0;
      refused += failure_of([&] { generator.remove(id); }).code == Errc::busy ? 1 : 0;
      refused += failure_of([&] { generator.step(); }).code == Errc::busy ? 1 : 0;
    }
  } meddler(generator, spare, id);
  generator.step({.listener = &meddler});
  generator.step({.listener = &meddler});
  CHECK(meddler.refused == 6);
  CHECK(spare.position() == std::ssize(s.prompt));
}

TEST_CASE("Engine::check refuses what append refuses, in the same words but for the verb, and runs nothing") {
  Setting s;
  Engine other(s.folder, with_drafts());
  Session session = s.session(), foreign = other.open_session();
  const auto same = [&](const runtime::Feed& feed) {
    const Failure checked = failure_of([&] { s.engine.check(session, feed); });
    const Failure fed = failure_of([&] { session.append(feed); });
    CHECK(checked.code == fed.code);
    CHECK(checked.code != Errc::ok);
    CHECK(checked.message.substr(checked.message.find(':')) == fed.message.substr(fed.message.find(':')));
    CHECK(session.position() == std::ssize(s.prompt));
  };
  const Ids bad{1, 24}, one{1}, long_one(60, 1);
  const std::vector<std::uint8_t> marks(3, 1);
  same({.ids = {}});
  same({.ids = bad});
  same({.ids = one, .logit_rows = -1});
  same({.ids = one, .image = marks});
  same({.ids = long_one});
  check_refused([&] { s.engine.check(foreign, {.ids = one}); }, Errc::invalid_argument, "another engine");
  s.engine.check(session, {.ids = one});
  CHECK(session.position() == std::ssize(s.prompt));
  CHECK(session.logits().extent(0) == 1);
}

TEST_CASE("B72: a step that was cancelled or whose listener threw has given and taken nothing; the next one goes on") {
  for (const Prefill prefill : {Prefill::full, Prefill::exact}) {
    for (const char* policy : {"off", "fixed:4", "threshold:0.3"}) {
      Setting s;
      EngineOptions options = with_drafts(80);
      options.prefill = prefill;
      const std::vector<Wish> wishes = three(Ids(20, 3));
      const GeneratorOptions generator_options{.policy = parse_draft_policy(policy)};
      Engine lonely(s.folder, options);
      std::vector<Told> want;
      std::int64_t drafted = 0;
      for (const Wish& w : wishes) {
        Generator undisturbed(lonely, generator_options);
        undisturbed.add(lonely.open_session(), w.options, w.prompt);
        want.push_back(finish_all(undisturbed)[0]);
        drafted += undisturbed.stats().drafted;
      }
      for (int how = 0; how < 3; ++how) {
        INFO(prefill_name(prefill) << ", " << policy << ", interrupted " << how);
        options.max_rows = how == 2 ? 40 : 256;  // a prompt of more rows is not alone in them, or takes two steps
        Engine engine(s.folder, options);
        Generator generator(engine, generator_options);
        for (const Wish& w : wishes) generator.add(engine.open_session(), w.options, w.prompt);
        Record told;
        for (std::int64_t steps = 0; generator.active() > 0; ++steps) {
          REQUIRE(steps < 100);
          CancelToken cancelled;
          cancelled.request();
          Thrower thrower(1);
          std::vector<std::int64_t> positions;
          for (std::int64_t id = 0; id < 3; ++id) positions.push_back(generator.session(id).position());
          if (how == 0)
            CHECK(failure_of([&] { generator.step({.cancel = &cancelled}); }).code == Errc::cancelled);
          else
            CHECK_THROWS_AS(generator.step({.listener = &thrower}), std::runtime_error);
          for (std::int64_t id = 0; id < 3; ++id) {  // of a prompt, rows that are through stay
            const std::int64_t now = generator.session(id).position(), before = positions[static_cast<std::size_t>(id)];
            CHECK((told.contains(id) ? now == before : now >= before));
          }
          record(generator, generator.step(), told);
        }
        for (std::size_t i = 0; i < wishes.size(); ++i) CHECK(told[static_cast<std::int64_t>(i)] == want[i]);
        CHECK(generator.stats().drafted == drafted);  // drafts that a failed step left are judged by the next one
      }
    }
  }
}

TEST_CASE(
    "B72: a step without memory for one request's pages leaves the others as they were, and they go on without it") {
  Setting s;
  const std::vector<Wish> wishes = three(Ids(20, 3));
  Session any = s.session();
  const runtime::SessionMemory m = any.memory();
  EngineOptions options = with_drafts();
  options.cache_bytes = 3 * charged(m.table_bytes) + 2 * (charged(m.block_bytes) + charged(m.page_bytes));
  Engine engine(s.folder, options);
  const GeneratorOptions policy{.policy = {.kind = Kind::fixed, .drafts = 3}};
  std::vector<Told> want;
  for (const Wish& w : wishes) want.push_back(alone(s.engine, w, policy));
  Generator generator(engine, policy);
  Record told;
  for (std::size_t i = 0; i < 2; ++i) generator.add(engine.open_session(), wishes[i].options, wishes[i].prompt);
  for (int i = 0; i < 3; ++i) record(generator, generator.step(), told);
  const std::int64_t late = generator.add(engine.open_session(), wishes[2].options, wishes[2].prompt);
  for (int i = 0; i < 2; ++i) CHECK(failure_of([&] { generator.step(); }).code == Errc::out_of_memory);
  Session back = generator.remove(late);
  CHECK(back.position() == 0);
  while (generator.active() > 0) record(generator, generator.step(), told);
  for (std::size_t i = 0; i < 2; ++i) CHECK(told[static_cast<std::int64_t>(i)] == want[i]);
  generator.remove(0);  // its memory is free, so the third has room now
  const std::int64_t again = generator.add(std::move(back), wishes[2].options, wishes[2].prompt);
  CHECK(finish_all(generator)[again] == want[2]);
}

TEST_CASE("a NaN fails the request whose token leads to it, where plain decoding would, and nobody beside it") {
  Setting s;
  const Wish other{.options = {.max_tokens = 24}, .prompt = {20, 11}};
  const Told beside = plain(s.folder, other, with_drafts());
  // A text of which a token is an accepted draft, new to it, and one that the other never meets: the row behind it is NaN.
  Wish doomed{.options = {.max_tokens = 24}};
  Told text;
  std::optional<std::size_t> at;
  for (std::uint64_t seed = 0; !at; ++seed) {
    REQUIRE(seed < 100);
    Random random(seed);
    doomed.prompt = random_ids(5, 24, random);
    Generator healthy(s.engine, {.policy = {.kind = Kind::fixed, .drafts = 4}});
    healthy.add(s.engine.open_session(), doomed.options, doomed.prompt);
    Ids met{doomed.prompt};
    met.insert(met.end(), {20, 11, 23});  // 23: what blocks are padded with
    met.insert(met.end(), beside.tokens.begin(), beside.tokens.end());
    for (std::size_t told = 0; healthy.active() > 0;) {
      const std::span<const std::int32_t> tokens = healthy.step()[0].tokens;
      for (std::size_t i = 0; i < tokens.size(); ++i, ++told) {
        const bool fresh = std::ranges::find(met, tokens[i]) == met.end();
        if (!at && told > 2 && i + 1 < tokens.size() && fresh) at = told;
        met.push_back(tokens[i]);
      }
    }
    text = plain(s.folder, doomed, with_drafts());
  }
  const SmallModel poisoned(9, larger_config(), {.poisoned = text.tokens[*at]});
  for (const char* policy : {"off", "fixed:1", "fixed:4", "threshold:0.3", "delayed"}) {
    INFO(policy);
    Engine engine(poisoned.folder(), with_drafts());
    Generator generator(engine, {.policy = parse_draft_policy(policy), .costs = some_costs()});
    generator.add(engine.open_session(), doomed.options, doomed.prompt);
    generator.add(engine.open_session(), other.options, other.prompt);
    // A prompt that holds the token fails at its first token.
    generator.add(engine.open_session(), doomed.options, {{text.tokens[*at], 1, 2}});
    Record told = finish_all(generator);
    CHECK(told[1] == beside);
    CHECK(told[2].finish == Finish::failed);
    CHECK(told[2].tokens.empty());
    CHECK(told[0].finish == Finish::failed);
    CHECK(told[0].tokens == Ids(text.tokens.begin(), text.tokens.begin() + static_cast<std::ptrdiff_t>(*at) + 1));
    CHECK(told[0].error.find("logits at position " + std::to_string(doomed.prompt.size() + *at) +
                             ": 24 of 24 are NaN") != std::string::npos);
    CHECK(generator.session(0).position() == std::ssize(doomed.prompt) + std::ssize(told[0].tokens) - 1);
  }
  // Sampled token by token the text is the healthy model's up to the token, which is emitted: drafts behind it are not looked at, and where
  // it is drafted and rejected nothing happens.
  Engine engine(poisoned.folder(), with_drafts());
  const GeneratorOptions fixed{.policy = {.kind = Kind::fixed, .drafts = 4}};
  std::int64_t failed = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Wish wish{.options = {.sampler = {.temperature = 0.9, .seed = seed},
                                .verification = Verification::rejection,
                                .max_tokens = 16},
                    .prompt = doomed.prompt};
    Told want = alone(s.engine, wish, fixed);
    const Told got = alone(engine, wish, fixed);
    const auto met = std::ranges::find(want.tokens, text.tokens[*at]);
    const bool fails = met < want.tokens.end() - 1;
    if (fails) want.tokens.erase(met + 1, want.tokens.end());
    CHECK(got.tokens == want.tokens);
    CHECK((got.finish == Finish::failed) == fails);
    failed += fails;
  }
  CHECK(failed > 3);
  CHECK(failed < 37);
}
