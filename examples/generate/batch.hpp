// SPDX-License-Identifier: MIT
//
// --batch: many prompts from a file, decoded together. Results are lines of JSON on standard output as they come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/generator.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "options.hpp"
#include "speculation.hpp"
#include "terminal.hpp"

namespace generate {

/// One line of the file.
struct BatchRequest {
  std::string id;  ///< as JSON: a string or an integer
  std::vector<std::int32_t> prompt;
  bool text = false;  ///< whether its tokens leave as text
  dsv41::runtime::RequestOptions options;
};

/// Reads options.batch: an object a line, {"prompt": TEXT} or {"tokens": [IDS]}, and as wished "id", "chat": true (the prompt is a user's
/// message), "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed". What a line leaves out is as on the command line; its id is
/// the number of lines before it.
///
/// Errors: dsv41::Error io (the file, no tokenizer), invalid_argument naming file, line and key: no request, no object, a NUL byte, a byte
///         order mark, a number that no double holds, a key that is unknown or given twice, a value that the option of that name refuses,
///         an id that another line has, no prompt or two, an empty one, ids outside the vocabulary, a prompt that leaves no position for a
///         token.
std::vector<BatchRequest> read_batch(const dsv41::runtime::ModelFolder& folder, const Options& options);

/// Ids to choose from, one number for all: those that the tokenizer has as soon as one request is text.
std::int64_t choices(const dsv41::runtime::ModelFolder& folder, const std::vector<BatchRequest>& requests);

/// What a batch did. Seconds.
struct BatchFigures {
  std::int64_t requests = 0, failed = 0;
  std::int64_t prompt_tokens = 0;     ///< of requests that joined
  std::int64_t generated_tokens = 0;  ///< end-of-sequence tokens included
  double load_s = 0;                  ///< opening the model folder and the engine
  double batch_s = 0;                 ///< from the first request's start to the last one's end
  DecodeClock clock;                  ///< of its steps without prompts
  std::string numeric_class;
  std::optional<Drafting> drafting;  ///< where drafts were asked for
  dsv41::runtime::WeightTier weights;
};

/// Decodes them, at most options.parallel at a time, the next one joining where one has ended.
///
/// Output: {"id": ID, "text": PIECE} for each step that gave a request text, and at its end {"id": ID, "finish": HOW, "count": TOKENS,
///         "text": WHOLE}; "tokens": [IDS] instead of text where ids were given. HOW: stop, length, context, failed (with "error"), or
///         interrupted: of all that had not ended when the cancel token was set.
/// Rules:  a request's tokens are those of a run of its own, but for schedules that weigh requests against each other (DraftPolicy). With
///         --compare all are then decoded once more without drafts.
/// Errors: those of Speculation::prepare, of Generator, of write_out and of check_same_text.
BatchFigures run_batch(dsv41::runtime::Engine& engine, const Options& options, Speculation& speculation,
                       const dsv41::runtime::ModelFolder& folder, const std::vector<BatchRequest>& requests,
                       Progress& progress, const dsv41::CancelToken& cancel);

}  // namespace generate
