// SPDX-License-Identifier: MIT
//
// A parse callback that adds what the JSON library leaves open: duplicate names (it keeps the last) and nesting depth.
#include "files/strict_json.hpp"

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "dsv41/core/error.hpp"

namespace dsv41::files {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;  // config.json nests three levels, tokenizer.json five; messages print by recursion
constexpr std::size_t kShownLength = 80;
constexpr std::size_t kReasonLength = 200;  // the library quotes what it read last, which may be megabytes

/// Empties arrays and objects from the inside, at most kMaxDepth levels: what is left is destroyed without a list of its own.
void take_apart(json& value) noexcept {
  if (value.is_array()) {
    for (json& element : value.get_ref<json::array_t&>()) take_apart(element);
    value.get_ref<json::array_t&>().clear();
  } else if (value.is_object()) {
    for (auto& [name, member] : value.get_ref<json::object_t&>()) take_apart(member);
    value.get_ref<json::object_t&>().clear();
  }
}

/// What the library found, without the number of the kind of exception that it puts in front, "[json.exception.parse_error.101] ".
std::string reason(const json::exception& e) {
  const std::string text = e.what();
  const std::size_t end = text.find("] ");
  return text.rfind("[json.exception", 0) == 0 && end != std::string::npos ? text.substr(end + 2) : text;
}

}  // namespace

Document::~Document() {
  take_apart(root_);
}

bool is_text(const json& value, std::string_view text) noexcept {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

void refuse_nul(std::string_view text, std::string_view origin) {
  const std::size_t at = text.find('\0');
  if (at == std::string_view::npos) return;
  throw Error(Errc::format, std::string(origin) + ": a NUL byte at offset " + std::to_string(at) + ", expected JSON");
}

Document parse_strict(std::string_view text, std::string_view origin) {
  refuse_nul(text, origin);
  std::vector<std::set<std::string>> names;
  auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth)
      throw Error(Errc::format, std::string(origin) + ": nests deeper than " + std::to_string(kMaxDepth) + " levels");
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second) {
      throw Error(Errc::format, std::string(origin) + ": the name " + shown(parsed) + " occurs twice in one object");
    }
    return true;
  };
  try {
    return Document(json::parse(text, check));
  } catch (const json::exception& e) {
    throw Error(Errc::format, std::string(origin) + ": not JSON: " + reason(e).substr(0, kReasonLength));
  }
}

std::string shown(const json& value) {
  std::string s = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (s.size() > kShownLength) s = s.substr(0, kShownLength) + "...";
  return s;
}

}  // namespace dsv41::files
