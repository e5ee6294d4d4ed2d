// SPDX-License-Identifier: MIT
//
// Prompts, with the option or file that a message is about.
#include "prompt.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "dsv41/core/error.hpp"
#include "files.hpp"
#include "numbers.hpp"

namespace generate {

using dsv41::runtime::ModelFolder;
using dsv41::text::Message;
using dsv41::text::Role;
using dsv41::text::Tokenizer;

namespace {

struct Source {
  std::string name;
  std::string text;
};

/// The text the options give, if any.
std::optional<Source> given_text(const Options& options, std::string_view demo_prompt) {
  if (options.prompt) return Source{"--prompt", *options.prompt};
  if (options.prompt_file) {
    return Source{"--prompt-file: " + *options.prompt_file, read_file("--prompt-file", *options.prompt_file)};
  }
  if (!demo_prompt.empty()) return Source{"demo prompt", std::string(demo_prompt)};
  return std::nullopt;
}

void check_ids(const std::vector<std::int32_t>& ids, const dsv41::ModelConfig& config) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= config.vocab) {
      refuse("--tokens: id " + std::to_string(ids[i]) + " at index " + std::to_string(i) + ", expected 0 to " +
             std::to_string(config.vocab - 1) + " (vocab_size)");
    }
  }
}

std::vector<std::uint8_t> image_marks(const Options& options, std::size_t tokens) {
  if (!options.image_span) return {};
  const auto [first, count] = *options.image_span;
  if (first + count > static_cast<std::int64_t>(tokens)) {
    refuse("--image-span: positions " + std::to_string(first) + " to " + std::to_string(first + count - 1) +
           ", expected them inside the prompt of " + std::to_string(tokens) + " tokens");
  }
  std::vector<std::uint8_t> marks(tokens, 0);
  std::fill_n(marks.begin() + first, count, std::uint8_t{1});
  return marks;
}

}  // namespace

const Tokenizer& tokenizer_of(const ModelFolder& folder, std::string_view option) {
  if (folder.tokenizer) return *folder.tokenizer;
  throw dsv41::Error(dsv41::Errc::io, std::string(option) + ": " +
                                          (folder.checkpoint.folder() / "tokenizer.json").string() +
                                          ": missing, and text needs it; ids go behind --tokens");
}

std::vector<std::int32_t> encode_text(const Tokenizer& tokenizer, std::string_view source, std::string_view text) {
  if (text.empty()) refuse(std::string(source) + ": the text is empty");
  try {
    return tokenizer.encode(text);
  } catch (const dsv41::Error& e) {
    throw dsv41::Error(e.code(), std::string(source) + ": " + e.what());
  }
}

std::vector<std::int32_t> encode_turns(const Tokenizer& tokenizer, std::string_view source, const Options& options,
                                       std::span<const Message> turns) {
  dsv41::text::ChatOptions chat;
  chat.thinking = options.thinking;
  chat.effort = options.effort;
  try {
    return dsv41::text::encode_chat(tokenizer, turns, chat);
  } catch (const dsv41::Error& e) {
    throw dsv41::Error(e.code(), std::string(source) + ": " + e.what());
  }
}

Message message(Role role, std::string content) {
  Message out;
  out.role = role;
  out.content = std::move(content);
  return out;
}

std::vector<Message> opening(const Options& options) {
  std::vector<Message> turns;
  if (options.system) turns.push_back(message(Role::system, *options.system));
  return turns;
}

Prompt make_prompt(const ModelFolder& folder, const Options& options, std::string_view demo_prompt) {
  const dsv41::ModelConfig& config = folder.checkpoint.config();
  Prompt prompt;
  if (options.bos) prompt.ids.push_back(config.bos);
  if (options.tokens) {
    check_ids(*options.tokens, config);
    prompt.ids.insert(prompt.ids.end(), options.tokens->begin(), options.tokens->end());
  } else if (const auto source = given_text(options, options.bos ? "" : demo_prompt)) {
    const Tokenizer& tokenizer = tokenizer_of(folder, source->name);
    std::vector<std::int32_t> ids =
        encode_text(tokenizer, source->name, source->text);  // checks the text for --chat too
    if (options.chat) {
      std::vector<Message> turns = opening(options);
      turns.push_back(message(Role::user, source->text));
      ids = encode_turns(tokenizer, "--chat", options, turns);
    }
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
  }
  if (prompt.ids.empty()) refuse("prompt: none given; expected --prompt, --prompt-file, --tokens, --chat or --bos");
  prompt.image = image_marks(options, prompt.ids.size());
  return prompt;
}

}  // namespace generate
