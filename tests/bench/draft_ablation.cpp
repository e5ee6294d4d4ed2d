// SPDX-License-Identifier: MIT
//
// draft_ablation [PROMPTS [TOKENS]]: what the demo's drafter is worth, and what it is worth with one fault built in. 32 prompts of 64
// held-out tokens and 64 new tokens for each by default, in class exact. Not a unit test: the figures are printed
// (docs/draft_ablation.md). What must hold: each fault changes what is drafted; each that is said to show lowers the tokens a round
// clearly, at either temperature; and with any of them real rounds at temperature 0 give the text of plain decoding, in as many rounds as
// the walk along it.
//
// The figures walk along texts that the target has written alone, one token a step. Where token v stands at a draft's place, the round
// accepts with probability min(q(v) / p(v), 1), p and q the laws of target and drafter there; else it ends. That is token-by-token
// verification (Verification::rejection), seen from its text: it accepts v with probability min(p(v), q(v)), and v stands there with p(v)
// in all. At temperature 0 it is the longest prefix of drafts that equals the text. All drafters walk along the same texts with the same
// random numbers. A sequence ends with the round in which it has its tokens, and that round counts in full.
//
// No engine is involved: loops here drive Model, State, Drafter and verify_greedy() themselves, and the faults are what such a loop, or a
// kernel below it, can get wrong.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/model/model.hpp"
#include "dsv41/model/scratch.hpp"
#include "dsv41/model/state.hpp"
#include "dsv41/modules/dspark/drafter.hpp"
#include "dsv41/modules/dspark/verifier.hpp"
#include "dsv41/numerics/rng.hpp"
#include "dsv41/ref/ref_backend.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "dsv41/runtime/sampler.hpp"
#include "support/temp_folder.hpp"

namespace {

using namespace dsv41;

constexpr std::int64_t kPromptTokens = 64;  // as examples/tiny/measure.py
constexpr std::int64_t kReal = 2;           // prompts that real rounds are run for
constexpr double kClear = 0.1;              // a fault shows when it costs at least this share of the accepted drafts

template <std::size_t Rank>
void append(std::vector<float>& to, In<float, Rank> dense) {
  to.insert(to.end(), dense.data(), dense.data() + dense.size());
}

/// What a row of a block sees.
enum class Sight { whole, causal, sliding };

/// RefBackend, but for what the rows of a draft block see.
class SightBackend : public RefBackend {
 public:
  Sight sight = Sight::whole;

  template <class Op>
  void run(const Op& op) noexcept {
    RefBackend::run(op);
  }

  void run(const ops::BlockAttention& op) noexcept {
    if (sight == Sight::whole) return RefBackend::run(op);
    for (std::int64_t i = 0; i < op.q.extent(0); ++i) {
      ops::BlockAttention row = op;
      if (sight == Sight::causal) row.block = op.block.rows(0, i + 1);
      if (sight == Sight::sliding)
        row.first_visible = std::max(op.first_visible, std::min(op.first_position, op.first_position + i - op.window));
      row.q = repeated(op.q.row(i), row.block.extent(0));
      row.out = repeated(op.out.row(i), row.block.extent(0));
      RefBackend::run(row);
    }
  }

 private:
  /// The op has a query for each row of the block: the same one, then, and the same place for what comes out.
  template <class T>
  static View<T, 3> repeated(View<T, 2> row, std::int64_t times) {
    return {row.data(), {times, row.extent(0), row.extent(1)}, {0, row.stride(0), row.stride(1)}};
  }
};

/// A drafter, or what is wrong with it.
struct Fault {
  std::string name;
  std::vector<std::int32_t> taps;  ///< layers; empty: those of the config
  bool markov = true;
  Sight sight = Sight::whole;
  std::int64_t early = 0;       ///< positions by which the block stands before its place; it begins at 0 at least
  std::int64_t unseen = 0;      ///< newest context rows that a block does not see
  std::int64_t falls_back = 0;  ///< newest rows that each round forgets to commit
  bool context = true;
  bool shows = true;  ///< lowers the figure clearly, of the demo
};

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = {
      {.name = "none", .shows = false},
      {.name = "taps one layer lower (2 3 4)", .taps = {2, 3, 4}, .shows = false},
      {.name = "taps one layer higher (4 5 5)", .taps = {4, 5, 5}, .shows = false},
      {.name = "taps of the first layers (0 1 2)", .taps = {0, 1, 2}, .shows = false},
      {.name = "no Markov bias", .markov = false},
      {.name = "causal within the block", .sight = Sight::causal, .shows = false},
      {.name = "block one position early", .early = 1, .shows = false},
      {.name = "block at position 0", .early = 1 << 20},
      {.name = "newest context row not seen", .unseen = 1},
      {.name = "context a row behind each round", .falls_back = 1},
      {.name = "no context", .context = false},
      {.name = "window slides with each row", .sight = Sight::sliding, .shows = false},
  };
  return all;
}

/// Rows of one sequence in a step: as many tokens of its text, from where its state stands.
struct Piece {
  State<RefBackend>* state = nullptr;
  const std::vector<std::int32_t>* text = nullptr;
  std::int64_t rows = 0;
};

/// The target with every layer tapped, so that any choice of taps can be made of one step.
class Target {
 public:
  Target(const runtime::ModelFolder& folder, const Limits& limits, std::int64_t room)
      : config_(all_tapped(folder.checkpoint.config())),
        model_(backend_, config_, folder.checkpoint.weights(), folder.token_map, Numeric::exact),
        scratch_(backend_, config_, limits),
        pool_(backend_, config_, room),
        max_context_(limits.max_context),
        logits_(static_cast<std::size_t>(limits.max_rows * config_.vocab)) {
    backend_.prepare(config_, limits.max_rows);
  }

  const Model<RefBackend>& model() const { return model_; }
  State<RefBackend> open() { return {pool_, max_context_}; }

  /// Runs the pieces, in this order. Their states are reserved and advanced by their rows: the caller rewinds what it does not commit.
  void run(std::span<const Piece> pieces) {
    std::vector<std::int32_t> ids, history;
    std::vector<std::int64_t> positions;
    std::vector<Segment> segments;
    for (const Piece& piece : pieces) {
      const std::int64_t first = piece.state->position(), rows = piece.rows;
      piece.state->reserve(rows);
      segments.push_back(
          {.state = &piece.state->sequence(), .first_row = std::ssize(ids), .rows = rows, .first_position = first});
      for (std::int64_t p = first - config_.engram.look_back(); p < first + rows; ++p) {
        const std::int32_t id = p < 0 ? numerics::kEngramDead : (*piece.text)[static_cast<std::size_t>(p)];
        (p < first ? history : ids).push_back(id);
        if (p >= first) positions.push_back(p);
      }
    }
    const std::vector<std::uint8_t> image(ids.size());
    rows_ = std::ssize(ids);
    const Batch batch{.ids = {ids.data(), {rows_}},
                      .image = {image.data(), {rows_}},
                      .image_rows = {},
                      .positions = {positions.data(), {rows_}},
                      .history = {history.data(), {std::ssize(segments), config_.engram.look_back()}},
                      .segments = segments};
    const ScratchViews t = scratch_.views().first_rows(rows_);
    model_.step(backend_, batch, t);
    model_.logits(backend_, t, 0, rows_, {logits_.data(), {rows_, config_.vocab}});
    backend_.sync();
    for (const Piece& piece : pieces) piece.state->advance(piece.rows);
  }

  /// Of row `row` of the last step: [vocab].
  In<float, 1> logits(std::int64_t row) const { return {logits_.data() + row * config_.vocab, {config_.vocab}}; }

  /// Of all its rows, of all layers: [rows, layers * dim].
  In<float, 2> taps() const { return scratch_.views().taps.rows(0, rows_); }

 private:
  static ModelConfig all_tapped(ModelConfig config) {
    config.draft.tap_layers.clear();
    for (std::int32_t l = 0; l < config.layers; ++l) config.draft.tap_layers.push_back(l);
    return config;
  }

  RefBackend backend_;
  ModelConfig config_;
  Model<RefBackend> model_;
  Scratch<RefBackend> scratch_;
  CachePool<RefBackend> pool_;
  std::int64_t max_context_, rows_ = 0;
  std::vector<float> logits_;
};

/// A sequence's anchor: the newest token of its text, which has not run.
struct Anchor {
  std::size_t sequence = 0;
  std::int32_t token = 0;
};

/// Rows of a step that are committed.
struct Commit {
  std::size_t sequence = 0;
  std::int64_t first_row = 0, rows = 0;
};

/// One drafter with its fault, and its context of each sequence.
class Drafting {
 public:
  Drafting(const runtime::ModelFolder& folder, const Target& target, const Fault& fault, std::int64_t sequences)
      : fault_(fault),
        config_(folder.checkpoint.config()),
        taps_(fault.taps.empty() ? config_.draft.tap_layers : fault.taps),
        no_bias_(fault.markov ? 0 : static_cast<std::size_t>(config_.vocab * config_.draft.markov_rank)),
        weights_(with_fault(folder.checkpoint.weights())),
        drafter_(config_, weights_, target.model().window_frequencies(), Numeric::exact),
        scratch_(backend_, config_, limits(sequences)),
        states_(static_cast<std::size_t>(sequences)) {
    backend_.sight = fault.sight;
    const std::int64_t stages = config_.draft.stages;
    rings_ = Arena<RefBackend>(backend_, [&](Cursor& cursor) {
      cursor.take(pages_, {sequences * stages});
      cursor.take(bytes_, {sequences * stages, config_.window * row_bytes(CacheFormat::window, config_.head_dim)});
    });
    for (std::int64_t i = 0; i < sequences * stages; ++i) {
      pages_[i] = bytes_.row(i).data();
      states_[static_cast<std::size_t>(i / stages)].rings.push_back({.format = CacheFormat::window,
                                                                     .rows = config_.window,
                                                                     .width = config_.head_dim,
                                                                     .pages = pages_.rows(i, 1),
                                                                     .page_rows = config_.window});
    }
  }

  /// Taps of every layer, as the target gives them.
  void remember(In<float, 2> taps, std::span<const Commit> commits) {
    std::vector<float> chosen;
    for (std::int64_t row = 0; row < taps.extent(0); ++row) {
      for (const std::int32_t layer : taps_) {
        const float* tap = taps.row(row).data() + layer * config_.dim;
        chosen.insert(chosen.end(), tap, tap + config_.dim);
      }
    }
    std::vector<DraftContext> contexts;
    for (const Commit& c : commits) contexts.push_back({&states_[c.sequence], c.first_row, c.rows});
    drafter_.remember(backend_, {chosen.data(), {taps.extent(0), std::ssize(taps_) * config_.dim}}, contexts,
                      scratch_.views());
    for (const Commit& c : commits) {
      DraftState& state = states_[c.sequence];
      state.advance(c.rows);
      if (!fault_.context) state.restart(state.position);
    }
  }

  /// The same behind a round: the rows of its anchor and of all that it emitted but the last.
  void commit(In<float, 2> taps, std::span<const Commit> round) {
    std::vector<Commit> commits(round.begin(), round.end());
    for (Commit& c : commits) c.rows -= fault_.falls_back;
    remember(taps, commits);
  }

  const ModelConfig& config() const { return config_; }

  /// A block behind each anchor; choose(i, k, logits [vocab]) gives the token that follows k others behind anchors[i].
  template <class Choose>
  void draft(std::span<const Anchor> anchors, const Choose& choose) {
    const std::int64_t requests = std::ssize(anchors), block = config_.draft.block, vocab = config_.vocab;
    const std::size_t length = static_cast<std::size_t>(block);
    std::vector<std::int32_t> ids(anchors.size() * length), tokens;
    std::vector<std::int64_t> positions(ids.size());
    std::vector<DraftState> shown;
    std::vector<const DraftState*> states;
    shown.reserve(anchors.size());  // pointed to
    for (const Anchor& anchor : anchors) {
      const std::size_t first = tokens.size() * length;
      const DraftState& state = states_[anchor.sequence];
      shown.push_back(state);
      shown.back().rewind(state.position - fault_.unseen);
      states.push_back(&shown.back());
      tokens.push_back(anchor.token);
      draft_block(config_, anchor.token, state, std::span(ids).subspan(first, length),
                  std::span(positions).subspan(first, length));
    }
    for (std::size_t i = 0; i < positions.size(); ++i)
      positions[i] = std::max(static_cast<std::int64_t>(i % length), positions[i] - fault_.early);
    const DraftBatch batch{
        .ids = {ids.data(), {std::ssize(ids)}}, .positions = {positions.data(), {std::ssize(ids)}}, .requests = states};
    const DraftViews t = scratch_.views().first_rows(std::ssize(ids));
    drafter_.forward(backend_, batch, t);
    std::vector<float> logits(anchors.size() * static_cast<std::size_t>(vocab)), z(anchors.size());
    for (std::int64_t k = 0; k < block; ++k) {
      drafter_.next(backend_, batch, k, {tokens.data(), {requests}}, t, {logits.data(), {requests, vocab}},
                    {z.data(), {requests}});
      backend_.sync();
      for (std::size_t i = 0; i < anchors.size(); ++i)
        tokens[i] = choose(i, k, In<float, 1>(logits.data() + static_cast<std::int64_t>(i) * vocab, {vocab}));
    }
  }

 private:
  ModelWeights with_fault(ModelWeights weights) const {
    const DraftConfig& d = config_.draft;
    if (!no_bias_.empty()) {
      weights.draft.markov_head = {.format = Format::f32,
                                   .rows = config_.vocab,
                                   .cols = d.markov_rank,
                                   .data = reinterpret_cast<const std::byte*>(no_bias_.data())};
    }
    return weights;
  }

  DraftLimits limits(std::int64_t sequences) const {
    const std::int64_t block = config_.draft.block;
    return {.context_rows = std::max(kPromptTokens, sequences * (block + 1)), .block_rows = sequences * block};
  }

  SightBackend backend_;
  Fault fault_;
  ModelConfig config_;
  std::vector<std::int32_t> taps_;
  std::vector<float> no_bias_;  // zeros in the Markov head's place
  ModelWeights weights_;
  Drafter drafter_;
  DraftScratch<RefBackend> scratch_;
  Out<std::byte*, 1> pages_;  // one a ring
  Out<std::byte, 2> bytes_;
  Arena<RefBackend> rings_;
  std::vector<DraftState> states_;
};

/// A prompt that has run.
struct Prompt {
  std::vector<std::int32_t> ids;
  State<RefBackend> state;
  std::vector<float> logits, taps;  // [vocab] of its last row; [rows, layers * dim]
};

/// Equidistant pieces of the held-out text.
std::vector<Prompt> run_prompts(Target& target, const runtime::ModelFolder& folder, std::int64_t count) {
  const std::vector<std::int32_t> ids =
      folder.tokenizer->encode(test::read_file(std::string(DSV41_DEMO_DIR) + "/heldout.txt"), false);
  std::vector<Prompt> out;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto first = ids.begin() + i * (std::ssize(ids) - kPromptTokens) / count;
    out.push_back({.ids = {first, first + kPromptTokens}, .state = target.open(), .logits = {}, .taps = {}});
    Prompt& prompt = out.back();
    const Piece all{&prompt.state, &prompt.ids, kPromptTokens};
    target.run({&all, 1});
    append(prompt.logits, target.logits(kPromptTokens - 1));
    append(prompt.taps, target.taps());
  }
  return out;
}

/// A prompt and what the target alone writes behind it.
struct Text {
  std::vector<std::int32_t> ids;
  std::vector<double> laws;  // [ids behind the prompt, vocab]  what each was drawn from
  std::vector<float> taps;   // [ids, layers * dim]

  /// Probability of v where the i-th id stands.
  In<double, 1> law(std::int64_t i, std::int64_t vocab) const {
    return {laws.data() + (i - kPromptTokens) * vocab, {vocab}};
  }
};

/// `tokens` of them behind each prompt.
std::vector<Text> write_texts(Target& target, const std::vector<Prompt>& prompts, double temperature,
                              std::int64_t tokens) {
  std::vector<runtime::Sampler> samplers;
  std::vector<State<RefBackend>> states;
  std::vector<Text> texts;
  const auto grow = [&](std::size_t i, In<float, 1> logits) {
    const std::span<const double> law = samplers[i].probabilities(logits);
    texts[i].laws.insert(texts[i].laws.end(), law.begin(), law.end());
    texts[i].ids.push_back(samplers[i].sample(logits, std::ssize(texts[i].ids)));
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    samplers.emplace_back(runtime::SamplerOptions{.temperature = temperature, .seed = i},
                          std::ssize(prompts[i].logits));
    states.push_back(prompts[i].state.fork());
    texts.push_back({.ids = prompts[i].ids, .laws = {}, .taps = prompts[i].taps});
    grow(i, {prompts[i].logits.data(), {std::ssize(prompts[i].logits)}});
  }
  for (std::int64_t t = 1; t < tokens; ++t) {
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < prompts.size(); ++i) pieces.push_back({&states[i], &texts[i].ids, 1});
    target.run(pieces);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      grow(i, target.logits(row));
      append(texts[i].taps, target.taps().rows(row, 1));
    }
  }
  return texts;
}

/// Rounds of one sequence.
struct Rounds {
  std::int64_t rounds = 0, emitted = 0;

  Rounds& operator+=(const Rounds& other) {
    rounds += other.rounds;
    emitted += other.emitted;
    return *this;
  }
  bool operator==(const Rounds&) const = default;
};

struct Figures {
  /// Per draft of a block, over the rounds that accepted those before it: the mean probability that what is drafted here is accepted, sum
  /// over v of min(p(v), q(v)). At temperature 0: the share that is. NaN: no round came so far.
  std::vector<double> acceptance;
  std::vector<Rounds> sequences;

  Rounds all() const {
    return std::accumulate(sequences.begin(), sequences.end(), Rounds{},
                           [](Rounds a, const Rounds& b) { return a += b; });
  }
};

/// The drafter along the texts, in rounds that emit at least `tokens` behind the first of each.
Figures walk(Drafting& drafting, const std::vector<Text>& texts, double temperature, std::int64_t tokens) {
  const ModelConfig& c = drafting.config();
  const std::int64_t columns = c.layers * c.dim;
  for (std::size_t s = 0; s < texts.size(); ++s) {
    const Commit prompt{.sequence = s, .first_row = 0, .rows = kPromptTokens};
    drafting.remember({texts[s].taps.data(), {kPromptTokens, columns}}, {&prompt, 1});
  }
  std::vector<double> sums(static_cast<std::size_t>(c.draft.block)), q(static_cast<std::size_t>(c.vocab));
  std::vector<std::int64_t> reached(sums.size()), places(texts.size(), kPromptTokens);
  Figures out{.acceptance = {}, .sequences = std::vector<Rounds>(texts.size())};
  for (;;) {
    std::vector<Anchor> anchors;
    for (std::size_t s = 0; s < texts.size(); ++s) {
      if (places[s] < kPromptTokens + tokens)
        anchors.push_back({.sequence = s, .token = texts[s].ids[static_cast<std::size_t>(places[s])]});
    }
    if (anchors.empty()) break;
    std::vector<std::int64_t> accepted(anchors.size());
    drafting.draft(anchors, [&](std::size_t i, std::int64_t k, In<float, 1> logits) {
      const std::size_t s = anchors[i].sequence;
      const std::int64_t at = places[s] + 1 + k;
      const std::int32_t id = texts[s].ids[static_cast<std::size_t>(at)];
      if (accepted[i] < k) return id;  // the round has ended
      const In<double, 1> p = texts[s].law(at, c.vocab);
      std::fill(q.begin(), q.end(), 0);
      const std::int32_t top = draft_law(logits, temperature, {q.data(), {c.vocab}});
      if (temperature == 0 && top >= 0) q[static_cast<std::size_t>(top)] = 1;
      ++reached[static_cast<std::size_t>(k)];
      for (std::int64_t v = 0; v < c.vocab; ++v)
        sums[static_cast<std::size_t>(k)] += std::min(p[v], q[static_cast<std::size_t>(v)]);
      // One draw a position, whatever the round: no position is judged twice.
      const double u = numerics::uniform_below_one(numerics::random_block(s, at, numerics::Purpose::acceptance));
      if (u < acceptance(1, q[static_cast<std::size_t>(id)], p[id])) ++accepted[i];
      return id;
    });
    std::vector<float> taps;
    std::vector<Commit> commits;
    for (std::size_t i = 0; i < anchors.size(); ++i) {
      const std::size_t s = anchors[i].sequence;
      const std::int64_t emitted = accepted[i] + 1;
      commits.push_back({.sequence = s, .first_row = std::ssize(taps) / columns, .rows = emitted});
      append(
          taps,
          In<float, 2>(texts[s].taps.data(), {std::ssize(texts[s].taps) / columns, columns}).rows(places[s], emitted));
      places[s] += emitted;
      out.sequences[s] += {1, emitted};
    }
    drafting.commit({taps.data(), {std::ssize(taps) / columns, columns}}, commits);
  }
  for (std::size_t k = 0; k < sums.size(); ++k) out.acceptance.push_back(sums[k] / static_cast<double>(reached[k]));
  return out;
}

/// Real greedy rounds: draft, run anchor and drafts through the target, verify, commit what was emitted. Returns what they came to; `text`
/// is the prompt's and grows.
Rounds speculate(Target& target, Drafting& drafting, const Prompt& prompt, std::int64_t tokens,
                 std::vector<std::int32_t>& text) {
  const ModelConfig& c = drafting.config();
  const Commit all{.sequence = 0, .first_row = 0, .rows = kPromptTokens};
  drafting.remember({prompt.taps.data(), {kPromptTokens, c.layers * c.dim}}, {&all, 1});
  State<RefBackend> state = prompt.state.fork();
  text = prompt.ids;
  text.push_back(runtime::argmax({prompt.logits.data(), {c.vocab}}));
  Rounds out;
  while (state.position() < kPromptTokens + tokens) {
    const std::int64_t place = state.position();
    const Anchor anchor{.sequence = 0, .token = text.back()};
    drafting.draft({&anchor, 1}, [&](std::size_t, std::int64_t k, In<float, 1> logits) {
      text.push_back(draw_draft(logits, 0, 0, place, k + 1, {}));
      return text.back();
    });
    const Piece block{&state, &text, c.draft.block + 1};
    target.run({&block, 1});
    const In<float, 2> logits{target.logits(0).data(), {block.rows, c.vocab}};
    const Verdict verdict = verify_greedy({text.data() + place + 1, {c.draft.block}}, logits);
    const std::int64_t emitted = verdict.accepted + 1;
    text.resize(static_cast<std::size_t>(place + emitted));
    text.push_back(verdict.next);
    state.rewind(place + emitted);
    const Commit commit{.sequence = 0, .first_row = 0, .rows = emitted};
    drafting.commit(target.taps(), {&commit, 1});
    out += {1, emitted};
  }
  return out;
}

/// Drafts accepted a round.
double accepted(const Rounds& rounds) {
  return static_cast<double>(rounds.emitted) / static_cast<double>(rounds.rounds) - 1;
}

/// A row of the table.
void print(const Fault& fault, const Figures& got) {
  const Rounds all = got.all();
  std::cout << "| " << fault.name << " |" << std::fixed << std::setprecision(3);
  for (const double share : got.acceptance) {
    if (std::isnan(share))
      std::cout << " - |";
    else
      std::cout << " " << share << " |";
  }
  std::cout << " " << accepted(all) + 1 << " | " << all.emitted << " / " << all.rounds << " |" << std::endl;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::int64_t count = argc > 1 ? std::atoll(argv[1]) : 32, tokens = argc > 2 ? std::atoll(argv[2]) : 64;
  if (count < kReal || tokens < 1) throw Error(Errc::invalid_argument, "expected at least 2 prompts and one token");
  const runtime::ModelFolder folder = runtime::ModelFolder::open(DSV41_DEMO_DIR);
  const std::int64_t block = folder.checkpoint.config().draft.block;
  const Limits limits{.max_context = kPromptTokens + tokens + block + 1, .max_rows = std::max(kPromptTokens, count)};
  Target target(folder, limits, block);
  const std::vector<Prompt> prompts = run_prompts(target, folder, count);
  bool good = true;
  const auto expect = [&](bool holds, const Fault& fault, const std::string& what) {
    if (!holds) std::cerr << "draft_ablation: fault " << fault.name << ": " << what << "\n";
    good = good && holds;
  };
  for (const double temperature : {0.0, 1.0}) {
    std::cout << "temperature " << temperature << ": acceptance of drafts 1 to " << block << ", tokens a round\n";
    const std::vector<Text> texts = write_texts(target, prompts, temperature, 1 + tokens + block);
    Figures whole;
    for (const Fault& fault : faults()) {
      Drafting drafting(folder, target, fault, count);
      const Figures got = walk(drafting, texts, temperature, tokens);
      print(fault, got);
      if (&fault == &faults().front()) whole = got;
      // Shares of p and q that agree are too fine to come out the same by chance, as those of equal ids can.
      else if (temperature > 0)
        expect(got.acceptance[0] != whole.acceptance[0], fault, "it is not there: nothing changes");
      if (fault.shows)
        expect(accepted(got.all()) < (1 - kClear) * accepted(whole.all()), fault, "the figure is hardly lower");
      for (std::size_t i = 0; i < kReal && temperature == 0; ++i) {
        Drafting alone(folder, target, fault, 1);
        std::vector<std::int32_t> text;
        const Rounds rounds = speculate(target, alone, prompts[i], tokens, text);
        expect(std::equal(text.begin(), text.end(), texts[i].ids.begin()), fault, "real rounds change the text");
        expect(rounds == got.sequences[i], fault, "real rounds come to other figures");
      }
    }
  }
  return std::cout.flush() && good ? 0 : 1;
} catch (const Error& e) {
  std::cerr << "draft_ablation: " << e.what() << '\n';
  return 1;
}
