// SPDX-License-Identifier: MIT
//
// Reply text to message. The form is strict: a reply that the model did not write cleanly is an error, never a guess.
#include <algorithm>

#include "dsv41/core/error.hpp"
#include "dsv41/text/chat.hpp"
#include "text/chat_markers.hpp"
#include "text/python_json.hpp"

namespace dsv41::text {
namespace {

class ReplyParser {
 public:
  explicit ReplyParser(std::string_view text) : text_(text), whole_size_(text.size()) {}

  Reply parse(bool thinking) {
    Reply reply;
    cut_end(reply);
    if (thinking) {
      const std::size_t end = text_.find(marker::kThinkEnd);
      if (end == std::string_view::npos && reply.finished) fail("the reasoning has no end");
      reply.reasoning = text_.substr(0, end);
      check_no_markers(reply.reasoning, "reasoning");
      text_.remove_prefix(end == std::string_view::npos ? text_.size() : end + marker::kThinkEnd.size());
    }
    const std::size_t calls = text_.find(marker::kCallsOpen);
    reply.content = text_.substr(0, calls);
    check_no_markers(reply.content, "content");
    if (calls != std::string_view::npos) {
      text_.remove_prefix(calls + marker::kCallsOpen.size());
      read_calls(reply);
    }
    return reply;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error{Errc::format,
                "reply: " + what + " (near byte " + std::to_string(whole_size_ - cut_ - text_.size()) + ")"};
  }

  void cut_end(Reply& reply) {
    const std::size_t end = text_.find(marker::kEos);
    if (end == std::string_view::npos) return;
    if (end + marker::kEos.size() != text_.size()) fail("text after the end marker");
    text_ = text_.substr(0, end);
    cut_ = marker::kEos.size();
    reply.finished = true;
  }

  void check_no_markers(std::string_view part, const std::string& where) const {
    for (const std::string_view token : {marker::kBos, marker::kThink, marker::kThinkEnd, marker::kDsml}) {
      if (part.find(token) != std::string_view::npos) fail(std::string(token) + " inside the " + where);
    }
  }

  bool accept(std::string_view word) noexcept {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  void expect(std::string_view word, const std::string& after) {
    if (!accept(word)) fail("expected '" + std::string(word) + "' after " + after);
  }

  std::string until(std::string_view word, const std::string& what) {
    const std::size_t end = text_.find(word);
    if (end == std::string_view::npos) fail("unfinished " + what);
    std::string part(text_.substr(0, end));
    text_.remove_prefix(end + word.size());
    return part;
  }

  void read_calls(Reply& reply) {
    expect(">\n", "the calls tag");
    while (accept(marker::kInvokeOpen)) {
      reply.tool_calls.push_back(read_call());
      expect("\n", "a call");
    }
    expect(marker::kCallsClose, "the calls");
    if (reply.tool_calls.empty()) fail("a calls block without a call");
    if (!text_.empty()) fail("text after the calls");
  }

  ToolCall read_call() {
    ToolCall call;
    call.name = until("\"", "tool name");
    expect(">\n", "a tool name");
    JsonValue arguments;
    arguments.kind = JsonValue::Kind::object;
    while (accept(marker::kParameterOpen)) {
      std::string key = until("\"", "parameter name");
      const bool is_string = accept(" string=\"true\">");
      if (!is_string) expect(" string=\"false\">", "parameter name " + key);
      const bool twice = std::any_of(arguments.members.begin(), arguments.members.end(),
                                     [&key](const auto& member) { return member.name == key; });
      if (twice) fail("parameter " + key + " comes twice");
      const std::string text = until(marker::kParameterClose, "parameter " + key);
      arguments.members.push_back({std::move(key), is_string ? string_value(text) : json_value(text)});
      expect("\n", "a parameter");
    }
    if (arguments.members.empty()) accept("\n");  // a call without parameters has an empty line for them
    expect(marker::kInvokeClose, "the parameters");
    call.arguments = dump_python_json(arguments);
    return call;
  }

  static JsonValue string_value(std::string text) {
    JsonValue value;
    value.kind = JsonValue::Kind::string;
    value.text = std::move(text);
    return value;
  }

  JsonValue json_value(const std::string& text) const {
    try {
      return parse_python_json(text);
    } catch (const Error& e) {
      fail(std::string("a parameter is not ") + e.what());
    }
  }

  std::string_view text_;
  std::size_t whole_size_, cut_ = 0;
};

}  // namespace

Reply parse_reply(std::string_view text, bool thinking) {
  return ReplyParser(text).parse(thinking);
}

}  // namespace dsv41::text
