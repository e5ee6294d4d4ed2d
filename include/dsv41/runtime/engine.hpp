// SPDX-License-Identifier: MIT
//
// Engine: a model on a backend, and the memory of its sessions. The only place where results come back to the host, and the one virtual
// boundary: below it a step is statically bound.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "dsv41/backend/cpu.hpp"
#include "dsv41/core/numeric.hpp"
#include "dsv41/model/prefill.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "dsv41/runtime/session.hpp"

namespace dsv41::runtime {

struct EngineOptions {
  /// "cpu": SIMD kernels on threads (backend/cpu.hpp); "ref": the plain reference, one thread.
  std::string backend = "cpu";
  CpuOptions cpu = {};  ///< threads of "cpu"; "ref" has one
  Numeric numeric = Numeric::exact;
  std::int64_t max_context = 4096;  ///< positions of a session; its memory grows with its tokens
  std::int64_t max_rows =
      256;  ///< rows of a step, over all its sessions, but at most max_context; longer inputs run in several
  Prefill prefill = Prefill::full;  ///< how an append() of more than one window runs; full where the schedule refuses
  std::int64_t room = 8;            ///< positions that window rings hold beyond the window; at least `draft`
  /// Tokens that the drafter proposes at once (config.draft.block is what it was trained for); 0: none is used. Below the window where
  /// `prefill` skips rows.
  std::int64_t draft = 0;
  std::int64_t cache_bytes =
      0;  ///< hard limit of the memory of all sessions and the prefix cache; 0: the backend's memory
  std::int64_t prefix_bytes = 0;  ///< of these, what the prefix cache may hold; 0, or no kv sources: there is none
  /// Of "cpu": hard limit of the memory for weights: those that every token reads, and as many routed experts as the rest holds; others are
  /// read from their files when they are needed, past the page cache. Embeddings and Engram tables are read row by row where they are
  /// mapped and do not count. 0: all weights are read where they are mapped. Results are the same bits.
  std::int64_t weight_bytes = 0;
  bool check_weights =
      false;  ///< with weight_bytes: every expert is compared with its file each time it is used; slow, for tests
};

/// One session's part of a step over several.
struct SessionFeed {
  Session* session = nullptr;
  Feed feed;
};

/// The confidence in a draft that was not made.
inline constexpr float kNoConfidence = std::numeric_limits<float>::quiet_NaN();

/// What one session asks of the drafter, and where it is put: host memory of the caller, for tokens that draw_draft() of
/// modules/dspark/verifier.hpp draws.
struct SessionDraft {
  Session* session = nullptr;
  std::int32_t anchor = 0;   ///< the token that comes next in the session: chosen, not fed yet
  double temperature = 0;    ///< that the drafts are drawn at; 0: each is the likeliest
  std::uint64_t seed = 0;    ///< key of their draws, with their positions
  std::int64_t choices = 0;  ///< ids to choose from, the first ones of the vocabulary; 0: all
  /// [n], n at most EngineOptions::draft: the drafts; -1 from one on that has no law (a logit was NaN).
  std::span<std::int32_t> tokens;
  Out<float, 2> logits = {};  ///< [n, choices] or empty: what each was drawn from; draft_law() gives its law again
  /// [n] or empty: the confidence in each before the sigmoid; kNoConfidence where there is no draft.
  std::span<float> confidences = {};
};

/// Bytes in the backend's memory that caches take.
struct EngineMemory {
  std::int64_t used_bytes = 0;    ///< of all sessions and the prefix cache, free pages of slabs included
  std::int64_t limit_bytes = 0;   ///< EngineOptions::cache_bytes
  std::int64_t prefix_bytes = 0;  ///< what the prefix cache holds
};

/// What became of EngineOptions::weight_bytes. Experts count once a step that reads them.
struct WeightTier {
  std::int64_t limit_bytes = 0;  ///< EngineOptions::weight_bytes
  std::int64_t dense_bytes = 0;  ///< of them, weights that every token reads
  std::int64_t slot_bytes = 0;   ///< an expert's place in memory
  std::int64_t slots = 0;
  std::int64_t experts = 0;           ///< that could take one
  std::int64_t hits = 0, misses = 0;  ///< experts that were there, or under way, when a step asked for them; and others
  std::int64_t bytes_read = 0;        ///< for steps that asked
  std::int64_t ahead_bytes = 0;       ///< and before one did
  std::int64_t ahead_used_bytes = 0;  ///< of these, what a step asked for in time
  bool reads_ahead = false;           ///< still; it ends when it does not pay
  bool direct = false;                ///< past the page cache (O_DIRECT); else it is told to drop what was read
  double stall_seconds = 0;           ///< in which a step had nothing to do but wait for experts
};

/// Runs one step at a time; an engine and its sessions may be used from one thread at a time. The folder must outlive it.
class Engine {
 public:
  /// Errors: unsupported (unknown backend; a draft of a model without draft stages; weight_bytes of a backend or folder that cannot, or a
  ///         model without experts), invalid_argument (options), format (token map against config), io (weight_bytes: a file is not what it
  ///         was), out_of_memory (weight_bytes too: what is needed at least).
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

  /// Refuses what append() would refuse of a feed, and a session that is not this engine's, without running anything.
  /// Errors: invalid_argument, out_of_memory (max_context), as append().
  void check(const Session& session, const Feed& feed) const;

  /// Drafts what may come behind several sessions, each once and not empty, in one pass of the drafter as far as its rows reach
  /// (EngineOptions::max_rows). A session's drafts depend on nothing but its tokens, anchor, temperature and seed: not on its mates, nor on
  /// how many drafts are asked for. They are made from the context that its steps left, a window of it, and from less behind restore(), a
  /// rewind() of more than EngineOptions::room that nothing was appended to, and a call that ended early: drafts are then worse, but what
  /// a verifier makes of them is not. Sessions do not change.
  ///
  /// A round of speculative decoding is draft(); step() over the anchor and some drafts with kAllRows; verify() over Session::logits();
  /// Session::commit(). runtime/generator.hpp does that for many sessions.
  /// Errors:  invalid_argument: an engine without a drafter, a session given twice or of another engine, an id, temperature or number out
  ///          of range, views of other lengths, confidences where has_confidence() is false; device; busy.
  void draft(std::span<const SessionDraft> requests);

  /// Whether there is a drafter with a confidence head.
  bool has_confidence() const noexcept;

  const ModelConfig& config() const noexcept;
  const EngineOptions& options() const noexcept;

  /// The mode in force: options().prefill, or full with prefill_note() saying why (otherwise empty).
  Prefill prefill() const noexcept;
  const std::string& prefill_note() const noexcept;

  /// What the results of this engine's sessions are: "exact" or "deployed", and ", bounded replay" behind it in that mode.
  const std::string& numeric_class() const noexcept;

  EngineMemory memory() const noexcept;

  /// Counters since the engine was made; all 0 without weight_bytes. At any time, from any thread.
  WeightTier weight_tier() const noexcept;

 private:
  friend class Session;
  class Impl;
  template <class B>
  struct Sequence;
  template <class B>
  class Jobs;
  template <class B>
  class On;
  std::shared_ptr<Impl> impl_;
};

}  // namespace dsv41::runtime
