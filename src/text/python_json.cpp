// SPDX-License-Identifier: MIT
//
// A recursive-descent reader and the matching writer.
#include "text/python_json.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <unordered_map>

#include "dsv41/core/error.hpp"
#include "text/utf8.hpp"

namespace dsv41::text {
namespace {

constexpr int kMostDepth = 200;
// float.__repr__ turns to an exponent below 1e-4 and from 1e16 on.
constexpr int kSmallestPlainExponent = -4, kLargestPlainExponent = 15;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  JsonValue document() {
    JsonValue value = read(0);
    skip_spaces();
    if (at_ != text_.size()) fail("expected the end");
    return value;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Error{Errc::format, "json: " + std::string(what) + " at byte offset " + std::to_string(at_)};
  }

  char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_spaces() noexcept {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
  }

  bool accept(std::string_view word) noexcept {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  JsonValue read(int depth) {
    if (depth > kMostDepth) fail("nesting deeper than 200");
    skip_spaces();
    JsonValue value;
    if (peek() == '{') return read_object(depth);
    if (peek() == '[') return read_array(depth);
    if (peek() == '"') {
      value.kind = JsonValue::Kind::string;
      value.text = read_string();
    } else if (accept("null")) {
      value.kind = JsonValue::Kind::null;
    } else if (accept("true")) {
      value.kind = JsonValue::Kind::boolean;
      value.truth = true;
    } else if (accept("false")) {
      value.kind = JsonValue::Kind::boolean;
    } else {
      value.kind = JsonValue::Kind::number;
      value.text = read_number();
    }
    return value;
  }

  JsonValue read_object(int depth) {
    JsonValue object;
    std::unordered_map<std::string, std::size_t> places;
    object.kind = JsonValue::Kind::object;
    ++at_;
    skip_spaces();
    if (accept("}")) return object;
    for (;;) {
      skip_spaces();
      if (peek() != '"') fail("expected a member name");
      std::string name = read_string();
      skip_spaces();
      if (!accept(":")) fail("expected ':'");
      JsonValue value = read(depth + 1);
      if (const auto [place, is_new] = places.emplace(name, object.members.size()); is_new) {
        object.members.push_back({std::move(name), std::move(value)});
      } else {
        object.members[place->second].value = std::move(value);
      }
      skip_spaces();
      if (accept("}")) return object;
      if (!accept(",")) fail("expected ',' or '}'");
    }
  }

  JsonValue read_array(int depth) {
    JsonValue array;
    array.kind = JsonValue::Kind::array;
    ++at_;
    skip_spaces();
    if (accept("]")) return array;
    for (;;) {
      array.items.push_back(read(depth + 1));
      skip_spaces();
      if (accept("]")) return array;
      if (!accept(",")) fail("expected ',' or ']'");
    }
  }

  char32_t read_hex4() {
    char32_t unit = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail("expected four hexadecimal digits");
      unit = unit << 4 | static_cast<char32_t>(digit);
    }
    return unit;
  }

  char32_t read_unicode_escape() {
    const char32_t unit = read_hex4();
    if (unit < 0xD800 || unit > 0xDFFF) return unit;
    if (unit < 0xDC00 && accept("\\u")) {
      const char32_t low = read_hex4();
      if (low >= 0xDC00 && low <= 0xDFFF) return 0x10000 + ((unit - 0xD800) << 10 | (low - 0xDC00));
    }
    throw Error{Errc::invalid_argument,
                "json: half a surrogate pair before byte offset " + std::to_string(at_) + " has no UTF-8 form"};
  }

  std::string read_string() {
    std::string out;
    for (++at_;;) {
      const char c = peek();
      if (at_ >= text_.size()) fail("unfinished string");
      if (static_cast<unsigned char>(c) < 0x20) fail("control character in a string");
      ++at_;
      if (c == '"') return out;
      if (c != '\\') {
        out += c;
        continue;
      }
      constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
      const std::size_t which = at_ < text_.size() ? kNames.find(peek()) : std::string_view::npos;
      if (which != std::string_view::npos) {
        out += kValues[which];
        ++at_;
      } else if (accept("u")) {
        append_utf8(out, read_unicode_escape());
      } else {
        fail("unknown escape");
      }
    }
  }

  bool accept_digits() noexcept {
    const std::size_t before = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > before;
  }

  std::string read_number() {
    const std::size_t start = at_;
    for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
      if (accept(word)) return std::string(word);
    }
    accept("-");
    if (!accept("0") && !accept_digits()) fail("expected a value");
    bool is_float = false;
    // As Python's scanner: a fraction or exponent without digits is not part of the number.
    std::size_t end = at_;
    if (accept(".") && accept_digits()) {
      is_float = true;
      end = at_;
    }
    at_ = end;
    if (accept("e") || accept("E")) {
      if (!accept("+")) accept("-");
      if (accept_digits()) {
        is_float = true;
        end = at_;
      }
    }
    at_ = end;
    const std::string_view digits = text_.substr(start, end - start);
    if (is_float) return python_float(to_double(digits));
    return digits == "-0" ? "0" : std::string(digits);
  }

  static double to_double(std::string_view digits) {
    double value = 0;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (result.ec != std::errc::result_out_of_range) return value;
    const double magnitude = is_huge(digits) ? std::numeric_limits<double>::infinity() : 0.0;
    return digits.starts_with('-') ? -magnitude : magnitude;
  }

  /// Whether a number outside double's range is above it: the decimal position of its first digit tells.
  static bool is_huge(std::string_view digits) {
    const std::size_t e = digits.find_first_of("eE");
    const std::string_view mantissa = digits.substr(0, e);
    if (e != std::string_view::npos) {
      const std::string_view exponent = digits.substr(e + 1);
      const bool negative = exponent.starts_with('-');
      long value = 0;
      const std::size_t sign = negative || exponent.starts_with('+') ? 1 : 0;
      const auto read = std::from_chars(exponent.data() + sign, exponent.data() + exponent.size(), value);
      if (read.ec != std::errc() || value > 2 * static_cast<long>(digits.size()) + 400) return !negative;
      return (negative ? -value : value) + leading_position(mantissa) > 0;
    }
    return leading_position(mantissa) > 0;
  }

  static long leading_position(std::string_view mantissa) {
    const std::size_t first = mantissa.find_first_of("123456789");
    const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
    return static_cast<long>(point) - static_cast<long>(std::min(first, mantissa.size()));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

void dump(const JsonValue& value, std::string& out) {
  switch (value.kind) {
    case JsonValue::Kind::null: out += "null"; return;
    case JsonValue::Kind::boolean: out += value.truth ? "true" : "false"; return;
    case JsonValue::Kind::number: out += value.text; return;
    case JsonValue::Kind::string: out += quote_python_json(value.text); return;
    case JsonValue::Kind::array:
      out += '[';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i != 0) out += ", ";
        dump(value.items[i], out);
      }
      out += ']';
      return;
    case JsonValue::Kind::object:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        if (i != 0) out += ", ";
        out += quote_python_json(value.members[i].name) + ": ";
        dump(value.members[i].value, out);
      }
      out += '}';
      return;
  }
}

}  // namespace

JsonValue parse_python_json(std::string_view text) {
  if (const std::size_t bad = find_ill_formed(text); bad != std::string_view::npos) {
    throw Error{Errc::invalid_argument, "json: the text is not UTF-8 at byte offset " + std::to_string(bad)};
  }
  return Reader(text).document();
}

std::string dump_python_json(const JsonValue& value) {
  std::string out;
  dump(value, out);
  return out;
}

std::string quote_python_json(std::string_view utf8) {
  constexpr std::string_view kValues = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
  std::string out = "\"";
  for (const char c : utf8) {
    if (const std::size_t which = kValues.find(c); which != std::string_view::npos) {
      out += '\\';
      out += kNames[which];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      out += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
      out += "0123456789abcdef"[c & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string python_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  std::array<char, 32> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer.data(), static_cast<std::size_t>(end - buffer.data()));  // d.ddde+dd
  const std::size_t e = shortest.find('e');
  int exponent = 0;
  const std::size_t sign = shortest[e + 1] == '+' ? 2 : 1;
  std::from_chars(shortest.data() + e + sign, end, exponent);
  if (exponent < kSmallestPlainExponent || exponent > kLargestPlainExponent) return std::string(shortest);
  std::string digits;
  for (const char c : shortest.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  const std::string minus = shortest.starts_with('-') ? "-" : "";
  if (exponent < 0) return minus + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return minus + digits + std::string(whole - digits.size(), '0') + ".0";
  return minus + digits.substr(0, whole) + '.' + digits.substr(whole);
}

bool is_truthy(const JsonValue& value) noexcept {
  switch (value.kind) {
    case JsonValue::Kind::null: return false;
    case JsonValue::Kind::boolean: return value.truth;
    case JsonValue::Kind::number: return value.text != "0" && value.text != "0.0" && value.text != "-0.0";
    case JsonValue::Kind::string: return !value.text.empty();
    case JsonValue::Kind::array: return !value.items.empty();
    case JsonValue::Kind::object: return !value.members.empty();
  }
  return false;
}

}  // namespace dsv41::text
