// SPDX-License-Identifier: MIT
//
// Engine: a model on a backend. Session: one sequence on an engine. The only place where results come back to the host, and the one
// virtual boundary: below it a step is statically bound.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "dsv41/core/numeric.hpp"
#include "dsv41/core/view.hpp"
#include "dsv41/model/prefill.hpp"
#include "dsv41/runtime/model_folder.hpp"

namespace dsv41::runtime {

struct EngineOptions {
  std::string backend = "ref";  ///< "ref": the plain CPU reference, one thread
  Numeric numeric = Numeric::exact;
  std::int64_t max_context = 4096;  ///< positions of a session: its caches are allocated for them up front
  std::int64_t max_rows = 256;      ///< rows of a step; longer inputs run in several, with identical results
  Prefill prefill = Prefill::full;  ///< how an append() of more than one window runs; full where the schedule refuses
};

/// Which rows of an append() give logits.
enum class LogitRows : std::uint8_t {
  last,  ///< the last token's only
  all,   ///< every token's; at most max_rows tokens a call
};

/// Is told after each step of an append() how many of its tokens are through. What it throws ends the append() half way.
class StepListener {
 public:
  virtual void step_done(std::int64_t tokens) = 0;

 protected:
  ~StepListener() = default;
};

class Session;

/// Runs one step at a time; sessions of an engine may be used in turn from one thread. The folder must outlive it.
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

  const ModelConfig& config() const noexcept;
  const EngineOptions& options() const noexcept;

  /// The mode in force: options().prefill, or full with prefill_note() saying why (otherwise empty).
  Prefill prefill() const noexcept;
  const std::string& prefill_note() const noexcept;

  /// What the results of this engine's sessions are: "exact" or "deployed", and ", bounded replay" behind it in that mode.
  const std::string& numeric_class() const noexcept;

 private:
  friend class Session;
  class Impl;
  template <class B>
  class On;
  std::shared_ptr<Impl> impl_;
};

/// One sequence. Keeps its engine alive; the engine's folder must outlive it too. A moved-from session may only be assigned to.
class Session {
 public:
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Feeds tokens at the current position. To the engine's prefill mode each call is a prompt of its own: its last rows run every layer.
  ///
  /// Shapes:  ids [n]; image empty or [n], not zero marks a token of an image span; image_rows empty or [m, dim] f32, the embeddings of
  ///          the first m image tokens (empty: their own embeddings stand).
  /// Rules:   results do not depend on the caller's rounding or flush-to-zero modes, which are as before on return.
  /// Errors:  invalid_argument: no tokens, an id outside [0, vocab), views of other lengths, more than max_rows with
  ///          LogitRows::all, more than a window with it in a mode that skips rows (case B95: they have no logits), or an
  ///          earlier append() that failed half way; out_of_memory: the context would exceed max_context, or logits find no
  ///          memory. The session is then as it was. device, and what the listener throws: it needs reset().
  void append(std::span<const std::int32_t> ids, LogitRows rows = LogitRows::last,
              std::span<const std::uint8_t> image = {}, In<float, 2> image_rows = {}, StepListener* listener = nullptr);

  /// Logits [rows, vocab] f32 of the last append(), valid until the next call.
  In<float, 2> logits() const noexcept;

  /// Rows of the last append() whose attention and experts each layer ran [layers]; before the first: none.
  std::span<const std::int64_t> rows_per_layer() const noexcept;

  /// Tokens fed so far.
  std::int64_t position() const noexcept;

  /// Back to an empty sequence.
  void reset();

 private:
  friend class Engine;
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv41::runtime
