// SPDX-License-Identifier: MIT
//
// --chat without a prompt: turns from standard input, a line each, until it ends.
#pragma once

#include "dsv41/runtime/model_folder.hpp"
#include "options.hpp"
#include "sequence.hpp"
#include "terminal.hpp"

namespace generate {

/// Answers one line after the other on standard output, each answer ended by a newline; empty lines are skipped.
/// Every turn feeds only what the conversation's new form adds to what is fed. Ends early when the sequence is interrupted.
///
/// Errors: dsv41::Error invalid_argument (a line of ill-formed UTF-8, a conversation longer than the model), and those
///         of read_line, Sequence and encode_chat.
void converse(const dsv41::runtime::ModelFolder& folder, const Options& options, Sequence& sequence,
              Progress& progress);

}  // namespace generate
