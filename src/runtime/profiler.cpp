// SPDX-License-Identifier: MIT
//
// The profiler: sessions that are stepped, drafted for and taken back, with a clock around them.
#include "dsv41/runtime/profiler.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/numerics/rng.hpp"
#include "with_memory.hpp"

namespace dsv41::runtime {
namespace {

constexpr std::int64_t kContext = 8192;  // dspark.md 6.4
constexpr int kMostRepeats = 1000;
constexpr std::uint64_t kSeed = 1;

[[noreturn]] void refuse(const std::string& what, std::int64_t got, const std::string& expected) {
  throw Error(Errc::invalid_argument,
              "profile_costs: " + what + " is " + std::to_string(got) + ", expected " + expected);
}

/// Two sizes an octave, and the largest.
std::vector<std::int64_t> sizes_up_to(std::int64_t largest) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t power = 1; power < largest; power *= 2) {
    sizes.push_back(power);
    if (const std::int64_t between = power + power / 2; between > power && between < largest) sizes.push_back(between);
  }
  sizes.push_back(largest);
  return sizes;
}

class Profiler {
 public:
  Profiler(Engine& engine, const ProfileOptions& options, const StepControl& control)
      : engine_(engine), control_(control), draft_(engine.options().draft), repeats_(options.repeats) {
    if (repeats_ < 1 || repeats_ > kMostRepeats) refuse("repeats", repeats_, "1 to " + std::to_string(kMostRepeats));
    if (options.max_requests < 1) refuse("max_requests", options.max_requests, "at least 1");
    const std::int64_t max_context = engine.options().max_context, most = max_context - 1 - draft_;
    if (most < 1) {
      refuse("EngineOptions::max_context", max_context,
             "at least " + std::to_string(2 + draft_) + ": a token, an anchor and its drafts");
    }
    if (options.context < 0 || options.context > most) {
      refuse("context", options.context,
             "1 to " + std::to_string(most) + ", or 0: an anchor and its drafts follow it within max_context");
    }
    const std::int64_t step_rows = std::min(engine.options().max_rows, max_context);
    const std::int64_t requests = std::min(options.max_requests, step_rows);
    rows_ = sizes_up_to(std::min(step_rows, requests * (1 + draft_)));
    if (draft_ > 0) requests_ = sizes_up_to(requests);
    ids_.resize(static_cast<std::size_t>(rows_.back()));
    drafts_.resize(static_cast<std::size_t>(requests * draft_));
    confidences_.resize(engine.has_confidence() ? drafts_.size() : 0);
    open(static_cast<std::size_t>(requests), options.context, most);
  }

  CostTable run() {
    std::vector<CostPoint> verify, draft;
    for (int turn = 0; turn <= repeats_; ++turn) {
      for (const std::int64_t rows : rows_) keep(turn, {rows, step_ms(rows)}, verify);
      for (const std::int64_t requests : requests_) keep(turn, {requests, draft_ms(requests)}, draft);
    }
    if (draft_ == 0) draft.push_back({1, 0});
    return CostTable(median_points(std::move(verify)), 0, median_points(std::move(draft)));
  }

 private:
  /// The first turn warms up.
  static void keep(int turn, CostPoint point, std::vector<CostPoint>& samples) {
    if (turn > 0) samples.push_back(point);
  }

  void open(std::size_t count, std::int64_t context, std::int64_t most) {
    sessions_.reserve(count);
    sessions_.push_back(engine_.open_session());
    Session& first = sessions_.front();
    if (context == 0) {
      context = std::min(most, kContext);
      // Whole pages: no measured step completes one, which an engine with a prefix cache would remember.
      if (const std::int64_t page = first.memory().page_positions; context > page) context -= context % page;
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(context));
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = random_id(static_cast<std::int64_t>(i));
    first.append({.ids = ids, .logit_rows = 0}, control_);
    while (sessions_.size() < count) sessions_.push_back(sessions_.front().fork());
    drawn_ = context_ = context;
  }

  std::int32_t random_id(std::int64_t draw) const {
    const double u = numerics::uniform_below_one(numerics::random_block(kSeed, draw, numerics::Purpose::sample));
    return static_cast<std::int32_t>(u * static_cast<double>(engine_.config().vocab));
  }

  /// Neighbours in the vocabulary from a random one on: all different, up to its size.
  void draw_ids(std::int64_t count) {
    const std::int64_t first = random_id(drawn_++), vocab = engine_.config().vocab;
    for (std::int64_t i = 0; i < count; ++i)
      ids_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>((first + i) % vocab);
  }

  template <class Work>
  double timed_ms(const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

  double step_ms(std::int64_t rows) {
    draw_ids(rows);
    const std::int64_t count = std::min(rows, std::ssize(sessions_));
    feeds_.clear();
    std::int64_t first = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t own = rows / count + (i < rows % count ? 1 : 0);
      feeds_.push_back(
          {.session = &sessions_[static_cast<std::size_t>(i)],
           .feed = {.ids = std::span(ids_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(own)),
                    .logit_rows = kAllRows}});
      first += own;
    }
    const double ms = timed_ms([&] { engine_.step(feeds_, control_); });
    for (const SessionFeed& fed : feeds_) {
      [[maybe_unused]] const std::int64_t again = fed.session->rewind(context_);
      DSV41_DCHECK(again == 0);  // or the next step would be timed with them
    }
    return ms;
  }

  double draft_ms(std::int64_t requests) {
    if (control_.cancel != nullptr && control_.cancel->requested())
      throw Error(Errc::cancelled, "profile_costs: cancelled by the caller's token");
    draw_ids(requests);
    wishes_.clear();
    for (std::int64_t i = 0; i < requests; ++i) {
      const auto at = static_cast<std::size_t>(i), own = static_cast<std::size_t>(draft_);
      wishes_.push_back(
          {.session = &sessions_[at], .anchor = ids_[at], .tokens = std::span(drafts_).subspan(at * own, own)});
      if (!confidences_.empty()) wishes_.back().confidences = std::span(confidences_).subspan(at * own, own);
    }
    return timed_ms([&] { engine_.draft(wishes_); });
  }

  Engine& engine_;
  const StepControl& control_;
  std::int64_t draft_;
  int repeats_;
  std::int64_t context_ = 0;
  std::int64_t drawn_ = 0;                     // random ids so far
  std::vector<std::int64_t> rows_, requests_;  // sizes
  std::vector<Session> sessions_;              // each of context_ tokens between the runs
  std::vector<std::int32_t> ids_, drafts_;
  std::vector<float> confidences_;
  std::vector<SessionFeed> feeds_;
  std::vector<SessionDraft> wishes_;
};

}  // namespace

CostTable profile_costs(Engine& engine, const ProfileOptions& options, const StepControl& control) {
  return with_memory("profile_costs", [&] { return Profiler(engine, options, control).run(); });
}

}  // namespace dsv41::runtime
