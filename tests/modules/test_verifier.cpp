// SPDX-License-Identifier: MIT
//
// The verifier's parts: the worked examples of dspark.md 8.1, the edges of every rule, where a round is cut, and the draw of drafts. That
// they add up to the target's law is tested in test_verifier_law.cpp. Cases B62, B64, B67, B70, B72.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "../support/catch.hpp"
#include "dsv41/runtime/sampler.hpp"
#include "toy_drafter.hpp"

using namespace dsv41;
using test::Ids;
using test::OwnedBlock;
using test::Row;
using test::Toy;

namespace {

constexpr Verification kSampled[] = {Verification::rejection, Verification::block};
constexpr Verification kAll[] = {Verification::greedy, Verification::rejection, Verification::block};

In<std::int32_t, 1> view(const Ids& ids) {
  return {ids.data(), {std::ssize(ids)}};
}

In<float, 1> view(const std::vector<float>& logits) {
  return {logits.data(), {std::ssize(logits)}};
}

/// Running ratios a_1 .. a_m and the acceptances h_1 .. h_m of block verification.
struct BlockTable {
  Row ratio, pass;
};

BlockTable block_table(OwnedBlock block) {
  const DraftBlock view = block.view();
  BlockTable table;
  double ratio = 1;
  for (std::int64_t i = 0; i < view.drafts.extent(0); ++i) {
    ratio = draft_ratio(view, i, ratio);
    table.ratio.push_back(ratio);
    table.pass.push_back(prefix_acceptance(view, i, ratio));
  }
  return table;
}

Row next_row(OwnedBlock block, std::int64_t accepted, double scale) {
  const DraftBlock view = block.view();
  const NextLaw law = next_law(view, accepted, scale);
  Row row;
  for (std::int64_t v = 0; v < view.target.extent(1); ++v) row.push_back(law.weights(v) / law.mass);
  return row;
}

void check_near(const Row& got, const Row& want) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(want[i]).margin(1e-14));
}

/// What a seed's round emits.
Ids emitted(Verification how, const DraftBlock& block) {
  const Verdict verdict = verify(how, block);
  Ids out;
  for (std::int64_t i = 0; i <= verdict.accepted; ++i) out.push_back(verdict.token(block.drafts, i));
  return out;
}

}  // namespace

TEST_CASE("the classic pair: block tables and expected lengths", "[verifier]") {
  const Toy toy{test::constant_law({1.0 / 3, 2.0 / 3}), test::constant_law({2.0 / 3, 1.0 / 3})};
  const struct {
    Ids drafts;
    Row ratio, pass;
  } rows[] = {{{0, 0}, {1.0 / 2, 1.0 / 4}, {0, 1.0 / 4}},
              {{0, 1}, {1.0 / 2, 1}, {0, 1}},
              {{1, 0}, {1, 1.0 / 2}, {1, 1.0 / 2}},
              {{1, 1}, {1, 1}, {1, 1}}};
  double by_token = 0, by_block = 0;
  for (const auto& row : rows) {
    const BlockTable table = block_table(toy.block({}, row.drafts));
    check_near(table.ratio, row.ratio);
    check_near(table.pass, row.pass);
    const double drafted = (row.drafts[0] ? 1.0 : 2.0) / 3 * (row.drafts[1] ? 1.0 : 2.0) / 3;
    by_block += drafted * (2 * table.pass[1] + (1 - table.pass[1]) * table.pass[0]);
    const double first = row.drafts[0] ? 1 : 0.5, second = row.drafts[1] ? 1 : 0.5;
    by_token += drafted * (first + first * second);
  }
  CHECK(by_token == Approx(10.0 / 9).epsilon(1e-14));
  CHECK(by_block == Approx(11.0 / 9).epsilon(1e-14));
}

TEST_CASE("a generic block", "[verifier]") {
  OwnedBlock block{
      .drafts = {1, 0}, .target = {{.5, .3, .2}, {.1, .8, .1}, {1, 0, 0}}, .proposal = {{.2, .5, .3}, {.4, .3, .3}}};
  const BlockTable table = block_table(block);
  check_near(table.ratio, {.6, .15});
  check_near(table.pass, {9.0 / 29, .15});
  const DraftBlock view = block.view();
  CHECK(leftover(view, 1, .6).mass() == Approx(.18).epsilon(1e-14));
  CHECK((1 - table.pass[1]) * table.pass[0] == Approx(153.0 / 580).epsilon(1e-14));
  CHECK((1 - table.pass[1]) * (1 - table.pass[0]) == Approx(17.0 / 29).epsilon(1e-14));
  check_near(next_row(block, 1, .6), {0, 1, 0});
  check_near(next_row(block, 0, 1), {1, 0, 0});
  check_near(next_row(block, 2, .15), {1, 0, 0});

  double by_token = 0, by_block = 0;  // over all drafts
  for (std::int32_t first = 0; first < 3; ++first) {
    for (std::int32_t second = 0; second < 3; ++second) {
      block.drafts = {first, second};
      const BlockTable t = block_table(block);
      const DraftBlock v = block.view();
      const double drafted = v.proposal(0, first) * v.proposal(1, second);
      by_block += drafted * (2 * t.pass[1] + (1 - t.pass[1]) * t.pass[0]);
      by_token += drafted * draft_ratio(v, 0, 1) * (1 + draft_ratio(v, 1, 1));
    }
  }
  CHECK(by_token == Approx(21.0 / 20).epsilon(1e-14));
  CHECK(by_block == Approx(57.0 / 50).epsilon(1e-14));
}

TEST_CASE("a token at a time", "[verifier]") {
  OwnedBlock block{.drafts = {0}, .target = {{.5, .3, .2}, {0, 0, 1}}, .proposal = {{.2, .5, .3}}};
  Row accepts;
  double rate = 0;
  for (std::int32_t id = 0; id < 3; ++id) {
    block.drafts = {id};
    const DraftBlock view = block.view();
    accepts.push_back(draft_ratio(view, 0, 1));
    rate += view.proposal(0, id) * accepts.back();
    check_near(next_row(block, 0, 1), {1, 0, 0});
    CHECK(leftover(view, 0, 1).mass() == Approx(.3));  // the total variation
  }
  check_near(accepts, {1, .6, 2.0 / 3});
  CHECK(rate == Approx(.7).epsilon(1e-14));
}

TEST_CASE("certain drafts", "[verifier]") {
  const OwnedBlock block{.drafts = {0, 1}, .target = {{.5, .3, .2}, {.5, .3, .2}, {.5, .3, .2}}, .proposal = {}};
  const BlockTable table = block_table(block);
  check_near(table.ratio, {1.0 / 2, 3.0 / 20});
  check_near(table.pass, {7.0 / 17, 3.0 / 20});
  CHECK(2 * table.pass[1] + (1 - table.pass[1]) * table.pass[0] == Approx(13.0 / 20));
  CHECK(.5 + .5 * .3 == Approx(13.0 / 20));  // token by token
  check_near(next_row(block, 0, 1), {0, .6, .4});
  check_near(next_row(block, 1, .5), {5.0 / 7, 0, 2.0 / 7});  // the ratio cancels
}

TEST_CASE("acceptance is a clipped ratio", "[verifier]") {
  CHECK(acceptance(1, .25, .5) == .5);
  CHECK(acceptance(1, .5, .25) == 1);
  CHECK(acceptance(.5, .5, .5) == .5);
  CHECK(acceptance(1, .3, .3) == 1);
  CHECK(acceptance(1, 0, .5) == 0);
  CHECK(acceptance(1, 0, 0) == 0);  // never drawn, and never accepted
  CHECK(acceptance(1, 1e-300, 0) == 1);
}

TEST_CASE("a residual without mass falls back to the target's row", "[verifier]") {
  OwnedBlock block{.drafts = {1}, .target = {{.25, .75}, {1, 0}}, .proposal = {{.25, .75}}};
  check_near(next_row(block, 0, 1), {.25, .75});
  block.proposal = {{.25 - 5e-9, .75 + 5e-9}};  // rounding noise, below 1e-8
  check_near(next_row(block, 0, 1), {.25, .75});
  block.proposal = {{.25 - 2e-8, .75 + 2e-8}};
  check_near(next_row(block, 0, 1), {1, 0});
  block.proposal.clear();
  block.target[0] = {0, 1};
  check_near(next_row(block, 0, 1), {0, 1});  // nothing is left without the certain draft
}

TEST_CASE("an id outside the vocabulary ends the drafts, and no memory is read for it", "[verifier]") {
  for (const std::int32_t padding :
       {-1, 3, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}) {
    for (bool certain : {false, true}) {
      const Toy toy{test::random_law(3, 3, 0), test::random_law(4, 3, 0), certain};
      OwnedBlock whole = toy.block({}, {2, 1}), first = toy.block({}, {2}), none = toy.block({}, {});
      for (std::uint64_t seed = 0; seed < 200; ++seed) {
        whole.seed = first.seed = none.seed = seed;
        for (Verification how : kAll) {
          whole.drafts = {2, padding};
          CHECK(emitted(how, whole.view()) == emitted(how, first.view()));
          whole.drafts = {padding, 1};
          CHECK(emitted(how, whole.view()) == emitted(how, none.view()));
        }
      }
    }
  }
}

TEST_CASE("a round without drafts is plain sampling", "[verifier]") {
  const std::vector<float> logits{.1f, 2, 1.5f, -1, 2, .3f};
  OwnedBlock block;
  for (double temperature : {0.0, .8}) {
    for (std::int64_t position = 1; position < 200; ++position) {
      runtime::Sampler sampler({.temperature = temperature, .top_k = 4, .seed = 42}, 6);
      const auto p = sampler.probabilities(view(logits));
      block.target = {Row(p.begin(), p.end())};
      block.anchor = position - 1, block.seed = 42;
      const std::int32_t plain = sampler.sample(view(logits), position);
      for (Verification how : kAll) {
        if (how == Verification::greedy && temperature > 0) continue;
        const Verdict verdict = verify(how, block.view());
        CHECK(verdict.accepted == 0);
        CHECK(verdict.next == plain);
      }
    }
  }
}

TEST_CASE("a bonus is the token of plain sampling at its position", "[verifier]") {
  const std::vector<float> logits{.1f, 2, 1.5f, -1, 2, .3f};
  runtime::Sampler sampler({.temperature = 1.2, .seed = 9}, 6);
  const auto p = sampler.probabilities(view(logits));
  OwnedBlock block{.drafts = {1, 4}, .target = {Row{0, 1, 0, 0, 0, 0}, Row{0, 0, 0, 0, 1, 0}, Row(p.begin(), p.end())}};
  block.seed = 9;
  for (block.anchor = 0; block.anchor < 200; ++block.anchor) {
    for (Verification how : kSampled) {
      const Verdict verdict = verify(how, block.view());
      CHECK(verdict.accepted == 2);
      CHECK(verdict.next == sampler.sample(view(logits), block.anchor + 3));
    }
  }
}

TEST_CASE("one draft is judged alike by both rules", "[verifier]") {
  const Toy toy{test::random_law(13, 5, .2), test::random_law(14, 5, 0)};
  for (std::int32_t id = 0; id < 5; ++id) {
    OwnedBlock block = toy.block({}, {id});
    for (block.seed = 0; block.seed < 500; ++block.seed) {
      CHECK(emitted(Verification::rejection, block.view()) == emitted(Verification::block, block.view()));
    }
  }
}

TEST_CASE("a later prefix of a block may be accepted although an earlier one is not", "[verifier]") {
  const Toy toy{test::constant_law({1.0 / 3, 2.0 / 3}), test::constant_law({2.0 / 3, 1.0 / 3})};
  OwnedBlock block = toy.block({}, {0, 1});  // h = (0, 1)
  bool token_rejects = false;
  for (block.seed = 0; block.seed < 100; ++block.seed) {
    CHECK(verify(Verification::block, block.view()).accepted == 2);
    token_rejects = token_rejects || verify(Verification::rejection, block.view()).accepted == 0;
  }
  CHECK(token_rejects);
}

TEST_CASE("at temperature 0 every rule gives the greedy tokens, with certain and with drawn drafts", "[verifier]") {
  for (bool certain : {false, true}) {
    const Toy toy{[](const Ids& c) {
                    return c.size() % 2 ? Row{0, 1, 0} : Row{0, 0, 1};
                  },
                  test::random_law(4, 3, 0), certain};
    for (std::int32_t a = 0; a < 3; ++a) {
      for (std::int32_t b = 0; b < 3; ++b) {
        OwnedBlock block = toy.block({}, {a, b});
        const Ids plain = a != 2 ? Ids{2} : b != 1 ? Ids{2, 1} : Ids{2, 1, 2};
        for (block.seed = 0; block.seed < 50; ++block.seed) {
          for (Verification how : kAll) CHECK(emitted(how, block.view()) == plain);
        }
      }
    }
  }
}

TEST_CASE("greedy reads logits and gives ties to the lowest id", "[verifier]") {
  const std::vector<float> logits{1, 3, 3, -2, /**/ 0, -1, 0, 0, /**/ -9, -9, -8, -7};
  const In<float, 2> rows(logits.data(), {3, 4});
  const auto judge = [&](const Ids& drafts) { return verify_greedy(view(drafts), rows); };
  for (std::int64_t row = 0; row < 3; ++row) {
    Ids right;
    for (std::int64_t i = 0; i < row; ++i) right.push_back(runtime::argmax(rows.row(i)));
    const Verdict verdict = judge(right);
    CHECK(verdict.accepted == row);
    CHECK(verdict.next == runtime::argmax(rows.row(row)));
  }
  CHECK(judge({2, 0}).accepted == 0);  // the other of two equals
  CHECK(judge({2, 0}).next == 1);
  CHECK(judge({1, 2}).accepted == 1);
  CHECK(judge({1, 2}).next == 0);
  CHECK(judge({1, -1}).accepted == 1);
}

TEST_CASE("greedy accepts nothing in a row with nothing above -infinity, padding neither", "[verifier]") {
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits{1, 3, /**/ none, none, /**/ 2, 0};
  for (std::int32_t id : {-1, 0, 1, 2}) {
    const Verdict verdict = verify_greedy(view(Ids{1, id}), In<float, 2>(logits.data(), {3, 2}));
    CHECK(verdict.accepted == 1);
    CHECK(verdict.next == -1);
  }
}

TEST_CASE("drafts follow their own softmax at the request's temperature", "[verifier]") {
  const std::vector<float> logits{2, -.5f, 0, -.75f};
  Row q(4);
  const auto draft = [&](double temperature) {
    return draw_draft(view(logits), temperature, 1, 0, 1, {q.data(), {4}});
  };
  const auto check = [&](const Row& want) {
    for (std::size_t v = 0; v < 4; ++v) CHECK(q[v] == Approx(want[v]).margin(5e-7));
  };
  draft(1);
  check({.780428, .064061, .105619, .049891});
  draft(.5);
  check({.971685, .006547, .017797, .003971});
  q.assign(4, -1);
  CHECK(draft(0) == 0);
  CHECK(q == Row(4, -1));
  CHECK(draw_draft(view(logits), 0, 1, 0, 1, {}) == 0);
  const std::vector<float> tied{1, 5, 5};
  CHECK(draw_draft(view(tied), 0, 1, 0, 1, {}) == 1);

  const float inf = std::numeric_limits<float>::infinity();
  for (double temperature : {0.0, 1.0}) {
    for (const std::vector<float>& bad :
         {std::vector<float>{1, 2, std::nanf("")}, std::vector<float>{-inf, -inf, -inf}}) {
      CHECK(draw_draft(view(bad), temperature, 1, 0, 1, {q.data(), {3}}) == -1);
      CHECK(draft_law(view(bad), temperature, {q.data(), {3}}) == -1);
    }
  }
}

TEST_CASE("B62: a draft is drawn from the very row that judges it", "[verifier]") {
  // Bit for bit the sampler's softmax, and the id that this row gives for the draft's own u.
  const std::vector<float> logits{.3f, 1.25f, -2, 1.2f, .9f};
  for (double temperature : {.3, 1.0, 1.7}) {
    runtime::Sampler sampler({.temperature = temperature}, 5);
    const auto p = sampler.probabilities(view(logits));
    for (std::int64_t step = 1; step < 100; ++step) {
      Row q(5);
      const std::int32_t id = draw_draft(view(logits), temperature, 5, 30, step, {q.data(), {5}});
      REQUIRE(q == Row(p.begin(), p.end()));
      CHECK(id == numerics::draw(q.data(), 5, round_uniform(5, 30, step, numerics::Purpose::draft)));
    }
  }
}

TEST_CASE("B62: kept logits give the very row again that a draft was drawn from", "[verifier]") {
  std::vector<float> logits(1000);
  for (std::size_t v = 0; v < logits.size(); ++v)
    logits[v] = static_cast<float>(9 * std::sin(static_cast<double>(v * v)));
  for (double temperature : {.3, 1.0, 1.7}) {
    Row q(1000, -1), again(1000, -2);
    CHECK(draw_draft(view(logits), temperature, 5, 30, 1, {q.data(), {1000}}) >= 0);
    const std::vector<float> kept = logits;
    CHECK(draft_law(view(kept), temperature, {again.data(), {1000}}) == runtime::argmax(view(logits)));
    CHECK(again == q);
  }
  Row untouched(1000, -1);
  CHECK(draft_law(view(logits), 0, {untouched.data(), {1000}}) == runtime::argmax(view(logits)));
  CHECK(untouched == Row(1000, -1));
}

TEST_CASE("no u serves two draws", "[verifier]") {
  using numerics::Purpose;
  std::vector<double> all;
  for (std::int64_t anchor = 0; anchor < 8; ++anchor) {
    for (std::int64_t step = 1; step <= 5; ++step) {
      for (Purpose purpose : {Purpose::draft, Purpose::acceptance, Purpose::residual}) {
        all.push_back(round_uniform(1, anchor, step, purpose));
      }
    }
    all.push_back(numerics::uniform_below_one(numerics::random_block(1, anchor, Purpose::sample)));
  }
  std::sort(all.begin(), all.end());
  CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
}

TEST_CASE("B64: at temperature 0 blocks of any width and any drafts give plain decoding's tokens", "[verifier]") {
  const test::Law law = test::random_law(21, 11, 0);
  const auto logits = [&](const Ids& text) {  // of the last tokens; ties included
    std::vector<float> row;
    for (double p : law(Ids(text.end() - std::min<std::ptrdiff_t>(std::ssize(text), 3), text.end()))) {
      row.push_back(std::round(static_cast<float>(p) * 20));
    }
    return row;
  };
  Ids plain;
  while (plain.size() < 300) plain.push_back(runtime::argmax(view(logits(plain))));
  for (std::size_t width = 0; width <= 6; ++width) {
    for (bool perfect : {false, true}) {
      Ids text;
      std::size_t rounds = 0;
      for (; text.size() < 300; ++rounds) {
        Ids drafts, context = text;
        std::vector<float> rows = logits(text);
        const std::size_t m = std::min(width, 299 - text.size());
        for (std::size_t j = 0; j < m; ++j) {
          const auto id = static_cast<std::int32_t>((text.size() * 7 + j * 3) % 11);
          drafts.push_back(perfect || j == 0 ? plain[text.size() + j] : id);
          context.push_back(drafts.back());
          const auto row = logits(context);
          rows.insert(rows.end(), row.begin(), row.end());
        }
        const Verdict verdict = verify_greedy(view(drafts), In<float, 2>(rows.data(), {std::ssize(drafts) + 1, 11}));
        if (perfect) REQUIRE(verdict.accepted == std::ssize(drafts));
        for (std::int64_t i = 0; i <= verdict.accepted; ++i) text.push_back(verdict.token(view(drafts), i));
      }
      CHECK(text == plain);
      if (perfect) CHECK(rounds == (300 + width) / (width + 1));
    }
  }
}

TEST_CASE("B67: a limit inside a block is met exactly", "[verifier]") {
  const Toy toy{test::constant_law({0, 1, 0}), test::constant_law({0, 1, 0}), true};  // accept always
  for (std::int64_t most = 1; most <= 12; ++most) {
    for (std::int64_t width = 0; width <= 5; ++width) {
      for (bool capped : {false, true}) {  // by useful_drafts before, or by the cut alone
        std::int64_t emitted = 0, accepted = 0, corrections = 0, rows = 0;
        while (emitted < most) {
          const Ids drafts(static_cast<std::size_t>(width), 1);
          const std::int64_t m = capped ? useful_drafts(view(drafts), 3, most - emitted) : width;
          if (capped) CHECK(m == std::min(width, most - emitted - 1));
          OwnedBlock block = toy.block({}, Ids(static_cast<std::size_t>(m), 1));
          const DraftBlock v = block.view();
          const Verdict verdict = verify(Verification::block, v);
          const BlockCut cut = cut_block(v.drafts, verdict, {}, most - emitted);
          CHECK_FALSE(cut.stopped);
          if (capped) CHECK(cut.tokens == verdict.accepted + 1);
          accepted += std::min(cut.tokens, verdict.accepted);
          corrections += cut.tokens > verdict.accepted ? 1 : 0;
          emitted += cut.tokens;
          rows += m + 1;
        }
        CHECK(emitted == most);
        CHECK(accepted + corrections == emitted);
        if (capped) CHECK(rows == emitted);
      }
    }
  }
}

TEST_CASE("B67: a block is cut where plain decoding stops", "[verifier]") {
  const Ids drafts{5, 6, 7}, stops{6, 9};
  const auto cut = [&](std::int64_t accepted, std::int32_t next, std::int64_t remaining) {
    return cut_block(view(drafts), {.accepted = accepted, .next = next}, view(stops), remaining);
  };
  for (std::int64_t accepted = 0; accepted <= 3; ++accepted) {
    for (std::int32_t next : {6, 8, 9}) {
      for (std::int64_t remaining = 1; remaining <= 5; ++remaining) {
        // Plain decoding over the same tokens: one at a time, the stop token included.
        Ids text(drafts.begin(), drafts.begin() + accepted);
        text.push_back(next);
        std::int64_t made = 0;
        bool stopped = false;
        for (; made < std::ssize(text) && made < remaining && !stopped; ++made) {
          stopped = text[static_cast<std::size_t>(made)] == 6 || text[static_cast<std::size_t>(made)] == 9;
        }
        const BlockCut got = cut(accepted, next, remaining);
        CHECK(got.tokens == made);
        CHECK(got.stopped == stopped);
      }
    }
  }
  CHECK(cut(3, 8, 5).tokens == 2);  // 5, 6: the draft behind the stop token and the bonus go
  CHECK(cut(0, 9, 5).stopped);
  CHECK(cut(1, 8, 5).tokens == 2);
  CHECK_FALSE(cut(1, 8, 5).stopped);
  CHECK(cut(3, 8, 2).stopped);  // at the limit and a stop token
}

TEST_CASE("drafts worth a row end at padding and below the allowance", "[verifier]") {
  const Ids drafts{4, 0, 9, 10, 3};
  CHECK(useful_drafts(view(drafts), 11, 100) == 5);
  CHECK(useful_drafts(view(drafts), 10, 100) == 3);
  CHECK(useful_drafts(view(drafts), 11, 3) == 2);
  CHECK(useful_drafts(view(drafts), 11, 1) == 0);
  CHECK(useful_drafts(view(Ids{-1, 4}), 11, 9) == 0);
  CHECK(useful_drafts({}, 11, 9) == 0);
}

TEST_CASE("B70: the first draft is judged by the row of the anchor", "[verifier]") {
  // Row 0 wants 1; row 1, which a verifier one row late would ask, wants 2.
  for (Verification how : kAll) {
    OwnedBlock block{.drafts = {2}, .target = {{0, 1, 0}, {0, 0, 1}}, .proposal = {}};
    CHECK(emitted(how, block.view()) == Ids{1});
    block.drafts = {1};
    CHECK(emitted(how, block.view()) == Ids{1, 2});
    block.proposal = {{.2, .4, .4}};
    CHECK(emitted(how, block.view()) == Ids{1, 2});
    block.drafts = {2};
    CHECK(emitted(how, block.view()) == Ids{1});
  }
}

TEST_CASE("B72: a verdict is a value: nothing fails in it, nothing advances before its commit", "[verifier]") {
  static_assert(noexcept(verify(Verification::block, DraftBlock{})));
  static_assert(noexcept(cut_block({}, Verdict{}, {}, 1)));
  static_assert(std::is_trivially_copyable_v<Verdict>);
  const Toy toy{test::random_law(1, 3, 0), test::random_law(2, 3, 0)};
  OwnedBlock block = toy.block({}, {0, 1, 2});
  block.seed = 3;
  const OwnedBlock before = block;
  for (Verification how : kAll) {
    const DraftBlock view = block.view();
    const Ids first = emitted(how, view);
    CHECK(emitted(how, view) == first);  // a round that failed behind it can be verified again
  }
  CHECK((block.drafts == before.drafts && block.target == before.target && block.proposal == before.proposal));
}
