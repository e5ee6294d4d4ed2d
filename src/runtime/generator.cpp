// SPDX-License-Identifier: MIT
//
// The generator: requests between their steps, and what a step does with them.
#include "dsv41/runtime/generator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "call.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/modules/dspark/admission.hpp"
#include "dsv41/modules/dspark/calibration.hpp"
#include "float_environment.hpp"
#include "judge.hpp"
#include "with_memory.hpp"

namespace dsv41::runtime {

namespace {

constexpr std::size_t kLongestError = 512;  // there is memory for it before the step that fails

[[noreturn]] void refuse(const std::string& what, Errc code = Errc::invalid_argument) {
  throw Error(code, "generator: " + what);
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// One request between its steps.
struct Request {
  Request(std::int64_t id, const RequestOptions& options, std::span<const std::int32_t> prompt, std::int64_t draft)
      : id(id), options(options), prompt(prompt.begin(), prompt.end()), stale(draft) {
    const auto count = static_cast<std::size_t>(draft);
    drafts.resize(count);
    confidence_logits.assign(count, kNoConfidence);
    confidences.assign(count, kNoConfidence);
    out.reserve(count + 1);
    error.reserve(kLongestError);
  }

  bool active() const { return finish == Finish::none; }
  std::int64_t prompt_left() const { return anchor >= 0 ? 0 : begin + std::ssize(prompt) - session->position(); }
  bool decodes() const { return anchor >= 0; }
  bool sampled() const { return options.sampler.temperature > 0; }
  bool has_drafts() const { return drafted_at == session->position(); }
  In<std::int32_t, 1> first_drafts(std::int64_t count) const { return {drafts.data(), {count}}; }

  std::int64_t id;
  RequestOptions options;
  std::vector<std::int32_t> prompt;
  std::optional<Session> session;  // there but in add()
  std::int64_t begin = 0;          // where the prompt begins
  std::int32_t anchor = -1;        // the last emitted token, which runs next; -1: none yet
  std::int64_t emitted = 0;
  Finish finish = Finish::none;
  std::string error;

  std::int64_t drafted_at = -1;  // position of the anchor that the drafts stand behind
  std::int32_t drafted = 0;
  std::vector<std::int32_t> drafts;                   // [draft]
  std::vector<float> logits;                          // [draft, choices] that they were drawn from, where sampled
  std::vector<float> confidence_logits, confidences;  // [draft]
  StaleConfidences stale;

  std::vector<std::int32_t> out;  // of the last step
};

/// A request's rows of a step.
struct Part {
  Request* request = nullptr;
  std::int64_t position = 0;  // before the step
  std::int64_t rows = 0;      // of the prompt, or 1
  std::int64_t drafts = 0;    // verified

  bool ends_prompt() const { return !request->decodes() && rows == request->prompt_left(); }
};

}  // namespace

class Generator::Impl {
 public:
  Impl(Engine& engine, GeneratorOptions given)
      : engine(engine),
        options(std::move(given)),
        scheduler_(options.policy, options.costs),
        draft_(engine.options().draft),
        most_drafts_(options.policy.kind == DraftPolicy::Kind::fixed
                         ? std::min<std::int64_t>(draft_, options.policy.drafts)
                         : draft_),
        max_rows_(std::min(engine.options().max_rows, engine.options().max_context)),
        choices_(options.choices == 0 ? engine.config().vocab : options.choices),
        judge_(draft_, checked_choices()) {
    const DraftPolicy& policy = options.policy;
    if (policy.kind != DraftPolicy::Kind::off && draft_ == 0)
      refuse("the policy drafts, and the engine has no drafter (EngineOptions::draft is 0)", Errc::unsupported);
    if (policy.needs_confidences() && !engine.has_confidence()) {
      refuse("the policy reads confidences, and the model has no confidence head: off and fixed need none",
             Errc::unsupported);
    }
    temperatures_.assign(static_cast<std::size_t>(draft_), 1.0);
    if (!options.temperatures.empty()) {
      expect_temperatures(options.temperatures);
      if (std::ssize(options.temperatures) != draft_ || options.calibrate_online) {
        refuse(std::to_string(options.temperatures.size()) + " temperatures, expected " + std::to_string(draft_) +
               " (EngineOptions::draft), or none where they are learnt (calibrate_online)");
      }
      temperatures_ = options.temperatures;
    }
    if (options.calibrate_online && draft_ > 0) learnt_.emplace(draft_);
    stats.verified_at.resize(static_cast<std::size_t>(draft_));
    stats.accepted_at.resize(static_cast<std::size_t>(draft_));
  }

  std::int64_t add(Session&& session, const RequestOptions& request, std::span<const std::int32_t> prompt) {
    const Call alone(busy_, "add", "the generator");
    request.sampler.check();
    if (request.max_tokens < 1) refuse("max_tokens is " + std::to_string(request.max_tokens) + ", expected at least 1");
    for (const std::int32_t id : request.stop_ids) {
      if (id >= 0 && id < engine.config().vocab) continue;
      refuse("stop id " + std::to_string(id) + ", expected 0 to " + std::to_string(engine.config().vocab - 1));
    }
    if (request.verification == Verification::greedy && request.sampler.temperature > 0) {
      refuse("greedy verification at temperature " + std::to_string(request.sampler.temperature) +
             ", expected rejection or block: it keeps no law but that of temperature 0");
    }
    const std::int32_t next = 0;  // some token: there must be a position for one
    engine.check(session, {.ids = prompt.empty() ? std::span(&next, 1) : prompt});
    if (session.position() + std::ssize(prompt) >= engine.options().max_context) {
      refuse("no position is left behind the prompt: " + std::to_string(session.position() + std::ssize(prompt)) +
                 " positions, expected fewer than max_context = " + std::to_string(engine.options().max_context),
             Errc::out_of_memory);
    }
    if (prompt.empty() && session.logits().extent(0) == 0) {
      refuse(
          "a session without logits and no prompt, expected one of them (Session::rerun_last gives the logits of the "
          "last token)");
    }
    auto taken = std::make_unique<Request>(next_id_, request, prompt, draft_);
    if (taken->sampled()) taken->logits.resize(static_cast<std::size_t>(draft_ * choices_));
    taken->begin = session.position();
    requests_.reserve(requests_.size() + 1);
    reserve_step(requests_.size() + 1);
    taken->session.emplace(std::move(session));
    requests_.push_back(std::move(taken));
    return next_id_++;
  }

  std::span<const Emission> step(const StepControl& control) {
    const Call alone(busy_, "step", "the generator");
    const FloatEnvironment standard;  // laws and confidences are computed here
    emissions_.clear();
    report.rounds.clear();
    report.confidences.clear();
    report.rows = report.prompt_rows = 0;
    report.draft_ms = report.step_ms = 0;
    feed_prompt_alone(control);
    admit();
    draft();
    plan();
    forward(control);
    judge();
    first_tokens();
    return emissions_;
  }

  Session remove(std::int64_t id) {
    const Call alone(busy_, "remove", "the generator");
    const auto at = find(id);
    Session session = std::move(*(*at)->session);
    requests_.erase(at);
    return session;
  }

  const Session& session(std::int64_t id) { return *(*find(id))->session; }

  std::int64_t active() const {
    return std::count_if(requests_.begin(), requests_.end(), [](const auto& r) { return r->active(); });
  }

  Engine& engine;
  const GeneratorOptions options;
  GeneratorStats stats;
  StepReport report;

 private:
  using Requests = std::vector<std::unique_ptr<Request>>;

  std::int64_t checked_choices() const {
    if (options.choices >= 0 && choices_ <= engine.config().vocab) return choices_;
    refuse("choices is " + std::to_string(options.choices) + ", expected 1 to " +
           std::to_string(engine.config().vocab) + " (vocab_size), or 0 for all");
  }

  Requests::iterator find(std::int64_t id) {
    const auto at = std::find_if(requests_.begin(), requests_.end(), [&](const auto& r) { return r->id == id; });
    if (at == requests_.end()) refuse("no request " + std::to_string(id));
    return at;
  }

  /// Memory for a step of so many requests, so that a step that has run is told whatever happens.
  void reserve_step(std::size_t count) {
    emissions_.reserve(count);
    parts_.reserve(count);
    asked_rows_.reserve(count);
    feeds_.reserve(count);
    wishes_.reserve(count);
    for (std::vector<std::int32_t>* v : {&at_hand_, &asked_, &verified_, &accepted_}) v->reserve(count);
    ids_.reserve(static_cast<std::size_t>(max_rows_));
    const std::size_t drafts = count * static_cast<std::size_t>(draft_);
    for (std::vector<float>* v : {&fresh_, &stale_, &judged_, &report.confidences}) v->reserve(drafts);
    report.rounds.reserve(count);
    report.plan.reserve(static_cast<std::int64_t>(count), draft_);
  }

  /// Tokens that a request whose anchor stands at `position` may still emit.
  std::int64_t remaining(const Request& r, std::int64_t position) const {
    return std::min(r.options.max_tokens - r.emitted, engine.options().max_context - 1 - position);
  }
  std::int64_t remaining(const Request& r) const { return remaining(r, r.session->position()); }
  bool lacks_drafts(const Request& r) const { return !r.has_drafts() && wanted_drafts(r) > 0; }
  /// Drafts that are of use behind its anchor.
  std::int64_t wanted_drafts(const Request& r) const { return std::min(most_drafts_, remaining(r) - 1); }

  /// In a prefill mode that skips rows a prompt is one call. One prompt a step, so that the others go on meanwhile.
  void feed_prompt_alone(const StepControl& control) {
    if (engine.prefill() == Prefill::full) return;
    for (const auto& r : requests_) {
      if (!r->active() || r->prompt_left() == 0) continue;
      try {
        r->session->append({.ids = r->prompt}, control);
      } catch (...) {
        r->session->rewind(r->begin);
        throw;
      }
      return;
    }
  }

  /// Who has rows in this step, and how many. While prompts wait, half of the rows are kept for drafts at most (case B75).
  void admit() {
    asked_rows_.clear();
    parts_.clear();
    std::int64_t decoding = 0;
    bool prompts = false;
    for (const auto& r : requests_) {
      if (!r->active()) continue;
      const std::int64_t left = engine.prefill() == Prefill::full ? r->prompt_left() : 0;
      if (!r->decodes() && left == 0) continue;
      parts_.push_back({.request = r.get(), .position = r->session->position()});
      asked_rows_.push_back({.wanted_rows = std::max<std::int64_t>(1, left)});
      decoding += r->decodes() ? 1 : 0;
      prompts = prompts || left > 0;
    }
    const bool could_draft = options.policy.kind != DraftPolicy::Kind::off && decoding > 0;
    may_draft_ = could_draft && (options.policy.kind != DraftPolicy::Kind::delayed || pause_.drafts());
    const std::int64_t spare = std::max<std::int64_t>(0, max_rows_ - std::ssize(parts_));  // behind a row for each
    const std::int64_t kept = may_draft_ && prompts ? std::min({decoding * draft_, max_rows_ / 2, spare}) : 0;
    admit_rows(asked_rows_, max_rows_ - kept, 0, turn_++);
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i].rows = asked_rows_[i].rows;
    std::erase_if(parts_, [](const Part& part) { return part.rows == 0; });
    std::stable_partition(parts_.begin(), parts_.end(), [](const Part& part) { return part.request->decodes(); });
    rounds_ = 0;
    plain_rows_ = sampling_ = 0;
    for (const Part& part : parts_) {
      const bool round = part.request->decodes();
      rounds_ += round ? 1 : 0;
      plain_rows_ += part.rows;
      sampling_ += round || part.ends_prompt() ? 1 : 0;
    }
  }

  std::span<Part> rounds() { return std::span(parts_).first(rounds_); }

  /// Drafts for those that have none at hand.
  void draft() {
    wishes_.clear();
    if (!may_draft_ || plain_rows_ == max_rows_) return;
    const auto start = std::chrono::steady_clock::now();
    for (const Part& part : rounds()) {
      Request& r = *part.request;
      if (!lacks_drafts(r)) continue;
      const std::int64_t count = wanted_drafts(r);
      const auto n = static_cast<std::size_t>(count);
      wishes_.push_back({.session = &*r.session,
                         .anchor = r.anchor,
                         .temperature = r.options.sampler.temperature,
                         .seed = r.options.sampler.seed,
                         .choices = choices_,
                         .tokens = std::span(r.drafts).first(n)});
      if (r.sampled()) wishes_.back().logits = {r.logits.data(), {count, choices_}};
      if (engine.has_confidence()) wishes_.back().confidences = std::span(r.confidence_logits).first(n);
    }
    if (wishes_.empty()) return;
    engine.draft(wishes_);
    report.draft_ms = milliseconds_since(start);
    const std::span<const double> temperatures = learnt_ ? learnt_->temperatures() : temperatures_;
    for (const Part& part : rounds()) {
      Request& r = *part.request;
      if (!lacks_drafts(r)) continue;
      r.drafted_at = part.position;
      r.drafted = static_cast<std::int32_t>(useful_drafts(r.first_drafts(wanted_drafts(r)), choices_, remaining(r)));
      stats.drafted += r.drafted;
      const auto n = static_cast<std::size_t>(r.drafted);
      std::fill(r.confidences.begin(), r.confidences.end(), kNoConfidence);
      if (!engine.has_confidence()) continue;
      calibrate_confidences(std::span(r.confidence_logits).first(n), temperatures, std::span(r.confidences).first(n));
      r.stale.publish(part.position, std::span(r.confidences).first(n));
    }
  }

  /// How many of them are verified.
  void plan() {
    at_hand_.clear(), asked_.clear(), fresh_.clear(), stale_.clear();
    for (const Part& part : rounds()) {
      const Request& r = *part.request;
      const bool has = r.has_drafts();
      at_hand_.push_back(has ? r.drafted : 0);
      asked_.push_back(has ? static_cast<std::int32_t>(wanted_drafts(r)) : 0);
      fresh_.insert(fresh_.end(), r.confidences.begin(), r.confidences.end());
      stale_.insert(stale_.end(), r.stale.stale().begin(), r.stale.stale().end());
      for (std::int64_t k = 0; k < draft_; ++k)
        report.confidences.push_back(has ? r.confidences[static_cast<std::size_t>(k)] : kNoConfidence);
    }
    const std::array matrix{static_cast<std::int64_t>(rounds_), draft_};
    scheduler_.plan({.confidences = {fresh_.data(), matrix},
                     .stale = {stale_.data(), matrix},
                     .drafts = at_hand_,
                     .asked = asked_,
                     .plain_rows = plain_rows_,
                     .sampling = sampling_,
                     .draft_limit = max_rows_ - plain_rows_},
                    report.plan);
    for (std::size_t i = 0; i < rounds_; ++i) parts_[i].drafts = report.plan.lengths[i];
    report.rows = plain_rows_ + report.plan.verified;
    report.drafting = std::any_of(at_hand_.begin(), at_hand_.end(), [](std::int32_t drafts) { return drafts > 0; });
  }

  /// One forward of the target over all rows: they fit into a step of the engine. (With a prefix cache a prompt's rows that cross a page
  /// border are two, as in Session::append.)
  void forward(const StepControl& control) {
    if (parts_.empty()) return;
    ids_.clear();
    feeds_.clear();
    for (const Part& part : parts_) {
      Request& r = *part.request;
      const std::size_t first = ids_.size();
      if (r.decodes()) {
        ids_.push_back(r.anchor);
        ids_.insert(ids_.end(), r.drafts.begin(), r.drafts.begin() + part.drafts);
      } else {
        const auto fed = r.prompt.end() - r.prompt_left();
        ids_.insert(ids_.end(), fed, fed + part.rows);
        report.prompt_rows += part.rows;
      }
      feeds_.push_back({.session = &*r.session,
                        .feed = {.ids = std::span(ids_).subspan(first),
                                 .logit_rows = r.decodes()          ? kAllRows
                                               : part.ends_prompt() ? 1
                                                                    : 0}});
    }
    const auto start = std::chrono::steady_clock::now();
    try {
      engine.step(feeds_, control);
    } catch (...) {
      // Drafts are still at hand, and judged by the next step. A prompt keeps what is through, but for its last token, whose logits are
      // gone.
      for (const Part& part : parts_) {
        Request& r = *part.request;
        const std::int64_t position = r.session->position();
        const std::int64_t kept = r.decodes() ? part.position : r.prompt_left() > 0 ? position : position - 1;
        if (kept != position) r.session->rewind(kept);
      }
      throw;
    }
    report.step_ms = milliseconds_since(start);
    stats.target_forwards += rounds_ > 0 ? 1 : 0;
  }

  /// Verdicts, commits, and what follows from them.
  void judge() {
    verified_.clear(), accepted_.clear(), judged_.clear();
    double emitted = 0;
    for (std::size_t i = 0; i < rounds_; ++i) {
      const Part& part = parts_[i];
      Request& r = *part.request;
      RoundReport round{.request = r.id,
                        .anchor = part.position,
                        .drafted = at_hand_[i],
                        .verified = static_cast<std::int32_t>(part.drafts)};
      try {
        const Verdict verdict = verdict_on(r, part);
        commit(r, part, verdict);
        round.accepted = static_cast<std::int32_t>(verdict.accepted);
      } catch (const std::exception& e) {
        r.session->rewind(part.position);
        fail(r, e.what());
      }
      round.emitted = static_cast<std::int32_t>(r.out.size());
      emitted += round.emitted;
      count(r, round);
    }
    if (learnt_ && !verified_.empty())
      learnt_->update({judged_.data(), {std::ssize(verified_), draft_}}, verified_, accepted_);
    if (rounds_ > 0) weigh(emitted + static_cast<double>(sampling_) - static_cast<double>(rounds_));
  }

  Verdict verdict_on(const Request& r, const Part& part) {
    const In<float, 2> logits = r.session->logits();
    return judge_.verdict({.logits = {logits.data(), {part.drafts + 1, choices_}, {logits.stride(0), 1}},
                           .drafts = r.first_drafts(part.drafts),
                           .draft_logits = r.logits.data(),
                           .verification = r.options.verification,
                           .position = part.position},
                          r.options.sampler);
  }

  void commit(Request& r, const Part& part, const Verdict& verdict) {
    const In<std::int32_t, 1> drafts = r.first_drafts(part.drafts);
    const BlockCut cut = cut_block(drafts, verdict, {r.options.stop_ids.data(), {std::ssize(r.options.stop_ids)}},
                                   remaining(r, part.position));
    r.session->commit(cut.tokens);
    // What every engine of this kind has got wrong once (dspark.md 7, position counter).
    DSV41_DCHECK(r.session->position() == part.position + cut.tokens && r.session->logits().extent(0) == cut.tokens);
    DSV41_DCHECK(r.session->tokens()[static_cast<std::size_t>(part.position)] == r.anchor);
    r.out.clear();
    for (std::int64_t i = 0; i < cut.tokens; ++i) r.out.push_back(verdict.token(drafts, i));
    emit(r, cut.stopped);
  }

  /// Tells r.out, the last of which becomes the anchor.
  void emit(Request& r, bool stopped) {
    r.anchor = r.out.back();
    r.emitted += std::ssize(r.out);
    r.finish = stopped                             ? Finish::stop
               : r.emitted == r.options.max_tokens ? Finish::length
               : remaining(r) == 0                 ? Finish::context
                                                   : Finish::none;
    emissions_.push_back({.request = r.id, .tokens = r.out, .finish = r.finish});
  }

  void fail(Request& r, std::string_view why) noexcept {
    r.out.clear();
    r.finish = Finish::failed;
    r.error.assign(why.substr(0, kLongestError));
    emissions_.push_back({.request = r.id, .finish = Finish::failed, .error = r.error});
  }

  void count(const Request& r, const RoundReport& round) {
    report.rounds.push_back(round);
    ++stats.rounds;
    stats.verified += round.verified;
    stats.accepted += round.accepted;
    stats.emitted += round.emitted;
    for (std::int32_t k = 0; k < round.verified; ++k) {
      ++stats.verified_at[static_cast<std::size_t>(k)];
      if (k < round.accepted) ++stats.accepted_at[static_cast<std::size_t>(k)];
    }
    if (!learnt_ || round.verified == 0 || !engine.has_confidence() || round.emitted == 0) return;
    verified_.push_back(round.verified);
    accepted_.push_back(round.accepted);
    judged_.insert(judged_.end(), r.confidence_logits.begin(), r.confidence_logits.end());
  }

  /// What the step was expected to give for its cost, and whether drafting goes on. `tokens`: what it gave.
  void weigh(double tokens) {
    if (!options.policy.needs_costs()) return;
    const CostTable& table = *options.costs;
    const double plain_ms = table.verify_ms(plain_rows_), plain_tokens = static_cast<double>(sampling_);
    stats.plain_tokens += plain_tokens;
    stats.plain_ms += plain_ms;
    if (!report.drafting) {
      stats.expected_tokens += plain_tokens;
      stats.expected_ms += plain_ms;
      return;
    }
    const StepPlan::Prefix& chosen = report.plan.prefixes[static_cast<std::size_t>(report.plan.budget)];
    stats.expected_tokens += chosen.tokens;
    stats.expected_ms += chosen.step_ms;
    pause_.observe(tokens, table.step_ms(static_cast<std::int64_t>(rounds_), report.rows), plain_tokens, plain_ms);
  }

  /// Of prompts that have their logits: sampled here, so that it is told at once.
  void first_tokens() {
    for (const auto& r : requests_) {
      if (!r->active() || r->decodes() || r->prompt_left() > 0) continue;
      const In<float, 2> logits = r->session->logits();
      try {
        const In<float, 1> last(logits.row(logits.extent(0) - 1).data(), {choices_});
        r->out.assign(1, judge_.first_token(last, r->options.sampler, r->session->position()));
        const auto& stops = r->options.stop_ids;
        emit(*r, std::find(stops.begin(), stops.end(), r->out[0]) != stops.end());
      } catch (const std::exception& e) {
        fail(*r, e.what());
      }
    }
  }

  DraftScheduler scheduler_;
  std::int64_t draft_, most_drafts_, max_rows_,
      choices_;  // most_drafts_: that the policy could verify; max_rows_: of one forward
  Judge judge_;
  DraftPause pause_;
  std::vector<double> temperatures_;  // [draft]
  std::optional<OnlineTemperatures> learnt_;
  Requests requests_;  // in the order they joined
  std::int64_t next_id_ = 0, turn_ = 0;
  std::vector<Emission> emissions_;
  // Of the step under way.
  std::vector<Part> parts_;  // rounds first, then prompts
  std::size_t rounds_ = 0;
  std::int64_t plain_rows_ = 0;  // that are no drafts
  std::int64_t sampling_ = 0;    // requests that get a token
  bool may_draft_ = false;
  std::atomic<bool> busy_{false};
  std::vector<RowRequest> asked_rows_;
  std::vector<SessionDraft> wishes_;
  std::vector<SessionFeed> feeds_;
  std::vector<std::int32_t> ids_, at_hand_, asked_;
  std::vector<float> fresh_, stale_;  // [rounds, draft] confidences
  std::vector<float> judged_;         // [of rounds that verified something, draft] logits of confidences
  std::vector<std::int32_t> verified_, accepted_;
};

Generator::Generator(Engine& engine, GeneratorOptions options)
    : impl_(with_memory("generator", [&] { return std::make_unique<Impl>(engine, std::move(options)); })) {}
Generator::~Generator() = default;
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;

std::int64_t Generator::add(Session&& session, const RequestOptions& options, std::span<const std::int32_t> prompt) {
  return with_memory("generator: add", [&] { return impl_->add(std::move(session), options, prompt); });
}
std::span<const Emission> Generator::step(const StepControl& control) {
  return with_memory("generator: step", [&] { return impl_->step(control); });
}
Session Generator::remove(std::int64_t request) {
  return impl_->remove(request);
}
std::int64_t Generator::active() const noexcept {
  return impl_->active();
}
const Session& Generator::session(std::int64_t request) const {
  return impl_->session(request);
}
const GeneratorOptions& Generator::options() const noexcept {
  return impl_->options;
}
const GeneratorStats& Generator::stats() const noexcept {
  return impl_->stats;
}
const StepReport& Generator::last() const noexcept {
  return impl_->report;
}

}  // namespace dsv41::runtime
