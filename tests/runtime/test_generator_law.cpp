// SPDX-License-Identifier: MIT
//
// The law of what a generator samples is the target's. On a model of eight tokens every text's probability is worked out with plain forward
// passes; a hundred thousand sampled texts under each rule of verification must follow it, with lengths that are fixed and with lengths
// that confidences choose. And texts whose drafts were drawn from another law than the one they are verified with must not.
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "small_model.hpp"
#include "speculation.hpp"
#include "support/catch.hpp"
#include "support/share.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Engine;
using runtime::Generator;
using runtime::RequestOptions;
using runtime::SamplerOptions;
using runtime::Session;
using Kind = DraftPolicy::Kind;

namespace {

/// Two drafts, so that the first round of a text of four tokens verifies both, and one that refuses a draft has a round behind it.
constexpr std::int64_t kDraft = 2, kTokens = 4, kChoices = 6, kBatch = 20;

using Law = std::map<Ids, double>;
using Counts = std::map<Ids, std::int64_t>;

/// The parent of all texts, with its logits.
struct Setting {
  SmallModel model{3};
  Engine engine{model.folder(), {.max_context = 64, .max_rows = 64, .room = kDraft, .draft = kDraft}};
  Session root = engine.open_session();

  Setting() {
    const Ids prompt{1, 5, 2};
    root.append({.ids = prompt});
  }
};

/// The target's probabilities of all texts, by plain decoding.
void enumerate(const Session& session, runtime::Sampler& sampler, const Ids& text, double probability, Law& out) {
  if (std::ssize(text) == kTokens) {
    out[text] = probability;
    return;
  }
  const auto law = sampler.probabilities(first_ids(session.logits(), 0, kChoices));
  const std::vector<double> row(law.begin(), law.end());
  for (std::int32_t id = 0; id < kChoices; ++id) {
    const double p = row[static_cast<std::size_t>(id)];
    if (p == 0) continue;
    Session next = session.fork();
    next.append({.ids = {&id, 1}});
    Ids longer = text;
    longer.push_back(id);
    enumerate(next, sampler, longer, probability * p, out);
  }
}

Law target_law(const Setting& setting, const SamplerOptions& options) {
  runtime::Sampler sampler(options, kChoices);
  Law out;
  enumerate(setting.root, sampler, {}, 1, out);
  return out;
}

/// How far counts are from a law, in standard deviations of a normal variable that is as unlikely.
///
/// Rules: Pearson's chi-square; texts that are expected fewer than five times count together. Wilson and Hilferty: the cube root of
///        chi2 / freedom is close to normal. A text without probability: infinite.
double deviation(const Law& law, const Counts& counts) {
  double draws = 0, chi2 = 0, rare = 0, rare_seen = 0, freedom = -1;
  for (const auto& [text, n] : counts) {
    if (!law.contains(text)) return HUGE_VAL;
    draws += static_cast<double>(n);
  }
  const auto add = [&](double expected, double seen) {
    if (expected == 0) return;
    chi2 += (seen - expected) * (seen - expected) / expected;
    ++freedom;
  };
  for (const auto& [text, p] : law) {
    const auto n = counts.find(text);
    const double seen = n == counts.end() ? 0 : static_cast<double>(n->second);
    if (p * draws < 5)
      rare += p * draws, rare_seen += seen;
    else
      add(p * draws, seen);
  }
  add(rare, rare_seen);
  const double spread = 2 / (9 * freedom);
  return (std::cbrt(chi2 / freedom) - (1 - spread)) / std::sqrt(spread);
}

/// Seeds are fixed, so a threshold is no gamble: a right sampler is beyond it for one seed in a million (normal variable, one side).
constexpr double kMost = 4.75;

/// Both rules, each with other sampling options, in the same batches: even seeds draw the plain law, odd ones a filtered one.
const RequestOptions kRequests[] = {
    {.sampler = {.temperature = 1}, .verification = Verification::rejection, .max_tokens = kTokens},
    {.sampler = {.temperature = 0.8, .top_p = 0.95, .min_p = 0.01},
     .verification = Verification::block,
     .max_tokens = kTokens}};

struct Sampled {
  Counts counts[2];  // of kRequests
  runtime::GeneratorStats stats;
};

/// `texts` of each, every one with a seed of its own.
Sampled sample(Setting& setting, const runtime::GeneratorOptions& options, std::int64_t texts, std::uint64_t seed) {
  Generator generator(setting.engine, options);
  Sampled out;
  std::map<std::int64_t, Ids> told;
  std::int64_t begun = 0, ended = 0;
  while (ended < 2 * texts) {
    for (; generator.active() < kBatch && begun < 2 * texts; ++begun) {
      RequestOptions request = kRequests[begun % 2];
      request.sampler.seed = seed + static_cast<std::uint64_t>(begun);
      const std::int64_t id = generator.add(setting.root.fork(), request);
      REQUIRE(id == begun);
    }
    std::vector<std::int64_t> over;
    for (const runtime::Emission& e : generator.step()) {
      Ids& text = told[e.request];
      text.insert(text.end(), e.tokens.begin(), e.tokens.end());
      if (e.finish != runtime::Finish::none) over.push_back(e.request);
    }
    for (const std::int64_t id : over) {
      generator.remove(id);
      ++out.counts[id % 2][told[id]];
      told.erase(id);
      ++ended;
    }
  }
  out.stats = generator.stats();
  return out;
}

void check_law(Setting& setting, const runtime::GeneratorOptions& options, std::int64_t texts, std::uint64_t seed) {
  const Sampled sampled = sample(setting, options, texts, seed);
  const double rate = static_cast<double>(sampled.stats.accepted) / static_cast<double>(sampled.stats.verified);
  INFO("policy " << static_cast<int>(options.policy.kind) << ", accepted " << rate);
  for (int i = 0; i < 2; ++i) {
    const double found = deviation(target_law(setting, kRequests[i].sampler), sampled.counts[i]);
    INFO((i == 0 ? "rejection" : "block") << ": " << found << " deviations");
    CHECK(found < kMost);
  }
  CHECK(sampled.stats.verified > sampled.stats.rounds / 2);  // there are rows for drafts
  CHECK(rate > 0.2);                                         // both verdicts happen
  CHECK(rate < 0.8);
}

}  // namespace

TEST_CASE("B62, B68, B70: 100,000 sampled texts under rejection and as many under block follow the target's law") {
  Setting setting;
  check_law(setting, {.policy = {.kind = Kind::fixed, .drafts = kDraft}, .choices = kChoices}, 100000 / kShare,
            1u << 20);
}

TEST_CASE("B62: so do texts whose lengths follow from confidences, one request's beside those of the others") {
  // A row is worth about a third of a token, so that confidences decide.
  const CostTable costs({{1, 20.25}, {256, 84}}, 0, {{1, 0}});
  Setting setting;
  for (const DraftPolicy policy : {DraftPolicy{.kind = Kind::early_stop}, DraftPolicy{.kind = Kind::delayed},
                                   DraftPolicy{.kind = Kind::threshold, .threshold = 0.2f}}) {
    check_law(setting, {.policy = policy, .costs = costs, .choices = kChoices}, 25000 / kShare, 1u << 21);
  }
}

TEST_CASE("B62: drafts that were drawn at another temperature than they are verified with are found") {
  Setting setting;
  const auto found = [&](int which, double drawn_at) {
    Counts counts;
    for (std::uint64_t seed = 0; seed < 6000; ++seed) {
      Wish wish{.options = kRequests[which], .prompt = {}};
      wish.options.sampler.seed = seed;
      Session session = setting.root.fork();
      ++counts[rounds(setting.engine, session, wish, kDraft, kChoices, drawn_at).tokens];
    }
    return deviation(target_law(setting, kRequests[which].sampler), counts);
  };
  for (int which = 0; which < 2; ++which) {
    const double temperature = kRequests[which].sampler.temperature;
    CHECK(found(which, temperature) < kMost);
    CHECK(found(which, 1.5 * temperature) > 2 * kMost);
    CHECK(found(which, 0) > 2 * kMost);
  }
}
