// SPDX-License-Identifier: MIT
//
// Encoding and decoding with a loaded tokenizer. Reading the file is in tokenizer_json.cpp.
#include "dsv41/text/tokenizer.hpp"

#include <limits>

#include "dsv41/core/error.hpp"
#include "text/tokenizer_data.hpp"
#include "text/utf8.hpp"

namespace dsv41::text {
namespace {

const VocabularyEntry& entry(const std::vector<VocabularyEntry>& entries, std::int32_t id) {
  if (id < 0 || static_cast<std::size_t>(id) >= entries.size()) {
    throw Error{Errc::invalid_argument, "tokenizer: id " + std::to_string(id) +
                                            " is outside the vocabulary, expected 0 to " +
                                            std::to_string(entries.size() - 1)};
  }
  return entries[static_cast<std::size_t>(id)];
}

/// One encode call: text goes down through the splits and arrives at the merges piece by piece.
class Encoder {
 public:
  Encoder(std::span<const Regex> splits, const Bpe& bpe, bool added_words)
      : splits_(splits), bpe_(bpe), added_words_(added_words) {}

  void ordinary(std::string_view text) { split(text, 0); }
  void id(std::int32_t id) { ids_.push_back(id); }
  std::vector<std::int32_t> take() { return std::move(ids_); }

 private:
  void split(std::string_view text, std::size_t level) {
    if (level == splits_.size()) {
      bpe_.encode(text, added_words_, scratch_, ids_);
    } else {
      splits_[level].split(text, match_, [&](std::string_view piece) { split(piece, level + 1); });
    }
  }

  std::span<const Regex> splits_;
  const Bpe& bpe_;
  bool added_words_;
  Bpe::Scratch scratch_;
  MatchScratch match_;
  std::vector<std::int32_t> ids_;
};

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view utf8, bool parse_added_tokens) const {
  if (utf8.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error{Errc::invalid_argument,
                "tokenizer: a text must be below 2 GiB, got " + std::to_string(utf8.size()) + " bytes"};
  }
  if (const std::size_t bad = find_ill_formed(utf8); bad != std::string_view::npos) {
    throw Error{Errc::invalid_argument, "tokenizer: the text is not UTF-8 at byte offset " + std::to_string(bad)};
  }
  Encoder encoder(data_->splits, data_->bpe, parse_added_tokens);
  if (!parse_added_tokens) {
    encoder.ordinary(utf8);
    return encoder.take();
  }
  data_->raw_matcher.split(utf8, [&](std::string_view outer, std::int32_t outer_id) {
    if (outer_id >= 0) return encoder.id(outer_id);
    data_->normalized_matcher.split(outer, [&](std::string_view inner, std::int32_t inner_id) {
      if (inner_id >= 0) return encoder.id(inner_id);
      encoder.ordinary(inner);
    });
  });
  return encoder.take();
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes, text;
  for (const std::int32_t id : ids) {
    const VocabularyEntry& e = entry(data_->entries, id);
    if (!(skip_special && e.special)) bytes += e.bytes;
  }
  append_lossy(text, bytes);
  return text;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  return entry(data_->entries, id).bytes;
}

std::string_view Tokenizer::token(std::int32_t id) const {
  return entry(data_->entries, id).token;
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  const auto found = data_->ids.find(token);
  return found == data_->ids.end() ? std::nullopt : std::optional(found->second);
}

std::int32_t Tokenizer::vocab_size() const noexcept {
  return static_cast<std::int32_t>(data_->entries.size());
}

bool Tokenizer::is_special(std::int32_t id) const {
  return entry(data_->entries, id).special;
}

bool Tokenizer::is_added(std::int32_t id) const {
  return entry(data_->entries, id).added;
}

std::string StreamingDetokenizer::push(std::int32_t id) {
  const std::string_view bytes = tokenizer_.token_bytes(id);
  if (skip_special_ && tokenizer_.is_special(id)) return {};
  tail_ += bytes;
  std::string text;
  tail_.erase(0, append_lossy(text, tail_, true));
  return text;
}

std::string StreamingDetokenizer::finish() {
  std::string text;
  append_lossy(text, tail_);
  tail_.clear();
  return text;
}

}  // namespace dsv41::text
