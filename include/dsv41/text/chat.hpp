// SPDX-License-Identifier: MIT
//
// The V4.1 conversation format: messages to prompt, reply text to message. Sits in front of the tokenizer and behind
// the detokenizer; knows nothing of HTTP or sampling.
//
// Quoted markers. The released script joins strings, so a marker that a user quotes becomes a control token when the
// prompt is tokenised. Here a prompt is a list of segments: control markers, which become their ids, and ordinary text,
// which never does. Text equals the released script's in both cases; ids differ only where content quotes a marker.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/text/tokenizer.hpp"

namespace dsv41::text {

enum class Role { system, user, assistant, tool, latest_reminder };

/// Errors: unsupported for other names ("developer" is a serving extension, not part of the release).
Role role_of(std::string_view name);

/// A part of a user turn.
struct ContentBlock {
  enum class Kind { text, tool_result, image, other };
  Kind kind = Kind::text;
  std::string text;          ///< of text and tool_result; of other: the kind's name, written as [Unsupported NAME]
  std::string tool_call_id;  ///< of tool_result: which call it answers
};

struct ToolCall {
  std::string id;
  std::string name;  ///< may be namespace::tool
  /// JSON text, normally an object; may itself be quoted once; anything else becomes one parameter.
  std::string arguments;
};

struct Message {
  Role role = Role::user;
  std::string content;
  std::vector<ContentBlock> blocks;  ///< of a user turn: replaces content unless empty
  std::string reasoning;             ///< of an assistant turn
  std::vector<ToolCall> tool_calls;  ///< of an assistant turn
  std::string tool_call_id;          ///< of a tool result
  std::vector<std::string> tools;    ///< JSON text of function schemas; rendered by system turns
  std::string response_format;       ///< JSON text of a schema, or empty; rendered by system turns
  std::string task;                  ///< action, query, authority, domain, title, read_url, or empty
  bool open_end = false;             ///< an assistant turn without its end-of-sentence marker
};

/// Fixed English texts of the format. They belong to the model's publisher and are not part of this library: the caller
/// brings them and their digests are checked. Needed only by conversations with tools or a response format.
struct ChatTexts {
  std::string tools_preamble;          ///< everything before the first schema
  std::string tools_trailer;           ///< everything after the last schema
  std::string response_format_prefix;  ///< everything before the schema
  bool any_text = false;               ///< skip the digests, for a model that was trained on other words
};

/// Reasoning effort of a name in the released script: low 50, high 75, max 100. Serving software differs; the number is
/// the format. Errors: invalid_argument.
int effort_of(std::string_view name);

inline constexpr int kDefaultEffort = 75;

struct ChatOptions {
  bool thinking = true;
  int effort = kDefaultEffort;  ///< 1 to 100; thinking mode only
  bool drop_reasoning = true;   ///< leave out reasoning before the last user turn, unless a message has tools
  bool add_bos = true;
  bool add_generation_prompt = true;    ///< the cue of the next assistant (or task) turn
  bool continue_final_message = false;  ///< leave the last assistant turn open; implies no generation prompt
  bool quoted_markers_as_text = true;   ///< false: tokenise as the released script would, markers in content included
  ChatTexts texts;
};

/// A run of prompt text.
struct ChatSegment {
  std::string text;
  bool is_control = false;  ///< exactly one added token of the vocabulary
};

/// The prompt in order; two ordinary segments never touch, because splitting text would change its ids.
///
/// Rules:  tool messages become tool_result blocks of a user turn, in the order of the calls they answer; consecutive
///         user turns merge unless the earlier has a task; a later system turn counts as a user turn for reasoning and
///         cue.
/// Errors: invalid_argument (no messages, effort, task, continue without a last assistant turn, JSON, texts with a
///         wrong digest, tool names or arguments that would not parse back).
/// Source: the released encoding/encoding.py; deviations: it drops messages of unknown roles before the last user turn
///         where role_of refuses them; it accepts arguments that contain a closing parameter tag.
std::vector<ChatSegment> chat_segments(std::span<const Message> messages, const ChatOptions& options);

/// The same as one string. Errors: as chat_segments.
std::string render_chat(std::span<const Message> messages, const ChatOptions& options);

/// The same as ids. An image block is one id, which the caller widens to the image's span.
/// Errors: as chat_segments; unsupported when the vocabulary lacks a control marker; those of Tokenizer::encode.
std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const Message> messages,
                                      const ChatOptions& options);

/// What a reply's text says.
struct Reply {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;  ///< ids empty; arguments a JSON object
  bool finished = false;             ///< the end-of-sentence marker was there
};

/// Reads the text generated after a prompt's cue, decoded with its special tokens.
///
/// Rules:  in thinking mode reasoning runs to the closing marker (all of an unfinished reply without one); content runs
///         to the end or to the calls block. A text without end marker is an unfinished reply.
/// Errors: format: a marker out of place, text after the end or after the calls, a calls block that is cut off or not
///         of the form that chat_segments writes, a parameter named twice, a parameter that is not JSON though it says
///         so.
Reply parse_reply(std::string_view text, bool thinking);

}  // namespace dsv41::text
