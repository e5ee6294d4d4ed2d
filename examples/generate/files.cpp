// SPDX-License-Identifier: MIT
//
// Reading and writing of whole files, with the option that named them in every message.
#include "files.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <system_error>

#include "dsv41/core/error.hpp"
#include "dsv41/runtime/files.hpp"

namespace generate {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(std::string_view option, const std::string& path, const std::string& what) {
  throw dsv41::Error(dsv41::Errc::io, std::string(option) + ": " + path + ": " + what);
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

}  // namespace

std::string read_file(std::string_view option, const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) fail(option, path, "is a folder, expected a file");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(option, path, std::string("cannot be read: ") + std::strerror(errno));
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) fail(option, path, "cannot be read to its end");
  return text;
}

void require_writable(std::string_view option, const std::string& path) {
  std::error_code error;
  const fs::file_status there = fs::status(path, error);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    fail(option, path, "is there and not a regular file; results replace their file by renaming");
  }
  const fs::path folder = folder_of(path);
  if (!fs::is_directory(folder, error)) fail(option, path, "the folder " + folder.string() + " does not exist");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    fail(option, path, "the folder " + folder.string() + " is not writable: " + std::strerror(errno));
  }
}

void write_file(std::string_view option, const std::string& path, std::string_view contents) {
  try {
    dsv41::runtime::write_file_atomically(path, std::as_bytes(std::span(contents)));
  } catch (const dsv41::Error& e) {
    throw dsv41::Error(e.code(), std::string(option) + ": " + e.what());
  }
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      out += escape;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace generate
