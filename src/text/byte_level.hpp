// SPDX-License-Identifier: MIT
//
// The byte-level alphabet of GPT-2's vocabulary files: printable Latin-1 bytes stand for themselves, the other 68 for
// U+0100 onwards, so that every byte string is a string of visible characters.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "text/utf8.hpp"

namespace dsv41::text {

constexpr bool is_own_letter(unsigned byte) noexcept {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// [byte] -> code point.
constexpr std::array<char32_t, 256> byte_letters() noexcept {
  std::array<char32_t, 256> letters{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) letters[byte] = is_own_letter(byte) ? byte : next++;
  return letters;
}

/// Code points below this may be letters of the alphabet.
inline constexpr char32_t kByteLetterEnd = 0x144;

/// [code point] -> byte, or -1.
constexpr std::array<int, kByteLetterEnd> letter_bytes() noexcept {
  std::array<int, kByteLetterEnd> bytes{};
  bytes.fill(-1);
  const auto letters = byte_letters();
  for (int byte = 0; byte < 256; ++byte) bytes[letters[static_cast<unsigned>(byte)]] = byte;
  return bytes;
}

/// Whether every character of a well-formed token is a letter of the alphabet; if so, appends its bytes to `bytes`.
inline bool read_byte_letters(std::string_view token, std::string& bytes) {
  constexpr auto kBytes = letter_bytes();
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint c = read_code_point(token.substr(i));
    if (c.status != Utf8::complete || c.value >= kByteLetterEnd || kBytes[c.value] < 0) return false;
    bytes += static_cast<char>(kBytes[c.value]);
    i += c.bytes;
  }
  return true;
}

/// Bytes of a vocabulary entry. An entry with any character outside the alphabet stands for its own UTF-8 bytes.
inline std::string bytes_of_token(std::string_view token) {
  std::string bytes;
  return read_byte_letters(token, bytes) ? bytes : std::string(token);
}

}  // namespace dsv41::text
