// SPDX-License-Identifier: MIT
//
// The engine on a backend: sessions' feeds become steps, and steps become tokens that sessions hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/cache_layout.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/model/prefill.hpp"
#include "dsv41/model/state.hpp"
#include "engine_impl.hpp"
#include "float_environment.hpp"
#include "prefix_cache.hpp"
#include "state_file.hpp"
#include "step_runner.hpp"

namespace dsv41::runtime {

template <class B>
class Engine::On final : public Engine::Impl, private CacheReserve {
 public:
  On(const ModelFolder& folder, const EngineOptions& options)
      : Impl(folder, options),
        pool_(backend_, config, options.room, options.cache_bytes),
        runner_(backend_, folder, options.numeric,
                {.max_context = options.max_context, .max_rows = std::min(options.max_rows, options.max_context)}) {
    if (options.prefix_bytes == 0 || pool_.layout.page_bytes == 0) return;
    prefix_.emplace(pool_.pages, pool_.blocks, pool_.layout.page_positions, options.prefix_bytes);
    pool_.spare = this;
  }

  std::unique_ptr<Session::Impl> open(std::shared_ptr<Engine::Impl> self) override {
    return std::make_unique<Sequence>(std::move(self), State<B>(pool_, options.max_context));
  }

  void step(const char* call, std::span<const SessionFeed> feeds, const StepControl& control) override {
    std::vector<Job> jobs;
    jobs.reserve(feeds.size());
    for (const SessionFeed& f : feeds) {
      const std::string where = std::string(call) + (feeds.size() > 1 ? ": feed " + std::to_string(jobs.size()) : "");
      Sequence& sequence = own(where, f.session);
      if (std::any_of(jobs.begin(), jobs.end(), [&](const Job& job) { return job.sequence == &sequence; }))
        throw Error(Errc::invalid_argument, where + ": its session is given twice, expected each once");
      check_feed(where, f.feed, sequence.position());
      const std::int64_t begin = sequence.position(), end = begin + std::ssize(f.feed.ids);
      jobs.push_back({.sequence = &sequence,
                      .begin = begin,
                      .end = end,
                      .next = begin,
                      .part = begin,
                      .part_end = first_part(begin, end),
                      .wanted = wanted_rows(f.feed)});
    }
    const FloatEnvironment standard;
    try {
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        jobs[i].sequence->transcript.append(feeds[i].feed);
        prepare(jobs[i]);
      }
      reserve_step(jobs);
    } catch (...) {
      for (Job& job : jobs) job.sequence->cut(job.begin);
      throw;
    }
    for (Job& job : jobs) job.sequence->start_call(config.layers);
    run(jobs, control);
  }

  SyncReport sync_to(Session& session, const Feed& feed, const StepControl& control) override {
    Sequence& sequence = own("sync_to", &session);
    check_feed("sync_to", feed, 0);
    Transcript wanted;  // its ids also stand in for feed.ids, which may be the session's own
    wanted.append(feed);
    const std::int64_t common = common_prefix(sequence.transcript.content(), wanted.content());
    const std::int64_t rows = wanted_rows(feed);
    if (common == wanted.size() && (rows == 0 || (rows == 1 && sequence.state.holds_rows(first_window_row(common))))) {
      sequence.rewind(common);  // it is all there
      sequence.start_call(config.layers);
      if (rows > 0) rerun_last(session, control);
      return {.reused = common, .recomputed = sequence.replayed_rows, .fed = 0};
    }
    const std::int64_t limit = wanted.size() - std::max<std::int64_t>(1, rows);
    take_best_beginning(sequence, wanted, limit, std::min(limit, common));
    SyncReport report{.reused = sequence.position(), .recomputed = 0, .fed = wanted.size() - sequence.position()};
    const auto rest = static_cast<std::size_t>(report.reused);
    Feed behind = feed;
    behind.ids = wanted.ids().subspan(rest);
    if (!feed.image.empty()) {
      behind.image = feed.image.subspan(rest);
      const std::int64_t used = std::min(marked(feed.image.first(rest)), feed.image_rows.extent(0));
      behind.image_rows = feed.image_rows.rows(used, feed.image_rows.extent(0) - used);
    }
    const SessionFeed one{.session = &session, .feed = behind};
    step("sync_to", {&one, 1}, control);
    report.recomputed = sequence.replayed_rows;
    return report;
  }

  std::int64_t rewind(Session::Impl& session, std::int64_t position) override {
    auto& sequence = static_cast<Sequence&>(session);
    if (position < 0 || position > sequence.position()) {
      throw Error(Errc::invalid_argument, "rewind: position " + std::to_string(position) + ", expected 0 to " +
                                              std::to_string(sequence.position()));
    }
    sequence.rewind(position);
    return replay_cost(sequence.state, position);
  }

  void rerun_last(Session& session, const StepControl& control) override {
    Sequence& sequence = own("rerun_last", &session);
    const std::int64_t end = sequence.position();
    if (end == 0) throw Error(Errc::invalid_argument, "rerun_last: the session has no tokens, expected at least one");
    Job job{.sequence = &sequence,
            .begin = end,
            .end = end,
            .next = end,
            .part = end,
            .part_end = end,
            .wanted = 1,
            .reruns = true};
    const FloatEnvironment standard;
    prepare(job);
    reserve_step({&job, 1});
    sequence.start_call(config.layers);
    run({&job, 1}, control);
  }

  std::unique_ptr<Session::Impl> fork(const Session::Impl& session) override {
    const auto& sequence = static_cast<const Sequence&>(session);
    return std::make_unique<Sequence>(sequence, config.vocab);
  }

  void save(const Session::Impl& session, const WriteBytes& write) override {
    const auto& sequence = static_cast<const Sequence&>(session);
    const Transcript& transcript = sequence.transcript;
    const Content content = transcript.content();
    const bool with_windows =
        sequence.state.intact(sequence.position()) && sequence.state.holds_rows(first_window_row(sequence.position()));
    StateFileWriter file(write);
    file.begin({.model = folder.fingerprint(),
                .numeric = options.numeric,
                .bounded_replay = prefill == Prefill::replay,
                .with_windows = with_windows,
                .position = sequence.position(),
                .image_rows = std::ssize(content.images),
                .payload_bytes = state_payload_bytes(sequence.position(), std::ssize(content.images), config.dim,
                                                     cache_bytes(sequence.position(), with_windows))});
    file.tokens(content.ids, content.marks);
    for (const ImageDigest& image : content.images)
      file.image_row(image.position, transcript.image_row(image.position));
    std::vector<std::byte> host;
    each_cache_run(pool_.layout, config, sequence.position(), with_windows, [&](const CacheRun& run) {
      host.resize(static_cast<std::size_t>(run.bytes));
      backend_.download(host.data(), sequence.state.data(run), host.size());
      file.write(host);
    });
    file.finish();
  }

  void restore(Session::Impl& session, const ReadBytes& read) override {
    auto& sequence = static_cast<Sequence&>(session);
    StateFileReader file(read, facts());
    const StateHeader header = file.begin();
    file.expect_caches(cache_bytes(header.position, header.with_windows));
    std::vector<std::int32_t> ids(static_cast<std::size_t>(header.position));
    std::vector<std::uint8_t> marks(ids.size());
    file.tokens(ids, marks);
    Transcript transcript;
    transcript.add_tokens(ids, marks);
    std::vector<float> row(static_cast<std::size_t>(config.dim));
    for (std::int64_t i = 0; i < header.image_rows; ++i) {
      const std::int64_t position = file.image_row(row);
      transcript.add_image_row({.position = position, .digest = digest_of(row)}, row);
    }
    State<B> state(pool_, options.max_context);
    state.reserve(header.position);
    std::vector<std::byte> host;
    each_cache_run(pool_.layout, config, header.position, header.with_windows, [&](const CacheRun& run) {
      host.resize(static_cast<std::size_t>(run.bytes));
      file.read(host);
      backend_.upload(state.data(run), host.data(), host.size());
    });
    file.finish();
    state.advance(header.position);
    if (header.position == 0) {
      state.rewind(0);
    } else if (header.with_windows) {
      state.replayed(first_window_row(header.position));
    } else {
      state.spoiled();
    }
    sequence.state = std::move(state);
    sequence.transcript = std::move(transcript);
    sequence.logit_rows = 0;
    sequence.kept_pages = 0;
    sequence.cut_prompt_end = prefill == Prefill::replay ? header.position : 0;
  }

  SessionMemory memory(const Session::Impl& session) const noexcept override {
    const State<B>& state = static_cast<const Sequence&>(session).state;
    const CacheLayout& layout = pool_.layout;
    SessionMemory out;
    out.cache_bytes = std::ssize(state.pages()) * layout.page_bytes;
    out.page_bytes = layout.page_bytes;
    out.page_positions = layout.page_positions;
    out.window_bytes = config.layers * config.window * row_bytes(CacheFormat::window, config.head_dim);
    for (const PagedSource& source : layout.sources)
      out.carry_bytes += (source.ratio - 1) * 2 * config.head_dim * static_cast<std::int64_t>(sizeof(float));
    out.block_bytes = state.block() == kNoPage ? 0 : layout.block_bytes;
    out.table_bytes = state.table_bytes();
    return out;
  }

  EngineMemory memory() const noexcept override {
    return {.used_bytes = pool_.budget.used(),
            .limit_bytes = pool_.budget.limit(),
            .prefix_bytes = prefix_ ? prefix_->bytes() : 0};
  }

 private:
  /// One session: what it was fed, and what it remembers of that in the backend's memory.
  struct Sequence final : Session::Impl {
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

  /// A session's feed on its way through steps.
  struct Job {
    Sequence* sequence = nullptr;
    std::int64_t begin = 0, end = 0;
    std::int64_t next = 0;                ///< position of the next row to run
    std::int64_t part = 0, part_end = 0;  ///< what of it is a prompt of its own to the prefill mode
    std::int64_t wanted = 0;
    bool reruns = false;  ///< runs the last token again instead of new ones

    /// Wanted rows of the part: the call's last ones.
    std::int64_t part_wanted() const { return std::max<std::int64_t>(0, wanted - (end - part_end)); }
  };

  /// Where rows of logits go on the host.
  struct LogitPart {
    float* to = nullptr;
    std::int64_t floats = 0;
  };

  /// What sessions hold as well frees nothing by itself, but then they can write it without a copy.
  bool give_up() noexcept override {
    if (prefix_->evict()) return true;
    const bool held = prefix_->bytes() > 0;
    prefix_->clear();
    return held;
  }

  Sequence& own(const std::string& where, Session* session) const {
    if (session == nullptr || session->impl_ == nullptr || session->impl_->engine.get() != this) {
      throw Error(Errc::invalid_argument,
                  where +
                      ": the session is none, moved from, or of another engine, expected one that "
                      "this engine opened");
    }
    return static_cast<Sequence&>(*session->impl_);
  }

  /// Oldest window row that the last of `position` tokens sees.
  std::int64_t first_window_row(std::int64_t position) const {
    return std::max<std::int64_t>(0, position - config.window);
  }

  /// Where the first part of a call ends. With a prefix cache that is its last page border, so that the windows at that border can be kept
  /// for others; in bounded replay, where parts are not the same as the whole, the end.
  std::int64_t first_part(std::int64_t begin, std::int64_t end) const {
    if (!prefix_ || prefill == Prefill::replay) return end;
    const std::int64_t border = end / pool_.layout.page_positions * pool_.layout.page_positions;
    return border > begin ? border : end;
  }

  StateFacts facts() const {
    return {.model = folder.fingerprint(),
            .numeric = options.numeric,
            .bounded_replay = prefill == Prefill::replay,
            .vocab = config.vocab,
            .dim = config.dim,
            .max_context = options.max_context};
  }

  /// Bytes of a saved session's caches.
  std::int64_t cache_bytes(std::int64_t position, bool with_windows) const {
    std::int64_t bytes = 0;
    each_cache_run(pool_.layout, config, position, with_windows, [&](const CacheRun& run) { bytes += run.bytes; });
    return bytes;
  }

  /// What a job needs of memory, before its first row runs.
  void prepare(const Job& job) {
    Sequence& s = *job.sequence;
    s.logits.resize(std::max(s.logits.size(), static_cast<std::size_t>(job.wanted * config.vocab)));
    s.rows_per_layer.reserve(schedule.layers.size());
    s.state.reserve(job.end - job.begin);
  }

  /// And what their steps need.
  void reserve_step(std::span<const Job> jobs) {
    std::int64_t rows = 0;
    for (const Job& job : jobs) rows += job.wanted;
    rows = std::min(rows, runner_.limits().max_rows);
    runner_.reserve_logits(rows);
    host_logits_.resize(std::max(host_logits_.size(), static_cast<std::size_t>(rows * config.vocab)));
    pieces_.reserve(jobs.size());
    stepping_.reserve(jobs.size());
    logit_parts_.reserve(jobs.size());
    plan_.reserve(schedule.layers.size());
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
      }
      throw;
    }
    for (Job& job : jobs) job.sequence->logit_rows = job.wanted;
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
    at_border_ = false;
    const bool finished = runner_.run(pieces_, plan, control.cancel);
    at_border_ = !finished;
    if (!finished) expect_not_cancelled(control);
  }

  /// Rings and open groups for the job's first row, where the session does not have them any more. If the last token runs again for its
  /// logits, it is the last row of this, and answers in the top layer too.
  void replay(const Job& job, const StepControl& control) {
    Sequence& s = *job.sequence;
    s.state.spoiled();
    const std::int64_t start = replay_start(config, schedule, prefill, job.begin);
    for (std::int64_t first = start; first < job.begin;) {
      const std::int64_t rows = StepRoom(runner_.limits().max_rows).take(s.transcript, first, job.begin);
      plan_replay(config, schedule, prefill, {.end = job.begin, .first = first, .rows = rows}, plan_);
      const bool answers = job.reruns && first + rows == job.begin;
      if (answers) plan_.back().queries = rows - 1;
      pieces_.assign(1, {.state = &s.state.sequence(), .transcript = &s.transcript, .first = first, .rows = rows});
      run_pieces(plan_, control);
      if (answers) fetch_last(s, rows);
      at_border_ = true;
      first += rows;
    }
    s.state.replayed(first_window_row(job.begin));
    if (prefill == Prefill::replay) s.cut_prompt_end = job.begin;
    s.replayed_rows = job.begin - start;
  }

  /// The last token once more, for its logits. Alone, if the rings still hold the rows before it: it takes its own slots, and no compressor
  /// sees it.
  void rerun(const Job& job, const StepControl& control) {
    Sequence& s = *job.sequence;
    if (!s.state.holds_rows(first_window_row(job.end))) return replay(job, control);
    plan_.assign(schedule.layers.size(), {.keys = 0, .entries = 1, .queries = 0});
    pieces_.assign(1, {.state = &s.state.sequence(), .transcript = &s.transcript, .first = job.end - 1, .rows = 1});
    run_pieces(plan_, control);
    fetch_last(s, 1);
    at_border_ = true;
    s.replayed_rows = 1;
  }

  /// Logits of the last of a step's rows.
  void fetch_last(Sequence& s, std::int64_t rows) {
    runner_.fetch_logits(rows - 1, 1, host_logits_.data());
    std::copy_n(host_logits_.data(), config.vocab, s.logits.data());
  }

  bool skips_rows(const Job& job) const {
    const std::int64_t rows = job.part_end - job.part;
    return prefill_rows(config, schedule, prefill, config.layers - 1, rows, job.part_wanted()) < rows;
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
      Sequence& s = *job.sequence;
      const std::int64_t rows = room.take(s.transcript, job.next, job.part_end);
      if (rows == 0) break;
      pieces_.push_back({.state = &s.state.sequence(), .transcript = &s.transcript, .first = job.next, .rows = rows});
      stepping_.push_back(&job);
      step_rows += rows;
      if (!alone) continue;
      s.state.spoiled();  // until its last row is through
      plan_prefill(
          config, schedule, prefill,
          {.begin = job.part, .end = job.part_end, .first = job.next, .rows = rows, .wanted = job.part_wanted()},
          plan_);
      break;
    }
    if (pieces_.empty()) return 0;
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      stepping_[i]->sequence->state.overwrote(pieces_[i].first + pieces_[i].rows);
    run_pieces(plan_, control);
    fetch_logits();
    for (std::size_t i = 0; i < pieces_.size(); ++i) advance(*stepping_[i], pieces_[i].rows);
    at_border_ = true;
    return step_rows;
  }

  void advance(Job& job, std::int64_t rows) {
    Sequence& s = *job.sequence;
    for (std::size_t l = 0; l < s.rows_per_layer.size(); ++l)
      s.rows_per_layer[l] += rows - (plan_.empty() ? 0 : plan_[l].queries);
    s.state.advance(rows);
    job.next += rows;
    if (job.next < job.part_end) return;
    if (!plan_.empty()) {
      s.state.replayed(first_window_row(job.part_end));
      if (prefill == Prefill::replay) s.cut_prompt_end = job.part_end;
    }
    if (prefix_) keep_prefix(s);
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
      logit_parts_.push_back({.to = job.sequence->logits.data() + (from - first_wanted) * config.vocab,
                              .floats = (end - from) * config.vocab});
    }
    fetch();
  }

  /// Shows the prefix cache what pages a session has completed.
  void keep_prefix(Sequence& s) noexcept {
    const std::int64_t whole = s.position() / pool_.layout.page_positions, border = whole * pool_.layout.page_positions;
    if (whole <= s.kept_pages) return;
    const bool with_block = prefill != Prefill::replay && s.state.intact(border);
    try {
      prefix_->insert(s.transcript.content(), std::span(s.state.pages()).first(static_cast<std::size_t>(whole)),
                      with_block ? std::optional(s.state.block()) : std::nullopt, border);
      s.kept_pages = whole;
    } catch (...) {
      // No memory to remember it by: the session itself is complete.
    }
  }

  /// Rows that a session at `position` has to run again before it can go on.
  std::int64_t replay_cost(const State<B>& state, std::int64_t position) const {
    return state.intact(position) ? 0 : position - replay_start(config, schedule, prefill, position);
  }

  /// Makes `sequence` the beginning of `wanted` that leaves the fewest rows up to `limit` to run: its own first `common` tokens, or one
  /// from the prefix cache.
  void take_best_beginning(Sequence& sequence, const Transcript& wanted, std::int64_t limit, std::int64_t common) {
    if (prefix_) {
      Transcript start = wanted;
      const auto rebuilt = [&](std::int64_t position) {
        return position - replay_start(config, schedule, prefill, position);
      };
      auto hit = prefix_->find(wanted.content(), limit, rebuilt);
      const std::int64_t cost = limit - hit.positions + (hit.block ? 0 : rebuilt(hit.positions));
      if (cost < limit - common + replay_cost(sequence.state, common)) {
        start.truncate(hit.positions);
        sequence.rewind(0);
        sequence.state.adopt(std::move(hit.pages), hit.block.value_or(kNoPage), hit.positions);
        sequence.transcript = std::move(start);
        sequence.kept_pages = hit.positions / pool_.layout.page_positions;
        return;
      }
      for (const PageId page : hit.pages) pool_.pages.release(page);
      if (hit.block) pool_.blocks.release(*hit.block);
    }
    sequence.rewind(common);
  }

  B backend_;
  CachePool<B> pool_;
  StepRunner<B> runner_;
  std::optional<PrefixCache<PagePool<B>>> prefix_;
  std::vector<StepPiece> pieces_;  // of the step under way
  std::vector<Job*> stepping_;     // whose they are
  std::vector<LayerRows> plan_;
  std::vector<LogitPart> logit_parts_;
  std::vector<float> host_logits_;
  bool at_border_ = true;  // no step is under way, and none has failed
};

}  // namespace dsv41::runtime
