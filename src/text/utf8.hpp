// SPDX-License-Identifier: MIT
//
// UTF-8 for the text code: strict decoding of one code point, validation, and replacement of ill-formed input by U+FFFD
// once per maximal subpart, which is what Rust's from_utf8_lossy and the Unicode standard (3.9, table 3-8) do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsv41::text {

enum class Utf8 { complete, incomplete, broken };

struct CodePoint {
  Utf8 status = Utf8::broken;
  char32_t value = 0;
  std::size_t bytes = 0;  ///< length of the character; for the other statuses, of the maximal ill-formed subpart
};

/// Reads the code point at the start of `text`, which must not be empty. `incomplete`: everything there is a proper
/// beginning of a character that more bytes could complete.
constexpr CodePoint read_code_point(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Utf8::complete, lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8::broken, 0, 1};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t value = lead & (0x7F >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8::incomplete, 0, i};
    // The second byte carries the bounds against overlong forms, surrogates and values above U+10FFFF.
    const unsigned low = i == 1 && lead == 0xE0 ? 0xA0 : i == 1 && lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = i == 1 && lead == 0xED ? 0x9F : i == 1 && lead == 0xF4 ? 0x8F : 0xBF;
    if (byte(i) < low || byte(i) > high) return {Utf8::broken, 0, i};
    value = value << 6 | (byte(i) & 0x3F);
  }
  return {Utf8::complete, value, length};
}

inline void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      out += static_cast<char>(0xE0 | c >> 12);
    } else {
      out += static_cast<char>(0xF0 | c >> 18);
      out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    }
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
  }
  out += static_cast<char>(0x80 | (c & 0x3F));
}

/// Byte offset of the first ill-formed sequence, or npos.
constexpr std::size_t find_ill_formed(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const CodePoint c = read_code_point(text.substr(i));
    if (c.status != Utf8::complete) return i;
    i += c.bytes;
  }
  return std::string_view::npos;
}

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Appends `bytes` with each ill-formed subpart replaced. With `hold_tail`, stops before a final incomplete character.
/// Returns the number of bytes consumed.
inline std::size_t append_lossy(std::string& out, std::string_view bytes, bool hold_tail = false) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    const CodePoint c = read_code_point(bytes.substr(i));
    if (c.status == Utf8::incomplete && hold_tail) break;
    out += c.status == Utf8::complete ? bytes.substr(i, c.bytes) : kReplacement;
    i += c.bytes;
  }
  return i;
}

}  // namespace dsv41::text
