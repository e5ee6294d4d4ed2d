// SPDX-License-Identifier: MIT
//
// One sequence being fed and continued: the session, its sampler, its clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/runtime/engine.hpp"
#include "options.hpp"
#include "recorder.hpp"
#include "terminal.hpp"

namespace generate {

/// What a run did. Seconds; sums over the turns of a conversation.
struct Figures {
  std::int64_t prompt_tokens = 0;            ///< fed in prefill
  std::int64_t generated_tokens = 0;         ///< sampled, the end-of-sequence token included
  std::int64_t replies = 0;                  ///< continuations with at least one token
  std::int64_t positions = 0;                ///< tokens in the session at the end
  double load_s = 0;                         ///< opening the model folder and the engine
  double prefill_s = 0;                      ///< feeding prompts
  double decode_s = 0;                       ///< from the first sampled token of a turn to its last
  double first_token_s = 0;                  ///< from the start of the (last) prefill to its first sampled token
  std::vector<std::int64_t> rows_per_layer;  ///< of the prompts: rows whose attention and experts a layer ran
  std::string numeric_class;                 ///< of the engine
  std::string prefill;                       ///< mode in force
  std::string prefill_note;                  ///< why it is not the one asked for; empty: it is
  std::string_view stop = "prompt";  ///< why it ended: eos, length, context (no positions left), or prompt: none asked
};

/// Whether what is generated leaves as text: the prompt was no list of ids and the folder has a tokenizer.
bool writes_text(const dsv41::runtime::ModelFolder& folder, const Options& options);

/// An engine that is as large as its sequence needs, and the sequence.
class Sequence {
 public:
  /// `recorder` may be null. The folder must outlive the sequence.
  Sequence(const dsv41::runtime::ModelFolder& folder, const Options& options, Recorder* recorder, Progress& progress);

  /// Feeds a prompt that replaces what is there; a common beginning of both stays fed.
  ///
  /// Shapes: ids [n], at least one; image empty or [n].
  /// Rules:  leaves room for `new_tokens` more, as far as the model's positions go.
  /// Errors: dsv41::Error invalid_argument when the model has fewer positions than the prompt has tokens, or a logit
  ///         is NaN.
  void prefill(std::span<const std::int32_t> ids, std::span<const std::uint8_t> image, std::int64_t new_tokens);

  /// Samples up to `new_tokens` tokens behind the prompt and hands each to `sink` at once; ends after config.eos.
  ///
  /// Rules:  the sampler's position of a token is the position it takes. No token is sampled for which the model has no
  ///         position. Where text is written, ids that the tokenizer does not have (a config's vocabulary may be the
  ///         larger one) are out of the choice. With a recorder the last token is fed too.
  /// Errors: those of Sampler::sample and of `sink`; a NaN in any row, as in prefill.
  void decode(std::int64_t new_tokens, const std::function<void(std::int32_t)>& sink);

  const Figures& figures() const noexcept { return figures_; }

 private:
  void reserve(std::int64_t positions);
  void feed(std::span<const std::int32_t> ids, std::span<const std::uint8_t> image,
            dsv41::runtime::StepListener* listener = nullptr);

  const dsv41::runtime::ModelFolder& folder_;
  dsv41::runtime::EngineOptions engine_options_;
  dsv41::runtime::Sampler sampler_;
  std::optional<dsv41::runtime::Engine> engine_;
  std::optional<dsv41::runtime::Session> session_;
  std::vector<std::int32_t> fed_;
  Recorder* recorder_;
  Progress& progress_;
  Figures figures_;
};

}  // namespace generate
