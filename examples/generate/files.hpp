// SPDX-License-Identifier: MIT
//
// Files that generate reads and writes itself: prompts whole, results whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "dsv41/core/error.hpp"
#include "dsv41/runtime/state_io.hpp"

namespace generate {

/// Of a file that is read.
inline constexpr std::size_t kMostBytes = std::size_t{64} << 20;

/// A file's bytes, also a pipe's (--prompt-file <(command)), to their end. Errors: dsv41::Error io naming `option` and
/// the path: cannot be read, or more than kMostBytes.
std::string read_file(std::string_view option, const std::string& path);

/// Calls `take` with a function that reads the file, or pipe, in order. It must read all of it.
/// Errors: dsv41::Error naming `option` and the path: io (cannot be read), format (bytes are left), and those of `take`.
void read_pieces(std::string_view option, const std::string& path,
                 dsv41::runtime::FunctionRef<void(const dsv41::runtime::ReadBytes&)> take);

/// Refuses a result file that could not be written later, before the work starts. Nothing is left behind.
/// Errors: dsv41::Error io naming `option` and the path: no such folder, not writable, a name too long, or something
///         that is no regular file; a link is none either, also to one: renaming would replace the link.
void require_writable(std::string_view option, const std::string& path);

/// Whether both name the same file, which need not exist, in a folder that does.
bool same_place(const std::string& a, const std::string& b);

/// Whether the run reads this file: one that `inputs` name, links followed, or one of the model folder's.
bool is_input(const std::string& path, std::span<const std::string> inputs, const std::filesystem::path& model);

/// runtime::write_file_atomically: the file is whole or untouched. Errors: dsv41::Error io naming `option` and the
/// path.
void write_file(std::string_view option, const std::string& path, std::string_view contents);

/// Runs `write`; its error begins with the option. Errors: those of `write`.
template <class F>
void naming(std::string_view option, F&& write) {
  try {
    write();
  } catch (const dsv41::Error& e) {
    throw dsv41::Error(e.code(), std::string(option) + ": " + e.what());
  }
}

/// A JSON string literal. Ill-formed UTF-8 becomes U+FFFD.
std::string json_string(std::string_view text);

}  // namespace generate
