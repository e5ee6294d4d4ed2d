// SPDX-License-Identifier: MIT
//
// JSON as Python's json module reads and writes it, because prompts contain json.dumps output byte for byte: separators
// ", " and ": ", keys in order, non-ASCII kept, integers of any size, floats in Python's shortest form.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv41::text {

struct JsonMember;

struct JsonValue {
  enum class Kind { null, boolean, number, string, array, object };
  Kind kind = Kind::null;
  bool truth = false;               ///< boolean
  std::string text;                 ///< number: as json.dumps writes it; string: decoded UTF-8
  std::vector<JsonValue> items;     ///< array
  std::vector<JsonMember> members;  ///< object, in order of first appearance, last value wins
};

struct JsonMember {
  std::string name;
  JsonValue value;
};

/// json.loads. Accepts NaN and Infinity, as Python does.
/// Errors: format (not JSON; names the byte offset; also nesting deeper than 200), invalid_argument (ill-formed UTF-8,
///         or a string with half a surrogate pair, which has no UTF-8 form).
JsonValue parse_python_json(std::string_view text);

/// json.dumps(value, ensure_ascii=False).
std::string dump_python_json(const JsonValue& value);

/// A string with quotes and escapes, as json.dumps(..., ensure_ascii=False) writes it.
std::string quote_python_json(std::string_view utf8);

/// repr() of a Python float.
std::string python_float(double value);

/// Python's bool(value).
bool is_truthy(const JsonValue& value) noexcept;

}  // namespace dsv41::text
