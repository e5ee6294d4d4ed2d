// SPDX-License-Identifier: MIT
//
// Session: one sequence on an engine. It can grow, go back to any position, fork, follow a changed prompt, be saved and restored; whatever
// happens, it holds exactly the tokens that it says, and continues like a fresh one that was fed them.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "dsv41/core/cancel.hpp"
#include "dsv41/core/view.hpp"
#include "dsv41/runtime/state_io.hpp"

namespace dsv41::runtime {

/// As many rows of logits as there are tokens.
inline constexpr std::int64_t kAllRows = std::numeric_limits<std::int64_t>::max();

/// Tokens for a sequence. The views are read during the call only.
struct Feed {
  std::span<const std::int32_t> ids;  ///< [n], at least one, each in [0, vocab)
  std::int64_t logit_rows = 1;        ///< how many of the last tokens give logits; more than there are: all; 0: none
  std::span<const std::uint8_t> image = {};  ///< empty or [n]: not zero marks a token of an image span
  In<float, 2> image_rows =
      {};  ///< [m, dim] embeddings of the first m image tokens; those behind them keep their own embeddings
};

/// Is told after each step how many of a call's tokens are through. What it throws ends the call as a cancel does. It may look at sessions
/// of the engine (position(), tokens()) and request a cancel; every other call is refused as busy.
class StepListener {
 public:
  virtual void step_done(std::int64_t tokens) = 0;

 protected:
  ~StepListener() = default;
};

/// What may watch and stop a call that runs steps.
struct StepControl {
  const CancelToken* cancel = nullptr;
  StepListener* listener = nullptr;
};

/// What became of a prompt's tokens.
struct SyncReport {
  std::int64_t reused = 0;      ///< first tokens of it whose cache entries were there already
  std::int64_t recomputed = 0;  ///< of those, run again: for window rows that were not, or the last one for its logits
  std::int64_t fed = 0;         ///< the others
};

/// Bytes in the backend's memory. What is shared with other sessions counts in full.
struct SessionMemory {
  std::int64_t cache_bytes = 0;  ///< pages of entries and index keys
  std::int64_t page_bytes = 0,
               page_positions = 0;  ///< of one page, and how many positions it holds: what a token takes
  std::int64_t window_bytes = 0;    ///< one window of rows in every layer
  std::int64_t carry_bytes = 0;     ///< the largest open groups of all pooling sources
  std::int64_t draft_bytes = 0;     ///< one window of context in every draft stage; 0: the engine has no drafter
  std::int64_t block_bytes = 0;     ///< what windows, open groups and context take with their room to go back
  std::int64_t table_bytes = 0;     ///< page table
};

/// One sequence. Keeps its engine alive; the engine's folder must outlive it too. A moved-from session may only be assigned to.
///
/// When a call that runs steps ends early, the session holds the tokens of the steps that were finished, and says so in position(): none of
/// the call's after a device error, and none when the memory was not there, for that is asked for first. Logits are gone then.
class Session {
 public:
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Feeds tokens at the current position. To the engine's prefill mode each call is a prompt of its own: its last rows run every layer.
  ///
  /// Rules:   results depend neither on batch mates nor on how tokens are cut into calls or steps (bounded replay: on the calls), nor on
  ///          what the session went through before. They do not depend on the caller's rounding or flush-to-zero modes, which are
  ///          as before on return.
  /// Errors:  invalid_argument: no tokens, an id outside [0, vocab), views of other lengths, or in a mode that skips rows logits of
  ///          more than a window (case B95: they do not exist); out_of_memory: the context would exceed max_context, caches the
  ///          engine's budget, or the host has no room for logits; cancelled; device; busy; what the listener throws.
  void append(const Feed& feed, const StepControl& control = {});

  /// Makes the session one of exactly these tokens: keeps what it can of its own beginning or takes it from the engine's prefix cache,
  /// and feeds the rest, at least the last token or those whose logits are wanted.
  ///
  /// Rules:   beginnings are equal where ids, image marks and image rows are (case B59). Of the possible ones that which leaves the
  ///          fewest rows to run is taken.
  /// Errors:  those of append(); the session then holds the beginning, and what of the rest was finished.
  SyncReport sync_to(const Feed& feed, const StepControl& control = {});

  /// Goes back to `position`, 0 to position(). Logits are gone.
  ///
  /// Returns: rows that the next append() will run again first, so that every layer has its window: none while the window rings still hold
  ///          the rows. After plain appends and steps they do for EngineOptions::room + 1 positions; behind a prompt that skipped
  ///          layers, a replay or restore() for one (in bounded replay, within such a prompt, for none). Otherwise at most what the last
  ///          position depends on, however long the sequence is: layers * (window - 1) + 1 rows, or a little more where a ratio is larger
  ///          than the window. Entries are never computed again. In bounded replay the beginning then is one prompt.
  /// Errors:  invalid_argument.
  std::int64_t rewind(std::int64_t position);

  /// Keeps the first `rows` of the last call's rows of logits and the tokens up to the last of them, 1 to as many as there are; what was
  /// fed behind goes as by rewind(), the logits of the others stay. For drafts that were fed and not all accepted.
  ///
  /// Cost:    none within EngineOptions::room, as for rewind().
  /// Errors:  invalid_argument.
  void commit(std::int64_t rows);

  /// Runs the last token again for its logits: after rewind() and restore() there are none. The session stays as it is, however it ends.
  ///
  /// Cost:    one row while the rings hold the window before it (replayed_rows() says), otherwise that of a far rewind().
  /// Errors:  invalid_argument without tokens; out_of_memory; cancelled; device.
  void rerun_last(const StepControl& control = {});

  /// Another session with the same tokens and logits. Both share memory until one of them writes. Errors: out_of_memory.
  Session fork() const;

  /// Writes everything that the session holds, in the format of docs/saved_state.md, except logits. Errors: what `write` throws; device.
  void save(const WriteBytes& write) const;

  /// Becomes the session that was saved. Whatever fails, this session stays as it was.
  ///
  /// Errors:  format (not a saved session, damaged, ended early), unsupported (another version), invalid_argument (another model or
  ///          numeric class), out_of_memory, and what `read` throws.
  void restore(const ReadBytes& read);

  /// Logits [rows, vocab] f32 of the last tokens of the call that fed them, valid until the next call that changes the session.
  In<float, 2> logits() const noexcept;

  /// Rows of the last call's tokens whose attention and experts each layer ran [layers]; before the first: none.
  std::span<const std::int64_t> rows_per_layer() const noexcept;

  /// Rows of tokens it held already that the last call ran again (rewind(), rerun_last()).
  std::int64_t replayed_rows() const noexcept;

  /// Tokens held, and how many they are.
  std::span<const std::int32_t> tokens() const noexcept;
  std::int64_t position() const noexcept;

  SessionMemory memory() const noexcept;

 private:
  friend class Engine;
  class Impl;
  explicit Session(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv41::runtime
