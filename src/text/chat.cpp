// SPDX-License-Identifier: MIT
//
// Messages to prompt segments: the turns are put in the format's order (chat_turns.hpp), then written one by one.
#include "dsv41/text/chat.hpp"

#include <algorithm>
#include <optional>

#include "dsv41/core/error.hpp"
#include "files/sha256.hpp"
#include "text/chat_markers.hpp"
#include "text/chat_turns.hpp"
#include "text/python_json.hpp"

namespace dsv41::text {
namespace {

using files::sha256_hex;

constexpr std::string_view kPreambleDigest = "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d";
constexpr std::string_view kTrailerDigest = "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7";
constexpr std::string_view kFormatDigest = "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112";

[[noreturn]] void refuse(const std::string& message) {
  throw Error{Errc::invalid_argument, "chat: " + message};
}

// ---------------------------------------------------------------------------------------------------------- writing

class Writer {
 public:
  void control(std::string_view token) { segments_.push_back({std::string(token), true}); }

  void plain(std::string_view text) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().is_control) segments_.push_back({});
    segments_.back().text += text;
  }

  /// Text of the format itself: the markers in it are meant.
  void wire(std::string_view text) {
    while (!text.empty()) {
      std::size_t first = text.size();
      std::string_view found;
      for (const std::string_view token : {marker::kDsml, marker::kThink, marker::kThinkEnd}) {
        if (const std::size_t at = text.find(token); at < first) {
          first = at;
          found = token;
        }
      }
      plain(text.substr(0, first));
      if (!found.empty()) control(found);
      text.remove_prefix(std::min(text.size(), first + found.size()));
    }
  }

  std::vector<ChatSegment> take() { return std::move(segments_); }

 private:
  std::vector<ChatSegment> segments_;
};

JsonValue parse_json(std::string_view text, const std::string& what) {
  try {
    return parse_python_json(text);
  } catch (const Error& e) {
    refuse(what + " must be JSON (" + e.what() + ")");
  }
}

/// An object from arguments that may be quoted once more; anything else as one string parameter.
JsonValue argument_object(const ToolCall& call) {
  std::string text = call.arguments;
  for (int quoted = 0; quoted < 2; ++quoted) {
    std::optional<JsonValue> value;
    try {
      value = parse_python_json(text);
    } catch (const Error& e) {
      if (e.code() != Errc::format) throw;
      break;
    }
    if (value->kind == JsonValue::Kind::object) return *std::move(value);
    if (value->kind != JsonValue::Kind::string) break;
    text = value->text;
  }
  JsonValue whole, object;
  whole.kind = JsonValue::Kind::string;
  whole.text = call.arguments;
  object.kind = JsonValue::Kind::object;
  object.members.push_back({"arguments", std::move(whole)});
  return object;
}

void check_name(std::string_view name, std::string_view what) {
  if (name.find('"') != std::string_view::npos) {
    refuse(std::string(what) + " " + std::string(name) +
           " contains a quotation mark, for which the format has no escape");
  }
}

void write_call(Writer& out, const ToolCall& call) {
  check_name(call.name, "tool name");
  out.wire(marker::kInvokeOpen);
  out.plain(call.name);
  out.plain("\">\n");
  bool first = true;
  for (const auto& [key, value] : argument_object(call).members) {
    check_name(key, "tool argument");
    const bool is_string = value.kind == JsonValue::Kind::string;
    const std::string text = is_string ? value.text : dump_python_json(value);
    if (text.find(marker::kParameterClose) != std::string::npos) {
      refuse("argument " + key + " of tool " + call.name +
             " contains the closing parameter tag, for which the format has no escape");
    }
    if (!first) out.plain("\n");
    first = false;
    out.wire(marker::kParameterOpen);
    out.plain(key);
    out.plain(is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    out.plain(text);
    out.wire(marker::kParameterClose);
  }
  out.plain("\n");
  out.wire(marker::kInvokeClose);
}

void write_calls(Writer& out, const std::vector<ToolCall>& calls) {
  if (calls.empty()) return;
  out.wire(marker::kCallsOpen);
  out.plain(">\n");
  for (const ToolCall& call : calls) {
    write_call(out, call);
    out.plain("\n");
  }
  out.wire(marker::kCallsClose);
}

void write_blocks(Writer& out, const std::vector<ContentBlock>& blocks) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i != 0) out.plain("\n\n");
    const ContentBlock& block = blocks[i];
    switch (block.kind) {
      case ContentBlock::Kind::text: out.plain(block.text); break;
      case ContentBlock::Kind::tool_result: out.plain("<tool_result>" + block.text + "</tool_result>"); break;
      case ContentBlock::Kind::image: out.control(marker::kImage); break;
      case ContentBlock::Kind::other: out.plain("[Unsupported " + block.text + "]"); break;
    }
  }
}

std::string_view task_token(std::string_view task) {
  for (const marker::Task& known : marker::kTasks) {
    if (known.name == task) return known.token;
  }
  std::string names;
  for (const marker::Task& known : marker::kTasks) names += (names.empty() ? "" : ", ") + std::string(known.name);
  refuse("task " + std::string(task) + ", expected one of " + names);
}

/// One conversation being written.
class Conversation {
 public:
  Conversation(std::span<const Message> messages, const ChatOptions& options) : options_(options) {
    check(messages);
    turns_ = ordered_turns(messages);
    last_user_ = last_user_turn(turns_);
    const bool has_tools = std::any_of(turns_.begin(), turns_.end(), [](const Message& m) { return !m.tools.empty(); });
    drop_ = options.drop_reasoning && !has_tools;
    cue_ = options.add_generation_prompt && !options.continue_final_message;
  }

  std::vector<ChatSegment> write() {
    if (options_.add_bos) out_.control(marker::kBos);
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      write_turn(i);
      write_transition(i);
    }
    return out_.take();
  }

 private:
  void check(std::span<const Message> messages) const {
    if (messages.empty()) refuse("there must be at least one message");
    if (options_.effort < 1 || options_.effort > 100) {
      refuse("effort must be 1 to 100, got " + std::to_string(options_.effort));
    }
    if (options_.continue_final_message && messages.back().role != Role::assistant) {
      refuse("continue_final_message needs a last message of the assistant");
    }
    for (const Message& message : messages) {
      if (!message.task.empty()) task_token(message.task);
    }
  }

  bool is_last(std::size_t i) const { return i + 1 == turns_.size(); }

  void write_turn(std::size_t i) {
    const Message& turn = turns_[i];
    const bool is_system = turn.role == Role::system;
    if (is_system || (i == 0 && options_.thinking)) out_.control(marker::kSystem);
    if (i == 0 && options_.thinking) {
      out_.plain("Reasoning Effort: " + std::to_string(options_.effort) +
                 " (range 1-100, the higher the value, the more thorough the reasoning)\n\n");
    }
    switch (turn.role) {
      case Role::system: return write_system(turn);
      case Role::user: out_.control(marker::kUser); return write_blocks(out_, turn.blocks);
      case Role::latest_reminder: out_.control(marker::kReminder); return out_.plain(turn.content);
      case Role::assistant: return write_assistant(i);
      case Role::tool: return;  // folded by ordered_turns
    }
  }

  void write_system(const Message& turn) {
    out_.plain(turn.content);
    if (!turn.tools.empty()) {
      out_.plain("\n\n");
      out_.wire(text(options_.texts.tools_preamble, kPreambleDigest, "tools_preamble"));
      for (std::size_t i = 0; i < turn.tools.size(); ++i) {
        if (i != 0) out_.plain("\n");
        out_.plain(dump_python_json(parse_json(turn.tools[i], "tool schema " + std::to_string(i))));
      }
      out_.wire(text(options_.texts.tools_trailer, kTrailerDigest, "tools_trailer"));
    }
    if (turn.response_format.empty()) return;
    const JsonValue schema = parse_json(turn.response_format, "response_format");
    if (!is_truthy(schema)) return;
    out_.plain("\n\n");
    out_.wire(text(options_.texts.response_format_prefix, kFormatDigest, "response_format_prefix"));
    out_.plain(dump_python_json(schema));
  }

  const std::string& text(const std::string& given, std::string_view digest, std::string_view name) const {
    if (!options_.texts.any_text && sha256_hex(given) != digest) {
      refuse("ChatTexts::" + std::string(name) + " must be the released text with SHA-256 " + std::string(digest) +
             ", got " + std::to_string(given.size()) + " bytes with " + sha256_hex(given));
    }
    return given;
  }

  void write_assistant(std::size_t i) {
    const Message& turn = turns_[i];
    const bool open = is_last(i) && options_.continue_final_message;
    const bool task_output = i > 0 && !turns_[i - 1].task.empty();
    const bool keeps_reasoning = !drop_ || static_cast<std::ptrdiff_t>(i) > last_user_;
    if (options_.thinking && !task_output && keeps_reasoning) {
      out_.plain(turn.reasoning);
      const bool still_thinking = open && !turn.reasoning.empty() && turn.content.empty() && turn.tool_calls.empty();
      if (!still_thinking) out_.control(marker::kThinkEnd);
    }
    out_.plain(turn.content);
    write_calls(out_, turn.tool_calls);
    if (!turn.open_end && !open) out_.control(marker::kEos);
  }

  /// What follows a turn before the next one or the reply.
  void write_transition(std::size_t i) {
    if (is_last(i) ? !cue_ : turns_[i + 1].role != Role::assistant && turns_[i + 1].role != Role::latest_reminder)
      return;
    const Message& turn = turns_[i];
    if (!turn.task.empty()) {
      if (turn.task == "action") {
        out_.control(marker::kAssistant);
        out_.control(options_.thinking ? marker::kThink : marker::kThinkEnd);
      }
      out_.control(task_token(turn.task));
    } else if (turn.role == Role::user || (turn.role == Role::system && i > 0)) {
      const bool thinks = options_.thinking && (!drop_ || static_cast<std::ptrdiff_t>(i) >= last_user_);
      out_.control(marker::kAssistant);
      out_.control(thinks ? marker::kThink : marker::kThinkEnd);
    }
  }

  const ChatOptions& options_;
  std::vector<Message> turns_;
  std::ptrdiff_t last_user_ = -1;
  bool drop_ = false, cue_ = false;
  Writer out_;
};

}  // namespace

Role role_of(std::string_view name) {
  if (name == "system") return Role::system;
  if (name == "user") return Role::user;
  if (name == "assistant") return Role::assistant;
  if (name == "tool") return Role::tool;
  if (name == "latest_reminder") return Role::latest_reminder;
  throw Error{Errc::unsupported,
              "chat: role " + std::string(name) + ", expected system, user, assistant, tool or latest_reminder"};
}

int effort_of(std::string_view name) {
  if (name == "low") return 50;
  if (name == "high") return 75;
  if (name == "max") return 100;
  refuse("effort must be 1 to 100 or low, high or max, got " + std::string(name));
}

std::vector<ChatSegment> chat_segments(std::span<const Message> messages, const ChatOptions& options) {
  return Conversation(messages, options).write();
}

std::string render_chat(std::span<const Message> messages, const ChatOptions& options) {
  std::string text;
  for (const ChatSegment& segment : chat_segments(messages, options)) text += segment.text;
  return text;
}

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, std::span<const Message> messages,
                                      const ChatOptions& options) {
  if (!options.quoted_markers_as_text) return tokenizer.encode(render_chat(messages, options));
  std::vector<std::int32_t> ids;
  for (const ChatSegment& segment : chat_segments(messages, options)) {
    if (!segment.is_control) {
      const auto part = tokenizer.encode(segment.text, false);
      ids.insert(ids.end(), part.begin(), part.end());
      continue;
    }
    const auto id = tokenizer.id_of(segment.text);
    if (!id || !tokenizer.is_added(*id)) {
      throw Error{Errc::unsupported, "chat: the tokenizer has no added token " + segment.text};
    }
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace dsv41::text
