// SPDX-License-Identifier: MIT
//
// Weights beyond a budget: the same bits with all of them in memory, a third, or one expert at a time; within the budget; and what becomes
// of a session when a file cannot be read.
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "runtime/expert_cache.hpp"
#include "runtime/wrapped_calls.hpp"
#include "session_texts.hpp"
#include "support/failure.hpp"
#include "support/spoiled_copy.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::ExpertCache;
using runtime::ExpertFiles;
using runtime::ExpertLists;
using runtime::ModelFolder;
using runtime::Session;
using runtime::SessionFeed;
using runtime::WeightTier;

namespace {

const ModelFolder& demo() {
  static const ModelFolder folder = ModelFolder::open(DSV41_DEMO_DIR);
  return folder;
}

/// What the least budget is, as the message says it.
std::int64_t least_budget(const ModelFolder& folder, std::int64_t draft = 0) {
  const Failure failure = failure_of([&] { Engine(folder, {.max_context = 64, .draft = draft, .weight_bytes = 1}); });
  REQUIRE(failure.code == Errc::out_of_memory);
  const std::string before = "engine: weight_bytes is 1, expected at least ";
  REQUIRE(failure.message.starts_with(before));
  return std::stoll(failure.message.substr(before.size()));
}

struct Outcome {
  std::vector<float> logits;
  std::vector<std::int32_t> drafts;
  WeightTier tier;
};

/// A prompt, three sequences in common steps, single tokens and drafts.
Outcome run(const ModelFolder& folder, EngineOptions options) {
  options.max_context = 256;
  options.max_rows = 32;
  Engine engine(folder, options);
  Outcome out;
  const auto keep = [&](const Session& session) {
    out.logits.insert(out.logits.end(), session.logits().data(), session.logits().data() + session.logits().size());
  };
  Random random(1);
  const std::int64_t vocab = engine.config().vocab;
  Session sessions[] = {engine.open_session(), engine.open_session(), engine.open_session()};
  std::vector<Text> texts;
  for (const std::int64_t count : {70, 9, 1}) texts.push_back(random_text(count, vocab, random));
  for (int round = 0; round < 8; ++round) {
    std::vector<SessionFeed> feeds;
    for (std::size_t s = 0; s < 3; ++s) {
      if (round > 0) texts[s] = random_text(1, vocab, random);
      feeds.push_back({.session = &sessions[s], .feed = {.ids = texts[s].ids}});
    }
    engine.step(feeds);
    for (const Session& session : sessions) keep(session);
    if (options.draft == 0) continue;
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(options.draft));
    const runtime::SessionDraft draft{.session = sessions, .anchor = 5, .tokens = tokens};
    engine.draft({&draft, 1});
    out.drafts.insert(out.drafts.end(), tokens.begin(), tokens.end());
  }
  for (int i = 0; i < 40; ++i) {
    const Text one = random_text(1, vocab, random);
    sessions[1].append({.ids = one.ids});
    keep(sessions[1]);
  }
  out.tier = engine.weight_tier();
  return out;
}

void check_counters(const WeightTier& w, std::int64_t limit, std::int64_t experts) {
  CHECK(w.limit_bytes == limit);
  CHECK(w.dense_bytes + w.slots * w.slot_bytes <= limit);
  CHECK((w.slots == experts || w.dense_bytes + (w.slots + 1) * w.slot_bytes > limit));
  CHECK(w.experts == experts);
  CHECK(w.misses > 0);
  CHECK(w.bytes_read > 0);
  CHECK(w.bytes_read <= w.misses * w.slot_bytes);
  CHECK(w.ahead_used_bytes <= w.ahead_bytes);
}

}  // namespace

TEST_CASE("a model whose weights are three times the budget gives the bits of one in memory") {
  const auto bytes = static_cast<std::int64_t>(
      std::filesystem::file_size(std::filesystem::path(DSV41_DEMO_DIR) / "model.safetensors"));
  const std::int64_t experts = demo().checkpoint.config().layers * demo().checkpoint.config().experts;
  for (const Numeric numeric : {Numeric::exact, Numeric::deployed}) {
    const Outcome want = run(demo(), {.numeric = numeric});
    CHECK(want.tier.limit_bytes == 0);
    const std::int64_t least = least_budget(demo());
    for (const std::int64_t budget : {least, bytes / 3, 2 * bytes}) {
      for (const std::int64_t threads : {1, 2}) {
        INFO(budget << " bytes, " << threads << " threads");
        const Outcome got = run(
            demo(), {.cpu = {.threads = threads}, .numeric = numeric, .weight_bytes = budget, .check_weights = true});
        CHECK(same_bits(got.logits, want.logits));
        check_counters(got.tier, budget, experts);
        if (budget == 2 * bytes) CHECK(got.tier.misses == experts);  // each once
        if (budget == least) CHECK(got.tier.slots == 1);
        if (budget == bytes / 3) CHECK(got.tier.misses > 10 * got.tier.slots);  // many had to go
      }
    }
  }
}

TEST_CASE("the drafter's experts share the budget") {
  const ModelConfig& config = demo().checkpoint.config();
  const std::int64_t experts = config.layers * config.experts + config.draft.stages * config.draft.experts;
  const Outcome want = run(demo(), {.draft = 4});
  REQUIRE(want.drafts.size() == 32);
  const std::int64_t budget = least_budget(demo(), 4) + 300000;
  CHECK(budget > least_budget(demo()) + 300000);  // its dense weights count when it runs
  const Outcome got = run(demo(), {.draft = 4, .weight_bytes = budget, .check_weights = true});
  CHECK(same_bits(got.logits, want.logits));
  CHECK(got.drafts == want.drafts);
  check_counters(got.tier, budget, experts);
}

TEST_CASE("every golden folder decodes one expert at a time") {
  for (const auto& entry : std::filesystem::directory_iterator(DSV41_GOLDEN_DIR)) {
    if (!std::filesystem::exists(entry.path() / "model.safetensors")) continue;
    INFO(entry.path().string());
    const ModelFolder folder = ModelFolder::open(entry.path());
    Random random(3);
    const Text text = random_text(40, folder.checkpoint.config().vocab, random);
    const auto logits = [&](std::int64_t budget) {
      Engine engine(folder, {.max_context = 64, .max_rows = 16, .weight_bytes = budget, .check_weights = budget > 0});
      Session session = engine.open_session();
      session.append({.ids = text.ids, .logit_rows = runtime::kAllRows});
      return std::vector<float>(session.logits().data(), session.logits().data() + session.logits().size());
    };
    CHECK(same_bits(logits(least_budget(folder)), logits(0)));
  }
}

TEST_CASE("where files do not read past the page cache they are read through it") {
  const Outcome want = run(demo(), {});
  WrappedCalls calls;
  calls.refuse_direct = true;
  const Outcome got = run(demo(), {.weight_bytes = least_budget(demo()) + 100000, .check_weights = true});
  CHECK_FALSE(got.tier.direct);
  CHECK(got.tier.misses > 100);
  CHECK(calls.direct_reads <= 2);  // a try by each reader
  CHECK(calls.reads > 100);
  CHECK(same_bits(got.logits, want.logits));
}

TEST_CASE(
    "a read that fails is an error of the call, which names file and tensor, and the session goes on from before it") {
  Random random(5);
  const Text first = random_text(30, demo().checkpoint.config().vocab, random),
             then = random_text(20, demo().checkpoint.config().vocab, random);
  const auto logits_of = [](const Session& s) {
    return std::vector<float>(s.logits().data(), s.logits().data() + s.logits().size());
  };
  std::vector<float> want;
  {
    Engine engine(demo(), {.max_context = 64});
    Session session = engine.open_session();
    session.append({.ids = first.ids});
    session.append({.ids = then.ids});
    want = logits_of(session);
  }
  for (const int code : {EIO, 0}) {
    for (const int after : {0, 1, 7, 40}) {
      INFO("errno " << code << " after " << after << " reads");
      Engine engine(demo(), {.max_context = 64, .weight_bytes = least_budget(demo()) + 200000, .check_weights = true});
      Session session = engine.open_session();
      session.append({.ids = first.ids});
      {
        WrappedCalls calls;
        calls.failure = code;
        calls.fail_after = after;
        const Failure failure = failure_of([&] { session.append({.ids = then.ids}); });
        CHECK(failure.code == Errc::io);
        CHECK(failure.says("model.safetensors: tensor layers."));
        CHECK(failure.says(".ffn.experts."));
        CHECK(failure.says(code == EIO ? "Input/output error" : "the file ends there"));
      }
      CHECK(session.position() == 30);
      session.append({.ids = then.ids});
      CHECK(same_bits(logits_of(session), want));
    }
  }
}

TEST_CASE("bytes that are not the file's are told by the check, and by nothing else") {
  const std::int64_t budget = least_budget(demo()) + 200000;
  const Text text{.ids = {1, 2, 3}, .marks = {0, 0, 0}};
  for (const bool check : {true, false}) {
    Engine engine(demo(), {.max_context = 64, .weight_bytes = budget, .check_weights = check});
    Session session = engine.open_session();
    WrappedCalls calls;
    calls.spoil = true;
    const Failure failure = failure_of([&] { session.append({.ids = text.ids}); });
    CHECK(failure.code == (check ? Errc::internal : Errc::ok));
    if (check) CHECK(failure.says(": the expert's bytes in memory are not those of its file"));
    CHECK(calls.reads > 0);
  }
}

TEST_CASE("budgets that cannot be are refused") {
  const auto refused = [](EngineOptions options) {
    options.max_context = 64;
    return failure_of([&] { Engine(demo(), options); });
  };
  const std::int64_t least = least_budget(demo());
  const Failure less = refused({.weight_bytes = least - 1});
  CHECK(less.code == Errc::out_of_memory);
  CHECK(less.says("expected at least " + std::to_string(least) + ": "));
  CHECK(less.says(" of weights that every token reads, and "));
  CHECK(refused({.weight_bytes = least}).code == Errc::ok);
  CHECK(refused({.weight_bytes = -1}).code == Errc::invalid_argument);
  CHECK(refused({.backend = "ref", .weight_bytes = 2 * least}).code == Errc::unsupported);
  CHECK(refused({.check_weights = true}).code == Errc::invalid_argument);

  const ModelFolder read = ModelFolder::open(kGoldenFolder / "13-deployed", {.access = runtime::Access::read});
  const Failure in_memory = failure_of([&] { Engine(read, {.max_context = 64, .weight_bytes = least}); });
  CHECK(in_memory.code == Errc::unsupported);
  CHECK(in_memory.says("model.safetensors: is in memory as a whole"));
}

TEST_CASE("a file that was replaced since the model was opened is not read") {
  SpoiledCopy copy;
  const runtime::Checkpoint opened = copy.open();
  const ModelFolder folder{.checkpoint = copy.open(), .tokenizer = {}, .token_map = {}};
  copy.folder.write("other", raw_file(copy.tensors));
  std::filesystem::rename(copy.folder / "other", copy.folder / kModelFile);
  const Failure failure =
      failure_of([&] { Engine(folder, {.max_context = 64, .weight_bytes = std::int64_t{1} << 30}); });
  CHECK(failure.code == Errc::io);
  CHECK(failure.says("model.safetensors: is not the file any more that the model was opened from"));
}

TEST_CASE("any sequence of ops has its experts' bytes, with any number of slots") {
  const runtime::Checkpoint& checkpoint = demo().checkpoint;
  ExpertLists lists;
  for (const LayerWeights& layer : checkpoint.weights().layers) lists.emplace_back(layer.moe.experts);
  const ExpertWeights stranger = checkpoint.weights().layers[0].moe.shared;
  for (const std::int64_t slots : {1, 2, 3, 9, 40, 96}) {
    INFO(slots << " slots");
    ExpertCache cache(ExpertFiles(checkpoint.shards(), lists), lists, slots, false);
    Random random(static_cast<std::uint64_t>(slots));
    std::size_t layer = 0;
    std::int64_t asked = 0;
    for (int op = 0; op < 400; ++op) {
      layer =
          random.below(8) == 0 ? static_cast<std::size_t>(random.below(std::ssize(lists))) : (layer + 1) % lists.size();
      std::vector<const ExpertWeights*> wanted;
      const std::int64_t most = random.below(4) == 0 ? 16 : 3;
      for (const ExpertWeights& e : lists[layer]) {
        if (random.below(16) < most) wanted.push_back(&e);
      }
      asked += std::ssize(wanted);
      if (random.below(2) == 0) wanted.push_back(&stranger);
      cache.begin(wanted);
      std::set<std::int64_t> given;
      while (given.size() < wanted.size()) {
        const auto wave = cache.take();
        REQUIRE(!wave.empty());
        std::int64_t kept = 0;
        for (const ExpertTier::Resident& r : wave) {
          CHECK(given.insert(r.index).second);
          const ExpertWeights& from = *wanted[static_cast<std::size_t>(r.index)];
          if (&from == &stranger) {
            CHECK(r.weights == &stranger);
            continue;
          }
          ++kept;
          CHECK(r.weights->w1.data != from.w1.data);
          for (const auto part : {&ExpertWeights::w1, &ExpertWeights::w2, &ExpertWeights::w3}) {
            const Matrix &a = r.weights->*part, &b = from.*part;
            const auto bytes = static_cast<std::size_t>(b.rows * b.row_bytes()),
                       scales = static_cast<std::size_t>(b.scale_rows() * b.scale_cols());
            if (std::memcmp(a.data, b.data, bytes) != 0 || std::memcmp(a.scales, b.scales, scales) != 0)
              FAIL("expert " << r.index << " of op " << op << " has other bytes");
          }
        }
        CHECK(kept <= slots);
        if (random.below(50) == 0) break;  // an op that ends early
      }
      cache.end();
    }
    cache.sync();
    WeightTier counts;
    cache.report(counts);
    CHECK(counts.hits + counts.misses == asked);
    CHECK((slots == 96) == (counts.misses == 96));
  }
}
