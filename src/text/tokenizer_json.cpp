// SPDX-License-Identifier: MIT
//
// Reads tokenizer.json. Everything the file says is either understood here or refused by name: an ignored key would
// mean other ids than the reference's, without a sign.
#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "dsv41/core/error.hpp"
#include "files/file_bytes.hpp"
#include "files/strict_json.hpp"
#include "text/byte_level.hpp"
#include "text/tokenizer_data.hpp"

namespace dsv41::text {
namespace {

using files::shown;
using Json = nlohmann::json;

/// GPT-2's split, which ByteLevel applies when use_regex is on. Source: the GPT-2 release.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::uint64_t kMaxFile = 100'000'000;  // the release's has about 8 MB
constexpr std::size_t kMaxTokens = 1 << 24;      // ids are int32; far above any vocabulary

}  // namespace

class TokenizerLoader {
 public:
  TokenizerLoader(std::string_view text, std::string_view origin)
      : origin_(origin), document_(files::parse_strict(text, origin)), root_(document_.root()) {
    if (!root_.is_object()) bad("", "expected an object", root_);
  }

  Tokenizer load() {
    refuse_unless("truncation", root_, {nullptr});
    refuse_unless("padding", root_, {nullptr});
    read_normalizer();
    read_post_processor_and_decoder();
    read_model_options();
    count_tokens();
    read_vocabulary();
    read_added_tokens();
    check_no_holes();
    for (std::size_t id = 0; id < entries_.size(); ++id)
      ids_.emplace(entries_[id].token, static_cast<std::int32_t>(id));
    auto splits = read_pre_tokenizer();
    Bpe bpe(byte_ids(), read_merges(), whole_words());
    return Tokenizer(std::make_shared<const Tokenizer::Data>(Tokenizer::Data{std::move(entries_), std::move(ids_),
                                                                             std::move(raw_), std::move(normalized_),
                                                                             std::move(splits), std::move(bpe)}));
  }

 private:
  [[noreturn]] void bad(std::string_view where, std::string_view expected, const Json& got) const {
    throw Error{Errc::format,
                origin_ + ": " + std::string(where) + ": " + std::string(expected) + ", got " + shown(got)};
  }

  [[noreturn]] void unsupported(std::string_view where, const Json& got) const {
    throw Error{Errc::unsupported, origin_ + ": " + std::string(where) + " = " + shown(got) + " is not supported"};
  }

  /// The member `key`, or null.
  static const Json& member(const Json& object, std::string_view key) {
    static const Json kNull;
    const auto found = object.find(key);
    return found == object.end() ? kNull : *found;
  }

  const Json& require(const Json& object, std::string_view key, Json::value_t type, std::string_view where) const {
    const Json& value = member(object, key);
    if (value.type() != type) {
      bad(std::string(where) + std::string(key), std::string("expected ") + Json(type).type_name(), value);
    }
    return value;
  }

  /// `path` ends in the key itself. An absent key counts as null.
  void refuse_unless(std::string_view path, const Json& object, std::initializer_list<Json> allowed) const {
    const std::size_t dot = path.rfind('.');
    const Json& value = member(object, dot == std::string_view::npos ? path : path.substr(dot + 1));
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) unsupported(path, value);
  }

  bool flag(const Json& object, std::string_view key, bool otherwise, std::string_view where) const {
    const Json& value = member(object, key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) bad(std::string(where) + std::string(key), "expected true or false", value);
    return value.get<bool>();
  }

  std::string type_of(const Json& object, std::string_view where) const {
    if (!object.is_object()) bad(where, "expected an object", object);
    return require(object, "type", Json::value_t::string, std::string(where) + ".").get<std::string>();
  }

  void read_normalizer() const {
    const Json& normalizer = member(root_, "normalizer");
    if (normalizer.is_null()) return;
    if (type_of(normalizer, "normalizer") != "Sequence") unsupported("normalizer.type", normalizer["type"]);
    const Json& steps = require(normalizer, "normalizers", Json::value_t::array, "normalizer.");
    if (!steps.empty()) unsupported("normalizer.normalizers", steps);
  }

  void read_post_processor_and_decoder() const {
    const Json& post = member(root_, "post_processor");
    if (!post.is_null() && type_of(post, "post_processor") != "ByteLevel")
      unsupported("post_processor.type", post["type"]);
    const Json& decoder = member(root_, "decoder");
    if (decoder.is_null()) unsupported("decoder", decoder);
    if (type_of(decoder, "decoder") != "ByteLevel") unsupported("decoder.type", decoder["type"]);
  }

  void read_model_options() const {
    const Json& m = member(root_, "model");
    if (!m.is_object()) bad("model", "expected an object", m);
    // Very old files leave the type out.
    refuse_unless("model.type", m, {nullptr, "BPE"});
    refuse_unless("model.dropout", m, {nullptr, 0.0});
    refuse_unless("model.unk_token", m, {nullptr});
    refuse_unless("model.continuing_subword_prefix", m, {nullptr, ""});
    refuse_unless("model.end_of_word_suffix", m, {nullptr, ""});
    refuse_unless("model.byte_fallback", m, {nullptr, false});
  }

  /// An id that leaves a hole whatever the other ids are is refused here, before anything is sized by it.
  std::int32_t id_from(const Json& value, std::string_view where) const {
    if (!value.is_number_unsigned()) bad(where, "expected an id", value);
    const auto id = value.get<std::uint64_t>();
    if (id >= listed_) bad(where, "expected an id below the file's " + std::to_string(listed_) + " tokens", value);
    return static_cast<std::int32_t>(id);
  }

  /// Counts the tokens of both lists; one that is in both counts twice, so check_no_holes() is needed all the same.
  void count_tokens() {
    listed_ = require(root_["model"], "vocab", Json::value_t::object, "model.").size();
    const Json& added = member(root_, "added_tokens");
    if (!added.is_null() && !added.is_array()) bad("added_tokens", "expected an array", added);
    listed_ += added.size();
    if (listed_ > kMaxTokens) bad("model.vocab", "expected at most " + std::to_string(kMaxTokens) + " tokens", listed_);
  }

  VocabularyEntry& entry(std::int32_t id) {
    if (static_cast<std::size_t>(id) >= entries_.size()) entries_.resize(static_cast<std::size_t>(id) + 1);
    return entries_[static_cast<std::size_t>(id)];
  }

  void read_vocabulary() {
    for (const auto& [token, value] : root_["model"]["vocab"].items()) {
      const std::string where = "model.vocab[" + shown(token) + "]";
      const std::int32_t id = id_from(value, where);
      if (token.empty()) bad(where, "expected a token that is not empty", value);
      VocabularyEntry& e = entry(id);
      if (!e.token.empty()) bad(where, "expected an id of its own, " + shown(e.token) + " has the same", value);
      e.token = token;
      e.bytes = bytes_of_token(token);
      model_ids_.emplace(token, id);
    }
  }

  void read_added_tokens() {
    const Json& list = member(root_, "added_tokens");
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string where = "added_tokens[" + std::to_string(i) + "].";
      const Json& t = list[i];
      if (!t.is_object()) bad(where, "expected an object", t);
      AddedToken token;
      token.id = id_from(member(t, "id"), where + "id");
      token.content = require(t, "content", Json::value_t::string, where).get<std::string>();
      if (token.content.empty()) bad(where + "content", "expected text", t);
      token.special = flag(t, "special", false, where);
      token.normalized = flag(t, "normalized", !token.special, where);
      token.lstrip = flag(t, "lstrip", false, where);
      token.rstrip = flag(t, "rstrip", false, where);
      token.single_word = flag(t, "single_word", false, where);
      add(token, where);
    }
  }

  void add(const AddedToken& token, const std::string& where) {
    const auto model_id = model_ids_.find(token.content);
    if (model_id != model_ids_.end() && model_id->second != token.id) {
      bad(where + "id", "expected " + std::to_string(model_id->second) + ", the id of the same token in model.vocab",
          token.id);
    }
    VocabularyEntry& e = entry(token.id);
    if (e.added || (!e.token.empty() && e.token != token.content)) {
      bad(where + "id", "expected an id of its own, " + shown(e.token) + " has the same", token.id);
    }
    if (!added_contents_.emplace(token.content, token.id).second) {
      bad(where + "content", "expected a token that was not added before", token.content);
    }
    e = {token.content, bytes_of_token(token.content), token.special, true};
    (token.normalized ? normalized_ : raw_).add(token);
  }

  void check_no_holes() const {
    for (std::size_t id = 0; id < entries_.size(); ++id) {
      if (entries_[id].token.empty()) {
        throw Error{Errc::format, origin_ + ": no token has id " + std::to_string(id) + ", expected every id below " +
                                      std::to_string(entries_.size())};
      }
    }
    if (entries_.empty()) throw Error{Errc::format, origin_ + ": model.vocab: expected tokens, got none"};
  }

  std::vector<Regex> read_pre_tokenizer() const {
    const Json& pre = member(root_, "pre_tokenizer");
    if (pre.is_null()) unsupported("pre_tokenizer", pre);
    std::vector<Regex> splits;
    bool byte_level = false;
    if (type_of(pre, "pre_tokenizer") != "Sequence") {
      read_split(pre, "pre_tokenizer", splits, byte_level);
    } else {
      const Json& steps = require(pre, "pretokenizers", Json::value_t::array, "pre_tokenizer.");
      for (std::size_t i = 0; i < steps.size(); ++i) {
        read_split(steps[i], "pre_tokenizer.pretokenizers[" + std::to_string(i) + "]", splits, byte_level);
      }
    }
    if (!byte_level) unsupported("pre_tokenizer without ByteLevel", pre);
    return splits;
  }

  void read_split(const Json& step, const std::string& where, std::vector<Regex>& splits, bool& byte_level) const {
    const std::string type = type_of(step, where);
    if (byte_level) unsupported(where + " (after ByteLevel)", type);
    if (type == "ByteLevel") {
      byte_level = true;
      if (flag(step, "add_prefix_space", true, where + ".")) unsupported(where + ".add_prefix_space", true);
      if (flag(step, "use_regex", true, where + ".")) splits.emplace_back(kByteLevelPattern, origin_ + ": " + where);
      return;
    }
    if (type != "Split") unsupported(where + ".type", type);
    const Json& pattern = require(step, "pattern", Json::value_t::object, where + ".");
    if (pattern.size() != 1 || !pattern.contains("Regex")) unsupported(where + ".pattern", pattern);
    refuse_unless(where + ".behavior", step, {"Isolated"});
    refuse_unless(where + ".invert", step, {nullptr, false});
    const Json& regex = require(pattern, "Regex", Json::value_t::string, where + ".pattern.");
    splits.emplace_back(regex.get_ref<const std::string&>(), origin_ + ": " + where);
  }

  std::array<std::int32_t, 256> byte_ids() const {
    constexpr auto kLetters = byte_letters();
    std::array<std::int32_t, 256> out{};
    for (std::size_t byte = 0; byte < 256; ++byte) {
      std::string letter;
      append_utf8(letter, kLetters[byte]);
      const auto found = model_ids_.find(letter);
      out[byte] = found == model_ids_.end() ? -1 : found->second;
    }
    return out;
  }

  std::int32_t merge_side(const std::string& token, const std::string& where) const {
    const auto found = model_ids_.find(token);
    if (found == model_ids_.end()) bad(where, "expected tokens of model.vocab", token);
    return found->second;
  }

  MergeTable read_merges() const {
    const Json& merges = require(root_["model"], "merges", Json::value_t::array, "model.");
    MergeTable table(merges.size());
    std::uint32_t rank = 0;
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const Json& m = merges[i];
      const std::string where = "model.merges[" + std::to_string(i) + "]";
      std::string left, right;
      if (m.is_string()) {
        const std::string& line = m.get_ref<const std::string&>();
        if (line.starts_with("#version")) continue;
        const std::size_t space = line.find(' ');
        if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
          bad(where, "expected 'a b'", m);
        left = line.substr(0, space);
        right = line.substr(space + 1);
      } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
        left = m[0].get<std::string>();
        right = m[1].get<std::string>();
      } else {
        bad(where, "expected 'a b' or ['a', 'b']", m);
      }
      const std::int32_t merged = merge_side(left + right, where);
      table.put(merge_side(left, where), merge_side(right, where), {rank++, merged});
    }
    return table;
  }

  /// Keys live in entries_, whose heap buffer moves into the tokenizer as it is.
  std::unordered_map<std::string_view, WholeWord> whole_words() const {
    std::unordered_map<std::string_view, WholeWord> words;
    if (!flag(root_["model"], "ignore_merges", false, "model.")) return words;
    for (const auto& [token, id] : model_ids_) {
      const VocabularyEntry& e = entries_[static_cast<std::size_t>(id)];
      std::string bytes;
      if (read_byte_letters(token, bytes)) words.emplace(e.bytes, WholeWord{id, e.added});
    }
    return words;
  }

  std::string origin_;
  files::Document document_;
  const Json& root_;
  std::size_t listed_ = 0;  // tokens of model.vocab and added_tokens
  std::vector<VocabularyEntry> entries_;
  std::unordered_map<std::string, std::int32_t> model_ids_, added_contents_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
  AddedTokenMatcher raw_, normalized_;
};

Tokenizer Tokenizer::from_json(std::string_view text, std::string_view origin) {
  try {
    return TokenizerLoader(text, origin).load();
  } catch (const nlohmann::json::exception& e) {
    throw Error{Errc::format, std::string(origin) + ": " + e.what()};
  }
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  return from_json(files::read_text(path, kMaxFile), path.string());
}

}  // namespace dsv41::text
