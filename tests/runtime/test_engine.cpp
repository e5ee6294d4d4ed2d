// SPDX-License-Identifier: MIT
//
// Engine and Session: inputs longer than a step, sessions in turn, reset, the context's end, image rows, and every refusal.
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dsv41/runtime/engine.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::ModelFolder;
using runtime::Session;

namespace {

/// A golden with an image span: window, ratios 2 and 1, Engram, candidates.
struct Fixture {
  ModelFolder folder = ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/11-image-span");
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> image;

  Fixture() {
    const auto expected =
        runtime::SafetensorsFile::open(std::string(DSV41_GOLDEN_DIR) + "/11-image-span/expected.safetensors");
    tokens = values<std::int32_t>(expected, "tokens");
    image = values<std::uint8_t>(expected, "image");
  }

  std::int64_t count() const { return static_cast<std::int64_t>(tokens.size()); }
  Engine engine(std::int64_t max_rows, std::int64_t more_context = 0) const {
    return Engine(folder, {.max_context = count() + more_context, .max_rows = max_rows});
  }
};

struct Heard : runtime::StepListener {
  void step_done(std::int64_t n) override { tokens.push_back(n); }
  std::vector<std::int64_t> tokens;
};

std::vector<float> last_logits(const Session& session) {
  const In<float, 2> logits = session.logits();
  const float* row = logits.data() + (logits.extent(0) - 1) * logits.extent(1);
  return {row, row + logits.extent(1)};
}

}  // namespace

TEST_CASE("an input longer than a step gives the last token's logits, for any step size") {
  const Fixture f;
  Engine whole = f.engine(f.count());
  Session session = whole.open_session();
  session.append({.ids = f.tokens, .logit_rows = runtime::kAllRows, .image = f.image});
  const std::vector<float> expected = last_logits(session);
  for (const std::int64_t rows : {1, 2, 3, 5, 7, 11}) {
    INFO("max_rows " << rows);
    Engine engine = f.engine(rows);
    Session cut = engine.open_session();
    cut.append({.ids = f.tokens, .image = f.image});
    CHECK(cut.logits().extent(0) == 1);
    CHECK(cut.position() == f.count());
    CHECK(last_logits(cut) == expected);
  }
}

TEST_CASE("prefill modes: exact is full's logits and later ones, replay says so in its class, both report their rows") {
  // Window 8, and the boundary is the first of 4 layers.
  const ModelFolder folder = ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/03-source-at-layer-0");
  std::vector<std::int32_t> prompt(70), next(9, 5);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * i % 61);
  std::vector<std::vector<float>> full, replay;
  for (const Prefill mode : {Prefill::full, Prefill::exact, Prefill::replay}) {
    for (const std::int64_t max_rows : {5, 64, 100}) {
      INFO(prefill_name(mode) << ", max_rows " << max_rows);
      Engine engine(folder, {.max_context = 100, .max_rows = max_rows, .prefill = mode});
      CHECK(engine.prefill() == mode);
      CHECK(engine.prefill_note().empty());
      CHECK(engine.numeric_class() == (mode == Prefill::replay ? "exact, bounded replay" : "exact"));
      Session session = engine.open_session();
      CHECK(session.rows_per_layer().empty());
      Heard heard;
      session.append({.ids = prompt}, {.listener = &heard});
      CHECK(heard.tokens.front() == std::min<std::int64_t>(max_rows, 70));
      CHECK(heard.tokens.back() == 70);
      CHECK(std::ssize(heard.tokens) == (70 + max_rows - 1) / max_rows);
      const auto rows = session.rows_per_layer();
      const std::vector<std::int64_t> expected = mode == Prefill::full    ? std::vector<std::int64_t>(4, 70)
                                                 : mode == Prefill::exact ? std::vector<std::int64_t>{29, 22, 15, 8}
                                                                          : std::vector<std::int64_t>(4, 8);
      CHECK(std::vector<std::int64_t>(rows.begin(), rows.end()) == expected);
      std::vector<std::vector<float>> got{last_logits(session)};
      for (const std::int32_t id : next) {
        session.append({.ids = {&id, 1}});
        CHECK(session.rows_per_layer()[3] == 1);
        got.push_back(last_logits(session));
      }
      const auto window = std::span(prompt).first(8);  // nothing is skipped
      session.append({.ids = window, .logit_rows = max_rows < 8 ? 1 : runtime::kAllRows});
      got.push_back(last_logits(session));
      if (full.empty()) full = got;
      if (mode == Prefill::replay && replay.empty()) replay = got;
      CHECK(got == (mode == Prefill::replay ? replay : full));
      session.rewind(0);
    }
  }
  CHECK(replay[0] != full[0]);
}

TEST_CASE("an append() that its listener ends half way leaves the tokens of the steps before, and goes on from there") {
  struct Stop : runtime::StepListener {
    void step_done(std::int64_t n) override {
      if (n == 6) throw n;
    }
  } stop;
  const Fixture f;
  Engine engine = f.engine(3);
  Session session = engine.open_session(), whole = engine.open_session();
  CHECK_THROWS_AS(session.append({.ids = f.tokens}, {.listener = &stop}), std::int64_t);
  CHECK(session.position() == 6);
  CHECK(session.logits().extent(0) == 0);
  session.append({.ids = std::span(f.tokens).subspan(6)});
  whole.append({.ids = f.tokens});
  CHECK(last_logits(session) == last_logits(whole));
}

TEST_CASE(
    "B95: a mode that skips rows refuses all logits of a longer prompt, and is off, with a reason, without sources") {
  const Fixture f;
  for (const Prefill mode : {Prefill::exact, Prefill::replay}) {
    Engine engine(f.folder, {.max_context = 64, .max_rows = 64, .prefill = mode});
    Session session = engine.open_session();
    const std::vector<std::int32_t> nine(9, 1);  // the window is 8
    const Failure failure = failure_of([&] { session.append({.ids = nine, .logit_rows = runtime::kAllRows}); });
    CHECK(failure.code == Errc::invalid_argument);
    CHECK(failure.message == "append: logits of 9 of 9 tokens under prefill " + std::string(prefill_name(mode)) +
                                 ", which skips rows: expected at most 8, or prefill full");
    CHECK(session.position() == 0);
    session.append({.ids = std::span(nine).first(8), .logit_rows = runtime::kAllRows});
    CHECK(session.logits().extent(0) == 8);
  }
  const ModelFolder windows = ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/02-window-only");
  Engine engine(windows, {.max_context = 64, .max_rows = 64, .prefill = Prefill::replay});
  CHECK(engine.prefill() == Prefill::full);
  CHECK(engine.prefill_note() ==
        "the config has no kv source, so there is no decoder half whose rows could be skipped");
  CHECK(engine.numeric_class() == "exact");
  Session session = engine.open_session();
  session.append({.ids = std::vector<std::int32_t>(20, 1), .logit_rows = runtime::kAllRows});
  CHECK(session.logits().extent(0) == 20);
}

TEST_CASE("sessions of one engine do not see each other, and one that went back to its start is a new one") {
  const Fixture f;
  Engine engine = f.engine(4);
  const auto half = static_cast<std::size_t>(f.count() / 2);
  const std::span<const std::int32_t> tokens = f.tokens;
  Session alone = engine.open_session();
  alone.append({.ids = tokens});
  const std::vector<float> expected = last_logits(alone);

  Session a = engine.open_session(), b = engine.open_session();
  a.append({.ids = tokens.first(half)});
  b.append({.ids = tokens.last(half + 1)});  // in between: other tokens, other lengths
  a.append({.ids = tokens.subspan(half)});
  CHECK(last_logits(a) == expected);

  b.rewind(0);
  CHECK(b.position() == 0);
  CHECK(b.logits().extent(0) == 0);
  b.append({.ids = tokens});
  CHECK(last_logits(b) == expected);
}

TEST_CASE("a session outlives the engine object that opened it") {
  const Fixture f;
  std::vector<float> expected;
  {
    Engine engine = f.engine(8);
    Session session = engine.open_session();
    session.append({.ids = f.tokens});
    expected = last_logits(session);
  }
  Session session = Engine(f.folder, {.max_context = f.count(), .max_rows = 8}).open_session();
  session.append({.ids = f.tokens});
  CHECK(last_logits(session) == expected);
}

TEST_CASE("B59: image rows replace embeddings in order, also when a step ends inside the span") {
  const Fixture f;
  const std::int64_t dim = f.folder.checkpoint.config().dim;
  const auto marked = std::count(f.image.begin(), f.image.end(), std::uint8_t{1});
  REQUIRE(marked > 2);
  std::vector<float> rows(static_cast<std::size_t>(marked * dim));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 17) / 8 - 1;
  const auto run = [&](std::int64_t max_rows, std::int64_t given) {
    Engine engine = f.engine(max_rows);
    Session session = engine.open_session();
    session.append({.ids = f.tokens, .image = f.image, .image_rows = {rows.data(), {given, dim}}});
    return last_logits(session);
  };
  const std::vector<float> own = run(f.count(), 0), some = run(f.count(), marked - 1), all = run(f.count(), marked);
  CHECK(own != some);
  CHECK(some != all);
  for (const std::int64_t max_rows : {1, 2, 3}) {
    CHECK(run(max_rows, marked) == all);
    CHECK(run(max_rows, marked - 1) == some);
  }
}

TEST_CASE("B07, B72: append refuses with what it expected, and the session is as it was") {
  const Fixture f;
  Engine engine = f.engine(4, 1);
  Session session = engine.open_session();
  session.append({.ids = std::span(f.tokens).first(3)});
  const std::vector<float> before = last_logits(session);
  const auto refused = [&](Errc code, const std::string& message, auto&& call) {
    const Failure failure = failure_of(call);
    CHECK(failure.code == code);
    CHECK(failure.message == "append: " + message);
    CHECK(session.position() == 3);
    CHECK(last_logits(session) == before);
  };
  const std::int32_t vocab = static_cast<std::int32_t>(engine.config().vocab);
  const std::vector<std::int32_t> none, two{1, 2}, beyond{1, vocab}, negative{-1};
  const std::vector<std::int32_t> many(static_cast<std::size_t>(f.count()), 1);
  refused(Errc::invalid_argument, "no tokens, expected at least one", [&] { session.append({.ids = none}); });
  refused(
      Errc::invalid_argument,
      "token id " + std::to_string(vocab) + " at index 1, expected 0 to " + std::to_string(vocab - 1) + " (vocab_size)",
      [&] { session.append({.ids = beyond}); });
  refused(Errc::invalid_argument,
          "token id -1 at index 0, expected 0 to " + std::to_string(vocab - 1) + " (vocab_size)",
          [&] { session.append({.ids = negative}); });
  const std::vector<std::uint8_t> mark{1};
  refused(Errc::invalid_argument, "image marks 1 tokens, expected 2",
          [&] { session.append({.ids = two, .image = mark}); });
  const std::vector<std::uint8_t> marks{1, 0};
  const std::int64_t dim = engine.config().dim;
  const std::vector<float> rows(static_cast<std::size_t>(2 * dim));
  refused(Errc::invalid_argument,
          "image_rows is [2, " + std::to_string(dim) + "], expected at most 1 rows of " + std::to_string(dim), [&] {
            session.append({.ids = two, .image = marks, .image_rows = {rows.data(), {2, dim}}});
          });
  refused(Errc::invalid_argument, "logit_rows is -1, expected at least 0",
          [&] { session.append({.ids = two, .logit_rows = -1}); });
  refused(Errc::out_of_memory,
          "3 and " + std::to_string(f.count()) +
              " positions, expected together at most max_context = " + std::to_string(f.count() + 1),
          [&] { session.append({.ids = many}); });
  session.append({.ids = std::span(many).first(static_cast<std::size_t>(f.count() - 2))});  // up to the last position
  CHECK(session.position() == f.count() + 1);
}

TEST_CASE("an engine refuses options that no session could have") {
  const Fixture f;
  const auto refused = [&](const runtime::EngineOptions& options, Errc code, const std::string& message) {
    const Failure failure = failure_of([&] { Engine(f.folder, options); });
    CHECK(failure.code == code);
    CHECK(failure.message == "engine: " + message);
  };
  const std::int64_t most = f.folder.checkpoint.config().max_positions;
  const std::string range = ", expected 1 to max_position_embeddings = " + std::to_string(most);
  refused({.max_context = 0}, Errc::invalid_argument, "max_context is 0" + range);
  refused({.max_context = most + 1}, Errc::invalid_argument, "max_context is " + std::to_string(most + 1) + range);
  refused({.max_rows = 0}, Errc::invalid_argument, "max_rows is 0, expected at least 1");
  refused({.backend = "gpu"}, Errc::unsupported, "backend 'gpu', expected 'cpu' or 'ref'");
  static_assert(!std::is_constructible_v<Engine, ModelFolder, runtime::EngineOptions>,
                "a temporary folder would dangle");
}

namespace {

/// Lets subnormals vanish in the calling thread, as an audio host might have set it.
void flush_subnormals() {
#ifdef __SSE2__
  _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

/// Logits of every token, of an engine that nobody else has.
std::vector<float> own_logits(const ModelFolder& folder, const std::vector<std::int32_t>& tokens) {
  Engine engine(folder, {.max_context = static_cast<std::int64_t>(tokens.size()), .max_rows = 5});
  Session session = engine.open_session();
  std::vector<float> out;
  for (const std::int32_t id : tokens) {
    session.append({.ids = {&id, 1}});
    out.insert(out.end(), session.logits().data(), session.logits().data() + session.logits().size());
  }
  return out;
}

}  // namespace

TEST_CASE(
    "B41, B88: two models stepped in 1, 2 and 8 threads, half of them flushing subnormals, give the serial bits") {
  const Fixture f;
  const ModelFolder other = ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/01-all-mechanisms");
  const ModelFolder* folders[] = {&f.folder, &other};
  const std::vector<float> want[] = {own_logits(f.folder, f.tokens), own_logits(other, f.tokens)};
  for (const std::size_t count : {1u, 2u, 8u}) {
    std::vector<std::vector<float>> got(count);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        if (i / 2 % 2 == 0) flush_subnormals();
        got[i] = own_logits(*folders[i % 2], f.tokens);
      });
    }
    for (std::thread& t : threads) t.join();
    for (std::size_t i = 0; i < count; ++i) CHECK(got[i] == want[i % 2]);
  }
}

TEST_CASE("B88: a program that ends while a session is open and at work ends with its own status") {
  const Fixture f;
  std::fflush(nullptr);
  const ::pid_t child = ::fork();
  if (child == 0) {
    static Session* session = new Session(f.engine(f.count()).open_session());  // never closed
    std::atomic<bool> started{false};
    std::thread([&] {
      while (true) {
        session->rewind(0);
        session->append({.ids = f.tokens});
        started = true;
      }
    }).detach();
    while (!started) std::this_thread::yield();
    std::exit(0);
  }
  REQUIRE(child > 0);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

#ifdef __SSE2__  // the modes are set by x86 instructions
TEST_CASE("B41: results do not depend on the caller's rounding and flush-to-zero modes, which stay as they were") {
  const Fixture f;
  const auto logits = [&] {
    Engine engine = f.engine(f.count());
    Session session = engine.open_session();
    session.append({.ids = f.tokens, .logit_rows = runtime::kAllRows});
    return std::vector<float>(session.logits().data(), session.logits().data() + session.logits().size());
  };
  const std::vector<float> usual = logits();
  const unsigned modes = _mm_getcsr();
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040, kRoundUp = 0x4000;
  const unsigned changed = modes | kFlushToZero | kDenormalsAreZero | kRoundUp;
  _mm_setcsr(changed);
  const std::vector<float> unusual = logits();
  const unsigned after = _mm_getcsr();
  _mm_setcsr(modes);
  CHECK(usual == unusual);
  constexpr unsigned kStatus = 0x3F;  // exception flags, not modes
  CHECK((after & ~kStatus) == (changed & ~kStatus));
}
#endif
