// SPDX-License-Identifier: MIT
//
// Files that generate reads and writes itself: prompts whole, results whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace generate {

/// A file's bytes, also a pipe's (--prompt-file <(command)), to their end. Errors: dsv41::Error io naming `option` and
/// the path.
std::string read_file(std::string_view option, const std::string& path);

/// Refuses a result file that could not be written later, before the work starts. Nothing is created.
/// Errors: dsv41::Error io naming `option` and the path: no such folder, not writable, or not a regular file.
void require_writable(std::string_view option, const std::string& path);

/// runtime::write_file_atomically: the file is whole or untouched. Errors: dsv41::Error io naming `option` and the
/// path.
void write_file(std::string_view option, const std::string& path, std::string_view contents);

/// A JSON string literal. Bytes outside ASCII pass through.
std::string json_string(std::string_view text);

}  // namespace generate
