// SPDX-License-Identifier: MIT
//
// What a Tokenizer holds once its file is read; shared by the loader and the members.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsv41/text/tokenizer.hpp"
#include "text/added_tokens.hpp"
#include "text/bpe.hpp"
#include "text/regex.hpp"

namespace dsv41::text {

/// One id of the vocabulary.
struct VocabularyEntry {
  std::string token;  ///< as spelled in the file
  std::string bytes;  ///< what it stands for
  bool special = false, added = false;
};

struct Tokenizer::Data {
  std::vector<VocabularyEntry> entries;                    ///< [vocab_size]
  std::unordered_map<std::string_view, std::int32_t> ids;  ///< keys live in entries
  AddedTokenMatcher raw_matcher, normalized_matcher;       ///< by the tokens' normalized flag
  std::vector<Regex> splits;                               ///< in order
  Bpe bpe;
};

}  // namespace dsv41::text
