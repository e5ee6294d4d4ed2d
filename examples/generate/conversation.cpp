// SPDX-License-Identifier: MIT
//
// The conversation as messages; what the model said goes back in as the format wants it.
#include "conversation.hpp"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "prompt.hpp"

namespace generate {

using dsv41::text::Message;
using dsv41::text::Role;

namespace {

/// A reply as a message. One that does not follow the format is kept as it is: as text it can do no harm.
Message message_of(const std::string& text, const std::string& visible, bool thinking) {
  try {
    dsv41::text::Reply reply = dsv41::text::parse_reply(text, thinking);
    Message out = message(Role::assistant, std::move(reply.content));
    out.reasoning = std::move(reply.reasoning);
    out.tool_calls = std::move(reply.tool_calls);
    return out;
  } catch (const dsv41::Error&) {
    return message(Role::assistant, visible);
  }
}

}  // namespace

void converse(const dsv41::runtime::ModelFolder& folder, const Options& options, Sequence& sequence,
              Progress& progress) {
  const dsv41::text::Tokenizer& tokenizer = tokenizer_of(folder, "--chat");
  std::vector<Message> turns = opening(options);
  for (std::int64_t number = 1;; ++number) {
    progress.show("> ");
    const std::optional<std::string> line = read_line();
    progress.clear();
    if (!line || sequence.interrupted()) break;
    if (line->empty()) continue;
    encode_text(tokenizer, "standard input: line " + std::to_string(number), *line);
    turns.push_back(message(Role::user, *line));
    sequence.prefill(encode_turns(tokenizer, "--chat", options, turns), {});

    dsv41::text::StreamingDetokenizer stream(tokenizer, true);
    std::vector<std::int32_t> ids;
    std::string visible;
    const auto say = [&](const std::string& piece) {
      visible += piece;
      write_out(piece);
    };
    sequence.decode([&](std::int32_t id) {
      ids.push_back(id);
      say(stream.push(id));
    });
    say(stream.finish());
    write_out("\n");
    if (sequence.interrupted()) break;
    turns.push_back(message_of(tokenizer.decode(ids, false), visible, options.thinking));
  }
}

}  // namespace generate
