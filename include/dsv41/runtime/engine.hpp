// SPDX-License-Identifier: MIT
//
// Engine: a model on a backend, and the memory of its sessions. The only place where results come back to the host, and the one virtual
// boundary: below it a step is statically bound.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dsv41/core/numeric.hpp"
#include "dsv41/model/prefill.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "dsv41/runtime/session.hpp"

namespace dsv41::runtime {

struct EngineOptions {
  std::string backend = "ref";  ///< "ref": the plain CPU reference, one thread
  Numeric numeric = Numeric::exact;
  std::int64_t max_context = 4096;  ///< positions of a session; its memory grows with its tokens
  std::int64_t max_rows = 256;      ///< rows of a step, over all its sessions; longer inputs run in several
  Prefill prefill = Prefill::full;  ///< how an append() of more than one window runs; full where the schedule refuses
  std::int64_t room = 8;  ///< positions that window rings hold beyond the window; at least the length of a draft
  std::int64_t cache_bytes =
      0;  ///< hard limit of the memory of all sessions and the prefix cache; 0: the backend's memory
  std::int64_t prefix_bytes = 0;  ///< of these, what the prefix cache may hold; 0, or no kv sources: there is none
};

/// One session's part of a step over several.
struct SessionFeed {
  Session* session = nullptr;
  Feed feed;
};

/// Bytes in the backend's memory that caches take.
struct EngineMemory {
  std::int64_t used_bytes = 0;    ///< of all sessions and the prefix cache, free pages of slabs included
  std::int64_t limit_bytes = 0;   ///< EngineOptions::cache_bytes
  std::int64_t prefix_bytes = 0;  ///< what the prefix cache holds
};

/// Runs one step at a time; an engine and its sessions may be used from one thread at a time. The folder must outlive it.
class Engine {
 public:
  /// Errors: unsupported (unknown backend), invalid_argument (options), format (token map against config), out_of_memory.
  Engine(const ModelFolder& folder, const EngineOptions& options);
  Engine(ModelFolder&& folder, const EngineOptions& options) = delete;  // it would dangle
  ~Engine();
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;

  /// Errors: out_of_memory.
  Session open_session();

  /// Feeds several sessions, each once, in common steps: any lengths, any numbers of tokens. For each it is append(), to the bit.
  ///
  /// Rules:   rows fill steps in the order of `feeds`; a prompt whose layers skip rows (EngineOptions::prefill) has steps of its own.
  /// Errors:  those of append(), and invalid_argument for a session that is given twice or belongs to another engine. Nothing has run
  ///          when it is one of input or memory.
  void step(std::span<const SessionFeed> feeds, const StepControl& control = {});

  const ModelConfig& config() const noexcept;
  const EngineOptions& options() const noexcept;

  /// The mode in force: options().prefill, or full with prefill_note() saying why (otherwise empty).
  Prefill prefill() const noexcept;
  const std::string& prefill_note() const noexcept;

  /// What the results of this engine's sessions are: "exact" or "deployed", and ", bounded replay" behind it in that mode.
  const std::string& numeric_class() const noexcept;

  EngineMemory memory() const noexcept;

 private:
  friend class Session;
  class Impl;
  template <class B>
  class On;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dsv41::runtime
