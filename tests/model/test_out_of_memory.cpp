// SPDX-License-Identifier: MIT
//
// Memory that runs out at any allocation of opening, stepping or closing a model: an error, nothing lost, and a session that is as it was.
#include <cstdint>
#include <filesystem>
#include <vector>

#include "dsv41/runtime/engine.hpp"
#include "model/counted_new.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::ModelFolder;
using runtime::Session;

namespace {

const std::filesystem::path kFolder = std::filesystem::path(DSV41_GOLDEN_DIR) / "01-all-mechanisms";
const std::vector<std::int32_t> kPrompt{1, 5, 9, 200, 17}, kMore{7, 7, 30};
constexpr std::size_t kEvery = 500;  // each of the first allocations; behind them every 97th

/// What happens when the n-th allocation of `call` fails.
enum class Outcome { done, error, other };

template <class F>
Outcome without_memory_at(std::size_t n, F&& call) {
  fail_allocation(n);
  Outcome outcome = Outcome::done;
  try {
    call();
  } catch (const Error& e) {
    outcome = e.code() == Errc::out_of_memory ? Outcome::error : Outcome::other;
  } catch (...) {
    outcome = Outcome::other;
  }
  fail_allocation(0);
  return outcome;
}

/// Fails every allocation of `call` in turn until it has no more; counts the calls that were no clean error.
template <class F>
void check_every_failure(F&& call) {
  call();  // what libraries keep for good is allocated now
  std::size_t n = 1, wrong = 0, first_wrong = 0;
  for (;; n += n < kEvery ? 1 : 97) {
    const std::ptrdiff_t held = live_allocations();
    const Outcome outcome = without_memory_at(n, call);
    if (outcome == Outcome::done) break;
    const bool bad = outcome == Outcome::other || live_allocations() != held;
    if (bad && wrong++ == 0) first_wrong = n;
  }
  INFO("allocations up to " << n << ", the first wrong one " << first_wrong);
  CHECK(wrong == 0);
  CHECK(n > 3);
}

std::vector<float> copy_of(const Session& session) {
  return {session.logits().data(), session.logits().data() + session.logits().size()};
}

}  // namespace

TEST_CASE("B87: files, folders, engines and sessions that find no memory are errors that leave nothing behind",
          "[model]") {
  check_every_failure([] { ModelFolder::open(kFolder); });
  check_every_failure([] { ModelFolder::open(kFolder, {.access = runtime::Access::read}); });
  const std::filesystem::path weights = kFolder / "model.safetensors";
  check_every_failure([&] { runtime::SafetensorsFile::open(weights); });
  const ModelFolder folder = ModelFolder::open(kFolder);
  const runtime::EngineOptions options{.max_context = 32, .max_rows = 4};
  check_every_failure([&] { Engine(folder, options); });
  Engine engine(folder, options);
  check_every_failure([&] { (void)engine.open_session(); });
}

TEST_CASE("B72, B87: an append that finds no memory leaves the session as it was", "[model]") {
  const ModelFolder folder = ModelFolder::open(kFolder);
  Engine undisturbed(folder, {.max_context = 32, .max_rows = 4});
  Session calm = undisturbed.open_session();
  calm.append({.ids = kPrompt});
  const std::vector<float> before = copy_of(calm);
  calm.append({.ids = kMore, .logit_rows = runtime::kAllRows});
  const std::vector<float> after = copy_of(calm);
  for (std::size_t n = 1;; ++n) {
    Engine engine(folder, {.max_context = 32, .max_rows = 4});  // a new one: its buffers have not grown yet
    Session session = engine.open_session();
    session.append({.ids = kPrompt});
    const std::ptrdiff_t held = live_allocations();
    const Outcome outcome =
        without_memory_at(n, [&] { session.append({.ids = kMore, .logit_rows = runtime::kAllRows}); });
    if (outcome == Outcome::done) {
      CHECK(n > 1);
      break;
    }
    INFO("allocation " << n);
    CHECK(outcome == Outcome::error);
    CHECK(session.position() == static_cast<std::int64_t>(kPrompt.size()));
    CHECK(copy_of(session) == before);
    CHECK(live_allocations() - held <= 1);  // a buffer that has grown may stay
    session.append({.ids = kMore, .logit_rows = runtime::kAllRows});
    CHECK(copy_of(session) == after);
  }
}
