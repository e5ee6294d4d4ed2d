// SPDX-License-Identifier: MIT
//
// Reads conversations of the test data: OpenAI-like JSON messages and the encoder's options.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dsv41/text/chat.hpp"

namespace dsv41::text::test {

inline ContentBlock block_from(const nlohmann::json& j) {
  const auto type = j.at("type").get<std::string>();
  if (type == "text") return {ContentBlock::Kind::text, j.at("text").get<std::string>(), {}};
  if (type == "image") return {ContentBlock::Kind::image, {}, {}};
  if (type == "tool_result") return {ContentBlock::Kind::tool_result, j.at("content"), j.value("tool_use_id", "")};
  return {ContentBlock::Kind::other, type, {}};
}

inline Message message_from(const nlohmann::json& j) {
  Message m;
  m.role = role_of(j.at("role").get<std::string>());
  m.content = j.value("content", "");
  for (const auto& block : j.value("content_blocks", nlohmann::json::array())) m.blocks.push_back(block_from(block));
  m.reasoning = j.value("reasoning_content", "");
  for (const auto& call : j.value("tool_calls", nlohmann::json::array())) {
    const auto& function = call.at("function");
    m.tool_calls.push_back({call.value("id", ""), function.at("name"), function.at("arguments")});
  }
  m.tool_call_id = j.value("tool_call_id", "");
  for (const auto& tool : j.value("tools_text", nlohmann::json::array())) m.tools.push_back(tool);
  m.response_format = j.value("response_format_text", "");
  m.task = j.value("task", "");
  m.open_end = j.value("wo_eos", false);
  return m;
}

inline std::vector<Message> messages_from(const nlohmann::json& list) {
  std::vector<Message> messages;
  for (const auto& j : list) messages.push_back(message_from(j));
  return messages;
}

inline ChatOptions options_from(const nlohmann::json& j) {
  ChatOptions o;
  o.thinking = j.at("thinking");
  o.drop_reasoning = j.at("drop");
  o.add_bos = j.at("bos");
  o.effort = j.at("effort");
  o.add_generation_prompt = j.at("cue");
  o.continue_final_message = j.at("cont");
  return o;
}

}  // namespace dsv41::text::test
