// SPDX-License-Identifier: MIT
//
// Numbers from text, all or nothing: no leading space, no trailing characters, no value outside the range.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/core/error.hpp"

namespace generate {

[[noreturn]] inline void refuse(const std::string& message) {
  throw dsv41::Error(dsv41::Errc::invalid_argument, message);
}

/// An integer in [low, high]. Errors: invalid_argument naming `option`, the range and the text.
template <class T>
T integer(std::string_view option, std::string_view text, T low, T high) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    refuse(std::string(option) + ": expected an integer from " + std::to_string(low) + " to " + std::to_string(high) +
           ", got '" + std::string(text) + "'");
  }
  return value;
}

/// A finite decimal number for which `fits` holds; `range` says so in words.
template <class Fits>
double decimal(std::string_view option, std::string_view text, std::string_view range, Fits fits) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !(value - value == 0) || !fits(value)) {
    refuse(std::string(option) + ": expected " + std::string(range) + ", got '" + std::string(text) + "'");
  }
  return value;
}

/// The pieces between separators; one more than there are separators.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (;;) {
    const std::size_t at = text.find(separator);
    out.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

}  // namespace generate
