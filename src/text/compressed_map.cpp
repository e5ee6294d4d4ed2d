// SPDX-License-Identifier: MIT
//
// The normal form is the Rust library's, whose Unicode is older than utf8proc's: characters that it does not know are
// kept apart from utf8proc, which would decompose or reorder them.
#include "dsv41/text/compressed_map.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <unordered_map>

#include "dsv41/core/error.hpp"
#include "text/added_tokens.hpp"
#include "text/unicode_tables.hpp"
#include "text/utf8.hpp"

namespace dsv41::text {
namespace {

bool is_mark_category(char32_t c) noexcept {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

/// Unknown to the Rust normaliser, so a plain starter there; a border that composition and reordering do not cross.
bool is_newer(char32_t c) noexcept {
  return find_range(kUndecomposed, c) != nullptr || (is_mark_category(c) && find_range(kMarks, c) == nullptr);
}

std::string normal_form(std::string_view text, int options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  if (length < 0) {
    throw Error{length == UTF8PROC_ERROR_NOMEM ? Errc::out_of_memory : Errc::invalid_argument,
                std::string("compressed_map: normalisation failed: ") + utf8proc_errmsg(length)};
  }
  return std::string(reinterpret_cast<const char*>(out), static_cast<std::size_t>(length));
}

std::string decomposed(std::string_view segment) {
  if (segment.empty()) return {};
  return normal_form(normal_form(segment, UTF8PROC_COMPOSE | UTF8PROC_COMPAT), UTF8PROC_DECOMPOSE);
}

/// Per character, as the reference does: no final sigma.
void append_lower(std::string& out, char32_t c) {
  if (const LowerRange* newer = find_range(kNewLower, c)) {
    append_utf8(out, static_cast<char32_t>(static_cast<std::int64_t>(c) + newer->delta));
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::string folded(std::string_view text) {
  std::string out;
  bool in_run = false;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = read_code_point(text.substr(i));
    i += c.bytes;
    if (find_range(kMarks, c.value) != nullptr) continue;
    const bool space = c.value == ' ' || c.value == '\t' || c.value == '\r' || c.value == '\n';
    if (!space) append_lower(out, c.value);
    if (space && !in_run) out += ' ';
    in_run = space;
  }
  return out;
}

std::string_view stripped(std::string_view text) noexcept {
  std::size_t first = text.size(), last = 0;
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = read_code_point(text.substr(i));
    if (!is_white_space(c.value)) {
      first = std::min(first, i);
      last = i + c.bytes;
    }
    i += c.bytes;
  }
  return first < last ? text.substr(first, last - first) : std::string_view();
}

/// The reference protects a lone space from stripping by writing this private character, and turns every one of them,
/// also the text's own, into a space afterwards.
constexpr std::string_view kStandIn = "\xEE\x80\x80";

std::string with_spaces_for_stand_ins(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t next = std::min(text.find(kStandIn, at), text.size());
    out += text.substr(at, next - at);
    if (next == text.size()) break;
    out += ' ';
    at = next + kStandIn.size();
  }
  return out;
}

}  // namespace

std::string normalized_text(std::string_view utf8) {
  if (const std::size_t bad = find_ill_formed(utf8); bad != std::string_view::npos) {
    throw Error{Errc::invalid_argument, "compressed_map: the text is not UTF-8 at byte offset " + std::to_string(bad)};
  }
  std::string decomposed_text;
  std::size_t start = 0;
  for (std::size_t i = 0; i < utf8.size();) {
    const CodePoint c = read_code_point(utf8.substr(i));
    if (is_newer(c.value)) {
      decomposed_text += decomposed(utf8.substr(start, i - start));
      decomposed_text += utf8.substr(i, c.bytes);
      start = i + c.bytes;
    }
    i += c.bytes;
  }
  decomposed_text += decomposed(utf8.substr(start));
  const std::string text = folded(decomposed_text);
  return text == " " ? text : with_spaces_for_stand_ins(stripped(text));
}

std::vector<std::int32_t> compressed_token_map(const Tokenizer& tokenizer, std::int32_t vocab_size) {
  if (vocab_size < 1 || vocab_size > tokenizer.vocab_size()) {
    throw Error{Errc::invalid_argument, "compressed_map: vocab_size must be 1 to " +
                                            std::to_string(tokenizer.vocab_size()) + " (the tokenizer's), got " +
                                            std::to_string(vocab_size)};
  }
  std::vector<std::int32_t> map;
  std::unordered_map<std::string, std::int32_t> numbers;
  for (std::int32_t id = 0; id < vocab_size; ++id) {
    std::string key = tokenizer.decode({&id, 1}, false);
    if (key.find(kReplacement) != std::string::npos) {
      key = tokenizer.token(id);
    } else if (std::string normal = normalized_text(key); !normal.empty()) {
      key = std::move(normal);
    }
    map.push_back(numbers.emplace(std::move(key), static_cast<std::int32_t>(numbers.size())).first->second);
  }
  return map;
}

std::int32_t compressed_count(std::span<const std::int32_t> map) noexcept {
  return map.empty() ? 0 : *std::max_element(map.begin(), map.end()) + 1;
}

std::uint64_t compressed_map_digest(std::span<const std::int32_t> map) noexcept {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const std::int32_t entry : map) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<std::uint32_t>(entry) >> shift & 0xFF)) * 0x100000001B3u;
    }
  }
  return hash;
}

std::int32_t compressed_id(std::span<const std::int32_t> map, std::int32_t id) {
  if (id < 0 || static_cast<std::size_t>(id) >= map.size()) {
    throw Error{Errc::invalid_argument, "compressed_map: token id " + std::to_string(id) + ", expected 0 to " +
                                            std::to_string(map.size()) + " - 1"};
  }
  return map[static_cast<std::size_t>(id)];
}

}  // namespace dsv41::text
