// SPDX-License-Identifier: MIT
//
// Which turns a conversation has in the V4.1 format, before anything is written.
#include "text/chat_turns.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_map>

namespace dsv41::text {
namespace {

/// A result joins the user turn before it, also one with a task, which other user turns do not join.
void append_result(std::vector<Message>& turns, const Message& result) {
  if (turns.empty() || turns.back().role != Role::user) turns.emplace_back();
  turns.back().blocks.push_back({ContentBlock::Kind::tool_result, result.content, result.tool_call_id});
}

/// Tool messages folded into user turns and consecutive user turns merged. Every user turn has blocks afterwards.
std::vector<Message> merged_turns(std::span<const Message> messages) {
  std::vector<Message> turns;
  for (const Message& message : messages) {
    if (message.role == Role::tool) {
      append_result(turns, message);
      continue;
    }
    if (message.role != Role::user) {
      turns.push_back(message);
      continue;
    }
    std::vector<ContentBlock> blocks = message.blocks;
    if (blocks.empty()) blocks.push_back({ContentBlock::Kind::text, message.content, {}});
    if (!turns.empty() && turns.back().role == Role::user && turns.back().task.empty()) {
      std::move(blocks.begin(), blocks.end(), std::back_inserter(turns.back().blocks));
    } else {
      turns.push_back(message);
      turns.back().blocks = std::move(blocks);
    }
  }
  return turns;
}

/// Puts the results of each user turn in the order of the last calls before it; an unknown id sorts like the first
/// call.
void sort_results(std::vector<Message>& turns) {
  std::unordered_map<std::string, std::size_t> order;
  for (Message& turn : turns) {
    if (turn.role == Role::assistant && !turn.tool_calls.empty()) {
      order.clear();
      for (std::size_t i = 0; i < turn.tool_calls.size(); ++i) {
        if (!turn.tool_calls[i].id.empty()) order[turn.tool_calls[i].id] = i;
      }
    }
    if (turn.role != Role::user || order.empty()) continue;
    const auto is_result = [](const ContentBlock& b) { return b.kind == ContentBlock::Kind::tool_result; };
    std::vector<ContentBlock> results;
    std::copy_if(turn.blocks.begin(), turn.blocks.end(), std::back_inserter(results), is_result);
    const auto place = [&order](const ContentBlock& b) {
      const auto found = order.find(b.tool_call_id);
      return found == order.end() ? std::size_t{0} : found->second;
    };
    std::stable_sort(results.begin(), results.end(),
                     [&](const ContentBlock& a, const ContentBlock& b) { return place(a) < place(b); });
    auto next = results.begin();
    for (ContentBlock& block : turn.blocks) {
      if (is_result(block)) block = std::move(*next++);
    }
  }
}

}  // namespace

std::vector<Message> ordered_turns(std::span<const Message> messages) {
  std::vector<Message> turns = merged_turns(messages);
  sort_results(turns);
  return turns;
}

std::ptrdiff_t last_user_turn(const std::vector<Message>& turns) {
  for (auto i = static_cast<std::ptrdiff_t>(turns.size()) - 1; i >= 0; --i) {
    const Role role = turns[static_cast<std::size_t>(i)].role;
    if (role == Role::user || (role == Role::system && i > 0)) return i;
  }
  return -1;
}

}  // namespace dsv41::text
