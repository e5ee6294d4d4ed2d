// SPDX-License-Identifier: MIT
//
// The profiler: which steps it runs, that the table has their sizes, and that the engine is as before however it ends. Never the times
// themselves, which are the machine's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv41/runtime/cost_table_file.hpp"
#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/profiler.hpp"
#include "session_texts.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/random.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::ModelFolder;
using runtime::profile_costs;
using runtime::ProfileOptions;
using runtime::Session;

namespace {

using Sizes = std::vector<std::int64_t>;

/// The smallest folder whose drafter has a confidence head.
ModelFolder drafting_model() {
  return ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/01-all-mechanisms");
}

/// Its context leaves no position to a session that would grow by what it measured.
constexpr EngineOptions kEngine{.max_context = 48, .max_rows = 16, .draft = 3};
constexpr std::int64_t kLongest = 48 - 1 - 3;

Sizes sizes_of(const CostCurve& curve) {
  Sizes out;
  for (const CostPoint& point : curve.points()) out.push_back(point.size);
  return out;
}

bool all_took_time(const CostCurve& curve) {
  return std::ranges::all_of(curve.points(), [](const CostPoint& p) { return std::isfinite(p.ms) && p.ms > 0; });
}

/// Writes down each step's rows and the engine's memory behind it; cancels at the step of number `stop`.
struct Watcher : runtime::StepListener {
  explicit Watcher(const Engine& engine, std::size_t stop = SIZE_MAX) : engine(&engine), stop(stop) {}
  void step_done(std::int64_t tokens) override {
    steps.push_back(tokens);
    most_bytes = std::max(most_bytes, engine->memory().used_bytes);
    if (steps.size() == stop) cancel.request();
  }
  runtime::StepControl control() { return {.cancel = &cancel, .listener = this}; }

  const Engine* engine;
  std::size_t stop;
  CancelToken cancel;
  Sizes steps;
  std::int64_t most_bytes = 0;
};

Sizes steps_of(Engine& engine, const ProfileOptions& options) {
  Watcher watcher(engine);
  profile_costs(engine, options, watcher.control());
  return watcher.steps;
}

/// A session of the engine that is under way, and what it would say next if nobody else had been there.
class Bystander {
 public:
  explicit Bystander(Engine& engine) : engine_(engine), session_(engine.open_session()) {
    session_.append({.ids = std::span(kIds).first(11)});
  }

  void expect_undisturbed() {
    CHECK(session_.position() == 11);
    CHECK(session_.logits().extent(0) == 1);
    session_.append({.ids = std::span(kIds).subspan(11)});
    Session fresh = engine_.open_session();
    fresh.append({.ids = kIds, .logit_rows = 1});
    CHECK(std::ranges::equal(std::span(session_.logits().data(), static_cast<std::size_t>(engine_.config().vocab)),
                             std::span(fresh.logits().data(), static_cast<std::size_t>(engine_.config().vocab))));
    session_.rewind(0);
    session_.append({.ids = std::span(kIds).first(11)});
  }

 private:
  static constexpr std::int32_t kIds[] = {5, 17, 3, 44, 9, 9, 21, 30, 2, 8, 13, 40};
  Engine& engine_;
  Session session_;
};

/// How many more sessions of a page the engine's budget has room for.
int sessions_that_fit(Engine& engine) {
  const std::int32_t id = 7;
  std::vector<Session> held;
  const Failure failure = failure_of([&] {
    for (;;) {
      held.push_back(engine.open_session());
      held.back().append({.ids = {&id, 1}, .logit_rows = 0});
    }
  });
  REQUIRE(failure.code == Errc::out_of_memory);
  return static_cast<int>(held.size()) - 1;
}

}  // namespace

TEST_CASE("a profile has two sizes an octave and the largest, in steps as in drafts") {
  const ModelFolder folder = drafting_model();
  const auto expect = [&](EngineOptions with, std::int64_t max_requests, const Sizes& rows, const Sizes& requests) {
    Engine engine(folder, with);
    const CostTable table = profile_costs(engine, {.context = 1, .max_requests = max_requests, .repeats = 1});
    CHECK(sizes_of(table.verify()) == rows);
    CHECK(sizes_of(table.draft()) == requests);
    CHECK(table.verify().graph_limit() == 0);
    CHECK(all_took_time(table.verify()));
    if (with.draft > 0) CHECK(all_took_time(table.draft()));
  };
  EngineOptions engine = kEngine;
  expect(engine, 1, {1, 2, 3, 4}, {1});
  expect(engine, 3, {1, 2, 3, 4, 6, 8, 12}, {1, 2, 3});
  expect(engine, 7, {1, 2, 3, 4, 6, 8, 12, 16}, {1, 2, 3, 4, 6, 7});
  expect(engine, 100, {1, 2, 3, 4, 6, 8, 12, 16}, {1, 2, 3, 4, 6, 8, 12, 16});
  engine.max_rows = 10;
  expect(engine, 3, {1, 2, 3, 4, 6, 8, 10}, {1, 2, 3});
  engine.max_rows = 256;  // a step then has max_context rows
  engine.max_context = 5;
  expect(engine, 3, {1, 2, 3, 4, 5}, {1, 2, 3});
  engine = kEngine;
  engine.draft = 1;
  expect(engine, 2, {1, 2, 3, 4}, {1, 2});
}

TEST_CASE("without a drafter drafts cost nothing") {
  const ModelFolder folder = drafting_model();
  Engine engine(folder, {.max_context = 48, .max_rows = 16});
  const CostTable table = profile_costs(engine, {.max_requests = 5, .repeats = 1});
  CHECK(sizes_of(table.verify()) == Sizes{1, 2, 3, 4, 5});
  CHECK(std::ranges::equal(table.draft().points(), std::vector<CostPoint>{{1, 0}}));
  CHECK(table.draft_ms(5) == 0);
}

TEST_CASE("each size is run once to warm up and then as often as is asked for, all of them in turn") {
  const ModelFolder folder = drafting_model();
  Engine engine(folder, kEngine);
  const Sizes turn{1, 2, 3, 4, 6, 8, 12};
  Sizes expected{16, 20};  // the context
  for (int i = 0; i < 1 + 3; ++i) expected.insert(expected.end(), turn.begin(), turn.end());
  CHECK(steps_of(engine, {.context = 20, .max_requests = 3, .repeats = 3}) == expected);
  engine = Engine(folder, {.max_context = 48, .max_rows = 2});
  CHECK(steps_of(engine, {.context = 3, .max_requests = 2, .repeats = 1}) == Sizes{2, 3, 1, 2, 1, 2});
}

TEST_CASE("sessions go back after each run, also from the last position of the context") {
  const ModelFolder folder = drafting_model();
  for (const Prefill prefill : {Prefill::full, Prefill::exact, Prefill::replay}) {
    EngineOptions options = kEngine;
    options.prefill = prefill;
    options.max_rows = 64;
    Engine engine(folder, options);
    REQUIRE(engine.prefill() == prefill);
    const Sizes steps = steps_of(engine, {.context = kLongest, .max_requests = 2, .repeats = 2});
    CHECK(steps.front() == kLongest);
    CHECK(std::ssize(steps) == 1 + 3 * 6);
  }
}

TEST_CASE("the context that is not asked for is whole pages, which no measured step goes beyond in a prefix cache") {
  const ModelFolder folder = drafting_model();
  Engine small(folder, kEngine), large(folder, {.max_context = 1024, .max_rows = 1024, .draft = 3});
  CHECK(steps_of(small, {.repeats = 1}).at(2) == kLongest);  // less than a page: all that there is room for
  const std::int64_t page = large.open_session().memory().page_positions;
  CHECK(steps_of(large, {.repeats = 1}).front() == (1024 - 1 - 3) / page * page);
  Sizes kept;
  for (const int repeats : {1, 4}) {
    Engine engine(folder, {.max_context = 2 * page + 2, .draft = 3, .prefix_bytes = 1 << 24});
    profile_costs(engine, {.repeats = repeats});
    kept.push_back(engine.memory().prefix_bytes);
  }
  CHECK(kept[0] > 0);
  CHECK(kept[0] == kept[1]);
}

TEST_CASE("a profile leaves the engine's sessions as they were and its memory free, and shares one context") {
  const ModelFolder folder = drafting_model();
  EngineOptions options = kEngine;
  options.max_context = 1024;
  options.cache_bytes = 1 << 20;
  const ProfileOptions four{.context = 1000, .max_requests = 4, .repeats = 1};
  Engine engine(folder, options), other(folder, options);
  Bystander bystander(engine), of_other(other);
  Watcher watcher(engine);
  profile_costs(engine, four, watcher.control());
  bystander.expect_undisturbed();
  CHECK(sessions_that_fit(engine) == sessions_that_fit(other));
  const runtime::SessionMemory session = other.open_session().memory();
  const std::int64_t context_bytes = (four.context - 1) / session.page_positions * session.page_bytes;
  CHECK(watcher.most_bytes > context_bytes);
  CHECK(watcher.most_bytes <
        3 * context_bytes);  // four of them would not fit in, one with four blocks and last pages does
}

TEST_CASE("a profile is cancelled between any two of its steps and before a draft, and can be made again") {
  const ModelFolder folder = drafting_model();
  EngineOptions with = kEngine;
  with.cache_bytes = 1 << 18;
  Engine engine(folder, with), other(folder, with);
  Bystander bystander(engine), of_other(other);
  const ProfileOptions options{.context = 20, .max_requests = 2, .repeats = 1};
  const std::size_t all = steps_of(engine, options).size();
  REQUIRE(all == 2 + 2 * 6);
  for (std::size_t stop = 1; stop <= all; ++stop) {
    INFO("cancelled at step " << stop);
    Watcher watcher(engine, stop);
    const Failure failure = failure_of([&] { profile_costs(engine, options, watcher.control()); });
    CHECK(failure.code == Errc::cancelled);
    CHECK(watcher.steps.size() == stop);
    const bool draft_is_next = stop > 2 && (stop - 2) % 6 == 0;
    CHECK(failure.says(draft_is_next ? "profile_costs: cancelled" : "step: cancelled"));
    bystander.expect_undisturbed();
  }
  CHECK(sessions_that_fit(engine) == sessions_that_fit(other));
  CHECK(steps_of(engine, options).size() == all);
}

TEST_CASE("a profile without memory for its sessions says so, and gives back what it had") {
  const ModelFolder folder = drafting_model();
  const ProfileOptions options{.max_requests = 3, .repeats = 1};
  int refused = 0;
  bool done = false;
  for (std::int64_t bytes = std::int64_t{1} << 14; !done && bytes < std::int64_t{1} << 19; bytes += bytes / 4) {
    EngineOptions with = kEngine;
    with.cache_bytes = bytes;
    Engine engine(folder, with), other(folder, with);
    if (sessions_that_fit(other) < 2) continue;
    Bystander bystander(engine), of_other(other);
    const Failure failure = failure_of([&] { profile_costs(engine, options); });
    bystander.expect_undisturbed();
    CHECK(sessions_that_fit(engine) == sessions_that_fit(other));
    done = failure.code == Errc::ok;
    if (!done) CHECK(failure.code == Errc::out_of_memory);
    refused += done ? 0 : 1;
  }
  CHECK(refused > 0);
  CHECK(done);
}

TEST_CASE("a profile refuses options that measure nothing, and a call from a listener") {
  const ModelFolder folder = drafting_model();
  Engine engine(folder, kEngine);
  const auto refused = [&](const ProfileOptions& options, const std::string& what) {
    const Failure failure = failure_of([&] { profile_costs(engine, options); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.message.rfind("profile_costs: " + what, 0) == 0);
  };
  refused({.context = -1}, "context is -1, expected 1 to 44, or 0");
  refused({.context = kLongest + 1}, "context is 45, expected 1 to 44, or 0");
  refused({.max_requests = 0}, "max_requests is 0, expected at least 1");
  refused({.repeats = 0}, "repeats is 0, expected 1 to 1000");
  refused({.repeats = 1001}, "repeats is 1001, expected 1 to 1000");
  profile_costs(engine, {.context = kLongest, .repeats = 1});
  struct Meddler : runtime::StepListener {
    explicit Meddler(Engine& engine) : engine(&engine) {}
    void step_done(std::int64_t) override { profile_costs(*engine, {}); }
    Engine* engine;
  } meddler(engine);
  CHECK(failure_of([&] { profile_costs(engine, {}, {.listener = &meddler}); }).code == Errc::busy);
  engine = Engine(folder, {.max_context = 4, .draft = 3});
  refused({}, "EngineOptions::max_context is 4, expected at least 5");
}

TEST_CASE("a profile comes back from its file as it was") {
  const ModelFolder folder = drafting_model();
  Engine engine(folder, kEngine);
  const CostTable table = profile_costs(engine, {.max_requests = 2, .repeats = 2});
  const CostTable again = runtime::parse_cost_table(runtime::cost_table_json(table), "profile");
  CHECK(std::ranges::equal(again.verify().points(), table.verify().points()));
  CHECK(std::ranges::equal(again.draft().points(), table.draft().points()));
  CHECK(again.verify().graph_limit() == table.verify().graph_limit());
}
