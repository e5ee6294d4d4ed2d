// SPDX-License-Identifier: MIT
//
// Replays: a sequence that went back, with nothing left in its rings and open groups, runs a few rows again and is the sequence that never
// went further. Entries and index keys keep every byte. Rings are as small as they may be, steps longer than rings.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "dsv41/core/v41_flash.hpp"
#include "dsv41/model/prefill.hpp"
#include "support/memory.hpp"
#include "support/random_config.hpp"
#include "support/random_model.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kContext = 84, kMore = 9;  ///< tokens of a sequence, and those that run behind a replay

/// Layers of these ratios; a source wherever the ratio changes.
ModelConfig config_of(const std::vector<std::int32_t>& ratios, std::int32_t window) {
  ModelConfig c = tiny_config();
  c.dim = 32, c.heads = 2, c.experts = 4, c.hc = 2, c.window = window, c.candidate_source = -1;
  c.layers = static_cast<std::int32_t>(ratios.size()), c.ratios = ratios, c.engram.layers = {0};
  c.kv_sources.clear(), c.index_sources.clear();
  std::int32_t ratio = 0;
  for (std::int32_t l = 0; l < c.layers; ++l) {
    if (ratios[static_cast<std::size_t>(l)] == ratio || ratios[static_cast<std::size_t>(l)] == 0) continue;
    ratio = ratios[static_cast<std::size_t>(l)];
    c.kv_sources.push_back(l), c.index_sources.push_back(l);
  }
  return c;
}

std::vector<ModelConfig> configs() {
  std::vector<ModelConfig> out{config_of({0, 2, 2, 1, 1, 1}, 8),
                               config_of({0, 3, 0, 1, 1}, 3),
                               config_of({4, 4, 0, 4}, 3),
                               config_of({0, 4, 2, 3}, 1),
                               config_of({0, 0, 4}, 2),      // groups longer than the window, and the boundary on top
                               config_of({3, 3, 0}, 1),      // likewise, with layers above
                               config_of({2, 0, 3}, 3),      // the boundary on top
                               config_of({4}, 3),            // one layer, a source
                               config_of({0}, 4),            // one layer
                               config_of({0, 0, 0, 0}, 5)};  // no sources
  for (std::uint64_t seed = 1; seed <= 5; ++seed) out.push_back(random_config(seed));
  return out;
}

/// Positions around windows and groups, and some beyond everything that a replay runs.
std::vector<std::int64_t> ends(const ModelConfig& c, Random& random) {
  const std::int64_t w = c.window, field = w + (c.layers - 1) * (w - 1);
  std::vector<std::int64_t> out{0, 1, w - 1, w, w + 1, 2 * w + 1, field, field + 1, field + 3};
  for (int i = 0; i < 3; ++i) out.push_back(random.below(kContext - kMore));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  while (out.back() > kContext - kMore) out.pop_back();
  return out;
}

/// A model, and sequences of it.
template <class B>
class Bench {
 public:
  using Backend = Poisoned<B>;

  Bench(const ModelConfig& config, Numeric numeric)
      : random_(config),
        schedule_(make_schedule(random_.config)),
        stepper_(random_, {.max_context = kContext, .max_rows = 64}, numeric) {
    validate(random_.config);
  }

  /// An empty sequence with all its pages; `room` as in make_cache_layout.
  State<Backend> open(std::int64_t room) {
    std::unique_ptr<CachePool<Backend>>& pool = pools_[room];
    if (!pool) pool = std::make_unique<CachePool<Backend>>(random_.backend, config(), room);
    State<Backend> state(*pool, kContext);
    state.reserve(kContext);
    spoil(state);
    return state;
  }

  /// NaN in all rings and carries.
  void spoil(State<Backend>& state) {
    for (const CacheRows& ring : state.sequence().rings) random_.memory.fill(ring, 0xFFFFFFFF);
    for (const SourceCache& source : state.sequence().sources) {
      const std::vector<float> nan(static_cast<std::size_t>(source.carry_kv.size()), std::nanf(""));
      random_.backend.upload(source.carry_kv.data(), nan.data(), nan.size() * sizeof nan[0]);
      random_.backend.upload(source.carry_gate.data(), nan.data(), nan.size() * sizeof nan[0]);
    }
  }

  /// Logits of these tokens, in steps of at most `chunk` rows.
  std::vector<float> feed(State<Backend>& state, const std::vector<std::int32_t>& ids, std::size_t chunk = 64) {
    std::vector<float> out;
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      const std::vector<float> logits = step(state, part(ids, at, std::min(chunk, ids.size() - at)));
      out.insert(out.end(), logits.begin(), logits.end());
    }
    return out;
  }

  /// The tokens as one prompt from position 0.
  void prefill(State<Backend>& state, Prefill mode, const std::vector<std::int32_t>& ids) {
    for (std::size_t at = 0; at < ids.size(); at += 13) {
      const std::size_t rows = std::min<std::size_t>(13, ids.size() - at);
      plan_prefill(
          config(), schedule_, mode,
          {.end = std::ssize(ids), .first = static_cast<std::int64_t>(at), .rows = static_cast<std::int64_t>(rows)},
          plan_);
      step(state, part(ids, at, rows), plan_);
    }
  }

  /// Back to the position behind `ids`, which the sequence began with.
  void replay(State<Backend>& state, Prefill mode, const std::vector<std::int32_t>& ids, std::int64_t chunk) {
    const std::int64_t end = std::ssize(ids);
    std::int64_t at = replay_start(config(), schedule_, mode, end);
    for (state.sequence().position = at; at < end; at += chunk) {
      const std::int64_t rows = std::min(chunk, end - at);
      plan_replay(config(), schedule_, mode, {.end = end, .first = at, .rows = rows}, plan_);
      CHECK(step(state, part(ids, static_cast<std::size_t>(at), static_cast<std::size_t>(rows)), plan_).empty());
    }
  }

  std::vector<float> memory(State<Backend>& state) { return remembered(random_.memory, config(), state); }

  /// Bytes of the window rows that a replay restores.
  std::vector<std::uint8_t> windows(State<Backend>& state) {
    std::vector<std::uint8_t> out;
    for (const CacheRows& ring : state.sequence().rings) {
      for (std::int64_t p = std::max<std::int64_t>(0, state.position() - config().window); p < state.position(); ++p) {
        const std::vector<std::uint8_t> row = random_.memory.bytes(ring, p % ring.rows, 1);
        out.insert(out.end(), row.begin(), row.end());
      }
    }
    return out;
  }

  /// Bytes of all entries and index keys, those beyond the sequence's position too.
  std::vector<std::uint8_t> entries(State<Backend>& state) {
    std::vector<std::uint8_t> out;
    for (const SourceCache& source : state.sequence().sources) {
      for (const CacheRows* cache : {&source.entries, &source.index_keys}) {
        const std::vector<std::uint8_t> bytes = random_.memory.bytes(*cache);
        out.insert(out.end(), bytes.begin(), bytes.end());
      }
    }
    return out;
  }

  const ModelConfig& config() const { return random_.config; }

 private:
  std::vector<float> step(State<Backend>& state, const std::vector<std::int32_t>& ids,
                          const std::vector<LayerRows>& plan = {}) {
    poison_.resize(stepper_.scratch().bytes(), 0xFF);
    random_.backend.upload(stepper_.scratch().views().streams.data(), poison_.data(),
                           poison_.size());  // all starts there
    return stepper_.step({{&state, ids}}, plan);
  }

  RandomModel<Backend> random_;
  Schedule schedule_;
  Stepper<Backend> stepper_;
  std::map<std::int64_t, std::unique_ptr<CachePool<Backend>>> pools_;  // by room
  std::vector<LayerRows> plan_;
  std::vector<std::uint8_t> poison_;
};

std::vector<std::int32_t> head(const std::vector<std::int32_t>& ids, std::int64_t count) {
  return part(ids, 0, static_cast<std::size_t>(count));
}

/// A sequence that ran `end` tokens of `ids` and others behind them goes back to `end`, spoiled, by replays in steps of several lengths;
/// each time it must be what `fresh` is there, and answer `more` as that one did.
template <class B>
void check_replays(Bench<B>& bench, Prefill mode, const std::vector<std::int32_t>& ids, std::int64_t end,
                   std::int64_t room, State<Poisoned<B>>& fresh) {
  const std::vector<std::int32_t> before = head(ids, end), more = part(ids, static_cast<std::size_t>(end), kMore);
  const std::vector<float> memory = bench.memory(fresh);
  const std::vector<std::uint8_t> windows = bench.windows(fresh);
  const std::vector<float> want = bench.feed(fresh, more, 1), memory_after = bench.memory(fresh);
  REQUIRE(std::all_of(want.begin(), want.end(), [](float x) { return std::isfinite(x); }));

  State<Poisoned<B>> state = bench.open(room);
  bench.feed(state, before);
  bench.feed(state, random_tokens(static_cast<std::uint64_t>(1000 + end), kMore, bench.config().vocab), 4);
  for (const std::int64_t chunk : end % 2 == 0 ? std::vector<std::int64_t>{1, 7} : std::vector<std::int64_t>{3, 64}) {
    INFO("steps of " << chunk << " rows");
    bench.spoil(state);
    const std::vector<std::uint8_t> entries = bench.entries(state);
    bench.replay(state, mode, before, chunk);
    CHECK(state.position() == end);
    CHECK(bench.entries(state) == entries);
    CHECK(bench.windows(state) == windows);
    CHECK(same_bits(bench.memory(state), memory));
    CHECK(same_bits(bench.feed(state, more, static_cast<std::size_t>(chunk)), want));
    CHECK(same_bits(bench.memory(state), memory_after));
  }
}

std::vector<std::int64_t> keys(const std::vector<LayerRows>& plan) {
  std::vector<std::int64_t> out;
  for (const LayerRows& rows : plan) out.push_back(rows.keys);
  return out;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("a replay leaves the sequence that ran so far, row by row, to the bit", "[replay]", Backends) {
  std::uint64_t seed = 0;
  for (const ModelConfig& config : configs()) {
    Random random(++seed);
    const std::vector<std::int32_t> ids = random_tokens(seed, kContext, config.vocab);
    for (const Numeric numeric : kNumerics) {
      Bench<TestType> bench(config, numeric);
      State<Poisoned<TestType>> fresh = bench.open(kContext);
      for (const std::int64_t end : ends(config, random)) {
        INFO("config " << seed << ", back to " << end << ", " << numeric_name(numeric));
        const auto at = static_cast<std::size_t>(fresh.position());
        bench.feed(fresh, part(ids, at, static_cast<std::size_t>(end) - at), 1);
        const Prefill mode = end % 4 < 2 ? Prefill::full : Prefill::exact;
        check_replays(bench, mode, ids, end, random.below(9), fresh);
        fresh.sequence().position = end;  // its ring keeps every row
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a bounded replay leaves the sequence whose prompt ended there, prefilled in that mode",
                        "[replay]", Backends) {
  std::uint64_t seed = 0;
  for (const ModelConfig& config : configs()) {
    Random random(50 + ++seed);
    if (config.kv_sources.empty()) continue;
    const std::vector<std::int32_t> ids = random_tokens(100 + seed, kContext, config.vocab);
    Bench<TestType> bench(config, seed % 2 == 0 ? Numeric::exact : Numeric::deployed);
    for (const std::int64_t end : ends(config, random)) {
      INFO("config " << seed << ", back to " << end);
      State<Poisoned<TestType>> fresh = bench.open(kContext);
      bench.prefill(fresh, Prefill::replay, head(ids, end));
      check_replays(bench, Prefill::replay, ids, end, random.below(9), fresh);
    }
  }
}

TEMPLATE_LIST_TEST_CASE("rings of any room give the logits of rings that keep every row, however long the steps are",
                        "[replay]", Backends) {
  const std::vector<std::int32_t> ids = random_tokens(8, kContext, 50);
  for (const ModelConfig& config : {config_of({0, 3, 3, 2, 0}, 5), config_of({4, 4}, 1)}) {
    Bench<TestType> bench(config, Numeric::deployed);
    State<Poisoned<TestType>> whole = bench.open(kContext);
    const std::vector<float> want = bench.feed(whole, ids, 1);
    for (const std::int64_t room : {0, 1, 2, 8}) {
      for (const std::size_t chunk : {1, 2, 9, 13, 64}) {
        INFO("room " << room << ", steps of " << chunk << " rows");
        State<Poisoned<TestType>> state = bench.open(room);
        CHECK(same_bits(bench.feed(state, ids, chunk), want));
        CHECK(same_bits(bench.memory(state), bench.memory(whole)));
      }
    }
  }
}

TEST_CASE("rows of a replay: the trapezoid of all layers, or of those up to the boundary") {
  const ModelConfig c = config_of({0, 2, 2, 3, 3, 0}, 4);
  const Schedule schedule = make_schedule(c);
  std::vector<LayerRows> plan;
  for (const Prefill mode : {Prefill::full, Prefill::exact}) {
    CHECK(replay_start(c, schedule, mode, 101) == 82);
    plan_replay(c, schedule, mode, {.end = 101, .first = 82, .rows = 19}, plan);
    CHECK(keys(plan) == std::vector<std::int64_t>{0, 3, 6, 9, 12, 15});
    for (std::size_t l = 0; l < 6; ++l) {
      CHECK(plan[l].queries == (l < 5 ? plan[l + 1].keys : 19));
      CHECK(plan[l].entries == (l == 1 ? 18 : l == 3 ? 17 : plan[l].keys));  // open groups from 100 and 99
      CHECK(plan[l].first_visible == 0);
    }
  }
  CHECK(replay_start(c, schedule, Prefill::replay, 101) == 85);
  plan_replay(c, schedule, Prefill::replay, {.end = 101, .first = 85, .rows = 16}, plan);
  CHECK(keys(plan) == std::vector<std::int64_t>{0, 3, 6, 9, 12, 12});
  for (std::size_t l = 0; l < 6; ++l) {
    CHECK(plan[l].queries == (l < 5 ? plan[l + 1].keys : 16));
    CHECK(plan[l].first_visible == (l > 3 ? 97 : 0));
  }
  for (const std::int64_t end : {0, 1, 4}) {
    for (const Prefill mode : {Prefill::full, Prefill::exact, Prefill::replay}) {
      CHECK(replay_start(c, schedule, mode, end) == 0);
      plan_replay(c, schedule, mode, {.end = end, .first = 0, .rows = end}, plan);
      CHECK(keys(plan) == std::vector<std::int64_t>(6, 0));
      CHECK(plan[5].first_visible == 0);
    }
  }
  const ModelConfig top = config_of({0, 2, 3}, 4);  // nothing above the boundary: no queries of it
  CHECK(replay_start(top, make_schedule(top), Prefill::replay, 50) == 50 - 4 - 3 - 3);
  const ModelConfig none = config_of({0, 0}, 4);
  CHECK(replay_start(none, make_schedule(none), Prefill::replay, 50) == 50 - 4 - 3);
}

TEST_CASE("an open group longer than the window makes a replay longer, through the layers below its source") {
  const ModelConfig c = config_of({0, 4, 3, 3}, 2);
  std::vector<LayerRows> plan;
  const auto starts = [&](std::int64_t end) {
    plan_replay(c, make_schedule(c), Prefill::full, {.end = end, .first = 0, .rows = end}, plan);
    return keys(plan);
  };
  CHECK(starts(47) == std::vector<std::int64_t>{42, 43, 44, 45});  // 3 and 2 tokens open: not longer than the trapezoid
  const ModelConfig last = config_of({0, 0, 4}, 2);
  CHECK(replay_start(last, make_schedule(last), Prefill::full, 47) ==
        47 - 3 - 2);  // 3 open, and a window row for each layer below
  CHECK(replay_start(last, make_schedule(last), Prefill::full, 45) == 45 - 2 - 2);
  const ModelConfig one = config_of({0, 4, 3, 3}, 1);
  const auto one_starts = [&](std::int64_t end) {
    plan_replay(one, make_schedule(one), Prefill::full, {.end = end, .first = 0, .rows = end}, plan);
    return keys(plan);
  };
  CHECK(one_starts(48) == std::vector<std::int64_t>{47, 47, 47, 47});
  CHECK(one_starts(47) == std::vector<std::int64_t>{44, 44, 45, 46});  // 44 to 46 open at ratio 4, 45 and 46 at 3
  CHECK(one_starts(50) == std::vector<std::int64_t>{48, 48, 48, 49});
}

TEST_CASE("a replay of the released model runs 5081 rows, bounded 2795, whatever the length") {
  const ModelConfig c = v41_flash();
  const Schedule schedule = make_schedule(c);
  for (const std::int64_t end : {std::int64_t{5081}, std::int64_t{100001}, std::int64_t{1} << 20}) {
    CHECK(replay_start(c, schedule, Prefill::full, end) == end - 5081);
    CHECK(replay_start(c, schedule, Prefill::replay, end) == end - 2795);
  }
  CHECK(replay_start(c, schedule, Prefill::exact, 5080) == 0);
}
