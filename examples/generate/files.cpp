// SPDX-License-Identifier: MIT
//
// Reading and writing of whole files, with the option that named them in every message.
#include "files.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
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

std::string cannot_be_read() {
  return std::string("cannot be read: ") + std::strerror(errno);
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File open_to_read(std::string_view option, const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) fail(option, path, "is a folder, expected a file");
  File in(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (!in) fail(option, path, cannot_be_read());
  return in;
}

fs::path folder_of(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

/// Whether a model folder's file of this name is read.
bool of_a_model(const std::string& name) {
  return name == "config.json" || name == "tokenizer.json" ||
         (name.rfind("model", 0) == 0 && name.find(".safetensors") != std::string::npos);
}

}  // namespace

std::string read_file(std::string_view option, const std::string& path) {
  const File in = open_to_read(option, path);
  std::string text;
  for (;;) {
    char buffer[1 << 16];
    const std::size_t n = std::fread(buffer, 1, sizeof buffer, in.get());
    if (std::ferror(in.get()) != 0) fail(option, path, cannot_be_read());
    if (n == 0) return text;
    if (n > kMostBytes - text.size()) {
      fail(option, path, "has more than " + std::to_string(kMostBytes) + " bytes, expected at most that");
    }
    text.append(buffer, n);
  }
}

void read_pieces(std::string_view option, const std::string& path,
                 dsv41::runtime::FunctionRef<void(const dsv41::runtime::ReadBytes&)> take) {
  const File in = open_to_read(option, path);
  naming(std::string(option) + ": " + path, [&] {
    take([&](std::span<std::byte> bytes) {
      const std::size_t n = std::fread(bytes.data(), 1, bytes.size(), in.get());
      if (std::ferror(in.get()) != 0) throw dsv41::Error(dsv41::Errc::io, cannot_be_read());
      return n;
    });
    if (std::fgetc(in.get()) != EOF)
      throw dsv41::Error(dsv41::Errc::format, "goes on behind what was read, expected its end there");
  });
}

void require_writable(std::string_view option, const std::string& path) {
  std::error_code error;
  const fs::file_status there = fs::symlink_status(path, error);
  if (fs::exists(there) && !fs::is_regular_file(there)) {
    fail(option, path,
         std::string("is ") + (fs::is_symlink(there) ? "a link" : "there") +
             " and not a regular file; results replace their file by renaming");
  }
  const fs::path folder = folder_of(path);
  if (!fs::is_directory(folder, error)) fail(option, path, "the folder " + folder.string() + " does not exist");
  naming(option, [&] { dsv41::runtime::probe_writable(path); });
}

bool same_place(const std::string& a, const std::string& b) {
  const fs::path p(a), q(b);
  return p.filename() == q.filename() && fs::canonical(folder_of(p)) == fs::canonical(folder_of(q));
}

bool is_input(const std::string& path, std::span<const std::string> inputs, const fs::path& model) {
  const auto same = [&](const fs::path& input) {
    std::error_code error;
    return fs::equivalent(path, input, error) && !error;
  };
  for (const std::string& input : inputs) {
    if (same(input)) return true;
  }
  std::error_code error;
  if (fs::equivalent(folder_of(path), model, error) && !error && of_a_model(fs::path(path).filename().string())) {
    return true;
  }
  for (fs::directory_iterator at(model, error), end; !error && at != end; at.increment(error)) {
    if (of_a_model(at->path().filename().string()) && same(at->path())) return true;
  }
  return false;
}

void write_file(std::string_view option, const std::string& path, std::string_view contents) {
  naming(option, [&] { dsv41::runtime::write_file_atomically(path, std::as_bytes(std::span(contents))); });
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace generate
