// SPDX-License-Identifier: MIT
//
// What generators are held against: plain decoding, written with Session::append and a sampler; and the rounds of one request once more,
// with the public calls that any engine of its own would use, and cuts made by hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/modules/dspark/verifier.hpp"
#include "dsv41/runtime/generator.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace dsv41::test {

using Ids = std::vector<std::int32_t>;

inline Ids random_ids(std::int64_t count, std::int64_t vocab, Random& random) {
  Ids out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<std::int32_t>(random.below(vocab)));
  return out;
}

/// What a request gave: its tokens, the rows of logits that they were chosen from, and how it ended.
struct Told {
  Ids tokens;
  std::vector<float> rows;  // [tokens, vocab]
  runtime::Finish finish = runtime::Finish::none;
  std::string error;

  bool operator==(const Told&) const = default;
  void add_rows(In<float, 2> logits) { rows.insert(rows.end(), logits.data(), logits.data() + logits.size()); }
  /// The first tokens of the other, not finished.
  bool begins(const Told& whole) const {
    return tokens.size() <= whole.tokens.size() && std::equal(tokens.begin(), tokens.end(), whole.tokens.begin()) &&
           std::equal(rows.begin(), rows.end(), whole.rows.begin());
  }
};

/// A request, to be given to anybody.
struct Wish {
  runtime::RequestOptions options;
  Ids prompt;
};

/// Tokens added one by one, and the reason to stop behind each: by the words of RequestOptions and Finish.
class Ending {
 public:
  Ending(const runtime::RequestOptions& options, std::int64_t prompt, std::int64_t max_context)
      : options_(options), left_(std::min(options.max_tokens, max_context - prompt)) {}

  /// Whether the request goes on.
  bool add(std::int32_t id, Told& told) {
    told.tokens.push_back(id);
    --left_;
    if (std::ranges::find(options_.stop_ids, id) != options_.stop_ids.end())
      told.finish = runtime::Finish::stop;
    else if (std::ssize(told.tokens) == options_.max_tokens)
      told.finish = runtime::Finish::length;
    else if (left_ == 0)
      told.finish = runtime::Finish::context;
    return told.finish == runtime::Finish::none;
  }
  std::int64_t left() const { return left_; }

 private:
  const runtime::RequestOptions& options_;
  std::int64_t left_;  // tokens that may still be told
};

inline In<float, 1> first_ids(In<float, 2> logits, std::int64_t row, std::int64_t choices) {
  return {logits.row(row).data(), {choices == 0 ? logits.extent(1) : choices}};
}

/// One token a step, on an engine of its own without a drafter.
inline Told plain(const runtime::ModelFolder& folder, const Wish& wish, runtime::EngineOptions options = {},
                  std::int64_t choices = 0) {
  options.draft = 0;
  runtime::Engine engine(folder, options);
  runtime::Session session = engine.open_session();
  runtime::Sampler sampler(wish.options.sampler, choices == 0 ? engine.config().vocab : choices);
  Ending ending(wish.options, std::ssize(wish.prompt), options.max_context);
  Told out;
  session.append({.ids = wish.prompt});
  for (;;) {
    out.add_rows(session.logits());
    const std::int32_t id = sampler.sample(first_ids(session.logits(), 0, choices), session.position());
    if (!ending.add(id, out)) return out;
    session.append({.ids = {&id, 1}});
  }
}

/// The rounds of one request, each with `drafts` drafts where it may use them. `drawn_at`: what the drafter is told in place of the
/// request's temperature, while verification goes on as if it had not been: a bias that tests must find (case B62).
inline Told rounds(runtime::Engine& engine, runtime::Session& session, const Wish& wish, std::int64_t drafts,
                   std::int64_t choices, double drawn_at) {
  const runtime::SamplerOptions& s = wish.options.sampler;
  const std::int64_t ids = choices == 0 ? engine.config().vocab : choices;
  runtime::Sampler sampler(s, ids);
  Ending ending(wish.options, session.position() + std::ssize(wish.prompt), engine.options().max_context);
  Told out;
  if (!wish.prompt.empty()) session.append({.ids = wish.prompt});
  out.add_rows(session.logits().rows(session.logits().extent(0) - 1, 1));
  std::int32_t anchor =
      sampler.sample(first_ids(session.logits(), session.logits().extent(0) - 1, choices), session.position());
  bool more = ending.add(anchor, out);
  while (more) {
    const std::int64_t position = session.position();
    Ids block(static_cast<std::size_t>(std::min(drafts, ending.left() - 1)));
    std::vector<float> logits(block.size() * static_cast<std::size_t>(ids));
    const runtime::SessionDraft one{.session = &session,
                                    .anchor = anchor,
                                    .temperature = drawn_at,
                                    .seed = s.seed,
                                    .choices = choices,
                                    .tokens = block,
                                    .logits = {logits.data(), {std::ssize(block), ids}}};
    engine.draft({&one, 1});
    Ids fed{anchor};
    fed.insert(fed.end(), block.begin(), block.end());
    session.append({.ids = fed, .logit_rows = runtime::kAllRows});
    Ids told;
    std::vector<double> p, q(logits.size());
    for (std::int64_t i = 0; i < std::ssize(fed); ++i) {
      const auto law = sampler.probabilities(first_ids(session.logits(), i, choices));
      p.insert(p.end(), law.begin(), law.end());
    }
    for (std::int64_t i = 0; s.temperature > 0 && i < std::ssize(block); ++i)
      draft_law({logits.data() + i * ids, {ids}}, s.temperature, {q.data() + i * ids, {ids}});
    const Verdict verdict = verify(s.temperature > 0 ? wish.options.verification : Verification::greedy,
                                   {.drafts = {block.data(), {std::ssize(block)}},
                                    .target = {p.data(), {std::ssize(fed), ids}},
                                    .proposal = {q.data(), {std::ssize(block), ids}},
                                    .anchor = position,
                                    .seed = s.seed});
    told.assign(block.begin(), block.begin() + verdict.accepted);
    told.push_back(verdict.next);
    std::int64_t kept = 0;
    while (more && kept < std::ssize(told)) more = ending.add(told[static_cast<std::size_t>(kept++)], out);
    session.commit(kept);
    out.add_rows(session.logits());
    anchor = out.tokens.back();
  }
  return out;
}
inline Told rounds(runtime::Engine& engine, const Wish& wish, std::int64_t drafts, std::int64_t choices = 0) {
  runtime::Session session = engine.open_session();
  return rounds(engine, session, wish, drafts, choices, wish.options.sampler.temperature);
}

/// What each request has given so far.
using Record = std::map<std::int64_t, Told>;

/// Adds what a step gave. Logits are the rows of the tokens, whatever of a block was thrown away.
inline void record(const runtime::Generator& generator, std::span<const runtime::Emission> step, Record& to) {
  for (const runtime::Emission& e : step) {
    Told& told = to[e.request];
    const runtime::Session& session = generator.session(e.request);
    const In<float, 2> logits = session.logits();
    const bool first = told.tokens.empty();
    told.tokens.insert(told.tokens.end(), e.tokens.begin(), e.tokens.end());
    told.finish = e.finish;
    told.error = e.error;
    if (e.finish == runtime::Finish::failed) {
      REQUIRE(e.tokens.empty());
      continue;
    }
    REQUIRE(!e.tokens.empty());
    if (first)
      told.add_rows(logits.rows(logits.extent(0) - 1, 1));
    else
      told.add_rows(logits);
    REQUIRE(std::ssize(told.rows) == std::ssize(told.tokens) * logits.extent(1));
    REQUIRE(std::ssize(told.tokens) > 0);
    // All tokens but the last have run.
    const auto all = session.tokens();
    REQUIRE(std::equal(told.tokens.begin(), told.tokens.end() - 1, all.end() - (std::ssize(told.tokens) - 1)));
  }
}

/// All requests to their ends.
inline Record finish_all(runtime::Generator& generator) {
  Record out;
  while (generator.active() > 0) record(generator, generator.step(), out);
  return out;
}

/// One request alone on an engine.
inline Told alone(runtime::Engine& engine, const Wish& wish, const runtime::GeneratorOptions& options) {
  runtime::Generator generator(engine, options);
  const std::int64_t id = generator.add(engine.open_session(), wish.options, wish.prompt);
  return finish_all(generator)[id];
}

/// A forward's cost that grows with rows, steeper from 9 on, and a drafter that costs as much as two rows: some steps pay, some do not.
inline CostTable some_costs() {
  return CostTable({{1, 10}, {4, 11}, {8, 12}, {16, 20}, {32, 38}, {256, 270}}, 0, {{1, 1}, {8, 2}});
}

}  // namespace dsv41::test
