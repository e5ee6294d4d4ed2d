// SPDX-License-Identifier: MIT
//
// JSON of files that nobody vouches for (config, index, tokenizer): no duplicate names, no NUL bytes, bounded nesting.
// Private to src/.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace dsv41::files {

/// A parsed value that takes itself apart. The library's own destructor allocates, and would end the program where there is no memory
/// (case B87).
class Document {
 public:
  explicit Document(nlohmann::json root) noexcept : root_(std::move(root)) {}
  Document(Document&& other) noexcept : root_(std::exchange(other.root_, nullptr)) {}
  Document& operator=(Document&&) = delete;
  ~Document();

  const nlohmann::json& root() const noexcept { return root_; }

 private:
  nlohmann::json root_;
};

/// Whether a value is this text. The library's == makes a value of a literal inside a noexcept function, with the same end (case B87).
bool is_text(const nlohmann::json& value, std::string_view text) noexcept;

/// Parses one JSON value. Errors: format, with `origin` in front: not JSON, a NUL byte, a name twice in an object,
/// nesting beyond 32.
Document parse_strict(std::string_view text, std::string_view origin);

/// Refuses a NUL byte, which the parser would take for the end of its input and ignore what follows.
void refuse_nul(std::string_view text, std::string_view origin);

/// A value as it stood in the file, shortened for a message.
std::string shown(const nlohmann::json& value);

}  // namespace dsv41::files
