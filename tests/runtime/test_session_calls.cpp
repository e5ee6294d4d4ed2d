// SPDX-License-Identifier: MIT
//
// Calls that a reviewer broke once: from within a listener, with the session's own tokens, of several wanted rows in a prompt that skips
// layers, in bounded replay, and to the prefix cache from prompts of any length.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv41/runtime/engine.hpp"
#include "session_texts.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"
#include "support/random.hpp"
#include "support/share.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::ModelFolder;
using runtime::Session;

namespace {

ModelFolder golden_folder(const std::string& name) {
  return ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/" + name);
}

std::vector<std::int32_t> tokens(std::int64_t count, std::uint64_t seed = 1) {
  Random random(seed);
  std::vector<std::int32_t> out(static_cast<std::size_t>(count));
  for (std::int32_t& id : out) id = static_cast<std::int32_t>(random.below(60));
  return out;
}

std::vector<float> logits(const Session& session) {
  const In<float, 2> rows = session.logits();
  return {rows.data(), rows.data() + rows.size()};
}

/// What the session answers to one more token.
std::vector<float> next(Session& session) {
  const std::int32_t id = 7;
  session.append({.ids = {&id, 1}});
  return logits(session);
}

}  // namespace

TEST_CASE(
    "a listener may look at sessions; every call on them or their engine is busy, and the outer one is not disturbed") {
  const ModelFolder folder = golden_folder("01-all-mechanisms");
  Engine engine(folder, {.max_context = 256, .max_rows = 16});
  Session session = engine.open_session(), other = engine.open_session(), plain = engine.open_session();
  const auto ids = tokens(100);
  other.append({.ids = ids});
  plain.append({.ids = ids});
  struct Meddler : runtime::StepListener {
    Session *session, *other;
    Engine* engine;
    std::vector<Errc> met;
    std::vector<std::int64_t> positions;
    void step_done(std::int64_t) override {
      const std::int32_t id = 1;
      positions.push_back(session->position());
      CHECK(std::ssize(session->tokens()) == session->position());
      const runtime::SessionFeed feed{other, {.ids = {&id, 1}}};
      met.push_back(failure_of([&] { session->rewind(0); }).code);
      met.push_back(failure_of([&] { other->append({.ids = {&id, 1}}); }).code);
      met.push_back(failure_of([&] { (void)session->fork(); }).code);
      met.push_back(failure_of([&] { (void)saved(*session); }).code);
      met.push_back(failure_of([&] { other->sync_to({.ids = {&id, 1}}); }).code);
      met.push_back(failure_of([&] { other->rerun_last(); }).code);
      met.push_back(failure_of([&] { engine->step({&feed, 1}); }).code);
      met.push_back(failure_of([&] { (void)engine->open_session(); }).code);
    }
  } meddler;
  meddler.session = &session, meddler.other = &other, meddler.engine = &engine;
  session.append({.ids = ids}, {.listener = &meddler});
  CHECK(meddler.positions == std::vector<std::int64_t>{16, 32, 48, 64, 80, 96, 100});
  CHECK(meddler.met == std::vector<Errc>(7 * 8, Errc::busy));
  CHECK(logits(session) == logits(plain));
  CHECK(next(session) == next(plain));
  CHECK(next(other) == logits(session));
}

TEST_CASE("a session may be fed its own tokens, also when the prefix cache takes over its beginning") {
  const ModelFolder folder = golden_folder("01-all-mechanisms");
  Engine engine(folder, {.max_context = 1024, .prefix_bytes = 1 << 22});
  Engine plain_engine(folder, {.max_context = 1024});
  const auto ids = tokens(400);
  Session session = engine.open_session(), plain = plain_engine.open_session();
  session.append({.ids = ids});
  session.append({.ids = session.tokens()});
  plain.append({.ids = ids});
  plain.append({.ids = ids});
  CHECK(logits(session) == logits(plain));
  session.rewind(194);
  session.sync_to({.ids = session.tokens(), .logit_rows = 2});
  plain.rewind(0);
  plain.append({.ids = std::span(ids).first(194), .logit_rows = 2});
  CHECK(session.position() == 194);
  CHECK(logits(session) == logits(plain));
}

TEST_CASE("exact prefill: all logits that it gives are full's, up to a window of them") {
  for (const char* name : {"01-all-mechanisms", "04-ratio-4", "13-deployed"}) {
    INFO(name);
    const ModelFolder folder = golden_folder(name);
    Engine exact(folder, {.max_context = 512, .max_rows = 40, .prefill = Prefill::exact}),
        full(folder, {.max_context = 512});
    const auto ids = tokens(193);
    for (const std::int64_t wanted : {std::int64_t{2}, exact.config().window}) {
      Session a = exact.open_session(), b = full.open_session();
      a.append({.ids = ids, .logit_rows = wanted});
      b.append({.ids = ids, .logit_rows = wanted});
      CHECK(a.logits().extent(0) == wanted);
      CHECK(logits(a) == logits(b));
      CHECK(next(a) == next(b));
    }
  }
}

TEST_CASE("bounded replay: a rewind into the prompt makes the beginning one prompt, saved or not, run again or not") {
  for (const char* name : {"03-source-at-layer-0", "04-ratio-4", "07-eight-streams-softmax"}) {
    INFO(name);
    const ModelFolder folder = golden_folder(name);
    Engine engine(folder, {.max_context = 512, .prefill = Prefill::replay});
    const auto ids = tokens(101);
    const auto fresh = [&](std::int64_t n) {
      Session session = engine.open_session();
      session.append({.ids = std::span(ids).first(static_cast<std::size_t>(n))});
      return session;
    };
    for (const std::int64_t back : {1, 2, 5, 30}) {
      INFO("back by " << back);
      Session shorter = fresh(101 - back);
      const std::vector<float> want = next(shorter);
      Session session = fresh(101);
      session.rewind(101 - back);
      Session rerun = session.fork(), loaded = engine.open_session(), late = engine.open_session();
      restore(loaded, saved(session));
      const Session whole = fresh(101);
      restore(late, saved(whole));
      late.rewind(101 - back);
      rerun.rerun_last();
      for (Session* s : {&session, &rerun, &loaded, &late}) CHECK(next(*s) == want);
    }
    Session again = fresh(101), plain = fresh(101);  // and where nothing went back, a rerun changes nothing
    again.rerun_last();
    CHECK(again.replayed_rows() == 1);
    CHECK(next(again) == next(plain));
  }
}

TEST_CASE("a prompt of any length leaves the prefix cache a beginning with its windows") {
  const ModelFolder folder = golden_folder("01-all-mechanisms");
  for (const Prefill mode : {Prefill::full, Prefill::exact}) {
    for (const std::int64_t length : {64, 65, 100, 127, 128, 150, 191, 200}) {
      if (kShare > 1 && length != 64 && length != 127 && length != 150) continue;
      INFO(prefill_name(mode) << ", " << length << " tokens");
      Engine engine(folder, {.max_context = 512, .max_rows = 48, .prefill = mode, .prefix_bytes = 1 << 22});
      Engine plain_engine(folder, {.max_context = 512});
      auto ids = tokens(length);
      Session first = engine.open_session(), second = engine.open_session(), plain = plain_engine.open_session();
      first.append({.ids = ids});
      const auto more = tokens(30, 2);
      ids.insert(ids.end(), more.begin(), more.end());
      const runtime::SyncReport report = second.sync_to({.ids = ids});
      CHECK(report.reused == length / 64 * 64);
      CHECK(report.recomputed == 0);
      plain.append({.ids = ids});
      CHECK(logits(second) == logits(plain));
      plain.rewind(length);
      CHECK(next(first) == next(plain));
    }
  }
}
