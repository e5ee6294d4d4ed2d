// SPDX-License-Identifier: MIT
//
// JSON of files that nobody vouches for (config, index, tokenizer): no duplicate names, no NUL bytes, bounded nesting.
// Private to src/.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace dsv41::files {

/// Parses one JSON value. Errors: format, with `origin` in front: not JSON, a NUL byte, a name twice in an object,
/// nesting beyond 32.
nlohmann::json parse_strict(std::string_view text, std::string_view origin);

/// Refuses a NUL byte, which the parser would take for the end of its input and ignore what follows.
void refuse_nul(std::string_view text, std::string_view origin);

/// A value as it stood in the file, shortened for a message.
std::string shown(const nlohmann::json& value);

}  // namespace dsv41::files
