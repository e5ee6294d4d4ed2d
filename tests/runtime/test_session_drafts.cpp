// SPDX-License-Identifier: MIT
//
// Sessions under speculative decoding: blocks of drafts of which any number is accepted, at every position of rings and groups, leave no
// trace; and what a session's drafts depend on.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/cache_rows.hpp"
#include "session_texts.hpp"
#include "small_model.hpp"
#include "speculation.hpp"
#include "support/failure.hpp"
#include "support/golden.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::kAllRows;
using runtime::ModelFolder;
using runtime::Session;
using runtime::SessionDraft;

namespace {

constexpr std::int64_t kDraft = 4;

/// Drafts of one session, with all that comes with them.
struct Drafted {
  Ids tokens;
  std::vector<float> logits, confidences;

  bool operator==(const Drafted&) const = default;
  Drafted first(std::int64_t n) const {
    const auto count = static_cast<std::ptrdiff_t>(n), all = std::ssize(tokens), vocab = std::ssize(logits) / all;
    return {{tokens.begin(), tokens.begin() + count},
            {logits.begin(), logits.begin() + count * vocab},
            {confidences.begin(), confidences.begin() + count}};
  }
};

/// What to ask of the drafter for a session, and room for the answer.
struct Ask {
  Session* session = nullptr;
  std::int32_t anchor = 0;
  std::int64_t count = kDraft;
  double temperature = 0;
  std::uint64_t seed = 0;
  std::int64_t choices = 0;
};

std::vector<Drafted> drafted(Engine& engine, const std::vector<Ask>& asks) {
  std::vector<Drafted> out(asks.size());
  std::vector<SessionDraft> requests;
  for (std::size_t i = 0; i < asks.size(); ++i) {
    const Ask& a = asks[i];
    const std::int64_t choices = a.choices == 0 ? engine.config().vocab : a.choices;
    out[i].tokens.resize(static_cast<std::size_t>(a.count), -7);
    out[i].logits.resize(static_cast<std::size_t>(a.count * choices));
    out[i].confidences.resize(out[i].tokens.size());
    requests.push_back({.session = a.session,
                        .anchor = a.anchor,
                        .temperature = a.temperature,
                        .seed = a.seed,
                        .choices = a.choices,
                        .tokens = out[i].tokens,
                        .logits = {out[i].logits.data(), {a.count, choices}},
                        .confidences = out[i].confidences});
  }
  engine.draft(requests);
  return out;
}
Drafted drafted(Engine& engine, const Ask& ask) {
  return drafted(engine, std::vector{ask})[0];
}

/// A text, and what sessions that are fed it token by token say of it: logits behind every token, drafts before every token.
struct Known {
  Text text;
  std::vector<float> logits;
  std::vector<Drafted> drafts;  // [position] behind anchor ids[position]
  std::int64_t vocab = 0;

  Known(const ModelFolder& folder, std::int64_t count, Numeric numeric) : vocab(folder.checkpoint.config().vocab) {
    Random random(71);
    text = random_text(count, vocab, random);
    logits = fresh_logits(folder, text, numeric);
    Engine engine(folder, {.numeric = numeric, .max_context = count, .room = kDraft, .draft = kDraft});
    Session session = engine.open_session();
    drafts.emplace_back();  // an empty session has none
    for (std::int64_t p = 0; p + 1 < count; ++p) {
      session.append(text.feed(p, p + 1, 0));
      drafts.push_back(drafted(engine, {&session, text.ids[static_cast<std::size_t>(p + 1)]}));
    }
  }

  std::int32_t at(std::int64_t position) const { return text.ids[static_cast<std::size_t>(position)]; }

  /// The session's rows of logits are those of the tokens up to its position.
  bool rows_are(const Session& session, std::int64_t rows) const {
    const In<float, 2> got = session.logits();
    return got.extent(0) >= rows && std::equal(got.data(), got.data() + rows * vocab,
                                               logits.data() + (session.position() - got.extent(0)) * vocab);
  }
};

/// A round at the session's position of which the first k drafts are right and the others wrong. Whether all is as it should be.
bool round_is_sound(Session& session, const Known& known, std::int64_t k) {
  const std::int64_t position = session.position();
  Ids block;
  for (std::int64_t i = 0; i <= kDraft; ++i) {
    const std::int32_t right = known.at(position + i);
    block.push_back(i <= k ? right : static_cast<std::int32_t>((right + 1 + i) % known.vocab));
  }
  session.append({.ids = block, .logit_rows = kAllRows});
  if (!known.rows_are(session, k + 1)) return false;
  session.commit(k + 1);
  return session.position() == position + k + 1 && session.logits().extent(0) == k + 1 &&
         std::ranges::equal(session.tokens(),
                            std::span(known.text.ids).first(static_cast<std::size_t>(position + k + 1))) &&
         known.rows_are(session, k + 1);
}

enum class Begun : std::uint8_t { plain, prefix_hit, fork, restore, rewind };

struct Way {
  Numeric numeric;
  Prefill prefill;
  std::int64_t room;
  Begun begun;
};

/// Position at which rounds begin: behind a page, so that the prefix cache can have it, and far behind every window.
constexpr std::int64_t kFrom = 70;

/// A session of the text's first kFrom tokens.
Session begin(Engine& engine, const Known& known, Begun how) {
  Session session = engine.open_session();
  switch (how) {
    case Begun::plain: session.append(known.text.feed(0, kFrom, 0)); break;
    case Begun::prefix_hit: {
      Session first = engine.open_session();
      first.append(known.text.feed(0, kFrom + 9, 0));
      const runtime::SyncReport report = session.sync_to(known.text.feed(0, kFrom, 0));
      REQUIRE(report.reused == first.memory().page_positions);
      REQUIRE(report.recomputed == 0);  // the windows came along, the drafter's among them
      break;
    }
    case Begun::fork: {
      Session first = engine.open_session();
      first.append(known.text.feed(0, kFrom, 0));
      session = first.fork();
      break;
    }
    case Begun::restore: {
      Session first = engine.open_session();
      first.append(known.text.feed(0, kFrom, 0));
      restore(session, saved(first));
      break;
    }
    case Begun::rewind: {
      session.append(known.text.feed(0, kFrom + 25, 0));
      REQUIRE(session.rewind(kFrom) > 0);
      break;
    }
  }
  return session;
}

/// Chains of rounds that all accept k, from every offset: each position from kFrom + kDraft to `to` begins a round with each k.
void check_chains(const ModelFolder& folder, const Known& known, const Way& way, std::int64_t to) {
  Engine engine(folder, {.numeric = way.numeric,
                         .max_context = known.text.size(),
                         .prefill = way.prefill,
                         .room = way.room,
                         .draft = kDraft,
                         .prefix_bytes = way.begun == Begun::prefix_hit ? 1 << 20 : 0});
  const Session parent = begin(engine, known, way.begun);
  std::set<std::pair<std::int64_t, std::int64_t>> seen;  // position and k
  for (std::int64_t k = 0; k <= kDraft; ++k) {
    for (std::int64_t offset = 0; offset <= k; ++offset) {
      Session session = way.begun == Begun::fork ? parent.fork() : begin(engine, known, way.begun);
      bool sound = true;
      for (std::int64_t i = 0; i < offset; ++i) sound = sound && round_is_sound(session, known, 0);
      while (sound && session.position() < to) {
        const std::int64_t position = session.position();
        INFO(numeric_name(way.numeric) << ", " << prefill_name(way.prefill) << ", room " << way.room << ", begun "
                                       << static_cast<int>(way.begun) << ", position " << position << ", k " << k);
        // Behind restore() and a rewind that no step has followed there is less context.
        const bool whole = way.begun < Begun::restore || position >= kFrom + folder.checkpoint.config().window ||
                           (way.begun == Begun::rewind && position > kFrom);
        const Drafted drafts = drafted(engine, {&session, known.at(position)});
        sound = drafts == known.drafts[static_cast<std::size_t>(position)] || !whole;
        CHECK(sound);
        sound = sound && round_is_sound(session, known, k);
        REQUIRE(sound);
        seen.emplace(position, k);
      }
    }
  }
  for (std::int64_t p = kFrom + kDraft; p < to; ++p) {
    for (std::int64_t k = 0; k <= kDraft; ++k) CHECK(seen.contains({p, k}));
  }
  if (way.begun != Begun::fork) return;
  Session unharmed = parent.fork();  // its block and pages are still those of before all chains
  CHECK(round_is_sound(unharmed, known, kDraft));
}

}  // namespace

TEST_CASE(
    "B71, B72: blocks of which 0 to all drafts are accepted, at every position of ring and groups, leave what was fed "
    "and no more") {
  // Ratios 3 and 1: a rejection cuts a group that the block had completed at either of its places.
  const SmallModel model(5, larger_config());
  const ModelFolder& folder = model.folder();
  for (const Numeric numeric : {Numeric::exact, Numeric::deployed}) {
    const Known known(folder, kFrom + 40, numeric);
    for (const std::int64_t room : {kDraft, kDraft + 3}) {
      const std::int64_t period = std::lcm(folder.checkpoint.config().window + room, std::int64_t{3});
      for (const Prefill prefill : {Prefill::full, Prefill::exact}) {
        for (const Begun begun : {Begun::plain, Begun::prefix_hit, Begun::fork, Begun::restore, Begun::rewind})
          check_chains(folder, known, {numeric, prefill, room, begun}, kFrom + kDraft + period);
      }
    }
  }
}

TEST_CASE("B71, B72: the same with packed caches and Engram, at ratio 2: an odd position cuts a completed group") {
  // A ring of 12 slots; every position modulo them.
  const ModelFolder folder = every_mechanism();
  const Known exact(folder, kFrom + 40, Numeric::exact), deployed(folder, kFrom + 40, Numeric::deployed);
  for (const Way& way : {Way{Numeric::exact, Prefill::full, kDraft, Begun::fork},
                         Way{Numeric::deployed, Prefill::exact, kDraft, Begun::rewind},
                         Way{Numeric::exact, Prefill::exact, kDraft, Begun::prefix_hit}})
    check_chains(folder, way.numeric == Numeric::exact ? exact : deployed, way, kFrom + kDraft + 12);
}

TEST_CASE("B71: and so they do from the first token on, where no window is full, in steps of any size") {
  const SmallModel model(5, larger_config());
  const Known known(model.folder(), 60, Numeric::exact);
  constexpr std::int64_t kPeriod = 27;  // window 5 and room 4, ratios 3 and 1: lcm(9, 3) = 9, three times
  for (const std::int64_t max_rows : {1, 3, 64}) {
    Engine engine(model.folder(), {.max_context = 60, .max_rows = max_rows, .room = kDraft, .draft = kDraft});
    for (std::int64_t k = 0; k <= kDraft; ++k) {
      for (std::int64_t start = 1; start <= k + 1; ++start) {
        Session session = engine.open_session();
        session.append(known.text.feed(0, start, 0));
        while (session.position() < kPeriod) {
          INFO("rows " << max_rows << ", position " << session.position() << ", k " << k);
          CHECK(drafted(engine, {&session, known.at(session.position())}) ==
                known.drafts[static_cast<std::size_t>(session.position())]);
          REQUIRE(round_is_sound(session, known, k));
        }
      }
    }
  }
}

TEST_CASE("commit keeps rows and tokens, and refuses what has no rows") {
  const SmallModel model(6, larger_config());
  const Known known(model.folder(), 40, Numeric::exact);
  Engine engine(model.folder(), {.max_context = 40, .room = kDraft, .draft = kDraft});
  Session session = engine.open_session();
  const auto refused = [&](std::int64_t rows) {
    const Failure failure = failure_of([&] { session.commit(rows); });
    return failure.code == Errc::invalid_argument && failure.says("commit: " + std::to_string(rows) + " rows");
  };
  CHECK(refused(1));  // nothing has run
  session.append(known.text.feed(0, 10, 3));
  CHECK(refused(0));
  CHECK(refused(-1));
  CHECK(refused(4));
  CHECK(session.logits().extent(0) == 3);
  session.commit(3);
  CHECK(session.position() == 10);
  session.commit(2);  // again, and again
  CHECK(session.position() == 9);
  CHECK(known.rows_are(session, 2));
  session.commit(1);
  CHECK(session.position() == 8);
  CHECK(known.rows_are(session, 1));
  CHECK(round_is_sound(session, known, 2));
  session.rewind(9);
  CHECK(refused(1));
  session.append(known.text.feed(9, 30, kAllRows));  // more than the room: what is cut off is computed again
  session.commit(5);
  CHECK(session.position() == 14);
  CHECK(known.rows_are(session, 5));
  CHECK(round_is_sound(session, known, kDraft));
}

TEST_CASE("the goldens' drafts come out of Engine::draft, from text and images, however many rows a step has") {
  std::size_t folders = 0;
  for (const auto& path : golden_folders()) {
    const auto expected = runtime::SafetensorsFile::open(path / "expected.safetensors");
    if (expected.find("draft.tokens") == nullptr) continue;
    ++folders;
    INFO(path.filename().string());
    const ModelFolder folder = ModelFolder::open(path);
    const auto tokens = values<std::int32_t>(expected, "tokens");
    auto image = values<std::uint8_t>(expected, "image");
    image.resize(tokens.size());
    const std::int64_t block = folder.checkpoint.config().draft.block;
    std::optional<Drafted> first;
    for (const std::int64_t max_rows : {256, 7}) {
      Engine engine(folder, {.max_context = std::ssize(tokens), .max_rows = max_rows, .room = block, .draft = block});
      Session session = engine.open_session();
      session.append({.ids = tokens, .logit_rows = 0, .image = image});
      const Drafted got = drafted(engine, {&session, values<std::int32_t>(expected, "draft.anchor")[0], block});
      CHECK(got.tokens == values<std::int32_t>(expected, "draft.tokens"));
      // 01 has a code near a tie, so drafts are further from the oracle's than logits are (tests/golden/README.md).
      const auto close = [&](const std::vector<float>& have, const char* name) {
        const std::vector<double> want = doubles(*expected.find(name));
        REQUIRE(have.size() == want.size());
        for (std::size_t i = 0; i < want.size(); ++i)
          if (!(std::fabs(static_cast<double>(have[i]) - want[i]) < 1e-3)) return false;
        return true;
      };
      CHECK(close(got.logits, "draft.logits"));
      CHECK(close(got.confidences, "draft.z"));
      if (first) CHECK(got == *first);
      first = got;
    }
  }
  CHECK(folders == 4);
}

TEST_CASE("B71: drafts depend on tokens, anchor, temperature and seed: not on chunks, mates, number or passes") {
  const SmallModel model(5, larger_config());
  const ModelFolder& folder = model.folder();
  const std::int64_t vocab = folder.checkpoint.config().vocab;
  for (const Numeric numeric : {Numeric::exact, Numeric::deployed}) {
    const Known known(folder, 80, numeric);
    for (const Prefill prefill : {Prefill::full, Prefill::exact}) {
      for (const std::int64_t max_rows : {5, 9, 256}) {  // blocks of one, two and all in a pass
        INFO(numeric_name(numeric) << ", " << prefill_name(prefill) << ", rows " << max_rows);
        Engine engine(folder, {.numeric = numeric,
                               .max_context = 80,
                               .max_rows = max_rows,
                               .prefill = prefill,
                               .room = 6,
                               .draft = kDraft});
        std::vector<Session> sessions;
        std::vector<Ask> asks;
        for (const std::int64_t chunk : {1, 2, 7, 64}) {
          Session& s = sessions.emplace_back(engine.open_session());
          const std::int64_t end = 70 - chunk % 5;
          for (std::int64_t p = 0; p < end; p += chunk) s.append(known.text.feed(p, std::min(end, p + chunk), 0));
        }
        for (Session& s : sessions) asks.push_back({&s, known.at(s.position())});
        const std::vector<Drafted> together = drafted(engine, asks);
        for (std::size_t i = 0; i < asks.size(); ++i) {
          const Drafted& want = known.drafts[static_cast<std::size_t>(asks[i].session->position())];
          CHECK(together[i] == want);
          for (std::int64_t n = 1; n <= kDraft; ++n) {
            Ask fewer = asks[i];
            fewer.count = n;
            CHECK(drafted(engine, fewer) == want.first(n));
          }
        }
        // Other numbers, temperatures, seeds and choices in one call.
        for (std::size_t i = 0; i < asks.size(); ++i) {
          asks[i].count = 1 + static_cast<std::int64_t>(i);
          asks[i].temperature = i % 2 == 0 ? 0.9 : 0;
          asks[i].seed = i;
          asks[i].choices = i == 2 ? 10 : 0;
        }
        const std::vector<Drafted> mixed = drafted(engine, asks);
        std::vector<double> q(static_cast<std::size_t>(vocab));
        for (std::size_t i = 0; i < asks.size(); ++i) {
          CHECK(drafted(engine, asks[i]) == mixed[i]);
          const std::int64_t choices = asks[i].choices == 0 ? vocab : asks[i].choices;
          for (std::int64_t k = 0; k < asks[i].count; ++k) {
            const In<float, 1> row(mixed[i].logits.data() + k * choices, {choices});
            CHECK(mixed[i].tokens[static_cast<std::size_t>(k)] == draw_draft(row, asks[i].temperature, asks[i].seed,
                                                                             asks[i].session->position(), k + 1,
                                                                             {q.data(), {choices}}));
          }
          Ask another = asks[i];
          another.anchor = (another.anchor + 1) % static_cast<std::int32_t>(vocab);
          CHECK(drafted(engine, another) != mixed[i]);
        }
      }
    }
  }
}

TEST_CASE("B71: going back keeps a session's drafts, far or near; a restored one gains them back with its window") {
  const SmallModel model(5, larger_config());
  const ModelFolder& folder = model.folder();
  const Known known(folder, 80, Numeric::exact);
  const std::int64_t window = folder.checkpoint.config().window;
  for (const std::int64_t room : {kDraft, kDraft + 3}) {
    Engine engine(folder, {.max_context = 80, .room = room, .draft = kDraft});
    Session whole = engine.open_session();
    for (std::int64_t p = 0; p < 60; p += 5) whole.append(known.text.feed(p, p + 5, 0));
    const Drafted before = drafted(engine, {&whole, known.at(60)});
    CHECK(before == known.drafts[60]);
    for (std::int64_t back = 0; back <= 40; ++back) {
      INFO("room " << room << ", back " << back);
      Session session = whole.fork();
      session.rewind(60 - back);
      if (back <= room)
        CHECK(drafted(engine, {&session, known.at(60 - back)}) == known.drafts[static_cast<std::size_t>(60 - back)]);
      session.append(known.text.feed(60 - back, 61 - back, 0));
      CHECK(drafted(engine, {&session, known.at(61 - back)}) == known.drafts[static_cast<std::size_t>(61 - back)]);
      session.rewind(60 - back);
      session.rerun_last();
      CHECK(drafted(engine, {&session, known.at(60 - back)}) == known.drafts[static_cast<std::size_t>(60 - back)]);
    }
    CHECK(drafted(engine, {&whole, known.at(60)}) == before);
    Session back = engine.open_session();
    restore(back, saved(whole));
    for (std::int64_t p = 60; p < 60 + window + 3; ++p) {
      const Drafted now = drafted(engine, {&back, known.at(p)});
      for (const std::int32_t id : now.tokens) CHECK((id >= 0 && id < known.vocab));
      CHECK((now == known.drafts[static_cast<std::size_t>(p)]) == (p >= 60 + window));
      back.append(known.text.feed(p, p + 1, 1));
      CHECK(known.rows_are(back, 1));
    }
  }
}

TEST_CASE("B71: what the prefix cache gives back drafts at once as what was fed, wherever the prompt before ended") {
  const SmallModel model(5, larger_config());
  const Known known(model.folder(), 120, Numeric::exact);
  for (const Prefill prefill : {Prefill::full, Prefill::exact}) {
    for (std::int64_t beyond = 0; beyond < 20; ++beyond) {
      Engine engine(model.folder(), {.max_context = 120,
                                     .prefill = prefill,
                                     .room = kDraft,
                                     .draft = kDraft,
                                     .cache_bytes = 4 << 20,
                                     .prefix_bytes = 1 << 20});
      Session first = engine.open_session(), second = engine.open_session();
      const std::int64_t page = first.memory().page_positions;
      first.append(known.text.feed(0, page + beyond, 0));
      const runtime::SyncReport report = second.sync_to(known.text.feed(0, page + 1, 1));
      INFO(prefill_name(prefill) << ", " << beyond << " tokens behind the page");
      CHECK(report.reused == page);
      CHECK(report.recomputed == 0);
      CHECK(drafted(engine, {&second, known.at(page + 1)}) == known.drafts[static_cast<std::size_t>(page + 1)]);
      CHECK(known.rows_are(second, 1));
    }
  }
}

TEST_CASE("what a drafter takes is told and counted: rings of each stage in the block") {
  const ModelFolder folder = every_mechanism();
  const ModelConfig& c = folder.checkpoint.config();
  const std::int64_t row = row_bytes(CacheFormat::window, c.head_dim);
  std::int64_t blocks[2] = {}, used[2] = {};
  runtime::SessionMemory parts;
  for (const std::int64_t draft : {0, 4}) {
    Engine engine(folder, {.max_context = 64, .room = 6, .draft = draft});
    Session session = engine.open_session();
    const std::int32_t any = 1;
    session.append({.ids = {&any, 1}});
    const runtime::SessionMemory m = session.memory();
    CHECK(m.draft_bytes == (draft > 0 ? c.draft.stages * c.window * row : 0));
    if (draft == 0) parts = m;
    blocks[draft > 0] = m.block_bytes;
    used[draft > 0] = engine.memory().used_bytes;
    CHECK(engine.has_confidence() == (draft > 0));
  }
  CHECK(blocks[1] - blocks[0] == c.draft.stages * (c.window + 6) * row);
  CHECK(used[1] - used[0] == charged(blocks[1]) - charged(blocks[0]));
  // The budget has the drafter's rings in it: what holds a session without them has no room for one with them.
  const std::int64_t limit = charged(parts.table_bytes) + charged(parts.block_bytes) + charged(parts.page_bytes);
  Engine without(folder, {.max_context = 64, .room = 6, .cache_bytes = limit});
  Engine with(folder, {.max_context = 64, .room = 6, .draft = 4, .cache_bytes = limit});
  const std::int32_t any = 1;
  Session fits = without.open_session(), does_not = with.open_session();
  CHECK(failure_of([&] { fits.append({.ids = {&any, 1}}); }).code == Errc::ok);
  CHECK(failure_of([&] { does_not.append({.ids = {&any, 1}}); }).code == Errc::out_of_memory);
}
