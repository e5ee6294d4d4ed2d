// SPDX-License-Identifier: MIT
//
// Sessions as a state machine: 10^5 random operations on sessions of engines with all sorts of options, against a model that is a text and
// a position in it. Whatever a session went through, each row of its logits is, bit for bit, that of a session that was fed the text and
// nothing else; and after every failure it is where the contract says.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "session_texts.hpp"
#include "support/catch.hpp"
#include "support/share.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::ModelFolder;
using runtime::Session;
using runtime::StepControl;

namespace {

constexpr std::int64_t kUnknown = -1, kLongest = 200, kLater = 128;  // rows of an append; behind two pages
constexpr std::size_t kMostSessions = 14, kSlots = 6, kTold = 40;

/// Texts that part at 0, 5, 64, 65, 68, 100, 130 and 200; four of them have the same ids and differ in what their images are.
std::vector<Text> forest(const ModelConfig& c) {
  Random random(51);
  std::vector<Text> out{random_text(600, c.vocab, random)};
  out.push_back(branch_of(out[0], 200, 500, c.vocab, random));
  out.push_back(branch_of(out[0], 130, 400, c.vocab, random));
  out.push_back(branch_of(out[1], 100, 450, c.vocab, random));
  out.push_back(branch_of(out[0], 65, 420, c.vocab, random));
  out.push_back(branch_of(out[0], 5, 480, c.vocab, random));
  out.push_back(branch_of(out[0], 0, 400, c.vocab, random));
  const Text plain = branch_of(out[0], 64, 520, c.vocab, random);
  out.push_back(plain);
  Text own = plain, first = plain;
  own.add_span(64, 20, 0, c.dim, random);
  own.add_span(150, 9, 4, c.dim, random);  // given behind not given: not one feed
  first.add_span(64, 20, 12, c.dim, random);
  first.add_span(150, 9, 0, c.dim, random);
  Text second = first;
  for (std::size_t i = static_cast<std::size_t>(4 * c.dim); i < second.rows.size(); ++i) second.rows[i] += 0.5f;
  out.insert(out.end(), {own, first, second});
  return out;
}

struct Interrupted {};

/// Stops a call: by a token before it, or after some steps by a token or an exception. Or does not.
class Stop final : public runtime::StepListener {
 public:
  enum class Kind : std::uint8_t { never, before, token, exception };

  Stop(Kind kind, std::int64_t steps) : kind_(kind), steps_(steps) {
    if (kind == Kind::before) token_.request();
  }
  void step_done(std::int64_t tokens) override {
    done = tokens;
    if (--steps_ != 0) return;
    if (kind_ == Kind::token) token_.request();
    if (kind_ == Kind::exception) throw Interrupted{};
  }
  StepControl control() { return {.cancel = &token_, .listener = this}; }
  Kind kind() const { return kind_; }

  std::int64_t done = 0;  ///< tokens that are through

 private:
  Kind kind_;
  std::int64_t steps_;
  CancelToken token_;
};

enum class Outcome : std::uint8_t { done, stopped, no_memory };

/// A session, and what it must be.
struct Held {
  Session session;
  std::size_t engine = 0;
  std::size_t text = 0;
  std::int64_t position = 0;
  std::int64_t logit_rows = 0;
  std::int64_t replays = 0;  ///< rows that the next append has to run again; kUnknown: it is not known
  std::int64_t reach = 0;    ///< going back to here costs nothing for certain
};

struct Saved {
  std::vector<std::byte> bytes;
  std::size_t text = 0;
  std::int64_t position = 0, replays = 0;
};

/// Tokens for a session: those of `text` up to `end`.
struct Going {
  std::size_t text = 0;
  std::int64_t end = 0;
  runtime::Feed feed;
};

struct Counts {
  std::int64_t rows = 0, later_rows = 0, refused_memory = 0, stopped = 0, replayed = 0, restored = 0, reused = 0;
};

class Machine {
 public:
  Machine(const ModelFolder& folder, Numeric numeric, const std::vector<EngineOptions>& options, std::uint64_t seed)
      : config_(folder.checkpoint.config()), texts_(forest(config_)), random_(seed), seed_(seed) {
    for (const Text& text : texts_) fresh_.push_back(fresh_logits(folder, text, numeric));
    for (const Text& a : texts_) {
      shared_.emplace_back();
      for (const Text& b : texts_) shared_.back().push_back(shared_beginning(a, b));
    }
    for (EngineOptions o : options) {
      o.numeric = numeric;
      engines_.emplace_back(folder, o);
    }
    for (std::size_t e = 0; e < engines_.size(); ++e) open(e);
  }

  void operate() {
    if (sessions_.empty()) open(at_random(engines_.size()));
    const std::size_t i = at_random(sessions_.size());
    const std::int64_t what = random_.below(1000);
    if (what < 70)
      append(i);
    else if (what < 105)
      step(sessions_[i].engine);
    else if (what < 125)
      sync(i);
    else if (what < 140)
      rerun_last(i);
    else if (what < 540)
      rewind(i);
    else if (what < 680)
      fork(i);
    else if (what < 820)
      drop(i);
    else if (what < 850)
      open(at_random(engines_.size()));
    else if (what < 930)
      save(i);
    else
      restore(i);
    if (!sessions_.empty()) check(sessions_[at_random(sessions_.size())]);
    for (const Engine& engine : engines_) {
      const runtime::EngineMemory memory = engine.memory();
      REQUIRE((memory.limit_bytes == 0 || memory.used_bytes <= memory.limit_bytes));
      REQUIRE(memory.prefix_bytes <= engine.options().prefix_bytes);
    }
  }

  /// Every session goes on to the end of its text; then the engines' memory has nobody any more, and holds one whole text again.
  void finish() {
    while (!sessions_.empty()) {
      Held& h = sessions_.back();
      while (const auto going = go_on(h, kLongest)) {
        Stop never(Stop::Kind::never, 0);
        if (!feed({&h}, {*going}, never)) break;
      }
      sessions_.pop_back();
    }
    for (std::size_t e = 0; e < engines_.size(); ++e) {
      tell("a whole text on engine " + std::to_string(e));
      INFO(told());
      open(e);
      REQUIRE(sessions_.size() == 1);
      Held& h = sessions_.back();
      const std::int64_t end = std::min(texts_[0].size(), engines_[e].options().max_context);
      h.session.append(texts_[0].feed(0, end, 1));
      h.position = end, h.logit_rows = 1;
      check(h);
      sessions_.pop_back();
    }
  }

  std::string told() const {
    std::string out = "seed " + std::to_string(seed_) + ", the last operations:";
    for (const std::string& line : told_) out += "\n  " + line;
    return out;
  }

  Counts counts;

 private:
  std::size_t at_random(std::size_t n) { return static_cast<std::size_t>(random_.below(static_cast<std::int64_t>(n))); }
  bool one_of(std::int64_t n) { return random_.below(n) == 0; }

  void tell(const std::string& line) {
    told_.push_back(line);
    if (told_.size() > kTold) told_.pop_front();
  }
  std::string name(const Held& h) const {
    return "engine " + std::to_string(h.engine) + ", text " + std::to_string(h.text) + " at " +
           std::to_string(h.position);
  }
  const EngineOptions& options(const Held& h) const { return engines_[h.engine].options(); }

  /// The most that bringing back the windows at `position` may cost.
  std::int64_t replay_at(std::int64_t position) const {
    return std::min(position, config_.layers * (config_.window - 1) + 1);
  }

  /// Mostly few rows, so that there are many calls; some long ones of any size.
  std::int64_t draw_rows(const Held& h) {
    const std::int64_t most = options(h).max_rows == 1 ? 8 : one_of(8) ? kLongest : 8;
    const double rows = std::exp(static_cast<double>(random_.uniform(0, std::log(static_cast<double>(most + 1)))));
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(rows), 1, most);
  }

  Stop draw_stop() {
    const std::int64_t n = random_.below(20);
    const Stop::Kind kind = n == 0   ? Stop::Kind::before
                            : n == 1 ? Stop::Kind::token
                            : n == 2 ? Stop::Kind::exception
                                     : Stop::Kind::never;
    return Stop(kind, 1 + random_.below(3));
  }

  std::int64_t draw_logit_rows(const Held& h, std::int64_t rows) {
    const std::int64_t n = random_.below(6);
    const std::int64_t wanted = n == 0 ? 0 : n == 1 ? 1 : n == 2 ? 1 + random_.below(rows) : runtime::kAllRows;
    return options(h).prefill == Prefill::exact && rows > config_.window ? std::min(wanted, config_.window) : wanted;
  }

  /// Up to `rows` more tokens of any text that the session may be on; none: that text ends here.
  std::optional<Going> go_on(const Held& h, std::int64_t rows) {
    std::size_t text = at_random(texts_.size());
    while (shared_[h.text][text] < h.position && text != h.text) text = (text + 1) % texts_.size();
    const Text& t = texts_[text];
    const std::int64_t last = std::min({h.position + rows, t.size(), options(h).max_context});
    if (last <= h.position) return {};
    const std::int64_t end = t.feedable(h.position, last);
    return Going{text, end, t.feed(h.position, end, draw_logit_rows(h, end - h.position))};
  }

  /// The session is what the model says, and its logits are a fresh run's.
  void check(const Held& h) const {
    INFO("of " << name(h));
    REQUIRE(h.session.position() == h.position);
    const Text& text = texts_[h.text];
    REQUIRE(std::ranges::equal(h.session.tokens(), std::span(text.ids).first(static_cast<std::size_t>(h.position))));
    const In<float, 2> logits = h.session.logits();
    REQUIRE(logits.extent(0) == h.logit_rows);
    const float* want = fresh_[h.text].data() + (h.position - h.logit_rows) * config_.vocab;
    const bool same = logits.size() == 0 ||
                      std::memcmp(logits.data(), want, static_cast<std::size_t>(logits.size()) * sizeof(float)) == 0;
    REQUIRE(same);
  }

  template <class Call>
  Outcome attempt(const Stop& stop, const Held& h, const Call& call) {
    try {
      call();
      REQUIRE(stop.kind() != Stop::Kind::before);
      return Outcome::done;
    } catch (const Interrupted&) {
      REQUIRE(stop.kind() == Stop::Kind::exception);
    } catch (const Error& e) {
      INFO(e.what());
      if (e.code() == Errc::out_of_memory) {
        REQUIRE(options(h).cache_bytes > 0);
        ++counts.refused_memory;
        return Outcome::no_memory;
      }
      REQUIRE(e.code() == Errc::cancelled);
      REQUIRE((stop.kind() == Stop::Kind::before || stop.kind() == Stop::Kind::token));
    }
    ++counts.stopped;
    return Outcome::stopped;
  }

  /// A call that feeds these sessions ended without an error.
  void fed(Held& h, const Going& going) {
    const std::int64_t replayed = h.session.replayed_rows(), rows = going.end - h.position;
    REQUIRE((replayed == 0 || replayed == replay_at(h.position)));
    if (h.replays != kUnknown) REQUIRE(replayed == h.replays);
    if (options(h).prefill == Prefill::exact && rows > config_.window)
      h.reach = going.end;
    else if (replayed > 0)
      h.reach = std::max(h.position, going.end - options(h).room - 1);
    else
      h.reach = std::max(h.reach, going.end - options(h).room - 1);
    h.text = going.text, h.position = going.end, h.replays = 0;
    h.logit_rows = std::min<std::int64_t>(going.feed.logit_rows, rows);
    counts.rows += h.logit_rows;
    if (h.position > kLater) counts.later_rows += h.logit_rows;
    counts.replayed += replayed;
    check(h);
  }

  /// A call was stopped: the session holds a beginning of what it was to hold, which is at least `least` tokens.
  void cut(Held& h, std::size_t text, std::int64_t least, std::int64_t end) {
    h.text = text, h.position = h.session.position(), h.logit_rows = 0, h.replays = kUnknown;
    h.reach = std::numeric_limits<std::int64_t>::max();
    REQUIRE(h.position >= least);
    REQUIRE(h.position <= end);
    check(h);
  }

  /// Feeds sessions of one engine in a call of theirs. Returns whether it ended without an error.
  bool feed(const std::vector<Held*>& held, const std::vector<Going>& going, Stop& stop) {
    std::string line = held.size() == 1 ? "append" : "step";
    std::vector<runtime::SessionFeed> feeds;
    for (std::size_t i = 0; i < held.size(); ++i) {
      line += (i == 0 ? " " : "; ") + name(*held[i]) + " to " + std::to_string(going[i].end) + " of text " +
              std::to_string(going[i].text);
      feeds.push_back({.session = &held[i]->session, .feed = going[i].feed});
    }
    tell(line + ", stop " + std::to_string(static_cast<int>(stop.kind())));
    INFO(told());
    const Outcome outcome = attempt(stop, *held[0], [&] {
      if (held.size() == 1)
        held[0]->session.append(going[0].feed, stop.control());
      else
        engines_[held[0]->engine].step(feeds, stop.control());
    });
    std::int64_t through = 0;
    for (std::size_t i = 0; i < held.size(); ++i) {
      Held& h = *held[i];
      const std::int64_t begin = h.position;
      if (outcome == Outcome::done) fed(h, going[i]);
      if (outcome == Outcome::stopped) cut(h, going[i].text, begin, going[i].end);
      if (outcome == Outcome::no_memory) check(h);
      through += h.position - begin;
    }
    REQUIRE(through == stop.done);
    return outcome == Outcome::done;
  }

  void append(std::size_t i) {
    const auto going = go_on(sessions_[i], draw_rows(sessions_[i]));
    if (!going) return rewind(i);
    Stop stop = draw_stop();
    const bool done = feed({&sessions_[i]}, {*going}, stop);
    if (done || stop.kind() != Stop::Kind::never || one_of(2)) return;
    const std::size_t engine = sessions_[i].engine;  // there was no memory: without the others there is
    std::swap(sessions_[i], sessions_.front());
    tell("drop all others of engine " + std::to_string(engine));
    std::erase_if(sessions_, [&](const Held& h) { return h.engine == engine && &h != &sessions_.front(); });
    INFO(told());
    REQUIRE(feed({&sessions_.front()}, {*going}, stop));
  }

  void step(std::size_t engine) {
    std::vector<Held*> held;
    std::vector<Going> going;
    for (Held& h : sessions_) {
      if (h.engine == engine && !one_of(4)) held.push_back(&h);
    }
    for (std::size_t i = held.size(); i > 1; --i) std::swap(held[i - 1], held[at_random(i)]);
    std::erase_if(held, [&](Held* h) {
      const auto one = go_on(*h, draw_rows(*h));
      if (one) going.push_back(*one);
      return !one;
    });
    if (held.empty()) return;
    Stop stop = draw_stop();
    feed(held, going, stop);
  }

  void sync(std::size_t i) {
    Held& h = sessions_[i];
    const std::size_t text = at_random(texts_.size());
    const Text& t = texts_[text];
    const std::int64_t own = std::min(h.position, shared_[h.text][text]);
    const bool no_cache = options(h).prefix_bytes == 0;
    const std::int64_t near = one_of(6) && options(h).max_rows > 1 ? 300 : 12;
    const std::int64_t most = std::min({own + near, t.size(), options(h).max_context});
    const std::int64_t end = t.feedable(0, std::max<std::int64_t>(1, most - random_.below(24)));
    const Going going{text, end, t.feed(0, end, one_of(20) ? draw_logit_rows(h, end) : random_.below(4))};
    const std::int64_t wanted = std::min(going.feed.logit_rows, end);
    const bool all_there = own >= end && wanted < 2;
    Stop stop = all_there && wanted == 0 ? Stop(Stop::Kind::never, 0) : draw_stop();  // nothing runs
    tell("sync " + name(h) + " to " + std::to_string(end) + " of text " + std::to_string(text) + ", logits " +
         std::to_string(going.feed.logit_rows) + ", stop " + std::to_string(static_cast<int>(stop.kind())));
    INFO(told());
    runtime::SyncReport report;
    const Outcome outcome = attempt(stop, h, [&] { report = h.session.sync_to(going.feed, stop.control()); });
    const std::int64_t limit = end - std::max<std::int64_t>(1, wanted);
    if (outcome != Outcome::done) {
      const std::int64_t kept = h.session.position() - stop.done;
      if (no_cache) REQUIRE((kept == std::min(own, limit) || (all_there && kept == end)));
      return cut(h, text, 0, end);
    }
    REQUIRE(report.reused + report.fed == end);
    REQUIRE(report.recomputed == h.session.replayed_rows());
    if (all_there && wanted == 0) REQUIRE(report.fed == 0);
    if (report.fed == 0) {  // its last token ran again, for its windows are there
      REQUIRE(all_there);
      REQUIRE(report.recomputed == wanted);
      h.text = text, h.position = end, h.replays = kUnknown;
      return reran(h, wanted);
    }
    REQUIRE(report.reused <= limit);
    REQUIRE(report.reused + (no_cache ? 0 : replay_at(limit)) >= std::min(own, limit));  // fewer: cheaper
    counts.reused += std::max<std::int64_t>(0, report.reused - own);
    h.replays = kUnknown, h.reach = std::numeric_limits<std::int64_t>::max();
    h.position = report.reused;
    fed(h, going);
    if (report.recomputed > 0 || report.reused > 0) h.reach = end;
  }

  void rerun_last(std::size_t i) {
    Held& h = sessions_[i];
    if (h.position == 0) return;
    Stop stop = draw_stop();
    tell("rerun_last " + name(h) + ", stop " + std::to_string(static_cast<int>(stop.kind())));
    INFO(told());
    const Outcome outcome = attempt(stop, h, [&] { h.session.rerun_last(stop.control()); });
    if (outcome == Outcome::done) return reran(h, 1);
    if (outcome == Outcome::stopped) return cut(h, h.text, h.position, h.position);
    check(h);
  }

  /// The last token has run again for its logits, or for nothing if none were `wanted`.
  void reran(Held& h, std::int64_t wanted) {
    const std::int64_t replayed = h.session.replayed_rows();
    REQUIRE((replayed == wanted || (wanted == 1 && replayed == replay_at(h.position))));
    if (replayed > 1) h.reach = h.position, h.replays = 0;
    if (replayed <= 1 && h.replays != 0) h.replays = kUnknown;
    h.logit_rows = wanted;
    counts.rows += wanted;
    check(h);
  }

  void rewind(std::size_t i) {
    Held& h = sessions_[i];
    const bool near = !one_of(30);
    const std::int64_t back =
        near ? std::min(h.position, random_.below(options(h).room + 3)) : random_.below(h.position + 1);
    const std::int64_t position = h.position - back;
    tell("rewind " + name(h) + " to " + std::to_string(position));
    INFO(told());
    const std::int64_t cost = h.session.rewind(position);
    REQUIRE((cost == 0 || cost == replay_at(position)));
    if (h.replays == 0 && position >= h.reach) REQUIRE(cost == 0);
    h.position = position, h.logit_rows = 0, h.replays = cost;
    if (cost == 0) h.reach = std::min(h.reach, position);
    check(h);
  }

  void fork(std::size_t i) {
    if (sessions_.size() >= kMostSessions) return drop(i);
    const Held& h = sessions_[i];
    tell("fork " + name(h));
    INFO(told());
    Stop never(Stop::Kind::never, 0);
    std::optional<Session> child;
    if (attempt(never, h, [&] { child.emplace(h.session.fork()); }) == Outcome::done) {
      sessions_.push_back({std::move(*child), h.engine, h.text, h.position, h.logit_rows, h.replays, h.reach});
      check(sessions_.back());
    }
    check(sessions_[i]);
  }

  void drop(std::size_t i) {
    tell("drop " + name(sessions_[i]));
    std::swap(sessions_[i], sessions_.back());
    sessions_.pop_back();
  }

  void open(std::size_t engine) {
    if (sessions_.size() >= kMostSessions) return;
    tell("open on engine " + std::to_string(engine));
    try {
      sessions_.push_back({.session = engines_[engine].open_session(), .engine = engine});
    } catch (const Error& e) {
      REQUIRE(e.code() == Errc::out_of_memory);
      REQUIRE(engines_[engine].options().cache_bytes > 0);
    }
  }

  void save(std::size_t i) {
    const Held& h = sessions_[i];
    std::size_t slot = at_random(kSlots);  // long ones stay longer
    if (const std::size_t other = at_random(kSlots); saved_[other].position < saved_[slot].position) slot = other;
    tell("save " + name(h) + " in slot " + std::to_string(slot));
    INFO(told());
    Saved& saved = saved_[slot];
    saved = {.bytes = {}, .text = h.text, .position = h.position, .replays = h.replays};
    h.session.save([&](std::span<const std::byte> b) { saved.bytes.insert(saved.bytes.end(), b.begin(), b.end()); });
    check(h);
  }

  void restore(std::size_t i) {
    Held& h = sessions_[i];
    Saved& saved = saved_[at_random(kSlots)];
    if (saved.bytes.empty()) return;
    const std::int64_t harm = random_.below(10);  // 0: a damaged byte, 1: an early end, 2: a source that throws
    std::vector<std::byte> bytes = saved.bytes;
    if (harm == 0) bytes[at_random(bytes.size())] ^= std::byte{16};
    if (harm == 1) bytes.resize(at_random(bytes.size()));
    tell("restore " + name(h) + " to text " + std::to_string(saved.text) + " at " + std::to_string(saved.position) +
         ", harm " + std::to_string(harm));
    INFO(told());
    std::size_t at = 0;
    const std::size_t throws_at = harm == 2 ? at_random(bytes.size()) : bytes.size() + 1;
    const auto read = [&](std::span<std::byte> to) {
      const std::size_t count = std::min(to.size(), bytes.size() - at);
      if (at + count > throws_at) throw Interrupted{};
      std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), count, to.begin());
      at += count;
      return count;
    };
    try {
      h.session.restore(read);
      REQUIRE(harm > 2);
      h.text = saved.text, h.position = saved.position, h.logit_rows = 0;
      h.replays = saved.replays > 0 ? saved.replays : kUnknown;  // a window that is cut is not saved
      h.reach = std::numeric_limits<std::int64_t>::max();
      ++counts.restored;
    } catch (const Interrupted&) {
      REQUIRE(harm == 2);
    } catch (const Error& e) {
      INFO(e.what());
      if (e.code() == Errc::out_of_memory)
        REQUIRE((saved.position > options(h).max_context || options(h).cache_bytes > 0));
      else
        REQUIRE((e.code() == Errc::format && harm < 2));
    }
    check(h);
  }

  ModelConfig config_;
  std::vector<Text> texts_;
  std::vector<std::vector<float>> fresh_;          // logits of every position
  std::vector<std::vector<std::int64_t>> shared_;  // beginnings of each two texts
  Random random_;
  std::uint64_t seed_;
  std::vector<Engine> engines_;
  std::vector<Held> sessions_;
  Saved saved_[kSlots];
  std::deque<std::string> told_;
};

void run(const ModelFolder& folder, Numeric numeric, const std::vector<EngineOptions>& options, std::uint64_t seed,
         int operations) {
  Machine machine(folder, numeric, options, seed);
  const int count = operations / kShare;
  for (int i = 0; i < count; ++i) machine.operate();
  machine.finish();
  const Counts& c = machine.counts;
  WARN(count << " operations, " << c.rows << " rows of logits compared, " << c.later_rows
             << " of them behind two pages, " << c.replayed << " run again, " << c.reused
             << " taken from prefix caches, " << c.restored << " sessions restored, " << c.stopped << " calls stopped, "
             << c.refused_memory << " refused for memory");
  if (kShare > 1) return;  // too few to meet everything
  CHECK(c.rows > count / 10);
  CHECK(c.replayed > count / 10);
  CHECK(c.reused > count / 100);
  CHECK(c.restored > count / 100);
  CHECK(c.stopped > count / 200);
  CHECK(c.refused_memory > count / 2000);
}

}  // namespace

TEST_CASE(
    "7 * 10^4 random operations on exact sessions: every row of logits is a fresh run's, every failure where it says") {
  run(rows_to_skip(), Numeric::exact,
      {{.max_context = 640, .max_rows = 64},
       {.max_context = 640, .max_rows = 7, .room = 0, .cache_bytes = 80'000, .prefix_bytes = 40'000},
       {.max_context = 640, .max_rows = 64, .prefill = Prefill::exact, .room = 3, .prefix_bytes = 100'000},
       {.max_context = 256, .max_rows = 1, .prefill = Prefill::exact},
       {.max_context = 640, .max_rows = 64, .room = 3, .cache_bytes = 70'000},
       {.max_context = 640, .max_rows = 7, .prefill = Prefill::exact, .room = 0, .prefix_bytes = 15'000}},
      7001, 70'000);
}

TEST_CASE(
    "3 * 10^4 random operations on deployed sessions: every row of logits is a fresh run's, every failure where it "
    "says") {
  run(every_mechanism(), Numeric::deployed,
      {{.max_context = 640, .max_rows = 64, .room = 0, .prefix_bytes = 200'000},
       {.max_context = 640, .max_rows = 7, .prefill = Prefill::exact, .cache_bytes = 75'000, .prefix_bytes = 30'000},
       {.max_context = 256, .max_rows = 1, .room = 3}},
      7002, 30'000);
}
