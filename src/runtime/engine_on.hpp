// SPDX-License-Identifier: MIT
//
// The engine on a backend: sessions' feeds become steps, and steps become tokens that sessions hold.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
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
#include "engine_jobs.hpp"
#include "float_environment.hpp"
#include "prefix_cache.hpp"
#include "state_file.hpp"

namespace dsv41::runtime {

template <class B>
class Engine::On final : public Engine::Impl, private CacheReserve {
 public:
  /// `backend`: what the backend is made of.
  template <class... Backend>
  On(const ModelFolder& folder, const EngineOptions& options, const Backend&... backend)
      : Impl(folder, options),
        backend_(backend...),
        pool_(backend_, config, options.room, options.cache_bytes, options.draft > 0),
        jobs_(*this, backend_, pool_, open_prefix()) {}

  std::unique_ptr<Session::Impl> open(std::shared_ptr<Engine::Impl> self) override {
    return std::make_unique<Sequence<B>>(std::move(self), State<B>(pool_, options.max_context));
  }

  void step(const char* call, std::span<const SessionFeed> feeds, const StepControl& control) override {
    std::vector<Job> jobs;
    jobs.reserve(feeds.size());
    for (const SessionFeed& f : feeds) {
      const std::string where = std::string(call) + (feeds.size() > 1 ? ": feed " + std::to_string(jobs.size()) : "");
      Sequence<B>& sequence = own(where, f.session);
      if (std::any_of(jobs.begin(), jobs.end(), [&](const Job& job) { return job.sequence == &sequence; }))
        throw Error(Errc::invalid_argument, where + ": its session is given twice, expected each once");
      check_feed(where, f.feed, sequence.position());
      jobs.push_back(jobs_.feed(sequence, std::ssize(f.feed.ids), wanted_rows(f.feed)));
    }
    const FloatEnvironment standard;
    try {
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        jobs_.show_prefix(*jobs[i].sequence);
        jobs[i].sequence->transcript.append(feeds[i].feed);
        jobs_.prepare(jobs[i]);
      }
      jobs_.reserve_step(jobs);
    } catch (...) {
      for (Job& job : jobs) job.sequence->cut(job.begin);
      throw;
    }
    for (Job& job : jobs) job.sequence->start_call(config.layers);
    jobs_.run(jobs, control);
  }

  SyncReport sync_to(Session& session, const Feed& feed, const StepControl& control) override {
    Sequence<B>& sequence = own("sync_to", &session);
    check_feed("sync_to", feed, 0);
    Transcript wanted;  // its ids also stand in for feed.ids, which may be the session's own
    wanted.append(feed);
    const std::int64_t common = common_prefix(sequence.transcript.content(), wanted.content());
    const std::int64_t rows = wanted_rows(feed);
    if (common == wanted.size() &&
        (rows == 0 || (rows == 1 && sequence.state.holds_rows(jobs_.first_window_row(common))))) {
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
    auto& sequence = static_cast<Sequence<B>&>(session);
    if (position < 0 || position > sequence.position()) {
      throw Error(Errc::invalid_argument, "rewind: position " + std::to_string(position) + ", expected 0 to " +
                                              std::to_string(sequence.position()));
    }
    sequence.rewind(position);
    return jobs_.replay_cost(sequence.state, position);
  }

  void check(const Session& session, const Feed& feed) const override {
    check_feed("check", feed, own("check", &session).position());
  }

  void commit(Session::Impl& session, std::int64_t rows) override {
    auto& sequence = static_cast<Sequence<B>&>(session);
    const std::int64_t had = sequence.logit_rows;
    if (rows < 1 || rows > had) {
      throw Error(Errc::invalid_argument, "commit: " + std::to_string(rows) + " rows, expected 1 to the " +
                                              std::to_string(had) + " that have logits");
    }
    sequence.cut(sequence.position() - (had - rows));
    sequence.logit_rows = rows;
  }

  bool has_confidence() const noexcept override { return jobs_.drafts() && jobs_.drafts()->has_confidence(); }

  void draft(std::span<const SessionDraft> requests) override {
    std::vector<DraftPiece> pieces;
    pieces.reserve(requests.size());
    for (const SessionDraft& request : requests) {
      const std::string where = "draft" + (requests.size() > 1 ? ": request " + std::to_string(pieces.size()) : "");
      const Sequence<B>& sequence = own(where, request.session);
      check_draft(where, request, sequence);
      const DraftState& state = sequence.state.draft();
      if (std::any_of(pieces.begin(), pieces.end(), [&](const DraftPiece& piece) { return piece.state == &state; }))
        throw Error(Errc::invalid_argument, where + ": its session is given twice, expected each once");
      DSV41_DCHECK(state.position == sequence.position());
      pieces.push_back({.state = &state, .request = &request});
    }
    const FloatEnvironment standard;
    if (!pieces.empty()) jobs_.drafts()->draft(pieces);
  }

  void rerun_last(Session& session, const StepControl& control) override {
    Sequence<B>& sequence = own("rerun_last", &session);
    const std::int64_t end = sequence.position();
    if (end == 0) throw Error(Errc::invalid_argument, "rerun_last: the session has no tokens, expected at least one");
    Job job = jobs_.rerun(sequence);
    const FloatEnvironment standard;
    jobs_.prepare(job);
    jobs_.reserve_step({&job, 1});
    sequence.start_call(config.layers);
    jobs_.run({&job, 1}, control);
  }

  std::unique_ptr<Session::Impl> fork(const Session::Impl& session) override {
    const auto& sequence = static_cast<const Sequence<B>&>(session);
    return std::make_unique<Sequence<B>>(sequence, config.vocab);
  }

  void save(const Session::Impl& session, const WriteBytes& write) override {
    const auto& sequence = static_cast<const Sequence<B>&>(session);
    const Transcript& transcript = sequence.transcript;
    const Content content = transcript.content();
    const bool with_windows = sequence.state.intact(sequence.position()) &&
                              sequence.state.holds_rows(jobs_.first_window_row(sequence.position()));
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
    auto& sequence = static_cast<Sequence<B>&>(session);
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
      state.replayed(jobs_.first_window_row(header.position));
    } else {
      state.spoiled();
    }
    sequence.state = std::move(state);
    sequence.transcript = std::move(transcript);
    sequence.logit_rows = 0;
    sequence.kept_pages = 0;
    sequence.cut_prompt_end = prefill == Prefill::replay ? header.position : 0;
    sequence.state.draft().restart(header.position);
  }

  SessionMemory memory(const Session::Impl& session) const noexcept override {
    const State<B>& state = static_cast<const Sequence<B>&>(session).state;
    const CacheLayout& layout = pool_.layout;
    SessionMemory out;
    out.cache_bytes = std::ssize(state.pages()) * layout.page_bytes;
    out.page_bytes = layout.page_bytes;
    out.page_positions = layout.page_positions;
    out.window_bytes = config.layers * config.window * row_bytes(CacheFormat::window, config.head_dim);
    for (const PagedSource& source : layout.sources)
      out.carry_bytes += (source.ratio - 1) * 2 * config.head_dim * static_cast<std::int64_t>(sizeof(float));
    out.draft_bytes = std::ssize(layout.draft_rings) * config.window * row_bytes(CacheFormat::window, config.head_dim);
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
  using Job = typename Jobs<B>::Job;

  PrefixCache<PagePool<B>>* open_prefix() {
    if (options.prefix_bytes == 0 || pool_.layout.page_bytes == 0) return nullptr;
    prefix_.emplace(pool_.pages, pool_.blocks, pool_.layout.page_positions, options.prefix_bytes);
    pool_.spare = this;
    return &*prefix_;
  }

  /// What sessions hold as well frees nothing by itself, but then they can write it without a copy.
  bool give_up() noexcept override {
    if (prefix_->evict()) return true;
    const bool held = prefix_->bytes() > 0;
    prefix_->clear();
    return held;
  }
  Sequence<B>& own(const std::string& where, const Session* session) const {
    if (session == nullptr || session->impl_ == nullptr || session->impl_->engine.get() != this) {
      throw Error(Errc::invalid_argument,
                  where +
                      ": the session is none, moved from, or of another engine, expected one that "
                      "this engine opened");
    }
    return static_cast<Sequence<B>&>(*session->impl_);
  }
  void check_draft(const std::string& where, const SessionDraft& request, const Sequence<B>& sequence) const {
    auto refuse = [&](const std::string& what) { throw Error(Errc::invalid_argument, where + ": " + what); };
    const std::int64_t count = std::ssize(request.tokens),
                       choices = request.choices == 0 ? config.vocab : request.choices;
    if (jobs_.drafts() == nullptr) refuse("the engine has no drafter (EngineOptions::draft is 0)");
    if (sequence.position() == 0) refuse("the session is empty, expected a token that the drafts can lean on");
    if (count > options.draft)
      refuse(std::to_string(count) +
             " drafts, expected at most EngineOptions::draft = " + std::to_string(options.draft));
    if (request.anchor < 0 || request.anchor >= config.vocab) {
      refuse("anchor is " + std::to_string(request.anchor) + ", expected 0 to " + std::to_string(config.vocab - 1));
    }
    if (choices < 1 || choices > config.vocab)
      refuse("choices is " + std::to_string(choices) + ", expected 1 to " + std::to_string(config.vocab) + ", or 0");
    if (!(request.temperature >= 0) || !std::isfinite(request.temperature))
      refuse("temperature is " + std::to_string(request.temperature) + ", expected a finite number of at least 0");
    if (!request.logits.empty() && request.logits.extents() != std::array{count, choices}) {
      refuse("logits is " + ops::extents_text(request.logits.extents()) + ", expected nothing or [" +
             std::to_string(count) + ", " + std::to_string(choices) + "]");
    }
    if (request.confidences.empty()) return;
    if (!jobs_.drafts()->has_confidence()) refuse("confidences are asked for, and the model has no confidence head");
    if (std::ssize(request.confidences) != count) {
      refuse(std::to_string(request.confidences.size()) +
             " confidences, expected none or as many as drafts: " + std::to_string(count));
    }
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
  /// Makes `sequence` the beginning of `wanted` that leaves the fewest rows up to `limit` to run: its own first `common` tokens, or one
  /// from the prefix cache.
  void take_best_beginning(Sequence<B>& sequence, const Transcript& wanted, std::int64_t limit, std::int64_t common) {
    if (prefix_) {
      Transcript start = wanted;
      const auto rebuilt = [&](std::int64_t position) {
        return position - replay_start(config, schedule, prefill, position);
      };
      auto hit = prefix_->find(wanted.content(), limit, rebuilt);
      const std::int64_t cost = limit - hit.positions + (hit.block ? 0 : rebuilt(hit.positions));
      if (cost < limit - common + jobs_.replay_cost(sequence.state, common)) {
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
  std::optional<PrefixCache<PagePool<B>>> prefix_;
  Jobs<B> jobs_;
};

}  // namespace dsv41::runtime
