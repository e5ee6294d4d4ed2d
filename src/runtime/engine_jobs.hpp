// SPDX-License-Identifier: MIT
//
// Sessions on a backend, and their feeds on the way through steps: rows of many sessions together, rings first where a session does not
// have them any more, logits and context out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "draft_runner.hpp"
#include "dsv41/core/cache_layout.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/model/prefill.hpp"
#include "dsv41/model/state.hpp"
#include "engine_impl.hpp"
#include "prefix_cache.hpp"
#include "step_runner.hpp"

namespace dsv41::runtime {

/// One session: what it was fed, and what it remembers of that in the backend's memory.
template <class B>
struct Engine::Sequence final : Session::Impl {
  Sequence(std::shared_ptr<Engine::Impl> engine, State<B> state)
      : Session::Impl(std::move(engine)), state(std::move(state)) {}
  Sequence(const Sequence& of, std::int64_t vocab)
      : Session::Impl(of, vocab),
        state(of.state.fork()),
        kept_pages(of.kept_pages),
        cut_prompt_end(of.cut_prompt_end) {}

  std::int64_t position() const noexcept override { return state.position(); }

  /// To its first `position` tokens, without what was reserved or fed behind them.
  void cut(std::int64_t position) noexcept {
    if (position < cut_prompt_end) {
      state.spoiled();
      cut_prompt_end = 0;
    }
    state.rewind(position);
    transcript.truncate(position);
    kept_pages = std::min(kept_pages, position / page_positions());
  }
  void rewind(std::int64_t position) noexcept {
    cut(position);
    logit_rows = 0;
  }

  void start_call(std::int64_t layers) {
    logit_rows = 0;
    replayed_rows = 0;
    rows_per_layer.assign(static_cast<std::size_t>(layers), 0);
  }

  std::int64_t page_positions() const { return state.pool().layout.page_positions; }

  State<B> state;
  std::int64_t kept_pages = 0;  // whole pages that the prefix cache has been shown
  // Bounded replay: end of the last prompt whose window rows were cut. A session that goes back into it must see the windows of the
  // shorter prompt, so the rings are of no use there.
  std::int64_t cut_prompt_end = 0;
};

/// Runs the feeds of sessions.
template <class B>
class Engine::Jobs {
 public:
  /// A session's feed on its way through steps.
  struct Job {
    Sequence<B>* sequence = nullptr;
    std::int64_t begin = 0, end = 0;
    std::int64_t next = 0;                ///< position of the next row to run
    std::int64_t part = 0, part_end = 0;  ///< what of it is a prompt of its own to the prefill mode
    std::int64_t wanted = 0;
    bool reruns = false;  ///< runs the last token again instead of new ones

    /// Wanted rows of the part: the call's last ones.
    std::int64_t part_wanted() const { return std::max<std::int64_t>(0, wanted - (end - part_end)); }
  };

  /// `prefix`: the engine's, or null.
  Jobs(const Impl& engine, B& backend, CachePool<B>& pool, PrefixCache<PagePool<B>>* prefix)
      : engine_(engine),
        backend_(backend),
        pool_(pool),
        prefix_(prefix),
        runner_(backend, engine.folder, engine.options.numeric,
                {.max_context = engine.options.max_context,
                 .max_rows = std::min(engine.options.max_rows, engine.options.max_context)}) {
    if (engine.options.draft == 0) return;
    drafts_.emplace(backend, engine.folder, runner_.model().window_frequencies(), engine.options.numeric,
                    engine.options.draft, runner_.limits().max_rows);
  }

  /// A feed that begins at the sequence's position and gives `wanted` rows of logits.
  Job feed(Sequence<B>& sequence, std::int64_t count, std::int64_t wanted) const {
    const std::int64_t begin = sequence.position(), end = begin + count;
    return {.sequence = &sequence,
            .begin = begin,
            .end = end,
            .next = begin,
            .part = begin,
            .part_end = first_part(begin, end),
            .wanted = wanted};
  }

  /// The last token once more.
  Job rerun(Sequence<B>& sequence) const {
    Job job = feed(sequence, 0, 1);
    job.reruns = true;
    return job;
  }

  /// null: there is none.
  DraftRunner<B>* drafts() { return drafts_ ? &*drafts_ : nullptr; }
  const DraftRunner<B>* drafts() const { return drafts_ ? &*drafts_ : nullptr; }

  /// Oldest window row that the last of `position` tokens sees.
  std::int64_t first_window_row(std::int64_t position) const {
    return std::max<std::int64_t>(0, position - config_.window);
  }

  /// Rows that a session at `position` has to run again before it can go on.
  std::int64_t replay_cost(const State<B>& state, std::int64_t position) const {
    return state.intact(position) ? 0 : position - replay_start(config_, schedule_, prefill_, position);
  }

  /// Shows the prefix cache what pages a session has completed. It may hold the block then: what writes to that is reserved afterwards.
  void show_prefix(Sequence<B>& s) noexcept {
    if (prefix_ == nullptr) return;
    const std::int64_t whole = s.position() / pool_.layout.page_positions, border = whole * pool_.layout.page_positions;
    if (whole <= s.kept_pages) return;
    const bool with_block =
        prefill_ != Prefill::replay && s.state.intact(border) && (!drafts_ || s.state.draft_intact(border));
    try {
      prefix_->insert(s.transcript.content(), std::span(s.state.pages()).first(static_cast<std::size_t>(whole)),
                      with_block ? std::optional(s.state.block()) : std::nullopt, border);
      s.kept_pages = whole;
    } catch (...) {
      // No memory to remember it by: the session itself is complete.
    }
  }

  /// What a job needs of memory, before its first row runs.
  void prepare(const Job& job) {
    Sequence<B>& s = *job.sequence;
    s.logits.resize(std::max(s.logits.size(), static_cast<std::size_t>(job.wanted * config_.vocab)));
    s.rows_per_layer.reserve(schedule_.layers.size());
    s.state.reserve(job.end - job.begin);
  }

  /// And what their steps need.
  void reserve_step(std::span<const Job> jobs) {
    std::int64_t rows = 0;
    for (const Job& job : jobs) rows += job.wanted;
    rows = std::min(rows, runner_.limits().max_rows);
    runner_.reserve_logits(rows);
    host_logits_.resize(std::max(host_logits_.size(), static_cast<std::size_t>(rows * config_.vocab)));
    pieces_.reserve(jobs.size());
    stepping_.reserve(jobs.size());
    contexts_.reserve(jobs.size());
    growing_.reserve(jobs.size());
    logit_parts_.reserve(jobs.size());
    plan_.reserve(schedule_.layers.size());
  }

  void run(std::span<Job> jobs, const StepControl& control) {
    std::int64_t done = 0;
    at_border_ = true;
    try {
      for (Job& job : jobs) {
        if (job.reruns)
          rerun(job, control);
        else if (!job.sequence->state.intact(job.begin))
          replay(job, control);
      }
      while (const std::int64_t rows = run_step(jobs, control)) {
        done += rows;
        if (control.listener != nullptr) control.listener->step_done(done);
      }
      at_border_ = false;
      backend_.sync();
    } catch (...) {
      const bool sound = at_border_ && backend_is_well();
      for (Job& job : jobs) {
        if (!sound) job.sequence->state.spoiled();
        job.sequence->rewind(sound ? job.sequence->position() : job.begin);
        DraftState& context = job.sequence->state.draft();
        if (!sound || context.position != job.sequence->position()) context.restart(job.sequence->position());
      }
      throw;
    }
    for (Job& job : jobs) job.sequence->logit_rows = job.wanted;
  }

 private:
  /// Where rows of logits go on the host.
  struct LogitPart {
    float* to = nullptr;
    std::int64_t floats = 0;
  };

  /// Whether a feed looks like a round of drafts, which can go back without a cost and may: its pages are shown by the next call, as far as
  /// they still stand then.
  bool may_be_drafts(const Job& job) const { return job.wanted > 1 && job.end - job.begin <= engine_.options.room + 1; }

  /// Where the first part of a call ends. With a prefix cache that is its last page border, so that the windows at that border can be kept
  /// for others; in bounded replay, where parts are not the same as the whole, the end, and where so few rows follow that the rings hold
  /// those windows behind them, too: a round of drafts is one step.
  std::int64_t first_part(std::int64_t begin, std::int64_t end) const {
    if (!prefix_ || prefill_ == Prefill::replay || end - begin <= engine_.options.room + 1) return end;
    const std::int64_t border = end / pool_.layout.page_positions * pool_.layout.page_positions;
    return border > begin ? border : end;
  }

  bool backend_is_well() noexcept {
    try {
      backend_.sync();
      return true;
    } catch (...) {
      return false;  // the call already reports why it ended
    }
  }

  void expect_not_cancelled(const StepControl& control) const {
    if (control.cancel != nullptr && control.cancel->requested())
      throw Error(Errc::cancelled, "step: cancelled by the caller's token");
  }

  /// Runs the pieces; what they overwrite is lost if that ends early.
  void run_pieces(std::span<const LayerRows> plan, const StepControl& control) {
    expect_not_cancelled(control);
    contexts_.clear();
    growing_.clear();
    at_border_ = false;
    const bool finished = runner_.run(pieces_, plan, control.cancel);
    at_border_ = !finished;
    if (!finished) expect_not_cancelled(control);
  }

  /// Rings and open groups for the job's first row, where the session does not have them any more. If the last token runs again for its
  /// logits, it is the last row of this, and answers in the top layer too.
  void replay(const Job& job, const StepControl& control) {
    Sequence<B>& s = *job.sequence;
    s.state.spoiled();
    const std::int64_t start = replay_start(config_, schedule_, prefill_, job.begin);
    for (std::int64_t first = start; first < job.begin;) {
      const std::int64_t rows = StepRoom(runner_.limits().max_rows).take(s.transcript, first, job.begin);
      plan_replay(config_, schedule_, prefill_, {.end = job.begin, .first = first, .rows = rows}, plan_);
      const bool answers = job.reruns && first + rows == job.begin;
      if (answers) plan_.back().queries = rows - 1;
      pieces_.assign(1, {.state = &s.state.sequence(), .transcript = &s.transcript, .first = first, .rows = rows});
      run_pieces(plan_, control);
      if (answers) fetch_last(s, rows);
      add_context(s, pieces_[0], 0, job.begin);
      remember_contexts();
      at_border_ = true;
      first += rows;
    }
    s.state.replayed(first_window_row(job.begin));
    if (prefill_ == Prefill::replay) s.cut_prompt_end = job.begin;
    s.replayed_rows = job.begin - start;
  }

  /// The last token once more, for its logits. Alone, if the rings still hold the rows before it: it takes its own slots, and no compressor
  /// sees it.
  void rerun(const Job& job, const StepControl& control) {
    Sequence<B>& s = *job.sequence;
    if (!s.state.holds_rows(first_window_row(job.end))) return replay(job, control);
    plan_.assign(schedule_.layers.size(), {.keys = 0, .entries = 1, .queries = 0});
    pieces_.assign(1, {.state = &s.state.sequence(), .transcript = &s.transcript, .first = job.end - 1, .rows = 1});
    run_pieces(plan_, control);
    fetch_last(s, 1);
    at_border_ = true;
    s.replayed_rows = 1;
  }

  /// Names a piece's rows, the first of which is `first_row` of the step, for the drafter's context: those that reached the layers of its
  /// taps, and of tokens up to `end` only as many as its rings hold. Drafts among them may turn out to be rejected; like the target's,
  /// their rows are then written again, which costs no row that is seen, for rings have room.
  void add_context(Sequence<B>& s, const StepPiece& piece, std::int64_t first_row, std::int64_t end) {
    if (!drafts_) return;
    DraftState& context = s.state.draft();
    const std::int64_t last = piece.first + piece.rows;
    const std::int64_t reached = plan_.empty() ? 0 : plan_[static_cast<std::size_t>(last_tap_)].keys;
    const std::int64_t from = std::clamp(end - pool_.layout.ring_slots, piece.first + reached, last);
    if (from != context.position) context.restart(from);
    if (from == last) return;
    contexts_.push_back({.state = &context, .first_row = first_row + from - piece.first, .rows = last - from});
    growing_.push_back(&context);
  }

  void remember_contexts() {
    if (contexts_.empty()) return;
    drafts_->remember(runner_.taps(), contexts_);
    for (std::size_t i = 0; i < contexts_.size(); ++i) growing_[i]->advance(contexts_[i].rows);
  }
  /// Logits of the last of a step's rows.
  void fetch_last(Sequence<B>& s, std::int64_t rows) {
    runner_.fetch_logits(rows - 1, 1, host_logits_.data());
    std::copy_n(host_logits_.data(), config_.vocab, s.logits.data());
  }

  bool skips_rows(const Job& job) const {
    const std::int64_t rows = job.part_end - job.part;
    return prefill_rows(config_, schedule_, prefill_, config_.layers - 1, rows, job.part_wanted()) < rows;
  }

  /// The next step over what jobs have left; returns its rows, 0 when all is done.
  std::int64_t run_step(std::span<Job> jobs, const StepControl& control) {
    StepRoom room(runner_.limits().max_rows);
    pieces_.clear();
    stepping_.clear();
    plan_.clear();
    std::int64_t step_rows = 0;
    for (Job& job : jobs) {
      if (job.next == job.end) continue;
      const bool alone = skips_rows(job);
      if (alone && !pieces_.empty()) break;
      Sequence<B>& s = *job.sequence;
      const std::int64_t rows = room.take(s.transcript, job.next, job.part_end);
      if (rows == 0) break;
      pieces_.push_back({.state = &s.state.sequence(), .transcript = &s.transcript, .first = job.next, .rows = rows});
      stepping_.push_back(&job);
      step_rows += rows;
      if (!alone) continue;
      s.state.spoiled();  // until its last row is through
      plan_prefill(
          config_, schedule_, prefill_,
          {.begin = job.part, .end = job.part_end, .first = job.next, .rows = rows, .wanted = job.part_wanted()},
          plan_);
      break;
    }
    if (pieces_.empty()) return 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      stepping_[i]->sequence->state.overwrote(pieces_[i].first + pieces_[i].rows);
    run_pieces(plan_, control);
    fetch_logits();
    std::int64_t first_row = 0;
    for (std::size_t i = 0; i < pieces_.size(); first_row += pieces_[i++].rows)
      add_context(*stepping_[i]->sequence, pieces_[i], first_row, stepping_[i]->part_end);
    remember_contexts();
    for (std::size_t i = 0; i < pieces_.size(); ++i) advance(*stepping_[i], pieces_[i].rows);
    at_border_ = true;
    return step_rows;
  }

  void advance(Job& job, std::int64_t rows) {
    Sequence<B>& s = *job.sequence;
    for (std::size_t l = 0; l < s.rows_per_layer.size(); ++l)
      s.rows_per_layer[l] += rows - (plan_.empty() ? 0 : plan_[l].queries);
    s.state.advance(rows);
    job.next += rows;
    if (job.next < job.part_end) return;
    if (!plan_.empty()) {
      s.state.replayed(first_window_row(job.part_end));
      if (prefill_ == Prefill::replay) s.cut_prompt_end = job.part_end;
    }
    if (!may_be_drafts(job)) show_prefix(s);
    job.part = job.part_end;
    job.part_end = job.end;
    if (job.part < job.end) s.state.reserve(job.end - job.part);  // the cache may hold the block now
  }

  /// Logits of the step's rows that are wanted, to their sessions. Rows that follow each other are one product with the head.
  void fetch_logits() {
    std::int64_t row = 0, first = 0, count = 0;
    const auto fetch = [&] {
      if (count > 0) runner_.fetch_logits(first, count, host_logits_.data());
      const float* from = host_logits_.data();
      for (const LogitPart& part : logit_parts_) {
        std::copy_n(from, part.floats, part.to);
        from += part.floats;
      }
      logit_parts_.clear();
      count = 0;
    };
    for (std::size_t i = 0; i < pieces_.size(); row += pieces_[i++].rows) {
      const Job& job = *stepping_[i];
      const std::int64_t begin = pieces_[i].first, end = begin + pieces_[i].rows;
      const std::int64_t first_wanted = job.end - job.wanted, from = std::max(begin, first_wanted);
      if (from >= end) continue;
      if (row + from - begin != first + count) fetch();
      if (count == 0) first = row + from - begin;
      count += end - from;
      logit_parts_.push_back({.to = job.sequence->logits.data() + (from - first_wanted) * config_.vocab,
                              .floats = (end - from) * config_.vocab});
    }
    fetch();
  }

  const Impl& engine_;
  const ModelConfig& config_ = engine_.config;
  const Schedule& schedule_ = engine_.schedule;
  const Prefill prefill_ = engine_.prefill;
  B& backend_;
  CachePool<B>& pool_;
  PrefixCache<PagePool<B>>* prefix_;
  StepRunner<B> runner_;
  std::optional<DraftRunner<B>> drafts_;
  const std::int32_t last_tap_ = config_.draft.tap_layers.empty() ? 0 : std::ranges::max(config_.draft.tap_layers);
  std::vector<StepPiece> pieces_;       // of the step under way
  std::vector<Job*> stepping_;          // whose they are
  std::vector<DraftContext> contexts_;  // rows of it for the drafter
  std::vector<DraftState*> growing_;    // whose they are
  std::vector<LayerRows> plan_;
  std::vector<LogitPart> logit_parts_;
  std::vector<float> host_logits_;
  bool at_border_ = true;  // no step is under way, and none has failed
};

}  // namespace dsv41::runtime
