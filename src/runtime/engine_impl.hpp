// SPDX-License-Identifier: MIT
//
// What stands behind Engine and Session, as far as it does not depend on the backend.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/core/schedule.hpp"
#include "dsv41/runtime/engine.hpp"
#include "state_file.hpp"
#include "transcript.hpp"
#include "weight_budget.hpp"

namespace dsv41::runtime {

/// One session: the host's part of it. The backend's part is Engine::On<B>::Sequence.
class Session::Impl {
 public:
  explicit Impl(std::shared_ptr<Engine::Impl> engine) : engine(std::move(engine)) {}
  virtual ~Impl() = default;

  /// Tokens held: those of all steps that are finished.
  virtual std::int64_t position() const noexcept = 0;

  std::shared_ptr<Engine::Impl> engine;  // outlives everything below
  Transcript transcript;                 // of position() tokens; within a call also of those under way
  std::vector<float> logits;
  std::int64_t logit_rows = 0;
  std::vector<std::int64_t> rows_per_layer;
  std::int64_t replayed_rows = 0;

 protected:
  /// For a fork.
  Impl(const Impl& of, std::int64_t vocab)
      : engine(of.engine),
        transcript(of.transcript),
        logits(of.logits.begin(), of.logits.begin() + of.logit_rows * vocab),  // the buffer may have grown far beyond
        logit_rows(of.logit_rows),
        rows_per_layer(of.rows_per_layer),
        replayed_rows(of.replayed_rows) {}
};

class Engine::Impl {
 public:
  Impl(const ModelFolder& folder, const EngineOptions& options)
      : folder(folder),
        config(folder.checkpoint.config()),
        options(options),
        schedule(make_schedule(config)),
        prefill_note(options.prefill == Prefill::full ? std::string() : prefill_obstacle(schedule)),
        prefill(prefill_note.empty() ? options.prefill : Prefill::full),
        numeric_class(numeric_class_name(options.numeric, prefill == Prefill::replay)) {}
  virtual ~Impl() = default;

  /// The engine on a backend, each in a source of its own (engine_ref.cpp, engine_cpu.cpp).
  static std::shared_ptr<Impl> on_ref(const ModelFolder& folder, const EngineOptions& options);
  static std::shared_ptr<Impl> on_cpu(const ModelFolder& folder, const EngineOptions& options);

  virtual std::unique_ptr<Session::Impl> open(std::shared_ptr<Impl> self) = 0;
  virtual void step(const char* call, std::span<const SessionFeed> feeds, const StepControl& control) = 0;
  virtual SyncReport sync_to(Session& session, const Feed& feed, const StepControl& control) = 0;
  virtual std::int64_t rewind(Session::Impl& session, std::int64_t position) = 0;
  virtual void check(const Session& session, const Feed& feed) const = 0;
  virtual void commit(Session::Impl& session, std::int64_t rows) = 0;
  virtual void draft(std::span<const SessionDraft> requests) = 0;
  virtual bool has_confidence() const noexcept = 0;
  virtual void rerun_last(Session& session, const StepControl& control) = 0;
  virtual std::unique_ptr<Session::Impl> fork(const Session::Impl& session) = 0;
  virtual void save(const Session::Impl& session, const WriteBytes& write) = 0;
  virtual void restore(Session::Impl& session, const ReadBytes& read) = 0;
  virtual SessionMemory memory(const Session::Impl& session) const noexcept = 0;
  virtual EngineMemory memory() const noexcept = 0;
  WeightTier weight_tier() const noexcept { return budget ? budget->report() : WeightTier{}; }

  /// Refuses a feed at `position` that is not what Session::append asks for; `call` names what it was given to. Errors: its.
  void check_feed(const std::string& call, const Feed& feed, std::int64_t position) const;

  const ModelFolder& folder;
  const ModelConfig config;
  const EngineOptions options;
  const Schedule schedule;
  const std::string prefill_note;
  const Prefill prefill;
  const std::string numeric_class;

  std::unique_ptr<WeightBudget> budget;  // of weight_bytes; outlives the backend
  std::atomic<bool> busy{false};         // see Call
};

/// Rows of logits that a feed asks for.
inline std::int64_t wanted_rows(const Feed& feed) {
  return std::min<std::int64_t>(feed.logit_rows, std::ssize(feed.ids));
}

}  // namespace dsv41::runtime
