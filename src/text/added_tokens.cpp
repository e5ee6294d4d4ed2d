// SPDX-License-Identifier: MIT
//
// Trie walk and the word and space rules of added tokens.
#include "text/added_tokens.hpp"

#include <utf8proc.h>

#include <algorithm>

#include "text/unicode_tables.hpp"
#include "text/utf8.hpp"

namespace dsv41::text {
namespace {

/// Other_Alphabetic that is neither letter, mark nor number: the circled and squared Latin letters.
bool is_enclosed_letter(char32_t c) noexcept {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

constexpr CodeRange kNewOtherNumbers = {0x1D2C0, 0x1D2D3};  // the only ones of kNewInN that are not decimal digits

/// Word characters newer than utf8proc's Unicode.
bool is_new_word_character(char32_t c) noexcept {
  if (find_range(kNewInL, c) != nullptr || find_range(kNewInM, c) != nullptr) return true;
  return find_range(kNewInN, c) != nullptr && (c < kNewOtherNumbers.first || c > kNewOtherNumbers.last);
}

CodePoint last_code_point(std::string_view text) noexcept {
  std::size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return read_code_point(text.substr(start));
}

std::size_t spaces_before(std::string_view text) noexcept {
  const std::size_t whole = text.size();
  while (!text.empty()) {
    const CodePoint c = last_code_point(text);
    if (!is_white_space(c.value)) break;
    text.remove_suffix(c.bytes);
  }
  return whole - text.size();
}

std::size_t spaces_after(std::string_view text) noexcept {
  const std::size_t whole = text.size();
  while (!text.empty()) {
    const CodePoint c = read_code_point(text);
    if (!is_white_space(c.value)) break;
    text.remove_prefix(c.bytes);
  }
  return whole - text.size();
}

}  // namespace

bool is_white_space(char32_t c) noexcept {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) noexcept {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return c == 0x200C || c == 0x200D || is_enclosed_letter(c) || is_new_word_character(c);
  }
}

std::int32_t AddedTokenMatcher::child(std::int32_t node, char byte) const noexcept {
  std::int32_t at = nodes_[static_cast<std::size_t>(node)].first_child;
  while (at >= 0 && nodes_[static_cast<std::size_t>(at)].byte != byte) {
    at = nodes_[static_cast<std::size_t>(at)].next_sibling;
  }
  return at;
}

void AddedTokenMatcher::add(const AddedToken& token) {
  std::int32_t node = 0;
  for (const char byte : token.content) {
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      nodes_.push_back({byte, -1, nodes_[static_cast<std::size_t>(node)].first_child, -1});
      nodes_[static_cast<std::size_t>(node)].first_child = next;
    }
    node = next;
  }
  nodes_[static_cast<std::size_t>(node)].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
}

std::size_t AddedTokenMatcher::longest(std::string_view text, std::int32_t& token) const noexcept {
  std::size_t length = 0;
  std::int32_t node = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, text[i]);
    if (node < 0) break;
    if (nodes_[static_cast<std::size_t>(node)].token >= 0) {
      token = nodes_[static_cast<std::size_t>(node)].token;
      length = i + 1;
    }
  }
  return length;
}

void AddedTokenMatcher::split(std::string_view text,
                              const std::function<void(std::string_view, std::int32_t)>& piece) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    std::int32_t which = -1;
    const std::size_t length = longest(text.substr(at), which);
    if (length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(which)];
    std::size_t start = at, stop = at + length;
    at = stop;
    if (token.single_word) {
      const bool word_before = start > 0 && is_word_character(last_code_point(text.substr(0, start)).value);
      const bool word_after = stop < text.size() && is_word_character(read_code_point(text.substr(stop)).value);
      if (word_before || word_after) continue;
    }
    if (token.lstrip) start = std::max(start - spaces_before(text.substr(0, start)), done);
    if (token.rstrip) stop += spaces_after(text.substr(stop));
    if (start > done) piece(text.substr(done, start - done), -1);
    piece(text.substr(start, stop - start), token.id);
    done = stop;
  }
  if (done < text.size()) piece(text.substr(done), -1);
}

}  // namespace dsv41::text
