// SPDX-License-Identifier: MIT
//
// One sequence being fed and continued: the session, between its prompts and its replies, and its clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/core/cancel.hpp"
#include "dsv41/runtime/engine.hpp"
#include "options.hpp"
#include "recorder.hpp"
#include "speculation.hpp"
#include "terminal.hpp"

namespace generate {

/// What a run did. Seconds; sums over the turns of a conversation.
struct Figures {
  std::int64_t prompt_tokens = 0;            ///< of prompts: fed
  std::int64_t reused_tokens = 0;            ///< of prompts, or without one of the restored session: held already
  std::int64_t recomputed_tokens = 0;        ///< rows run again: for windows, or a held token for its logits
  std::int64_t restored_tokens = 0;          ///< held by the session that was restored
  std::int64_t generated_tokens = 0;         ///< sampled, the end-of-sequence token included
  std::int64_t replies = 0;                  ///< continuations with at least one token
  std::int64_t positions = 0;                ///< tokens in the session at the end
  dsv41::runtime::SessionMemory memory;      ///< of the session at the end
  dsv41::runtime::WeightTier weights;        ///< of the engine then
  double load_s = 0;                         ///< opening the model folder and the engine
  double prefill_s = 0;                      ///< feeding prompts
  double decode_s = 0;                       ///< from the first sampled token of a turn to its last
  double first_token_s = 0;                  ///< from the start of the (last) prefill to its first sampled token
  std::vector<std::int64_t> rows_per_layer;  ///< of the prompts: rows whose attention and experts a layer ran
  std::string numeric_class;                 ///< of the engine
  std::string prefill;                       ///< mode in force
  std::string prefill_note;                  ///< why it is not the one asked for; empty: it is
  std::string_view stop =
      "prompt";  ///< why it ended: eos, length, context (no positions left), interrupted, or prompt: none asked
  std::optional<Drafting> drafting;  ///< where drafts were asked for
};

/// Whether what is generated leaves as text: the prompt was no list of ids and the folder has a tokenizer.
bool writes_text(const dsv41::runtime::ModelFolder& folder, const Options& options);

/// Ids to choose from: where text is written those that the tokenizer has (a config's vocabulary may be the larger one; tokenizers number
/// without holes), otherwise the vocabulary.
std::int64_t choices(const dsv41::runtime::ModelFolder& folder, const Options& options);

/// The sequence, on an engine of its own use. What the cancel token stops ends early without an error; interrupted() says so, and nothing
/// more is sampled.
class Sequence {
 public:
  /// `recorder` may be null. Everything given must outlive the sequence.
  Sequence(dsv41::runtime::Engine& engine, const Options& options, Speculation& speculation, Recorder* recorder,
           Progress& progress, const dsv41::CancelToken& cancel);

  /// Takes up the session saved in a file. Errors: dsv41::Error naming option and file: io (cannot be read), format (bytes behind the
  /// session), and those of Session::restore.
  void restore(const std::string& path);

  /// Feeds a prompt that replaces what is there; a common beginning of both stays fed.
  ///
  /// Shapes: ids [n], at least one; image empty or [n].
  /// Errors: dsv41::Error invalid_argument when the model has fewer positions than the prompt has tokens, or a logit
  ///         is NaN.
  void prefill(std::span<const std::int32_t> ids, std::span<const std::uint8_t> image);

  /// Makes ready to go on behind what was restored, less its last `dropped` tokens. Errors: as rewind.
  void resume(std::int64_t dropped);

  /// Drops the last tokens; logits are those of the last that is left, which runs once more.
  /// Errors: dsv41::Error invalid_argument when none would be left, or a logit is NaN.
  void rewind(std::int64_t dropped);

  /// Generates up to max_tokens tokens behind the prompt and hands each to `sink` as soon as its step is over; ends after config.eos.
  ///
  /// Rules:  no token is sampled for which the model has no position. When it is recorded or to be saved, the last token is fed too. With
  ///         --compare the same is then decoded once more without drafts, from a fork of the session, and thrown away.
  /// Errors: those of Speculation::prepare, of Generator::step and of `sink`; a NaN in any row, as in prefill; those of check_same_text.
  void decode(const std::function<void(std::int32_t)>& sink);

  /// Writes the session to a file, whole or not at all. Errors: dsv41::Error io naming the option and the file.
  void save(const std::string& path) const;

  bool interrupted() const noexcept { return cancel_.requested(); }
  Figures figures() const;

 private:
  void sync(std::span<const std::int32_t> ids, std::span<const std::uint8_t> image, std::int64_t held);
  void take_logits();
  void record(const dsv41::runtime::Session& session);
  void count_rows();
  template <class Take>
  dsv41::runtime::Session decode_by(Decoding& decoding, dsv41::runtime::Session&& session, const Take& take);
  void decode_plainly(dsv41::runtime::Session&& session, std::span<const std::int32_t> ids);

  dsv41::runtime::Engine& engine_;
  const Options& options_;
  Speculation& speculation_;
  dsv41::runtime::Session session_;
  Recorder* recorder_;
  Progress& progress_;
  const dsv41::CancelToken& cancel_;
  bool feeds_last_;  // also the last sampled token, after which nothing is sampled
  Figures figures_;
};

}  // namespace generate
