// SPDX-License-Identifier: MIT
//
// The lines of --batch, each checked as the command line is.
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "batch.hpp"
#include "dsv41/core/error.hpp"
#include "files.hpp"
#include "numbers.hpp"
#include "prompt.hpp"

namespace generate {

using dsv41::runtime::ModelFolder;
using nlohmann::json;

namespace {

/// One line's object. nlohmann keeps the last of two equal keys, takes a NUL byte for the end, skips a byte order mark in front, and writes
/// what is nested by recursion; here all of these are errors.
json parse_line(const std::string& where, std::string_view line) {
  if (const std::size_t nul = line.find('\0'); nul != line.npos)
    refuse(where + "has a NUL byte behind " + std::to_string(nul) + " bytes, expected an object");
  if (line.starts_with("\xef\xbb\xbf")) refuse(where + "begins with a byte order mark, expected an object");
  std::set<std::string> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && !keys.insert(parsed.get<std::string>()).second)
      refuse(where + parsed.get<std::string>() + ": given twice");
    if (event == json::parse_event_t::array_start && depth == 0) refuse(where + "expected an object, got a list");
    const int most = event == json::parse_event_t::object_start ? 0 : event == json::parse_event_t::array_start ? 1 : 2;
    if (depth > most) refuse(where + "holds an object, or a list in a list");
    return true;
  };
  json out;
  try {
    out = json::parse(line, check);
  } catch (const json::parse_error& e) {
    refuse(where + "is no JSON from byte " + std::to_string(e.byte) + " on, expected an object");
  } catch (const json::out_of_range&) {
    refuse(where + "holds a number too large for a double");
  }
  if (!out.is_object()) refuse(where + "expected an object, got " + out.type_name());
  return out;
}

/// A request out of one line.
class LineReader {
 public:
  LineReader(const ModelFolder& folder, const Options& defaults, std::string where, std::int64_t number)
      : folder_(folder), config_(folder.checkpoint.config()), where_(std::move(where)), options_(defaults) {
    request_.id = std::to_string(number);
  }

  BatchRequest read(std::string_view line) {
    const json object = parse_line(where_, line);
    for (const auto& [key, value] : object.items()) take(key, value);
    if (object.contains("prompt") == object.contains("tokens"))
      refuse(where_ + "expected either \"prompt\" or \"tokens\"");
    if (chat_ && !request_.text) refuse(where_ + "chat: works only with \"prompt\"");
    if (options_.max_tokens == 0) refuse(where_ + "max_tokens: a batch needs at least 1, got '0'");
    check_temperature(options_, where_ + "temperature");
    if (request_.text) encode();
    if (std::ssize(request_.prompt) >= config_.max_positions) {
      refuse(where_ + "has " + std::to_string(request_.prompt.size()) +
             " tokens, expected fewer than max_position_embeddings = " + std::to_string(config_.max_positions));
    }
    request_.options = request_options(options_, config_);
    return std::move(request_);
  }

 private:
  void take(const std::string& key, const json& value) {
    const std::string name = where_ + key;
    if (key == "prompt") {
      if (!value.is_string()) refuse(name + ": expected a string, got " + value.dump());
      text_ = value.get<std::string>();
      request_.text = true;
    } else if (key == "tokens") {
      take_ids(name, value);
    } else if (key == "id") {
      if (!value.is_string() && !value.is_number_integer())
        refuse(name + ": expected a string or an integer, got " + value.dump());
      request_.id = value.dump();
    } else if (key == "chat") {
      if (!value.is_boolean()) refuse(name + ": expected true or false, got " + value.dump());
      chat_ = value.get<bool>();
    } else if (!set_by_key(options_, key, name, value.dump())) {
      refuse(where_ + "unknown key \"" + key +
             "\", expected id, prompt, tokens, chat, max_tokens, temperature, top_k, top_p, min_p or seed");
    }
  }

  void take_ids(const std::string& name, const json& value) {
    if (!value.is_array() || value.empty()) refuse(name + ": expected a list of ids, got " + value.dump());
    for (const json& id : value) {
      request_.prompt.push_back(
          integer<std::int32_t>(name, id.dump(), 0, static_cast<std::int32_t>(config_.vocab - 1)));
    }
  }

  void encode() {
    const std::string source = where_ + "prompt";
    const dsv41::text::Tokenizer& tokenizer = tokenizer_of(folder_, source);
    request_.prompt = encode_text(tokenizer, source, text_);  // checks the text of a chat too
    if (!chat_) return;
    const dsv41::text::Message turn = message(dsv41::text::Role::user, text_);
    request_.prompt = encode_turns(tokenizer, where_ + "chat", options_, {&turn, 1});
  }

  const ModelFolder& folder_;
  const dsv41::ModelConfig& config_;
  std::string where_;  // "FILE: line N: "
  Options options_;
  BatchRequest request_;
  std::string text_;
  bool chat_ = false;
};

}  // namespace

std::vector<BatchRequest> read_batch(const ModelFolder& folder, const Options& options) {
  const std::string source = "--batch: " + *options.batch;
  const std::string file = read_file("--batch", *options.batch);
  std::vector<std::string_view> lines = split(file, '\n');
  if (lines.back().empty()) lines.pop_back();
  if (lines.empty()) refuse(source + ": has no lines, expected a request a line");
  std::vector<BatchRequest> out;
  std::set<std::string> ids;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string where = source + ": line " + std::to_string(i + 1) + ": ";
    out.push_back(LineReader(folder, options, where, static_cast<std::int64_t>(i)).read(lines[i]));
    if (!ids.insert(out.back().id).second) refuse(where + "id: " + out.back().id + " is that of an earlier line");
  }
  return out;
}

}  // namespace generate
