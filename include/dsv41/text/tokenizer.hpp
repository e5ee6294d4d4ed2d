// SPDX-License-Identifier: MIT
//
// The released tokenizer.json as ids in and text out: byte-level BPE behind regex splits, with added tokens, exactly as
// the Rust `tokenizers` library does it. First and last station of a token's path. No chat format here (text/chat.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsv41::text {

/// An immutable tokenizer; copies share it, and every member may run in several threads at once.
///
/// Files:   model BPE (no dropout, unk token, affixes or byte fallback; ignore_merges either way), no normaliser or an
///          empty Sequence, pre-tokenizer a Sequence of Split (Regex, Isolated) and one ByteLevel (no prefix space),
///          post-processor ByteLevel or none, decoder ByteLevel. Other values: unsupported, naming key and value.
/// Errors:  io (missing or unreadable file, or none: a pipe, a folder), format (a file beyond 100 MB, malformed JSON, a
///          NUL byte, a name twice in an object, nesting beyond 32, duplicate ids or tokens, holes in the ids, merges of
///          unknown tokens), unsupported, and those of the members below. Nothing else but std::bad_alloc leaves a call.
/// Cost:    opening takes memory in proportion to the file, whatever ids it claims.
/// Match:   exact, ids and text. Regex classes follow Unicode 16 as that library's do; PCRE2 10.40 or newer is needed.
class Tokenizer {
 public:
  /// Reads a tokenizer.json. Errors: io, format, unsupported, as above.
  static Tokenizer from_file(const std::filesystem::path& path);

  /// The same from its text, of any size; `origin` names it in messages, for example its path.
  /// Errors: format, unsupported.
  static Tokenizer from_json(std::string_view text, std::string_view origin);

  /// Ids of a text; writes no begin-of-sentence id.
  ///
  /// Rules:  with parse_added_tokens, added tokens found in the text become their ids (leftmost, then longest; those
  ///         with normalized = false first) and the text between them is encoded piece by piece. Without it the whole
  ///         text is ordinary, so that user input cannot write control tokens.
  /// Errors: invalid_argument for ill-formed UTF-8, with the byte offset; internal when PCRE2 gives up.
  /// Cost:   linear in the text apart from n log n inside one piece.
  std::vector<std::int32_t> encode(std::string_view utf8, bool parse_added_tokens = true) const;

  /// Text of ids: their bytes laid end to end, each ill-formed subpart replaced by U+FFFD.
  /// Errors: invalid_argument for an id outside the vocabulary.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  /// The bytes an id stands for; may be a part of a character. Errors: invalid_argument.
  std::string_view token_bytes(std::int32_t id) const;

  /// The vocabulary's own spelling of an id (byte-level alphabet, or an added token's content).
  /// Errors: invalid_argument.
  std::string_view token(std::int32_t id) const;

  /// The id spelled so in the vocabulary, if there is one.
  std::optional<std::int32_t> id_of(std::string_view token) const;

  /// Number of ids, added tokens included; every id below it exists.
  std::int32_t vocab_size() const noexcept;

  /// Whether decode's skip_special drops the id. Errors: invalid_argument.
  bool is_special(std::int32_t id) const;

  /// Whether the id is an added token, special or not. Errors: invalid_argument.
  bool is_added(std::int32_t id) const;

 private:
  struct Data;
  explicit Tokenizer(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;
  friend class TokenizerLoader;
};

/// Turns ids into text as they arrive.
///
/// Rules:  push() never returns a part of a character: a tail that later bytes could complete waits, what cannot
///         complete becomes U+FFFD. The concatenation of all push() and finish() results equals Tokenizer::decode of
///         all ids.
class StreamingDetokenizer {
 public:
  StreamingDetokenizer(Tokenizer tokenizer, bool skip_special)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  /// Text that became final with this id. Errors: invalid_argument for an id outside the vocabulary; nothing changes
  /// then.
  std::string push(std::int32_t id);

  /// Flushes the waiting tail and starts over.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  std::string tail_;
  bool skip_special_;
};

}  // namespace dsv41::text
