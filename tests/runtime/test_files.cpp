// SPDX-License-Identifier: MIT
//
// Files as the library reads and writes them: results whole or untouched, texts within a limit, JSON without surprises.
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "../support/catch.hpp"
#include "../support/failure.hpp"
#include "../support/temp_folder.hpp"
#include "dsv41/runtime/checkpoint.hpp"
#include "dsv41/runtime/files.hpp"
#include "files/file_bytes.hpp"
#include "files/strict_json.hpp"

using dsv41::Errc;
using dsv41::runtime::write_file_atomically;
using namespace dsv41::test;

namespace {

void write(const std::filesystem::path& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text)));
}

std::ptrdiff_t entries(const TempFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

}  // namespace

TEST_CASE("a file is created, replaced, and may be empty") {
  const TempFolder folder;
  for (const std::string& text : {std::string("first"), std::string(), std::string("a\0b", 3)}) {
    write(folder / "f", text);
    CHECK(read_file(folder / "f") == text);
    CHECK(entries(folder) == 1);
  }
}

TEST_CASE("a file is written in pieces; what stops that leaves the old one") {
  const TempFolder folder;
  using dsv41::runtime::WriteBytes;
  const auto piece = [](const WriteBytes& to, std::string_view text) { to(std::as_bytes(std::span(text))); };
  write_file_atomically(folder / "f", [&](const WriteBytes& to) {
    piece(to, "one, ");
    piece(to, "two");
  });
  CHECK(read_file(folder / "f") == "one, two");
  CHECK_THROWS_AS(write_file_atomically(folder / "f",
                                        [&](const WriteBytes& to) {
                                          piece(to, "three");
                                          throw std::runtime_error("enough");
                                        }),
                  std::runtime_error);
  CHECK(read_file(folder / "f") == "one, two");
  CHECK(entries(folder) == 1);
}

TEST_CASE("a link is replaced and what it points to stays") {
  const TempFolder folder;
  const auto target = folder.write("target", "old");
  std::filesystem::create_symlink(target, folder / "link");
  write(folder / "link", "new");
  CHECK(read_file(target) == "old");
  CHECK(read_file(folder / "link") == "new");
  CHECK_FALSE(std::filesystem::is_symlink(folder / "link"));
}

TEST_CASE("the temporary is never a file that is there already") {
  // Somebody has put a link where the temporary would go; following it would overwrite the victim.
  const TempFolder folder;
  const auto victim = folder.write("victim", "untouched");
  std::filesystem::create_symlink(victim, (folder / "f").string() + ".part" + std::to_string(::getpid()) + "-0");
  write(folder / "f", "new");
  CHECK(read_file(victim) == "untouched");
  CHECK(read_file(folder / "f") == "new");
}

TEST_CASE("what cannot be written is an error with the path, and leaves nothing behind") {
  const TempFolder folder;
  const auto failed = [&](const std::filesystem::path& path) {
    const Failure failure = failure_of([&] { write(path, "x"); });
    INFO(failure.message);
    CHECK(failure.code == Errc::io);
    CHECK(failure.says(path.string() + ": cannot "));
  };
  failed(folder / "absent/f");
  failed(folder / std::string(250, 'x'));
  std::filesystem::create_directory(folder / "d");
  failed(folder / "d");
  CHECK(entries(folder) == 1);
}

TEST_CASE("a probe says what a write would say, and leaves nothing behind") {
  using dsv41::runtime::probe_writable;
  const TempFolder folder;
  folder.write("old", "kept");
  for (const char* name : {"old", "new"}) CHECK_NOTHROW(probe_writable(folder / name));
  for (const std::filesystem::path& path : {folder / "absent/f", folder / std::string(250, 'x')}) {
    const Failure failure = failure_of([&] { probe_writable(path); });
    CHECK(failure.code == Errc::io);
    CHECK(failure.message == failure_of([&] { write(path, "x"); }).message);
  }
  CHECK(read_file(folder / "old") == "kept");
  CHECK(entries(folder) == 1);
}

TEST_CASE("texts are read whole, within a limit, from regular files only") {
  using dsv41::files::read_text;
  const TempFolder folder;
  CHECK(read_text(folder.write("f", "12345"), 5) == "12345");
  CHECK(read_text(folder.write("empty", ""), 0).empty());
  const Failure large = failure_of([&] { read_text(folder / "f", 4); });
  CHECK(large.code == Errc::format);
  CHECK(large.says((folder / "f").string() + ": has 5 bytes, expected at most 4"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const char* name : {"pipe", "absent", "."}) {
    CHECK(failure_of([&] { read_text(folder / name, 9); }).code == Errc::io);
  }
}

TEST_CASE("a link that leads nowhere or in a circle is an entry, not an absence") {
  const TempFolder folder;
  std::filesystem::create_symlink("nowhere", folder / "dangling");
  std::filesystem::create_symlink("circle", folder / "circle");
  CHECK(dsv41::files::present(folder.write("f", "1")));
  CHECK(dsv41::files::present(folder / "dangling"));
  CHECK(dsv41::files::present(folder / "circle"));
  CHECK_FALSE(dsv41::files::present(folder / "absent"));

  // An index that cannot be followed is an error, although the single file beside it would do.
  std::filesystem::copy(std::string(DSV41_GOLDEN_DIR) + "/02-window-only", folder / "model");
  std::filesystem::create_symlink("model.safetensors.index.json", folder / "model/model.safetensors.index.json");
  const Failure failure = failure_of([&] { dsv41::runtime::Checkpoint::open(folder / "model"); });
  CHECK(failure.code == Errc::io);
  CHECK(failure.says("model.safetensors.index.json"));
}

TEST_CASE("strict JSON nests 32 levels and no more") {
  const auto nested = [](std::size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  CHECK_NOTHROW(dsv41::files::parse_strict(nested(32), "t"));
  const Failure deep = failure_of([&] { dsv41::files::parse_strict(nested(40), "t"); });
  CHECK(deep.code == Errc::format);
  CHECK(deep.message == "t: nests deeper than 32 levels");
}
