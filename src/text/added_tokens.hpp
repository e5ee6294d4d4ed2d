// SPDX-License-Identifier: MIT
//
// Finds added tokens in a text before any other splitting. One matcher per `normalized` flag; the tokenizer runs the
// unnormalised one first and the other on what is left, as the reference does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dsv41::text {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false, normalized = false, lstrip = false, rstrip = false, single_word = false;
};

/// A byte trie over token contents; read-only once filled.
class AddedTokenMatcher {
 public:
  /// The content must not be empty. A content added twice keeps the later token.
  void add(const AddedToken& token);

  /// Covers the text in order with added tokens (id >= 0) and the stretches between them (id -1, never empty).
  ///
  /// Rules:  leftmost match, the longest there; a single_word token next to a word character (Rust regex \w) is passed
  ///         over, and its text is not searched again; lstrip and rstrip take the White_Space beside the token with it.
  void split(std::string_view text, const std::function<void(std::string_view, std::int32_t)>& piece) const;

 private:
  struct Node {
    char byte = 0;
    std::int32_t first_child = -1, next_sibling = -1, token = -1;
  };
  std::int32_t child(std::int32_t node, char byte) const noexcept;
  /// Length of the longest token at the start of `text` (0: none) and which.
  std::size_t longest(std::string_view text, std::int32_t& token) const noexcept;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<AddedToken> tokens_;
};

/// White_Space of Unicode, which is Rust's char::is_whitespace; no character has been added to it since 2013.
bool is_white_space(char32_t c) noexcept;

/// \w of the Rust regex crate: Alphabetic, Mark, Decimal_Number, Connector_Punctuation, Join_Control.
bool is_word_character(char32_t c) noexcept;

}  // namespace dsv41::text
