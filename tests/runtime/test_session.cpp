// SPDX-License-Identifier: MIT
//
// Sessions one verb at a time: batches, going back, forks, budgets, changed prompts, saved states, the prefix cache, and calls that end
// early. Wherever logits come out, they are those of a session that was fed the tokens and nothing else.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "session_texts.hpp"
#include "support/failure.hpp"
#include "support/share.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::ModelFolder;
using runtime::Session;

namespace {

/// A text, and what a fresh session says of it.
struct Known {
  Text text;
  std::vector<float> logits;
};

/// What a session's parts take of the budget.
struct Parts {
  std::int64_t table = 0, block = 0, page = 0;
};

struct Fixture {
  ModelFolder folder = every_mechanism();
  ModelConfig config = folder.checkpoint.config();
  std::int64_t most_replayed = config.layers * (config.window - 1) + 1;

  Known known(const Text& text) const { return {text, fresh_logits(folder, text)}; }
  Known known(std::uint64_t seed, std::int64_t count) const {
    Random random(seed);
    return known(random_text(count, config.vocab, random));
  }
  Parts parts() const {
    Session session = engine().open_session();
    const std::int32_t any = 1;
    session.append({.ids = {&any, 1}});
    const runtime::SessionMemory m = session.memory();
    return {charged(m.table_bytes), charged(m.block_bytes), charged(m.page_bytes)};
  }
  Engine engine(EngineOptions options = {}) const {
    options.max_context = 512;
    return Engine(folder, options);
  }
};

/// The session holds the first tokens of `known`, and its logits, which it has, are those of the last of them.
void check_is(const Session& session, const Known& known, std::int64_t position, std::int64_t logit_rows) {
  REQUIRE(session.position() == position);
  REQUIRE(std::ranges::equal(session.tokens(), std::span(known.text.ids).first(static_cast<std::size_t>(position))));
  const In<float, 2> logits = session.logits();
  REQUIRE(logits.extent(0) == logit_rows);
  const float* want = known.logits.data() + (position - logit_rows) * logits.extent(1);
  CHECK(std::equal(logits.data(), logits.data() + logits.size(), want));
}

/// Feeds the text from where the session is up to `end` and compares all rows.
void check_goes_on(Session& session, const Known& known, std::int64_t end) {
  const std::int64_t begin = session.position();
  session.append(known.text.feed(begin, end));
  check_is(session, known, end, end - begin);
}

}  // namespace

TEST_CASE(
    "batch invariance: mates, their order, the cut into calls and steps, and the room change no bit of any session") {
  const Fixture f;
  const Known known[] = {f.known(1, 70), f.known(2, 90), f.known(3, 40)};
  std::vector<int> order{0, 1, 2};
  Random random(4);
  do {
    for (const std::int64_t max_rows : {3, 64}) {
      const std::int64_t room = random.below(9);
      INFO("order " << order[0] << order[1] << order[2] << ", max_rows " << max_rows << ", room " << room);
      Engine engine = f.engine({.max_rows = max_rows, .room = room});
      Session sessions[] = {engine.open_session(), engine.open_session(), engine.open_session()};
      for (bool any = true; any;) {
        std::vector<runtime::SessionFeed> feeds;
        std::vector<std::int64_t> ends(3);
        for (const int i : order) {
          Session& s = sessions[i];
          ends[static_cast<std::size_t>(i)] = std::min(known[i].text.size(), s.position() + random.below(30));
          if (ends[static_cast<std::size_t>(i)] > s.position())
            feeds.push_back(
                {&s, known[i].text.feed(s.position(), ends[static_cast<std::size_t>(i)], 1 + random.below(30))});
        }
        engine.step(feeds);
        for (const runtime::SessionFeed& fed : feeds) {
          const auto i = fed.session - sessions;
          check_is(*fed.session, known[i], ends[static_cast<std::size_t>(i)],
                   std::min(fed.feed.logit_rows, std::ssize(fed.feed.ids)));
        }
        any = std::any_of(order.begin(), order.end(),
                          [&](int i) { return sessions[i].position() < known[i].text.size(); });
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("a step refuses a session that is given twice, none, or one of another engine, before anything runs") {
  const Fixture f;
  const Known known = f.known(5, 20);
  Engine engine = f.engine(), other = f.engine();
  Session a = engine.open_session(), foreign = other.open_session();
  check_goes_on(a, known, 10);
  const runtime::SessionFeed good{&a, known.text.feed(10, 12)};
  for (Session* second : {&a, &foreign, static_cast<Session*>(nullptr)}) {
    const runtime::SessionFeed feeds[] = {good, {second, known.text.feed(10, 12)}};
    CHECK(failure_of([&] { engine.step(feeds); }).code == Errc::invalid_argument);
    check_is(a, known, 10, 10);
  }
  Session moved = std::move(a);
  CHECK(failure_of([&] { engine.step({&good, 1}); }).code == Errc::invalid_argument);
  check_goes_on(moved, known, 20);
}

TEST_CASE("going back is free within the room, and otherwise costs what the windows depend on, whatever the length") {
  const Fixture f;
  const Known known = f.known(6, 160);
  for (const std::int64_t room : {0, 3, 8}) {
    for (const Prefill mode : {Prefill::full, Prefill::exact}) {
      Engine engine = f.engine({.max_rows = 9, .prefill = mode, .room = room});
      Session whole = engine.open_session();
      for (std::int64_t p = 0; p < 150; p += 5) whole.append(known.text.feed(p, p + 5));
      for (std::int64_t back = 0; back <= 150; back += back < 12 ? 1 : 23) {
        INFO(prefill_name(mode) << ", room " << room << ", back " << back);
        Session session = whole.fork();
        const std::int64_t position = 150 - back, cost = back <= room + 1 ? 0 : std::min(position, f.most_replayed);
        CHECK(session.rewind(position) == cost);
        check_is(session, known, position, 0);
        check_goes_on(session, known, position + 4);
        CHECK(session.replayed_rows() == cost);
        check_goes_on(session, known, position + 10);
        CHECK(session.replayed_rows() == 0);
      }
      CHECK(failure_of([&] { whole.rewind(151); }).code == Errc::invalid_argument);
      CHECK(failure_of([&] { whole.rewind(-1); }).code == Errc::invalid_argument);
      check_is(whole, known, 150, 5);
    }
  }
}

TEST_CASE(
    "going back to an open group that was overwritten, and over it again, is free once its rows are there again") {
  const Fixture f;
  const Known known = f.known(7, 20);
  Engine engine = f.engine({.room = 0});
  Session session = engine.open_session();
  check_goes_on(session, known, 8);
  CHECK(session.rewind(4) == 0);  // no window was full
  check_goes_on(session, known, 5);
  CHECK(session.rewind(5) == 0);
  check_goes_on(session, known, 20);
}

TEST_CASE("the last token runs again for its logits, with its image mark and embedding") {
  const Fixture f;
  Random random(8);
  Text text = random_text(30, f.config.vocab, random);
  text.add_span(10, 6, 4, f.config.dim, random);
  const Known known = f.known(text);
  Engine engine = f.engine({.room = 0});
  Session session = engine.open_session();
  CHECK(failure_of([&] { session.rerun_last(); }).code == Errc::invalid_argument);
  for (const std::int64_t position : {30, 16, 15, 14, 12, 10, 1}) {  // text, own embedding, given ones, text
    if (session.position() == 0) session.append(text.feed(0, 30, 0));
    session.rewind(position);
    session.rerun_last();
    check_is(session, known, position, 1);
  }
  CancelToken token;
  token.request();
  session.rewind(0);
  session.append(text.feed(0, 12, 1));
  CHECK(failure_of([&] { session.rerun_last({.cancel = &token}); }).code == Errc::cancelled);
  check_is(session, known, 12, 0);
  check_goes_on(session, known, 30);
}

TEST_CASE(
    "a fork takes a page table until one of the two writes; then a block and a page, and neither sees the other") {
  const Fixture f;
  Random random(9);
  const Known parent_known = f.known(10, 300);
  Engine engine = f.engine({.room = 3});
  Session parent = engine.open_session();
  parent.append(parent_known.text.feed(0, 201));  // in the middle of a page, of a group, and of the rings
  const std::int64_t alone = engine.memory().used_bytes, table = parent.memory().table_bytes;
  std::vector<Session> forks;
  std::vector<Known> known;
  for (int i = 0; i < 4; ++i) {
    forks.push_back(parent.fork());
    known.push_back(f.known(branch_of(parent_known.text, 201 - 3 * i, 280, f.config.vocab, random)));
  }
  CHECK(engine.memory().used_bytes == alone + 4 * table);
  check_is(forks[0], parent_known, 201, 201);
  for (std::size_t i = 0; i < 4; ++i) {  // before, within, and at the end of a page; each parts at another place
    const std::int64_t from = 201 - 3 * static_cast<std::int64_t>(i);
    forks[i].rewind(from);
    check_goes_on(forks[i], known[i], from + 20 * static_cast<std::int64_t>(i + 1));
  }
  CHECK(engine.memory().used_bytes ==
        alone + 4 * (table + charged(parent.memory().block_bytes)));  // pages: of the slab
  check_goes_on(parent, parent_known, 290);
  for (std::size_t i = 0; i < 4; ++i) check_goes_on(forks[i], known[i], 280);
  Session late = forks[3].fork();
  forks.clear();
  check_is(late, known[3], 280, 8);
}

TEST_CASE("forks of a long session fit into a budget that holds its pages once") {
  const Fixture f;
  const Known known = f.known(11, 500);
  const Parts parts = f.parts();
  Engine engine = f.engine({.cache_bytes = 11 * (parts.table + parts.block) + (8 + 10) * parts.page});
  Session parent = engine.open_session();
  parent.append(known.text.feed(0, 480));
  std::vector<Session> forks;
  for (int i = 0; i < 10; ++i) {
    forks.push_back(parent.fork());
    check_goes_on(forks.back(), known, 490);
  }
}

TEST_CASE("running out of the budget changes nothing but what is freed, and freed memory serves another session") {
  const Fixture f;
  const Known a_known = f.known(12, 100), b_known = f.known(13, 500);
  Engine engine = f.engine({.cache_bytes = 60'000});
  Session a = engine.open_session();
  check_goes_on(a, a_known, 80);
  std::optional<Session> b = engine.open_session();
  std::int64_t reached = 0;
  Failure failure;
  while (reached < 500) {
    failure = failure_of([&] { b->append(b_known.text.feed(reached, reached + 20, 3)); });
    if (failure.code != Errc::ok) break;
    reached += 20;
  }
  CHECK(failure.code == Errc::out_of_memory);
  CHECK(failure.says("cache budget"));
  REQUIRE(reached > 0);
  check_is(*b, b_known, reached, 3);
  check_is(a, a_known, 80, 80);
  CHECK(engine.memory().used_bytes <= 60'000);

  const runtime::SessionFeed both[] = {{&a, a_known.text.feed(80, 90)},
                                       {&*b, b_known.text.feed(reached, reached + 100)}};
  CHECK(failure_of([&] { engine.step(both); }).code == Errc::out_of_memory);  // neither has run
  check_is(*b, b_known, reached, 3);
  check_is(a, a_known, 80, 80);
  check_goes_on(a, a_known, 100);
  b.reset();
  Session c = engine.open_session();
  check_goes_on(c, b_known, reached);
}

TEST_CASE("sync_to keeps what it can of its own, and says what it ran") {
  const Fixture f;
  Random random(14);
  const Known known = f.known(15, 200);
  const Known other = f.known(branch_of(known.text, 90, 150, f.config.vocab, random));
  Engine engine = f.engine();
  Session session = engine.open_session();
  const auto sync = [&](const Known& to, std::int64_t end, std::int64_t logit_rows, std::int64_t reused,
                        std::int64_t recomputed) {
    INFO("to " << end << ", logits of " << logit_rows);
    const runtime::SyncReport report = session.sync_to(to.text.feed(0, end, logit_rows));
    CHECK(report.reused == reused);
    CHECK(report.recomputed == recomputed);
    CHECK(report.fed == end - reused);
    check_is(session, to, end, std::min(logit_rows, end));
  };
  sync(known, 100, 1, 0, 0);
  sync(known, 120, 1, 100, 0);               // longer
  sync(known, 120, 1, 120, 1);               // the same: its last token runs again
  sync(known, 120, 5, 115, 0);               // with more logits
  sync(other, 150, 1, 90, f.most_replayed);  // parts far back
  sync(other, 148, 2, 146, 0);               // shorter, within the room
  sync(other, 60, 1, 59, f.most_replayed);   // and beyond it
  sync(other, 58, 0, 58, 0);                 // no logits: nothing to run
  sync(known, 10, 3, 7, 7);                  // the windows reach back to the start
  sync(known, 30, runtime::kAllRows, 0, 0);  // all logits: nothing to keep
  CHECK(failure_of([&] { session.sync_to({}); }).code == Errc::invalid_argument);
  check_is(session, known, 30, 30);
}

TEST_CASE("the prefix cache gives a session the whole pages that another ran, with or without their windows") {
  const Fixture f;
  Random random(16);
  const Known known = f.known(17, 300);
  const Known other = f.known(branch_of(known.text, 200, 300, f.config.vocab, random));
  Engine engine = f.engine({.prefix_bytes = 1'000'000});
  {
    Session first = engine.open_session();
    check_goes_on(first, known, 128);  // exactly two pages: with the windows there
    check_goes_on(first, known, 220);  // and the third, within a call
  }
  CHECK(engine.memory().prefix_bytes > 0);
  Session second = engine.open_session();
  runtime::SyncReport report = second.sync_to(known.text.feed(0, 150));
  CHECK(report.reused == 0);  // all logits are wanted
  Session third = engine.open_session();
  report = third.sync_to(known.text.feed(0, 150, 1));
  CHECK(report.reused == 128);
  CHECK(report.recomputed == 0);
  CHECK(report.fed == 22);
  check_is(third, known, 150, 1);
  Session fourth = engine.open_session();
  report = fourth.sync_to(other.text.feed(0, 300, 1));
  CHECK(report.reused == 192);
  CHECK(report.recomputed == 0);
  check_is(fourth, other, 300, 1);
  check_goes_on(third, known, 300);
  Session fifth = engine.open_session();
  report = fifth.sync_to(known.text.feed(0, 127, 1));
  CHECK(report.reused == 64);  // only whole pages
  check_is(fifth, known, 127, 1);
}

TEST_CASE("a session that a budget holds goes on, whatever the prefix cache has kept of it") {
  const Fixture f;
  const Known known = f.known(18, 300);
  const Parts parts = f.parts();
  const std::int64_t alone = parts.table + parts.block + 5 * parts.page;
  for (const bool kept : {false, true}) {
    INFO("prefix cache " << kept);
    Engine engine = f.engine({.cache_bytes = alone, .prefix_bytes = kept ? alone : 0});
    Session session = engine.open_session();
    for (std::int64_t p = 0; p < 300; p += 4) check_goes_on(session, known, p + 4);  // also at the end of each page
    session.rewind(100);
    check_goes_on(session, known, 130);
  }
}

TEST_CASE("what the prefix cache offers and a session does not take is given back") {
  const Fixture f;
  const Known known = f.known(30, 300);
  const Parts parts = f.parts();
  const std::int64_t budget = parts.table + 5 * parts.page + 3 * parts.block;  // two blocks for the cache
  Engine engine = f.engine({.cache_bytes = budget, .prefix_bytes = budget});
  {
    Session session = engine.open_session();
    for (std::int64_t p = 4; p <= 300; p += 4) {
      session.sync_to(known.text.feed(0, p, 1));  // its own beginning is longer than any page's
      check_is(session, known, p, 1);
    }
  }
  std::vector<Session> sessions;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(engine.open_session());
    check_goes_on(sessions.back(), known, 1);
  }
}

TEST_CASE("B60: pages found in the prefix cache, whatever steps wrote them, are not changed by the one who goes on") {
  const Fixture f;
  Random random(19);
  const Known known = f.known(20, 200);
  const Known other = f.known(branch_of(known.text, 97, 200, f.config.vocab, random));
  for (const std::int64_t width : {1, 7, 64, 200}) {
    INFO("written " << width << " at a time");
    Engine engine = f.engine({.max_rows = 50, .prefix_bytes = 1'000'000});
    Session writer = engine.open_session();
    for (std::int64_t p = 0; p < 200; p += width)
      writer.append(known.text.feed(p, std::min<std::int64_t>(200, p + width), 1));
    const Bytes before = saved(writer);
    Session reader = engine.open_session();
    CHECK(reader.sync_to(known.text.feed(0, 190, 1)).reused % 64 == 0);
    reader.rewind(97);  // inside a page that three hold
    check_goes_on(reader, other, 200);
    CHECK((saved(writer) == before));
    Session third = engine.open_session();
    CHECK(third.sync_to(known.text.feed(0, 140, 1)).reused == 128);
    check_is(third, known, 140, 1);
    writer.rewind(97);  // the writer in turn changes its own
    check_goes_on(writer, other, 150);
    check_goes_on(third, known, 200);
  }
}

TEST_CASE(
    "B59: equal ids with other image rows, or none, share only what is before them, in the session and in the cache") {
  const Fixture f;
  Random random(21);
  const Text plain = random_text(160, f.config.vocab, random);
  Text own = plain, first = plain;
  own.add_span(70, 20, 0, f.config.dim, random);
  first.add_span(70, 20, 20, f.config.dim, random);
  Text second = first;
  second.rows[static_cast<std::size_t>(5 * f.config.dim)] += 1;  // one value of the sixth row
  const Known known[] = {f.known(plain), f.known(own), f.known(first), f.known(second)};
  for (const std::int64_t prefix_bytes : {0, 1'000'000}) {
    Engine engine = f.engine({.prefix_bytes = prefix_bytes});
    Session same = engine.open_session();
    for (std::size_t i = 0; i < 4; ++i) {
      INFO("text " << i << ", prefix cache of " << prefix_bytes);
      const Known& k = known[i];
      const std::int64_t shared = i == 0 ? 0 : i == 3 ? 75 : 70;
      const std::int64_t reused = same.sync_to(k.text.feed(0, 160, 1)).reused;
      CHECK((reused == shared || (prefix_bytes > 0 && reused == 64)));  // a page with its windows may be cheaper
      check_is(same, k, 160, 1);
      Session another = engine.open_session();
      another.append(k.text.feed(0, 160, 1));
      CHECK(another.sync_to(k.text.feed(0, 160, 2)).reused == 158);
      Session fresh = engine.open_session();
      CHECK(fresh.sync_to(k.text.feed(0, 160, 1)).reused == (prefix_bytes == 0 ? 0 : 128));
      check_is(fresh, k, 160, 1);
      for (std::int64_t end = 68; end < 92; end += 3) {  // a call that ends inside the span
        Session cut = engine.open_session();
        cut.append(k.text.feed(0, end, 1));
        check_goes_on(cut, k, 100);
      }
    }
  }
}

TEST_CASE(
    "B56: a state of any length, restored into a slot that another sequence used, goes on as if never interrupted") {
  const Fixture f;
  const Known known = f.known(22, 60), other = f.known(23, 60);
  Engine from = f.engine(), to = f.engine({.max_rows = 4, .room = 1});
  Session whole = from.open_session(), slot = to.open_session();
  for (std::int64_t n = 1; n <= 40; ++n) {
    INFO("length " << n);
    whole.append(known.text.feed(n - 1, n));
    slot.rewind(0);
    slot.append(other.text.feed(0, 1 + (n * 17) % 60));
    restore(slot, saved(whole));
    check_is(slot, known, n, 0);
    Session fork = slot.fork();
    for (std::int64_t p = n; p < n + 10; ++p) check_goes_on(slot, known, p + 1);
    CHECK(slot.replayed_rows() == 0);
    check_goes_on(fork, known, n + 10);
    CHECK((saved(fork) == saved(slot)));
  }
}

TEST_CASE("a saved state of another numeric class or model, or one too long, is refused; the session stays") {
  const Fixture f;
  const Known known = f.known(24, 60);
  Engine engine = f.engine();
  Session session = engine.open_session(), other = engine.open_session();
  check_goes_on(session, known, 50);
  Bytes bytes = saved(session);
  const auto refused = [&](Engine& by, Errc code) {
    Session target = by.open_session();
    target.append(known.text.feed(0, 5));
    const std::vector<float> before(target.logits().data(), target.logits().data() + target.logits().size());
    CHECK(failure_of([&] { restore(target, bytes); }).code == code);
    CHECK(target.position() == 5);
    CHECK(std::equal(before.begin(), before.end(), target.logits().data()));
  };
  Engine deployed = f.engine({.numeric = Numeric::deployed});
  refused(deployed, Errc::invalid_argument);
  Engine small(f.folder, {.max_context = 49});
  refused(small, Errc::out_of_memory);
  const ModelFolder folder = ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/11-image-span");
  Engine foreign(folder, {.max_context = 64});
  refused(foreign, Errc::invalid_argument);

  session.rewind(20);  // far: it is saved without its windows
  const Bytes second = saved(session);
  CHECK(second.size() < bytes.size());
  bytes.insert(bytes.end(), second.begin(), second.end());  // two in one stream
  std::size_t at = 0;
  restore(other, bytes, at);
  check_is(other, known, 50, 0);
  check_goes_on(other, known, 60);
  restore(other, bytes, at);
  CHECK(at == bytes.size());
  check_is(other, known, 20, 0);
  check_goes_on(other, known, 60);
  CHECK(other.replayed_rows() == std::min<std::int64_t>(20, f.most_replayed));
}

TEST_CASE("B57: 7 rows fed and 3 kept are 3 more: tokens held are tokens said, and state is that of plain decoding") {
  const Fixture f;
  const Known known = f.known(25, 80);
  Random random(26);
  Engine engine = f.engine();
  Session session = engine.open_session(), plain = engine.open_session();
  check_goes_on(session, known, 11);
  check_goes_on(plain, known, 11);
  while (session.position() + 7 < 80) {
    const std::int64_t old = session.position();
    const Text draft = branch_of(known.text, old + 3, 80, f.config.vocab, random);
    session.append(draft.feed(old, old + 7));
    CHECK(session.position() == old + 7);
    const float* got = session.logits().data();
    CHECK(std::equal(got, got + 3 * f.config.vocab, known.logits.data() + old * f.config.vocab));
    CHECK(session.rewind(old + 3) == 0);
    check_is(session, known, old + 3, 0);
    while (plain.position() < old + 3) check_goes_on(plain, known, plain.position() + 1);
    CHECK((saved(session) == saved(plain)));
  }
  check_goes_on(session, known, 80);
}

TEST_CASE("B53: any start, width and number of kept rows leaves the open groups of plain decoding") {
  Random random(27);
  for (const char* name : {"13-deployed", "15-three-streams-ratio-3"}) {  // ratios 2 and 3
    const ModelFolder folder = ModelFolder::open(std::string(DSV41_GOLDEN_DIR) + "/" + name);
    const std::int64_t vocab = folder.checkpoint.config().vocab;
    const Text text = random_text(40, vocab, random);
    const Known known{text, fresh_logits(folder, text)};
    for (const std::int64_t room : {0, 8}) {
      Engine engine(folder, {.max_context = 64, .room = room});
      std::vector<Session> plain;  // at 14, 15, ...
      plain.push_back(engine.open_session());
      plain.back().append(text.feed(0, 14));
      while (plain.back().position() < 32) {
        plain.push_back(plain.back().fork());
        check_goes_on(plain.back(), known, plain.back().position() + 1);
      }
      const auto plain_at = [&](std::int64_t p) { return saved(plain[static_cast<std::size_t>(p - 14)]); };
      for (const std::int64_t start : {14, 15, 16}) {
        for (std::int64_t width = 1; width <= 9; width += kShare > 1 ? 4 : 1) {
          for (std::int64_t kept = 0; kept <= width; ++kept) {
            INFO(name << ", room " << room << ", start " << start << ", width " << width << ", kept " << kept);
            Session session = plain[static_cast<std::size_t>(start - 14)].fork();
            const Text draft = branch_of(text, start + kept, 40, vocab, random);
            session.append(draft.feed(start, start + width));
            const std::int64_t cost = session.rewind(start + kept);
            if (room == 8) CHECK(cost == 0);
            if (width - kept <= room) CHECK((saved(session) == plain_at(start + kept)));  // with the whole window
            check_goes_on(session, known, start + kept + 1);
            CHECK(session.replayed_rows() == cost);
            CHECK((saved(session) == plain_at(start + kept + 1)));
          }
        }
      }
    }
  }
}

TEST_CASE("a cancelled call leaves the tokens of the steps before it, wherever the token is set") {
  const Fixture f{.folder = rows_to_skip()};
  const Known known = f.known(28, 150);
  for (const Prefill mode : {Prefill::full, Prefill::exact}) {
    Engine engine = f.engine({.max_rows = 8, .prefill = mode});
    Session session = engine.open_session();
    CancelToken token;
    token.request();
    CHECK(failure_of([&] { session.append(known.text.feed(0, 20, 1), {.cancel = &token}); }).code == Errc::cancelled);
    check_is(session, known, 0, 0);
    token.reset();
    check_goes_on(session, known, 5);
    token.request();
    CHECK(failure_of([&] { session.append(known.text.feed(5, 20, 1), {.cancel = &token}); }).code == Errc::cancelled);
    check_is(session, known, 5, 0);

    struct Asking : runtime::StepListener {
      explicit Asking(CancelToken& t) : token(t) {}
      void step_done(std::int64_t n) override {
        if (n >= 16) token.request();
      }
      CancelToken& token;
    } asking(token);
    token.reset();
    CHECK(failure_of([&] {
            session.append(known.text.feed(5, 60, 1), {.cancel = &token, .listener = &asking});
          }).code == Errc::cancelled);
    check_is(session, known, 21, 0);
    check_goes_on(session, known, 28);

    int cancelled = 0;
    for (int i = 0; i < 40; ++i) {  // by another thread: between layers too
      Session other = session.fork();
      token.reset();
      std::thread clock([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(500 * i));
        token.request();
      });
      const Failure failure = failure_of([&] { other.append(known.text.feed(28, 140, 1), {.cancel = &token}); });
      clock.join();
      REQUIRE((failure.code == Errc::ok || failure.code == Errc::cancelled));
      cancelled += failure.code == Errc::cancelled ? 1 : 0;
      const std::int64_t through = other.position() - 28;
      CHECK((through % 8 == 0 || through == 112));
      check_is(other, known, other.position(), failure.code == Errc::ok ? 1 : 0);
      check_goes_on(other, known, std::min<std::int64_t>(150, other.position() + 8));
    }
    CHECK(cancelled > 0);
  }
}
