// SPDX-License-Identifier: MIT
//
// Prefill modes: exact gives the full mode's bits on random encoder/decoder splits, bounded replay what its definition says, and every
// layer runs the rows that the formulas count. Memory that a step must not read holds NaN.
#include "dsv41/model/prefill.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/v41_flash.hpp"
#include "support/memory.hpp"
#include "support/random_config.hpp"
#include "support/random_model.hpp"
#include "support/share.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr int kConfigs = kShare > 1 ? 4 : 12;
constexpr std::int64_t kDecoded = 200;

/// What the last prompt row depends on in the boundary layer.
std::int64_t receptive_field(const ModelConfig& c) {
  const std::int64_t above = c.layers - 1 - c.kv_sources.back();
  return c.window + above * (c.window - 1);
}

/// A model and one sequence of it at a time.
template <class B>
class Bench {
 public:
  using Backend = Poisoned<B>;

  /// Room for prompts of `prompt` rows together, and `more` behind them.
  Bench(const ModelConfig& config, std::int64_t prompt, std::int64_t more = 0, Numeric numeric = Numeric::exact)
      : random_(config),
        schedule_(make_schedule(random_.config)),
        stepper_(random_, {.max_context = prompt + more, .max_rows = prompt}, numeric),
        state_(stepper_.open()) {
    validate(random_.config);
  }

  void reset() {
    state_ = stepper_.open();
    rows.assign(static_cast<std::size_t>(random_.config.layers), 0);
  }

  /// One prompt at the sequence's position, in parts of at most `chunk` rows; the last row's logits.
  std::vector<float> feed(const std::vector<std::int32_t>& ids, Prefill mode, std::size_t chunk) {
    const std::int64_t begin = state_.position(), end = begin + std::ssize(ids);
    std::vector<float> logits;
    for (std::size_t at = 0; at < ids.size(); at += chunk) {
      const std::size_t count = std::min(chunk, ids.size() - at);
      plan_prefill(random_.config, schedule_, mode,
                   {.begin = begin,
                    .end = end,
                    .first = begin + static_cast<std::int64_t>(at),
                    .rows = static_cast<std::int64_t>(count)},
                   plan_);
      logits = step(part(ids, at, count), plan_);
    }
    return {logits.end() - random_.config.vocab, logits.end()};
  }

  /// One step with a plan of the caller's; logits of the rows that reached the end.
  std::vector<float> step(const std::vector<std::int32_t>& ids, const std::vector<LayerRows>& plan) {
    for (std::size_t l = 0; l < rows.size(); ++l) rows[l] += std::ssize(ids) - (plan.empty() ? 0 : plan[l].queries);
    poison_.resize(stepper_.scratch().bytes(), 0xFF);
    random_.backend.upload(stepper_.scratch().views().streams.data(), poison_.data(),
                           poison_.size());  // all starts there
    return stepper_.step({{&state_, ids}}, plan);
  }

  /// Logits of `count` greedy tokens behind these.
  std::vector<std::vector<float>> decode(std::vector<float> logits, std::int64_t count) {
    std::vector<std::vector<float>> out;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto id = std::max_element(logits.begin(), logits.end()) - logits.begin();
      logits = stepper_.step({{&state_, {static_cast<std::int32_t>(id)}}});
      out.push_back(logits);
    }
    return out;
  }

  std::vector<float> memory() { return remembered(random_.memory, random_.config, state_); }
  const ModelConfig& config() const { return random_.config; }

  std::vector<std::int64_t> rows;  ///< that each layer's attention and experts ran

 private:
  RandomModel<Backend> random_;
  Schedule schedule_;
  Stepper<Backend> stepper_;
  State<Backend> state_;
  std::vector<LayerRows> plan_;
  std::vector<std::uint8_t> poison_;
};

/// Prompt lengths around the places where a layer begins to skip rows, up to four receptive fields.
std::vector<std::int64_t> lengths(const ModelConfig& c, Random& random) {
  const std::int64_t field = receptive_field(c), w = c.window;
  std::vector<std::int64_t> out{1, w + 1, 1 + random.below(field), field + random.below(3 * field), 4 * field};
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<std::size_t> chunks(std::int64_t length) {
  return {1, 3, 7, static_cast<std::size_t>(length)};
}

std::int64_t sum(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

/// Rows per layer of a prompt of the released model.
std::vector<std::int64_t> released_rows(Prefill mode, std::int64_t length) {
  const ModelConfig c = v41_flash();
  const Schedule schedule = make_schedule(c);
  std::vector<std::int64_t> out;
  for (std::int32_t l = 0; l < c.layers; ++l) out.push_back(prefill_rows(c, schedule, mode, l, length));
  return out;
}

std::vector<std::int64_t> decoder(const std::vector<std::int64_t>& rows) {
  return {rows.begin() + 20, rows.end()};
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("exact prefill equals full to the bit: last logits, memory and 200 tokens more, in any chunks",
                        "[prefill]", Backends) {
  bool skipped = false;
  for (std::uint64_t seed = 1; seed <= kConfigs; ++seed) {
    const ModelConfig config = random_config(seed);
    Random random(100 + seed);
    const std::int64_t longest = 4 * receptive_field(config);
    Bench<TestType> bench(config, longest, kDecoded, seed % 3 == 0 ? Numeric::deployed : Numeric::exact);
    for (const std::int64_t length : lengths(config, random)) {
      INFO("config " << seed << ", " << length << " tokens");
      const auto ids = random_tokens(seed * 1000 + static_cast<std::uint64_t>(length), static_cast<std::size_t>(length),
                                     config.vocab);
      bench.reset();
      const std::vector<float> want = bench.feed(ids, Prefill::full, static_cast<std::size_t>(length));
      const std::vector<float> memory = bench.memory();
      CHECK(std::all_of(bench.rows.begin(), bench.rows.end(), [&](std::int64_t r) { return r == length; }));
      const bool decodes = length == 1 || length > receptive_field(config);
      const auto decoded = bench.decode(want, decodes ? kDecoded : 0);
      REQUIRE(std::all_of(want.begin(), want.end(), [](float x) { return std::isfinite(x); }));
      for (const std::size_t chunk : chunks(length)) {
        INFO("chunks of " << chunk);
        bench.reset();
        const std::vector<float> got = bench.feed(ids, Prefill::exact, chunk);
        CHECK(same_bits(got, want));
        CHECK(same_bits(bench.memory(), memory));
        for (std::int32_t l = 0; l < config.layers; ++l) {
          const std::int64_t left = config.layers - l;  // itself included
          const std::int64_t expected = l < config.kv_sources.back()
                                            ? length
                                            : std::min(length, config.window + (left - 1) * (config.window - 1));
          CHECK(bench.rows[static_cast<std::size_t>(l)] == expected);
          skipped = skipped || expected < length;
        }
        if (chunk != 7 || !decodes) continue;  // equal memory decodes equally
        const auto tokens = bench.decode(got, kDecoded);
        std::size_t equal = 0;
        while (equal < tokens.size() && same_bits(tokens[equal], decoded[equal])) ++equal;
        CHECK(equal == std::size_t{kDecoded});
      }
    }
  }
  CHECK(skipped);
}

TEMPLATE_LIST_TEST_CASE(
    "exact prefill: as many of the last rows as are wanted equal full's, for one row more a layer each", "[prefill]",
    Backends) {
  for (std::uint64_t seed = 1; seed <= kConfigs; ++seed) {
    const ModelConfig config = random_config(seed);
    const std::int64_t length = receptive_field(config) + 2 * config.window, vocab = config.vocab;
    const auto ids = random_tokens(seed, static_cast<std::size_t>(length), vocab);
    Bench<TestType> bench(config, length, 0, Numeric::exact);
    bench.reset();
    const std::vector<float> full = bench.step(ids, {});
    for (const std::int64_t wanted : {std::int64_t{2}, config.window}) {
      INFO("config " << seed << ", " << wanted << " rows");
      std::vector<LayerRows> plan;
      plan_prefill(config, make_schedule(config), Prefill::exact, {.end = length, .rows = length, .wanted = wanted},
                   plan);
      bench.reset();
      const std::vector<float> got = bench.step(ids, plan);
      const auto floats = static_cast<std::ptrdiff_t>(wanted * vocab);
      const auto tail = [&](const std::vector<float>& v) { return std::vector<float>(v.end() - floats, v.end()); };
      CHECK(same_bits(tail(got), tail(full)));
      CHECK(bench.rows.back() == std::min(length, config.window + wanted - 1));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("prompts of any lengths behind each other: each skips rows, and every one ends as in full mode",
                        "[prefill]", Backends) {
  for (std::uint64_t seed = 1; seed <= kConfigs; ++seed) {
    const ModelConfig config = random_config(seed);
    Random random(200 + seed);
    const std::int64_t field = receptive_field(config);
    std::vector<std::vector<std::int32_t>> prompts;
    std::int64_t context = 0;
    for (int i = 0; i < 8; ++i) {  // longer than every layer's need and shorter than a window, in random order
      const std::int64_t length = 1 + random.below(i % 2 == 0 ? 2 * field : config.window + 2);
      prompts.push_back(random_tokens(seed * 50 + static_cast<std::uint64_t>(i), static_cast<std::size_t>(length), 50));
      context += length;
    }
    Bench<TestType> full(config, context), exact(config, context);
    full.reset(), exact.reset();
    for (const auto& ids : prompts) {
      INFO("config " << seed << ", a prompt of " << ids.size());
      const std::vector<float> want = full.feed(ids, Prefill::full, ids.size());
      CHECK(same_bits(exact.feed(ids, Prefill::exact, static_cast<std::size_t>(1 + random.below(9))), want));
      CHECK(same_bits(exact.memory(), full.memory()));
    }
  }
}

TEST_CASE("rows per layer of the released model are those of the formulas") {
  const std::vector<std::int64_t> exact = released_rows(Prefill::exact, 4096);
  CHECK(std::all_of(exact.begin(), exact.begin() + 20, [](std::int64_t r) { return r == 4096; }));
  CHECK(exact[20] == 2541);
  CHECK(exact[21] == 2414);
  CHECK(exact[39] == 128);
  CHECK(sum(decoder(exact)) == 26690);
  CHECK(sum(decoder(released_rows(Prefill::replay, 4096))) == 2560);
  CHECK(sum(decoder(released_rows(Prefill::full, 4096))) == 20 * 4096);
  CHECK(released_rows(Prefill::replay, 4096)[19] == 4096);
  CHECK(released_rows(Prefill::exact, 128) == std::vector<std::int64_t>(40, 128));
  CHECK(released_rows(Prefill::replay, 100) == std::vector<std::int64_t>(40, 100));
  // Shares of all 40 layers' rows that serving.md 1.3 lists.
  const std::pair<std::int64_t, std::pair<int, int>> shares[] = {
      {1024, {91, 56}}, {2048, {81, 53}}, {4096, {66, 52}}, {8192, {58, 51}}, {16384, {54, 50}}, {65536, {51, 50}}};
  for (const auto& [length, percent] : shares) {
    const auto share = [&, n = length](Prefill mode) {
      return std::lround(100.0 * static_cast<double>(sum(released_rows(mode, n))) / static_cast<double>(40 * n));
    };
    CHECK(share(Prefill::exact) == percent.first);
    CHECK(share(Prefill::replay) == percent.second);
  }
}

TEST_CASE("a plan's rows do not depend on how the prompt is cut, and each layer's are its last ones") {
  ModelConfig c = tiny_config();
  c.window = 4;  // boundary 3 of 6 layers: rows 10, 7, 4 from there on
  const Schedule schedule = make_schedule(c);
  std::vector<LayerRows> plan;
  plan_prefill(c, schedule, Prefill::exact, {.begin = 5, .end = 25, .first = 10, .rows = 10}, plan);
  REQUIRE(plan.size() == 6);
  CHECK((plan[2].keys == 0 && plan[2].queries == 0 && plan[2].first_visible == 0));
  CHECK((plan[3].keys == 0 && plan[3].queries == 5 && plan[3].first_visible == 0));  // keys of every row
  CHECK((plan[4].keys == 8 && plan[4].queries == 8 && plan[4].first_visible == 18));
  CHECK((plan[5].keys == 10 && plan[5].queries == 10 && plan[5].first_visible == 21));  // not in this part
  plan_prefill(c, schedule, Prefill::replay, {.begin = 5, .end = 25, .first = 20, .rows = 5}, plan);
  CHECK((plan[3].keys == 0 && plan[3].queries == 1 && plan[3].first_visible == 0));
  CHECK((plan[5].keys == 1 && plan[5].queries == 1 && plan[5].first_visible == 21));
  for (const Prefill mode : {Prefill::full, Prefill::exact, Prefill::replay}) {
    std::vector<std::int64_t> whole(6), cut(6);
    for (const std::int64_t width : {std::int64_t{20}, std::int64_t{3}}) {
      for (std::int64_t first = 5; first < 25; first += width) {
        const std::int64_t rows = std::min(width, 25 - first);
        plan_prefill(c, schedule, mode, {.begin = 5, .end = 25, .first = first, .rows = rows}, plan);
        for (std::size_t l = 0; l < 6; ++l) (width == 20 ? whole : cut)[l] += rows - plan[l].queries;
      }
    }
    CHECK(whole == cut);
  }
}

TEMPLATE_LIST_TEST_CASE("B95: up to a window every mode gives the same bits; beyond it no chunk size changes any",
                        "[prefill]", Backends) {
  for (std::uint64_t seed = 1; seed <= kConfigs; ++seed) {
    const ModelConfig config = random_config(seed);
    const std::int64_t longest = 2 * receptive_field(config) + 7;
    Bench<TestType> bench(config, longest, 20);
    for (const std::int64_t length : {std::int64_t{1}, config.window, config.window + 1, longest}) {
      INFO("config " << seed << ", " << length << " tokens");
      const auto ids = random_tokens(seed * 77, static_cast<std::size_t>(length), config.vocab);
      bench.reset();
      const std::vector<float> full = bench.feed(ids, Prefill::full, ids.size());
      const auto decoded = bench.decode(full, 20);
      std::vector<float> first;
      std::vector<std::vector<float>> first_decoded;
      for (const std::size_t chunk : chunks(length)) {
        INFO("chunks of " << chunk);
        bench.reset();
        const std::vector<float> got = bench.feed(ids, Prefill::replay, chunk);
        for (std::int32_t l = 0; l < config.layers; ++l) {
          CHECK(bench.rows[static_cast<std::size_t>(l)] ==
                (l < config.kv_sources.back() ? length : std::min(length, config.window)));
        }
        const auto tokens = bench.decode(got, 20);
        if (first.empty()) first = got, first_decoded = tokens;
        CHECK(same_bits(got, first));
        CHECK(tokens == first_decoded);
      }
      if (length > config.window) continue;
      CHECK(same_bits(first, full));
      CHECK(first_decoded == decoded);
    }
  }
}

TEMPLATE_LIST_TEST_CASE(
    "bounded replay is the full model with the windows above the boundary cut at the replay's start", "[prefill]",
    Backends) {
  double most = 0;
  int differing = 0, prompts = 0;
  for (std::uint64_t seed = 1; seed <= kConfigs; ++seed) {
    const ModelConfig config = random_config(seed);
    const auto boundary = static_cast<std::size_t>(config.kv_sources.back());
    const std::int64_t length = 2 * receptive_field(config) + 3, start = length - config.window;
    const auto ids = random_tokens(seed * 91, static_cast<std::size_t>(length), config.vocab);
    const auto head = part(ids, 0, static_cast<std::size_t>(start)),
               tail = part(ids, static_cast<std::size_t>(start), static_cast<std::size_t>(config.window));
    Bench<TestType> bench(config, length);
    bench.reset();
    const std::vector<float> replay = bench.feed(ids, Prefill::replay, ids.size());
    bench.reset();
    bench.feed(head, Prefill::full, head.size());
    std::vector<LayerRows> plan(static_cast<std::size_t>(config.layers));
    for (std::size_t l = boundary + 1; l < plan.size(); ++l) plan[l].first_visible = start;
    const std::vector<float> cut = bench.step(tail, plan);
    CHECK(same_bits(replay, std::vector<float>(cut.end() - config.vocab, cut.end())));

    bench.reset();
    const std::vector<float> full = bench.feed(ids, Prefill::full, ids.size());
    const double divergence = norm_error(replay, {full.begin(), full.end()});
    INFO("config " << seed << ": bounded replay's logits are " << divergence << " of the norm away from full");
    // What is missing is the window of a window: with fewer than two layers above the boundary, or windows of 1, nothing is.
    const bool chained = plan.size() - boundary > 2 && config.window > 1;
    if (!chained) CHECK(divergence == 0);
    CHECK(divergence < 1);
    prompts += chained;
    differing += divergence > 0;
    most = std::max(most, divergence);
  }
  INFO(differing << " of " << prompts << " prompts differ; the largest divergence is " << most);
  CHECK(differing > prompts / 2);
  CHECK(most > 1e-3);  // an approximation in more than its last bits
}
