// SPDX-License-Identifier: MIT
//
// Drafting in a loop of one's own: the drafter proposes tokens, one step of the model judges them all, and what comes out is what the model
// alone would have written. Uses the demo checkpoint (or argv[1]). runtime/generator.hpp does the same for many requests.
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <span>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/modules/dspark/verifier.hpp"
#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/sampler.hpp"

using namespace dsv41;
using namespace dsv41::runtime;

namespace {

// [shown]
/// One round behind the anchor, the newest token, which the session does not hold yet. Returns what it emits, 1 to most tokens, the last of
/// which is the next anchor; the session then holds all before that one.
std::vector<std::int32_t> round(Engine& engine, Session& session, Sampler& sampler, std::int32_t anchor,
                                std::int64_t most) {
  const double temperature = sampler.options().temperature;
  const std::uint64_t seed = sampler.options().seed;
  const std::int64_t position = session.position(), vocab = sampler.vocab(), n = engine.options().draft;

  std::vector<std::int32_t> ids(static_cast<std::size_t>(n + 1), anchor);
  std::vector<float> drawn_from(static_cast<std::size_t>(n * vocab));
  const SessionDraft wish{.session = &session,
                          .anchor = anchor,
                          .temperature = temperature,
                          .seed = seed,
                          .choices = vocab,
                          .tokens = std::span(ids).subspan(1),
                          .logits = {drawn_from.data(), {n, vocab}}};
  engine.draft({&wish, 1});

  const std::int64_t m = useful_drafts({ids.data() + 1, {n}}, vocab, most);  // any number up to this will do
  session.append({.ids = std::span(ids).first(static_cast<std::size_t>(m + 1)), .logit_rows = kAllRows});

  std::vector<double> target, proposal(static_cast<std::size_t>(m * vocab));  // laws of the model, and of the drafts
  for (std::int64_t i = 0; i <= m; ++i) {
    const std::span<const double> law = sampler.probabilities({session.logits().row(i).data(), {vocab}});
    target.insert(target.end(), law.begin(), law.end());
  }
  for (std::int64_t i = 0; i < m; ++i)
    draft_law({drawn_from.data() + i * vocab, {vocab}}, temperature, {proposal.data() + i * vocab, {vocab}});
  const DraftBlock block{.drafts = {ids.data() + 1, {m}},
                         .target = {target.data(), {m + 1, vocab}},
                         .proposal = {proposal.data(), {temperature > 0 ? m : 0, vocab}},
                         .anchor = position,
                         .seed = seed};
  const Verdict verdict = verify(Verification::block, block);
  const BlockCut cut = cut_block(block.drafts, verdict, {&engine.config().eos, {1}}, most);
  session.commit(cut.tokens);  // rejected drafts are as if they had not been fed
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < cut.tokens; ++i) out.push_back(verdict.token(block.drafts, i));
  return out;
}
// [/shown]

}  // namespace

int main(int argc, char** argv) try {
  const ModelFolder folder = ModelFolder::open(argc > 1 ? argv[1] : DSV41_DEMO_DIR);
  Engine engine(folder, {.max_context = 512, .draft = folder.checkpoint.config().draft.block});
  for (const double temperature : {0.0, 0.8}) {
    constexpr std::int64_t kTokens = 40;
    Sampler sampler({.temperature = temperature, .seed = 5}, folder.tokenizer->vocab_size());
    Session session = engine.open_session();
    session.append({.ids = folder.tokenizer->encode("In the beginning")});
    const In<float, 1> row(session.logits().data(), {sampler.vocab()});
    std::vector<std::int32_t> text{sampler.sample(row, session.position())};
    int rounds = 0;
    for (; std::ssize(text) < kTokens && text.back() != engine.config().eos; ++rounds) {
      const auto more = round(engine, session, sampler, text.back(), kTokens - std::ssize(text));
      text.insert(text.end(), more.begin(), more.end());
    }
    std::cout << folder.tokenizer->decode(text, true) << "\n" << text.size() << " tokens, " << rounds << " rounds\n";
  }
  return std::cout.flush() ? 0 : 1;
} catch (const Error& e) {
  std::cerr << "08_drafting: " << e.what() << '\n';
  return 1;
}
