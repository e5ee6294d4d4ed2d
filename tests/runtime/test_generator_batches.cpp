// SPDX-License-Identifier: MIT
//
// Requests together: what one gives is what it gives alone, tokens and logits to the bit, while others join, leave, end and sample by other
// rules beside it; and requests that take turns because a step has not enough rows.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "session_texts.hpp"
#include "small_model.hpp"
#include "speculation.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::Finish;
using runtime::Generator;
using runtime::GeneratorOptions;
using runtime::ModelFolder;
using runtime::Session;
using Kind = DraftPolicy::Kind;

namespace {

constexpr std::int64_t kDraft = 4, kContext = 128;

/// Requests of every kind: greedy, both rules of verification, each filter, stop tokens; prompts from one token to three windows.
std::vector<Wish> wishes(std::size_t count, std::int64_t vocab, bool greedy, std::uint64_t seed) {
  Random random(seed);
  std::vector<Wish> out;
  for (std::size_t i = 0; i < count; ++i) {
    Wish w{.options = {.sampler = {.seed = random.bits()}, .max_tokens = 6 + random.below(14)},
           .prompt = random_ids(1 + random.below(26), vocab, random)};
    runtime::SamplerOptions& s = w.options.sampler;
    const std::size_t kind = greedy ? 0 : i % 5;
    if (kind > 0) s.temperature = static_cast<double>(random.uniform(0.6, 1.4));
    if (kind == 2) s.top_k = 3 + random.below(9);
    if (kind == 3) s.top_p = 0.8;
    if (kind == 4) s.min_p = 0.05;
    if (kind % 2 == 1) w.options.verification = Verification::rejection;
    if (i % 3 == 1) w.options.stop_ids = {static_cast<std::int32_t>(random.below(vocab))};
    out.push_back(std::move(w));
  }
  return out;
}

/// All wishes on one generator, at most `batch` at once, in a random order; now and then one is taken out, and comes in again with its
/// last token as prompt. Returns what each gave in all.
///
/// At a temperature above 0 a request that comes in again begins a round where it would not have: it is left out then.
std::vector<Told> together(Engine& engine, const std::vector<Wish>& all, const GeneratorOptions& options,
                           std::size_t batch, Random& random) {
  Generator generator(engine, options);
  std::vector<Told> told(all.size());
  std::map<std::int64_t, std::size_t> running;  // request: wish
  Record now;
  std::vector<std::size_t> waiting;
  for (std::size_t i = 0; i < all.size(); ++i)
    waiting.insert(waiting.begin() + random.below(std::ssize(waiting) + 1), i);
  const auto collect = [&](std::int64_t id) {
    Told& to = told[running[id]];
    const Told& part = now[id];
    to.tokens.insert(to.tokens.end(), part.tokens.begin(), part.tokens.end());
    to.rows.insert(to.rows.end(), part.rows.begin(), part.rows.end());
    to.finish = part.finish;
    running.erase(id);
    now.erase(id);
  };
  while (!waiting.empty() || generator.active() > 0) {
    while (!waiting.empty() && running.size() < batch && random.below(3) > 0) {
      const Wish& w = all[waiting.back()];
      running[generator.add(engine.open_session(), w.options, w.prompt)] = waiting.back();
      waiting.pop_back();
    }
    const auto step = generator.step();
    record(generator, step, now);
    std::vector<std::int64_t> over;
    for (const runtime::Emission& e : step) {
      if (e.finish != Finish::none) over.push_back(e.request);
    }
    for (const std::int64_t id : over) {
      generator.remove(id);
      collect(id);
    }
    if (running.empty() || random.below(6) > 0) continue;
    const auto [id, which] = *std::next(running.begin(), random.below(std::ssize(running)));
    Session session = generator.remove(id);
    const Wish& w = all[which];
    if (now.contains(id)) collect(id);
    running.erase(id);
    if (w.options.sampler.temperature > 0) continue;
    runtime::RequestOptions rest = w.options;
    rest.max_tokens -= std::ssize(told[which].tokens);
    Ids prompt = w.prompt;
    if (told[which].tokens.empty())
      prompt.erase(prompt.begin(), prompt.begin() + session.position());
    else
      prompt = {told[which].tokens.back()};
    running[generator.add(std::move(session), rest, prompt)] = which;
  }
  return told;
}

/// Whatever comes of `together`, each wish alone gives it; those that were taken out for good, its beginning.
void check_together(const ModelFolder& folder, const EngineOptions& engine_options, const GeneratorOptions& options,
                    const std::vector<Wish>& all, std::int64_t whole_at_least) {
  EngineOptions roomy = engine_options;
  roomy.max_rows = 256;
  Engine lonely(folder, roomy);
  std::vector<Told> want;
  for (const Wish& w : all) want.push_back(alone(lonely, w, options));
  Random random(99);
  std::int64_t whole = 0;
  for (const std::size_t batch : {1u, 3u, 8u}) {
    Engine engine(folder, engine_options);
    const std::vector<Told> got = together(engine, all, options, batch, random);
    for (std::size_t i = 0; i < all.size(); ++i) {
      INFO("policy " << static_cast<int>(options.policy.kind) << ", batch " << batch << ", rows "
                     << engine_options.max_rows << ", request " << i);
      CHECK(got[i].begins(want[i]));
      if (got[i].finish == Finish::none) continue;
      CHECK(got[i] == want[i]);
      ++whole;
    }
  }
  CHECK(whole >= whole_at_least);
}

}  // namespace

TEST_CASE(
    "B68: a request gives in a batch what it gives alone: tokens and logits, whoever joins, leaves and samples beside "
    "it") {
  const SmallModel model(9, larger_config());
  const std::vector<Wish> all = wishes(20, 24, false, 1);
  for (const Prefill prefill : {Prefill::full, Prefill::exact}) {
    for (const Numeric numeric : {Numeric::exact, Numeric::deployed}) {
      for (const char* policy : {"off", "fixed:1", "fixed:4", "threshold:0.3"}) {
        check_together(
            model.folder(),
            {.numeric = numeric, .max_context = kContext, .prefill = prefill, .room = kDraft, .draft = kDraft},
            {.policy = parse_draft_policy(policy)}, all, 20);
      }
    }
  }
}

TEST_CASE("B68: the same with Engram, packed caches and a prefix cache behind the sessions") {
  const ModelFolder folder = every_mechanism();
  check_together(folder, {.max_context = kContext, .room = kDraft + 1, .draft = kDraft, .prefix_bytes = 1 << 20},
                 {.policy = {.kind = Kind::fixed, .drafts = 3}}, wishes(8, 320, false, 2), 8);
}

TEST_CASE(
    "B64, B68: greedy requests give their texts under policies that weigh the whole batch, and where rows are few") {
  const SmallModel model(9, larger_config());
  const std::vector<Wish> all = wishes(16, 24, true, 3);
  for (const std::int64_t max_rows : {1, 4, 7, 256}) {
    for (const char* policy : {"fixed:4", "threshold:0.3", "alg1", "delayed"}) {
      for (const Prefill prefill : {Prefill::full, Prefill::exact}) {
        check_together(
            model.folder(),
            {.max_context = kContext, .max_rows = max_rows, .prefill = prefill, .room = kDraft, .draft = kDraft},
            {.policy = parse_draft_policy(policy), .costs = some_costs()}, all, 3 * 16);
      }
    }
  }
}

TEST_CASE("sampled requests in steps with few rows end like any others, and no step has more rows than it may") {
  // Lengths are cut there, so the text may be another one.
  const SmallModel model(9, larger_config());
  Engine engine(model.folder(), {.max_context = kContext, .max_rows = 5, .room = kDraft, .draft = kDraft});
  Generator generator(engine, {.policy = {.kind = Kind::fixed, .drafts = 4}});
  const std::vector<Wish> all = wishes(8, 24, false, 4);
  for (const Wish& w : all) {
    runtime::RequestOptions options = w.options;
    options.stop_ids.clear();
    generator.add(engine.open_session(), options, w.prompt);
  }
  Record told;
  while (generator.active() > 0) {
    record(generator, generator.step(), told);
    CHECK(generator.last().rows <= 5);
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Told& t = told[static_cast<std::int64_t>(i)];
    CHECK(t.finish == Finish::length);
    CHECK(std::ssize(t.tokens) == all[i].options.max_tokens);
  }
}

TEST_CASE("B75: beside a long prompt everybody has a row before drafts have any, and without rows nothing is drafted") {
  const SmallModel model(9, larger_config());
  Random random(6);
  for (const std::int64_t rows : {1, 8, 9, 10}) {
    Engine engine(model.folder(), {.max_context = 256, .max_rows = rows, .room = kDraft, .draft = kDraft});
    Generator generator(engine, {.policy = {.kind = Kind::fixed, .drafts = 4}});
    const std::int64_t many = rows == 1 ? 1 : 7;
    for (std::int64_t i = 0; i < many; ++i)
      generator.add(engine.open_session(), {.max_tokens = 60}, random_ids(1, 24, random));
    while (generator.stats().rounds < many) generator.step();
    if (rows > 1) generator.add(engine.open_session(), {.max_tokens = 2}, random_ids(60, 24, random));
    const std::int64_t before = generator.stats().drafted;
    for (int i = 0; i < 5; ++i) {
      generator.step();
      INFO(rows << " rows, step " << i);
      CHECK(std::ssize(generator.last().rounds) == many);
      CHECK(generator.last().rows <= rows);
    }
    if (rows == 1) CHECK(generator.stats().drafted == 0);
    if (rows == 8) CHECK(generator.stats().drafted == before);  // seven anchors and a row of the prompt
    if (rows == 10) CHECK(generator.stats().drafted > before);
  }
}

TEST_CASE("drafts that are refused do not enter the prefix cache, and what stands does") {
  const SmallModel model(9, larger_config());
  Engine engine(model.folder(),
                {.max_context = 256, .room = kDraft, .draft = kDraft, .cache_bytes = 4 << 20, .prefix_bytes = 1 << 20});
  Random random(7);
  Session session = engine.open_session();
  const std::int64_t page = session.memory().page_positions;
  const Ids ids = random_ids(page + 20, 24, random);
  const auto feed = [&](std::int64_t begin, std::int64_t count, std::int64_t logit_rows) {
    session.append({.ids = std::span(ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
                    .logit_rows = logit_rows});
  };
  feed(0, page - 2, 1);
  feed(page - 2, 5, runtime::kAllRows);  // crosses the border
  CHECK(engine.memory().prefix_bytes == 0);
  session.commit(1);
  CHECK(engine.memory().prefix_bytes == 0);
  feed(page - 1, 5, runtime::kAllRows);
  session.commit(3);
  feed(page + 2, 1, 1);  // the page stands now
  CHECK(engine.memory().prefix_bytes > 0);
}

TEST_CASE("B75: a long prompt keeps nobody from decoding, and half of a step's rows stay for drafts") {
  const SmallModel model(9, larger_config());
  Engine engine(model.folder(), {.max_context = 256, .max_rows = 16, .room = kDraft, .draft = kDraft});
  Generator generator(engine, {.policy = {.kind = Kind::fixed, .drafts = 4}});
  Random random(5);
  const runtime::RequestOptions options{.max_tokens = 40};
  for (int i = 0; i < 2; ++i) generator.add(engine.open_session(), options, random_ids(4, 24, random));
  generator.step();
  const std::int64_t late = generator.add(engine.open_session(), options, random_ids(100, 24, random));
  std::int64_t steps = 0;
  while (generator.session(late).position() < 100) {
    generator.step();
    const runtime::StepReport& r = generator.last();
    REQUIRE(r.rounds.size() == 2);
    CHECK(r.plan.verified > 0);
    if (++steps < 13) CHECK(r.prompt_rows == 6);  // 16 rows less the 8 that are kept, less an anchor each
    CHECK(r.rows <= 16);
  }
  CHECK(steps == 17);
}
