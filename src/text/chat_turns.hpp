// SPDX-License-Identifier: MIT
//
// The order of turns in a prompt; the writer in chat.cpp takes it from there.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dsv41/text/chat.hpp"

namespace dsv41::text {

/// Tool messages folded into user turns as blocks, consecutive user turns merged, results in the order of the calls
/// they answer. Every user turn has blocks afterwards, and no tool turn is left. A merged turn keeps the first one's
/// task.
std::vector<Message> ordered_turns(std::span<const Message> messages);

/// Index of the last turn that counts as the user's (a system turn after the first does), or -1.
std::ptrdiff_t last_user_turn(const std::vector<Message>& turns);

}  // namespace dsv41::text
