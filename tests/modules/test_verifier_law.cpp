// SPDX-License-Identifier: MIT
//
// The verifier gives the target's law. First without sampling: all drafts of toy models are enumerated and the uniforms integrated out,
// with the same functions that verify() compares its uniforms with. Then the sampling path against those laws (chi-square, fixed seeds),
// one round and several, where noise that is used twice shows. Cases B62, B63, B68.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../support/catch.hpp"
#include "dsv41/runtime/sampler.hpp"
#include "toy_drafter.hpp"

using namespace dsv41;
using test::Ids;
using test::Law;
using test::OwnedBlock;
using test::Row;
using test::Toy;

namespace {

using Texts = std::map<Ids, double>;

/// What a block gives: probability of each (accepted, next).
struct BlockLaw {
  std::vector<double> accepted;  // [m + 1]
  std::vector<Row> next;         // [m + 1][vocab]
};

BlockLaw block_law(Verification how, OwnedBlock& owned) {
  const DraftBlock block = owned.view();
  const std::int64_t m = block.drafts.extent(0);
  std::vector<double> pass, scale{1};
  for (std::int64_t i = 0; i < m; ++i) {
    const bool joint = how == Verification::block;
    const double ratio = draft_ratio(block, i, joint ? scale.back() : 1);
    pass.push_back(joint ? prefix_acceptance(block, i, ratio) : ratio);
    scale.push_back(joint ? ratio : 1);
  }
  BlockLaw law;
  for (std::int64_t k = 0; k <= m; ++k) {
    double probability = 1;
    for (std::int64_t i = 0; i < m; ++i) {
      const double h = pass[static_cast<std::size_t>(i)];
      if (how == Verification::rejection) probability *= i < k ? h : i == k ? 1 - h : 1;
      if (how == Verification::block) probability *= i + 1 == k ? h : i + 1 > k ? 1 - h : 1;
    }
    law.accepted.push_back(probability);
    const NextLaw next = next_law(block, k, scale[static_cast<std::size_t>(k)]);
    Row row;
    for (std::int64_t v = 0; v < block.target.extent(1); ++v) row.push_back(next.weights(v) / next.mass);
    law.next.push_back(row);
  }
  return law;
}

/// Adds the law of `length` tokens behind `text` when each further one comes from `law`.
void extend(Texts& out, const Law& law, const Ids& text, double probability, std::size_t length) {
  if (probability == 0) return;
  if (text.size() >= length) {
    out[Ids(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length))] += probability;
    return;
  }
  const Row row = law(text);
  for (std::size_t v = 0; v < row.size(); ++v) {
    Ids longer = text;
    longer.push_back(static_cast<std::int32_t>(v));
    extend(out, law, longer, probability * row[v], length);
  }
}

/// The law of three tokens: one round of m drafts, then the target. `accepted` receives the expected number of accepted drafts.
Texts round_law(Verification how, const Toy& toy, std::size_t m, double* accepted = nullptr) {
  Texts drafts, out;
  extend(
      drafts, [&](const Ids& context) { return toy.draft_law(context); }, {}, 1, m);
  for (const auto& [ids, probability] : drafts) {
    OwnedBlock block = toy.block({}, ids);
    const BlockLaw law = block_law(how, block);
    for (std::size_t k = 0; k <= m; ++k) {
      if (accepted != nullptr) *accepted += probability * law.accepted[k] * static_cast<double>(k);
      for (std::size_t v = 0; v < law.next[k].size(); ++v) {
        Ids text(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k));
        text.push_back(static_cast<std::int32_t>(v));
        extend(out, toy.target, text, probability * law.accepted[k] * law.next[k][v], 3);
      }
    }
  }
  return out;
}

/// Largest difference between two laws.
double apart(const Texts& a, const Texts& b) {
  double most = 0;
  for (const auto& [text, p] : a) most = std::max(most, std::abs(p - (b.count(text) ? b.at(text) : 0)));
  for (const auto& [text, p] : b) most = std::max(most, std::abs(p - (a.count(text) ? a.at(text) : 0)));
  return most;
}

Texts target_law(const Toy& toy, std::size_t length = 3) {
  Texts out;
  extend(out, toy.target, {}, 1, length);
  return out;
}

std::int32_t draw_from(const Row& q, std::uint64_t seed, std::int64_t anchor, std::int64_t step) {
  const double u = round_uniform(seed, anchor, step, numerics::Purpose::draft);
  return static_cast<std::int32_t>(numerics::draw(q.data(), std::ssize(q), u));
}

/// One round behind `context`, whose last token is the anchor; text starts at position 1. Appends what it emits.
void run_round(Verification how, const Toy& toy, std::size_t m, std::uint64_t seed, Ids& text) {
  const std::int64_t anchor = std::ssize(text);
  Ids drafts, context = text;
  for (std::size_t j = 1; j <= m; ++j) {
    drafts.push_back(draw_from(toy.draft_law(context), seed, anchor, static_cast<std::int64_t>(j)));
    context.push_back(drafts.back());
  }
  OwnedBlock block = toy.block(text, drafts);
  block.anchor = anchor, block.seed = seed;
  const DraftBlock view = block.view();
  const Verdict verdict = verify(how, view);
  for (std::int64_t i = 0; i <= verdict.accepted; ++i) text.push_back(verdict.token(view.drafts, i));
}

/// Rounds until there are `length` tokens, cut there.
Ids generate(Verification how, const Toy& toy, std::size_t m, std::uint64_t seed, std::size_t length) {
  Ids text;
  while (text.size() < length) run_round(how, toy, m, seed, text);
  text.resize(length);
  return text;
}

/// Sum of (observed - expected)^2 / expected; infinite when something without probability was seen.
double chi_square(const Texts& law, const std::map<Ids, std::int64_t>& count, double draws) {
  double chi2 = 0;
  for (const auto& [text, n] : count) {
    if (!law.count(text)) return HUGE_VAL;
  }
  for (const auto& [text, p] : law) {
    const auto n = count.find(text);
    const double off = (n == count.end() ? 0.0 : static_cast<double>(n->second)) - p * draws;
    chi2 += off * off / (p * draws);
  }
  return chi2;
}

constexpr Verification kSampled[] = {Verification::rejection, Verification::block};

}  // namespace

TEST_CASE("the law of three tokens is the target's", "[verifier]") {
  for (std::uint64_t model = 0; model < 12; ++model) {
    const double zeros = model < 4 ? 0 : 0.4;  // of the target in some, of the drafter in others, of both
    for (bool certain : {false, true}) {
      const Toy toy{test::random_law(model, 3, model % 3 == 0 ? 0 : zeros),
                    test::random_law(model + 100, 3, model % 3 == 1 ? 0 : zeros), certain};
      for (std::size_t m = 0; m <= 3; ++m) {
        double accepted[2] = {};
        for (int how = 0; how < 2; ++how) {
          INFO("model " << model << " certain " << certain << " m " << m << " method " << how);
          CHECK(apart(round_law(kSampled[how], toy, m, &accepted[how]), target_law(toy)) <= 1e-12);
        }
        CHECK(accepted[1] >= accepted[0] - 1e-12);  // block verification never accepts fewer
        if (certain) CHECK(accepted[1] == Approx(accepted[0]).margin(1e-12));
      }
    }
  }
}

TEST_CASE("the law is the target's where drafter and target agree or share no token", "[verifier]") {
  const Law some = test::random_law(5, 3, 0);
  const Toy toys[] = {{some, some},                                                          // p == q
                      {test::constant_law({0.25, 0.75, 0}), test::constant_law({0, 0, 1})},  // disjoint
                      {test::constant_law({0, 0, 1}), test::constant_law({0.5, 0.5, 0})},    // disjoint, certain target
                      {test::constant_law({1, 0, 0}), test::constant_law({1, 0, 0}), true},  // certain and right
                      {some,
                       [](const Ids& c) {
                         return c.size() % 2 ? Row{0, 1, 0} : Row{0, 0, 1};
                       }},  // a certain row as q
                      {[&](const Ids& c) {
                         return c.size() == 1 ? Row{0, 0.5, 0.5} : some(c);
                       },
                       some}};
  for (const Toy& toy : toys) {
    for (std::size_t m = 0; m <= 3; ++m) {
      for (Verification how : kSampled) CHECK(apart(round_law(how, toy, m), target_law(toy)) <= 1e-12);
    }
  }
  double accepted = 0;
  round_law(Verification::block, toys[0], 3, &accepted);
  CHECK(accepted == Approx(3).margin(1e-12));
}

TEST_CASE("a draft that a mask forbids is rejected by its probability; trimming it would bias", "[verifier]") {
  const Toy toy{test::constant_law({0.5, 0.5, 0}), test::constant_law({0.4, 0.1, 0.5})};
  for (Verification how : kSampled) CHECK(apart(round_law(how, toy, 1), target_law(toy)) <= 1e-12);
  // Draft 2, half of them, taken for padding: the token would come from the target's row instead of what the others left of it.
  CHECK(0.4 + 0.5 * 0.5 == Approx(0.65));
  OwnedBlock block = toy.block({}, {2});
  const BlockLaw law = block_law(Verification::rejection, block);
  CHECK(law.accepted == std::vector<double>{1, 0});
  CHECK(law.next[0][0] == Approx(0.2));
  CHECK(0.4 + 0.5 * law.next[0][0] == Approx(0.5));
}

TEST_CASE("verify follows its law: 100,000 rounds", "[verifier]") {
  // Every draft is decided by several uniforms. The residual has two tokens, so that a residual that shared the draft's noise would follow
  // the draft: token 0 is drafted below u = 0.8, and half of [0, 0.8) is not half of [0, 1).
  for (bool certain : {false, true}) {
    const Toy toy{test::constant_law({0.1, 0.45, 0.45}), test::constant_law({0.8, 0.1, 0.1}), certain};
    for (Verification how : kSampled) {
      for (std::size_t m : {std::size_t{1}, std::size_t{2}}) {
        std::map<Ids, std::int64_t> count;
        for (std::uint64_t seed = 0; seed < 100000; ++seed) {
          Ids text;
          run_round(how, toy, m, seed, text);
          text.resize(1);
          ++count[text];
        }
        CHECK(chi_square(target_law(toy, 1), count, 1e5) < 18.4);  // two degrees of freedom, p = 1e-4
      }
    }
  }
}

TEST_CASE("verify follows its law: what is accepted and what comes next", "[verifier]") {
  const Toy toy{test::random_law(18, 5, 0), test::random_law(68, 5, 0)};
  for (Verification how : kSampled) {
    OwnedBlock block = toy.block({}, {3, 0, 1});
    const BlockLaw law = block_law(how, block);
    Texts expected;
    for (std::size_t k = 0; k < 4; ++k) {
      for (std::size_t v = 0; v < 5; ++v) {
        const double p = law.accepted[k] * law.next[k][v];
        if (p > 0) expected[{static_cast<std::int32_t>(k), static_cast<std::int32_t>(v)}] = p;
      }
    }
    REQUIRE(expected.size() >= 8);
    const double freedom = static_cast<double>(expected.size()) - 1;
    std::map<Ids, std::int64_t> count;
    DraftBlock view = block.view();
    for (view.seed = 0; view.seed < 100000; ++view.seed) {
      const Verdict verdict = verify(how, view);
      ++count[{static_cast<std::int32_t>(verdict.accepted), verdict.next}];
    }
    CHECK(chi_square(expected, count, 1e5) < freedom + 4 * std::sqrt(2 * freedom) + 8);  // about p = 1e-4
  }
}

TEST_CASE("rounds behind each other stay the target's law", "[verifier]") {
  // Rejected positions are drafted again. Block verification rejects by what was drawn there: with one u a position for all rounds, the
  // classic pair repeats a rejected pair's second draft always.
  const Toy classic{test::constant_law({1.0 / 3, 2.0 / 3}), test::constant_law({2.0 / 3, 1.0 / 3})};
  const Toy random{test::random_law(7, 3, 0), test::random_law(8, 3, 0)};
  for (Verification how : kSampled) {
    for (const Toy* toy : {&classic, &random}) {
      std::map<Ids, std::int64_t> count;
      for (std::uint64_t seed = 0; seed < 60000; ++seed) ++count[generate(how, *toy, 2, seed, 3)];
      CHECK(chi_square(target_law(*toy), count, 6e4) <
            (toy == &classic ? 29.9 : 61.7));  // 7 and 26 degrees of freedom, p = 1e-4
    }
  }
}

TEST_CASE("B62: first tokens follow the filtered law, whatever the drafter's filters are", "[verifier]") {
  // The target keeps two of five close logits; the drafter draws from all of them at the same temperature.
  const std::vector<float> logits{1.00f, 1.05f, 0.95f, 1.02f, 0.99f}, drafter{1.2f, 0.9f, 1.0f, 1.3f, 0.8f};
  runtime::Sampler sampler({.temperature = 0.7, .top_k = 2, .top_p = 0.9}, 5);
  const auto p = sampler.probabilities({logits.data(), {5}});
  OwnedBlock block{.drafts = {0}, .target = {Row(p.begin(), p.end()), Row(p.begin(), p.end())}, .proposal = {Row(5)}};
  const Toy target{.target = test::constant_law(block.target[0])};
  Texts law;
  for (const auto& [text, probability] : target_law(target, 1)) law[text] = probability;
  REQUIRE(law.size() == 2);
  for (Verification how : kSampled) {
    std::map<Ids, std::int64_t> count, drafted;
    for (std::uint64_t seed = 0; seed < 200000; ++seed) {
      Row& q = block.proposal[0];
      block.drafts[0] = draw_draft({drafter.data(), {5}}, 0.7, seed, 3, 1, {q.data(), {5}});
      block.anchor = 3, block.seed = seed;
      const DraftBlock view = block.view();
      ++count[{verify(how, view).token(view.drafts, 0)}];
      ++drafted[{block.drafts[0]}];
    }
    CHECK(chi_square(law, count, 2e5) < 15.2);  // one degree of freedom, p = 1e-4
    Texts proposal;
    for (std::int32_t v = 0; v < 5; ++v) proposal[{v}] = block.proposal[0][static_cast<std::size_t>(v)];
    CHECK(chi_square(proposal, drafted, 2e5) < 23.5);  // four degrees of freedom
  }
}

TEST_CASE("B63: each rule keeps its own correction, and both keep the target's law", "[verifier]") {
  // Acceptance by equality with a fresh sample, corrected from the residual, would give token 0 a share of 2/9 instead of 1/3.
  const Toy toy{test::constant_law({1.0 / 3, 2.0 / 3}), test::constant_law({2.0 / 3, 1.0 / 3})};
  for (bool certain : {false, true}) {
    Toy mode = toy;
    mode.certain = certain;
    for (Verification how : kSampled) {
      CHECK(apart(round_law(how, mode, 2), target_law(mode)) <= 1e-12);
      std::map<Ids, std::int64_t> count;
      for (std::uint64_t seed = 0; seed < 200000; ++seed) ++count[generate(how, mode, 1, seed, 1)];
      CHECK(chi_square(target_law(mode, 1), count, 2e5) < 15.2);
    }
  }
}

TEST_CASE("B68: a request's text depends on its own rows and seed alone", "[verifier]") {
  const Toy toy{test::random_law(1, 3, 0), test::random_law(2, 3, 0)}, other{toy.drafter, toy.target, true};
  for (Verification how : kSampled) {
    const Ids alone = generate(how, toy, 3, 42, 64);
    // Rounds of four requests in turn, forwards and backwards; one of them is given up half way, one is greedy.
    for (bool backwards : {false, true}) {
      std::vector<Ids> texts(4);
      for (int round = 0; round < 64; ++round) {
        for (std::size_t r = 0; r < 4; ++r) {
          const std::size_t request = backwards ? 3 - r : r;
          if (request == 0) run_round(how, toy, 3, 42, texts[0]);
          if (request == 1 && round < 9) run_round(how, other, 2, 42, texts[1]);
          if (request == 2) run_round(Verification::greedy, other, 1, 7, texts[2]);
          if (request == 3) run_round(how, other, 3, 43, texts[3]);
        }
      }
      CHECK(Ids(texts[0].begin(), texts[0].begin() + 64) == alone);
    }
    std::vector<Ids> threaded(8);
    std::vector<std::thread> threads;
    for (Ids& out : threaded) threads.emplace_back([&] { out = generate(how, toy, 3, 42, 64); });
    for (auto& t : threads) t.join();
    for (const Ids& out : threaded) CHECK(out == alone);

    std::set<Ids> texts;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) texts.insert(generate(how, toy, 3, seed, 64));
    CHECK(texts.size() >= 15);
  }
  Toy certain = toy;
  certain.certain = true;  // greedy drafts, greedily verified: a seed does nothing
  CHECK(generate(Verification::greedy, certain, 3, 1, 64) == generate(Verification::greedy, certain, 3, 2, 64));
}
