// SPDX-License-Identifier: MIT
//
// Ids and text against the Rust `tokenizers` package: the committed cases of make_cases.py and the published vectors.
#include <charconv>
#include <chrono>

#include "text/text_support.hpp"

using namespace dsv41::text;
using namespace dsv41::text::test;

namespace {

Json variant_file(const Json& variant) {
  Json file = toy_json();
  for (const auto& token : variant.at("added")) file["added_tokens"].push_back(token);
  file["model"]["ignore_merges"] = variant.at("ignore_merges");
  if (variant.at("gpt2_split")) {
    file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  }
  if (variant.at("merges_as_text")) {
    for (auto& merge : file["model"]["merges"]) {
      if (merge.is_array()) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    }
  }
  return file;
}

/// Texts on which ports have differed, with the ids that the Rust `tokenizers` package (0.23) gives for the toy and for V4's file.
struct Trap {
  const char* text;
  Ids toy, v4;
};

const Trap kTraps[] = {
    {"1234567", {319, 277, 24, 25}, {6895, 18009, 25}},
    {"a\u2029\ua3e4", {67, 161, 225, 105, 169, 240, 100}, {67, 300, 105, 169, 240, 100}},
    {"\u4e16\u754c123abc", {301, 304, 237, 319, 67, 68, 69}, {3427, 6895, 32372}},
    {"  \n\n x", {223, 223, 201, 201, 223, 90}, {6776, 1527}},
    {"e\u0301", {71, 139, 226}, {71, 17793}},
    {"\u00e9", {270}, {619}},
    {"\U0001f468\u200d\U0001f469\u200d\U0001f467",
     {175, 256, 242, 104, 161, 225, 238, 175, 256, 242, 105, 161, 225, 238, 175, 256, 242, 103},
     {25730, 104, 46088, 25730, 105, 46088, 25730, 103}},
    {"", {}, {}},
};

std::uint64_t from_hex(const std::string& text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace

TEST_CASE("B17: eight toy tokenizers with added tokens of every kind agree with the reference on 2000 texts") {
  std::size_t good = 0;
  const Json variants = data_file("toy_cases.json").at("variants");
  for (const auto& variant : variants) {
    const Tokenizer t = tokenizer_of(variant_file(variant));
    for (const auto& c : variant.at("cases")) {
      const auto text = c[0].get<std::string>();
      const Ids ids = t.encode(text);
      INFO("text " << c[0].dump(-1, ' ', true));
      CHECK(ids == c[1].get<Ids>());
      CHECK(t.decode(ids, true) == c[2].get<std::string>());
      ++good;
    }
  }
  CHECK(good == 2000);
}

TEST_CASE("B17: rare spaces, digits, CJK, marks and joined emoji have the reference's ids") {
  const Tokenizer t = tokenizer_of(toy_json());
  for (const Trap& trap : kTraps) {
    INFO(trap.text);
    CHECK(t.encode(trap.text) == trap.toy);
    CHECK(t.decode(trap.toy, false) == trap.text);
  }
}

TEST_CASE("B17: rare spaces, digits, CJK, marks and joined emoji have the reference's ids in V4", "[v4]") {
  if (!have_v4()) return;
  for (const Trap& trap : kTraps) {
    INFO(trap.text);
    CHECK(v4().encode(trap.text) == trap.v4);
  }
}

TEST_CASE("B17: the V4 tokenizer agrees with the reference on 10,000 texts", "[v4]") {
  if (!have_v4()) return;
  const Json cases = data_file("v4_cases.json").at("encode");
  REQUIRE(cases.size() == 10000);
  for (const auto& c : cases) {
    const auto text = c[0].get<std::string>();
    const Ids ids = v4().encode(text);
    INFO("text " << c[0].dump(-1, ' ', true));
    if (c[1].is_array()) {
      CHECK(ids == c[1].get<Ids>());
    } else {
      CHECK(fnv_of_ids(ids) == from_hex(c[1]));
    }
    CHECK(v4().decode(ids, false) == text);
  }
}

TEST_CASE("B14: the V4 tokenizer decodes parts of characters as the reference does, at once and streamed", "[v4]") {
  if (!have_v4()) return;
  const Json cases = data_file("v4_cases.json").at("decode");
  REQUIRE(cases.size() == 1500);
  for (const auto& c : cases) {
    const Ids ids = c[0];
    for (const bool skip : {false, true}) {
      const std::string expected = c[skip ? 2 : 1];
      CHECK(v4().decode(ids, skip) == expected);
      StreamingDetokenizer stream(v4(), skip);
      std::string text;
      for (const auto id : ids) text += stream.push(id);
      CHECK(text + stream.finish() == expected);
    }
  }
}

TEST_CASE("B17: published token vectors are reproduced", "[v4]") {
  if (!have_v4()) return;
  const std::pair<const char*, Ids> vectors[] = {
      {"The capital of France is", {671, 6102, 294, 8760, 344}},
      {"1234567", {6895, 18009, 25}},
      {"  5", {262, 23}},
      {"\n\n  x", {271, 223, 1527}},
      {"\r\n\r\n", {204, 201, 204, 201}},
      {"\u4f60\u597d\uff0c\u4e16\u754c", {30594, 303, 3427}},
      {".foo bar-baz", {4658, 6379, 4758, 1761, 1521}},
      {"I don't", {43, 2090, 1664}},
      {"na\u00efve caf\u00e9 Stra\u00dfe", {2720, 91223, 57664, 23900, 30234}},
      {"a\u200db", {67, 46088, 68}},
      {"\uff11\uff12\uff13\uff14\uff15", {127167, 25081, 33095, 31953}},
      {"e\u0301", {71, 17793}},
      {"x\uff5cDSML\uff5cy", {90, 128825, 91}},
      {"before <\uff5cUser\uff5c> after", {35975, 223, 128803, 1561}},
  };
  for (const auto& [text, ids] : vectors) CHECK(v4().encode(text) == ids);
  CHECK(v4().vocab_size() == 129280);
  CHECK(v4().id_of("<\uff5cUser\uff5c>") == 128803);
  CHECK(v4().id_of("</think>") == 128822);
  CHECK(v4().is_special(0));
  CHECK_FALSE(v4().is_special(128822));
  CHECK(v41().id_of("<\uff5cSystem\uff5c>") == 128799);
}

TEST_CASE("B17: 100,000 spaces take well under a second", "[v4]") {
  if (!have_v4()) return;
  const std::string spaces(100000, ' ');
  const auto start = std::chrono::steady_clock::now();
  const Ids ids = v4().encode(spaces);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(1));
  CHECK(ids.size() == 782);
  CHECK(v4().decode(ids, false) == spaces);
}
