// SPDX-License-Identifier: MIT
//
// Session::rerun_last: the logits that the last token had when it was fed, whatever kind of token it is.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv41/runtime/engine.hpp"
#include "session_texts.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Feed;
using runtime::Session;

namespace {

std::vector<float> only_row(const Session& session) {
  const In<float, 2> logits = session.logits();
  REQUIRE(logits.extent(0) == 1);
  return {logits.data(), logits.data() + logits.extent(1)};
}

}  // namespace

TEST_CASE("the last token run again gives its logits, with its image mark and its own embedding") {
  const runtime::ModelFolder folder = runtime::ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/11-image-span");
  runtime::Engine engine(folder, {.max_context = 64});
  const std::int64_t dim = engine.config().dim;
  constexpr std::int64_t kLength = 30, kSpan = 20, kRows = 5;  // 20 to 29 are a span, 20 to 24 with embeddings
  std::vector<std::int32_t> ids(kLength);
  std::vector<std::uint8_t> image(kLength);
  std::vector<float> rows(static_cast<std::size_t>(kRows * dim));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(3 + i * i % 61);
  for (std::size_t i = kSpan; i < image.size(); ++i) image[i] = 1;
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 17) / 8 - 1;
  const auto fed = [&](std::int64_t n) {
    Session session = engine.open_session();
    const auto count = static_cast<std::size_t>(n);
    const std::int64_t given = std::clamp<std::int64_t>(n - kSpan, 0, kRows);
    session.append({.ids = std::span(ids).first(count),
                    .image = std::span(image).first(count),
                    .image_rows = {rows.data(), {given, dim}}});
    return session;
  };
  Session whole = fed(kLength);
  for (const std::int64_t n : {1, 12, 21, 25, 26, 30}) {  // an ordinary token, one with an embedding, one without
    INFO(n << " tokens");
    const Session fresh = fed(n);
    const std::vector<float> want = only_row(fresh);
    Session back = whole.fork();
    back.rewind(n);
    CHECK(back.logits().extent(0) == 0);
    for (int time = 0; time < 2; ++time) {
      back.rerun_last();
      CHECK(only_row(back) == want);
      CHECK(back.position() == n);
    }
    Session restored = engine.open_session();
    restore(restored, saved(fresh));
    restored.rerun_last();
    CHECK(only_row(restored) == want);
    const std::int32_t next = 7;
    restored.append({.ids = {&next, 1}});
    back.append({.ids = {&next, 1}});
    CHECK(only_row(restored) == only_row(back));
  }
}

TEST_CASE("a session without tokens has no last one") {
  const runtime::ModelFolder folder = runtime::ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/11-image-span");
  runtime::Engine engine(folder, {.max_context = 64});
  Session session = engine.open_session();
  const Failure f = failure_of([&] { session.rerun_last(); });
  CHECK(f.code == Errc::invalid_argument);
  CHECK(f.says("no tokens"));
}
