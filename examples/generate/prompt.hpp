// SPDX-License-Identifier: MIT
//
// From the options to the ids that are fed: raw text, ids as given, or one user turn of a conversation.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/runtime/model_folder.hpp"
#include "dsv41/text/chat.hpp"
#include "options.hpp"

namespace generate {

struct Prompt {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> image;  ///< empty, or one mark for each id
};

/// The folder's tokenizer. Errors: dsv41::Error io when it has none; `option` is what needs it.
const dsv41::text::Tokenizer& tokenizer_of(const dsv41::runtime::ModelFolder& folder, std::string_view option);

/// Ids of a text as it stands.
///
/// Rules:  added tokens that the text spells out are parsed: it is the user's own text, for a base model, and this is
///         what the `tokenizers` package does. `source` (an option, or a file's path) begins every message.
/// Errors: dsv41::Error invalid_argument: an empty text, ill-formed UTF-8 with the byte's offset.
std::vector<std::int32_t> encode_text(const dsv41::text::Tokenizer& tokenizer, std::string_view source,
                                      std::string_view text);

/// Ids of a conversation up to the cue of the next assistant turn. Markers that a message quotes stay text. `source` begins every message.
std::vector<std::int32_t> encode_turns(const dsv41::text::Tokenizer& tokenizer, std::string_view source,
                                       const Options& options, std::span<const dsv41::text::Message> turns);

/// A message that has nothing but content.
dsv41::text::Message message(dsv41::text::Role role, std::string content);

/// The conversation so far: the system message, if one was given.
std::vector<dsv41::text::Message> opening(const Options& options);

/// The whole prompt that the options name. `demo_prompt` stands in when none of them does; empty: that is an error.
/// Errors: dsv41::Error io (prompt file), invalid_argument (no prompt or an empty one, ids outside the vocabulary, an
///         image span outside the prompt), and those of encode_text and encode_chat.
Prompt make_prompt(const dsv41::runtime::ModelFolder& folder, const Options& options, std::string_view demo_prompt);

}  // namespace generate
