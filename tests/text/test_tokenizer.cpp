// SPDX-License-Identifier: MIT
//
// The tokenizer on the toy vocabulary: options, errors, streaming, robustness. Reference cases are in
// test_tokenizer_cases.cpp.
#include "dsv41/text/tokenizer.hpp"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "support/temp_folder.hpp"
#include "text/text_support.hpp"

using namespace dsv41;
using namespace dsv41::text;
using namespace dsv41::text::test;

namespace {

/// The kind and words of the error from a toy file after an edit.
template <class Edit>
std::pair<Errc, std::string> error_after(Edit&& edit) {
  Json file = toy_json();
  edit(file);
  return error_of([&] { tokenizer_of(file); });
}

Json added(int id, const char* content, bool special = false) {
  return {{"id", id}, {"content", content}, {"special", special}, {"normalized", !special}};
}

std::int32_t byte_id(const Tokenizer& t, unsigned char byte) {
  for (std::int32_t id = 0; id < t.vocab_size(); ++id) {
    if (t.token_bytes(id) == std::string(1, static_cast<char>(byte))) return id;
  }
  FAIL("no token for byte " << int{byte});
  return -1;
}

std::string stream(const Tokenizer& t, const Ids& ids, bool skip_special) {
  StreamingDetokenizer detokenizer(t, skip_special);
  std::string text;
  for (const auto id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

}  // namespace

TEST_CASE("an empty text has no ids and no ids have an empty text") {
  const auto t = tokenizer_of(toy_json());
  CHECK(t.encode("").empty());
  CHECK(t.decode({}, false).empty());
}

TEST_CASE("every byte string of the vocabulary is found again by its spelling") {
  const auto t = tokenizer_of(toy_json());
  REQUIRE(t.vocab_size() == 320);
  for (std::int32_t id = 0; id < t.vocab_size(); ++id) CHECK(t.id_of(t.token(id)) == id);
  CHECK_FALSE(t.id_of("no such token"));
  CHECK(t.is_special(0));
  CHECK(t.is_added(0));
  CHECK_FALSE(t.is_added(3));
}

TEST_CASE("ids outside the vocabulary are refused everywhere") {
  const auto t = tokenizer_of(toy_json());
  StreamingDetokenizer detokenizer(t, false);
  for (const std::int32_t id : {-1, 320, 2147483647}) {
    const Ids ids = {id};
    CHECK(error_of([&] { t.decode(ids, false); }).first == Errc::invalid_argument);
    CHECK(error_of([&] { t.token(id); }).first == Errc::invalid_argument);
    CHECK(error_of([&] { t.token_bytes(id); }).first == Errc::invalid_argument);
    CHECK(error_of([&] { t.is_special(id); }).first == Errc::invalid_argument);
    CHECK(error_of([&] { detokenizer.push(id); }).first == Errc::invalid_argument);
  }
}

TEST_CASE("B17: ill-formed UTF-8 is refused with its byte offset") {
  const auto t = tokenizer_of(toy_json());
  for (const std::string bad :
       {"abc\xFF", "abc\xC0\x80", "abc\xED\xA0\x80", "abc\xF4\x90\x80\x80", "abc\xE4\xBD", "abc\x80"}) {
    const auto [code, words] = error_of([&] { t.encode(bad); });
    CHECK(code == Errc::invalid_argument);
    CHECK(contains(words, "byte offset 3"));
  }
}

TEST_CASE("B18: a quoted marker is ordinary text when added tokens are not parsed") {
  const auto t = tokenizer_of(toy_json());
  const std::string text = "a<\uff5cend\u2581of\u2581sentence\uff5c>b";
  const Ids parsed = t.encode(text);
  CHECK(std::count(parsed.begin(), parsed.end(), 1) == 1);
  const Ids plain = t.encode(text, false);
  CHECK(std::none_of(plain.begin(), plain.end(), [&](auto id) { return t.is_added(id); }));
  CHECK(t.decode(plain, true) == text);
}

TEST_CASE("B18: ignore_merges does not let ordinary text write an added token") {
  Json file = toy_json();
  file["model"]["ignore_merges"] = true;
  file["model"]["vocab"]["cat"] = 320;
  file["added_tokens"].push_back(added(320, "cat"));
  const auto t = tokenizer_of(file);
  CHECK(t.encode("cat") == Ids{320});
  const Ids plain = t.encode("cat", false);
  CHECK(std::count(plain.begin(), plain.end(), 320) == 0);
}

TEST_CASE("B23: skip_special drops special tokens from the text") {
  const auto t = tokenizer_of(toy_json());
  Ids ids = t.encode("Good");
  ids.push_back(0);
  const Ids mark = t.encode("!");
  ids.insert(ids.end(), mark.begin(), mark.end());
  CHECK(t.decode(ids, true) == "Good!");
  CHECK(t.decode(ids, false) == "Good<\uff5cbegin\u2581of\u2581sentence\uff5c>!");
  CHECK(stream(t, ids, true) == "Good!");
}

TEST_CASE("B14: a character split over tokens arrives whole") {
  const auto t = tokenizer_of(toy_json());
  StreamingDetokenizer d(t, false);
  CHECK(d.push(byte_id(t, 0xF0)) == "");
  CHECK(d.push(byte_id(t, 0x9F)) == "");
  CHECK(d.push(byte_id(t, 0x98)) == "");
  CHECK(d.push(byte_id(t, 0x8A)) == "\U0001F60A");
  CHECK(d.finish() == "");
  CHECK(d.push(byte_id(t, 0xF0)) == "");
  CHECK(d.finish() == "\uFFFD");
  CHECK(d.push(byte_id(t, 'a')) == "a");
}

TEST_CASE("B16: a truncated tail is kept until it cannot complete") {
  const auto t = tokenizer_of(toy_json());
  StreamingDetokenizer d(t, false);
  CHECK(d.push(byte_id(t, 0xD7)) == "");
  CHECK(d.push(byte_id(t, ' ')) == "\uFFFD ");
  CHECK(d.push(byte_id(t, 0xD7)) == "");
  CHECK(d.push(byte_id(t, 0x90)) == "\u05D0");
}

TEST_CASE("B14, B16: tokens of several bytes complete each other, or break a character that waits") {
  Json file = toy_json();
  Json& vocab = file["model"]["vocab"];
  vocab["\u00f0\u0141"] = 320;  // bytes F0 9F, in the vocabulary's letters
  vocab["\u013a\u012c"] = 321;  // bytes 98 8A
  vocab["\u0120x"] = 322;       // " x"
  const auto t = tokenizer_of(file);
  StreamingDetokenizer d(t, false);
  CHECK(d.push(320) == "");
  CHECK(d.push(321) == "\U0001F60A");
  CHECK(d.finish() == "");
  CHECK(t.decode(Ids{320, 321}, false) == "\U0001F60A");
  CHECK(d.push(byte_id(t, 0xD7)) == "");
  CHECK(d.push(322) == "\uFFFD x");
  CHECK(t.decode(Ids{byte_id(t, 0xD7), 322}, false) == "\uFFFD x");
}

TEST_CASE("B14: streamed text equals one-shot text for 10,000 random id sequences") {
  const auto t = tokenizer_of(toy_json());
  std::mt19937 rng(14);
  for (int i = 0; i < 10000; ++i) {
    Ids ids(rng() % 12);
    for (auto& id : ids) id = static_cast<std::int32_t>(rng() % 320);
    const bool skip = i % 2 != 0;
    REQUIRE(stream(t, ids, skip) == t.decode(ids, skip));
  }
}

TEST_CASE("random bytes are encoded and decoded back, or refused, and nothing else") {
  const auto t = tokenizer_of(toy_json());
  std::mt19937 rng(99);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text(rng() % 8, '\0');
    for (char& c : text) c = static_cast<char>(rng() % 3 == 0 ? rng() : rng() % 128);
    std::string back = text;
    const auto [code, words] = error_of([&] { back = t.decode(t.encode(text, false), false); });
    CHECK(back == text);
    accepted += code == Errc::ok;
    CHECK((code == Errc::ok || code == Errc::invalid_argument));
  }
  CHECK(accepted > 1000);
}

TEST_CASE("long runs encode in little time") {
  const auto t = tokenizer_of(toy_json());
  const auto start = std::chrono::steady_clock::now();
  for (const char c : {' ', 'a', '.', '\n', '7'}) {
    const std::string run(100000, c);
    CHECK(t.decode(t.encode(run), false) == run);
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
}

TEST_CASE("files outside the supported form are refused by key and value") {
  const auto expect = [](auto&& edit, std::string_view words) {
    const auto [code, message] = error_after(edit);
    INFO(message);
    CHECK(code == Errc::unsupported);
    CHECK(contains(message, words));
  };
  expect([](Json& f) { f["model"]["type"] = "Unigram"; }, "model.type = \"Unigram\"");
  expect([](Json& f) { f["model"]["dropout"] = 0.1; }, "model.dropout = 0.1");
  expect([](Json& f) { f["model"]["unk_token"] = "<unk>"; }, "model.unk_token");
  expect([](Json& f) { f["model"]["byte_fallback"] = true; }, "model.byte_fallback");
  expect([](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; }, "model.continuing_subword_prefix");
  expect([](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, "model.end_of_word_suffix");
  expect([](Json& f) { f["normalizer"] = {{"type", "NFC"}}; }, "normalizer.type = \"NFC\"");
  expect([](Json& f) { f["normalizer"] = Json::parse(R"({"type":"Sequence","normalizers":[{"type":"NFC"}]})"); },
         "NFC");
  expect([](Json& f) { f["post_processor"] = {{"type", "TemplateProcessing"}}; }, "TemplateProcessing");
  expect([](Json& f) { f["decoder"] = nullptr; }, "decoder = null");
  expect([](Json& f) { f["decoder"]["type"] = "Metaspace"; }, "decoder.type");
  expect([](Json& f) { f["truncation"] = {{"max_length", 4}}; }, "truncation");
  expect([](Json& f) { f["pre_tokenizer"] = nullptr; }, "pre_tokenizer");
  expect([](Json& f) { f["pre_tokenizer"]["pretokenizers"].erase(3); }, "without ByteLevel");
  expect([](Json& f) { f["pre_tokenizer"]["pretokenizers"][3]["add_prefix_space"] = true; }, "add_prefix_space = true");
  expect([](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "behavior = \"Removed\"");
  expect([](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; }, "invert = true");
  expect([](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", " "}}; }, "pattern");
  expect([](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", "\\w+"}}; }, "\\w");
}

TEST_CASE("broken files are refused by place") {
  const auto expect = [](auto&& edit, std::string_view words) {
    const auto [code, message] = error_after(edit);
    INFO(message);
    CHECK(code == Errc::format);
    CHECK(contains(message, words));
  };
  expect([](Json& f) { f["model"]["vocab"]["zz"] = 5; }, "has the same");
  expect(
      [](Json& f) {
        f["model"]["vocab"]["zz"] = 320;
        f["model"]["vocab"]["zzz"] = 322;
      },
      "no token has id 321");
  expect([](Json& f) { f["added_tokens"].push_back(added(324, "zz")); }, "expected an id below the file's 324 tokens");
  expect([](Json& f) { f["model"]["vocab"]["zz"] = -1; }, "expected an id");
  expect([](Json& f) { f["model"]["vocab"]["zz"] = 4000000000u; }, "expected an id below");
  expect([](Json& f) { f["model"]["vocab"]["zz"] = "1"; }, "expected an id");
  expect([](Json& f) { f["model"].erase("vocab"); }, "model.vocab");
  expect([](Json& f) { f["model"].erase("merges"); }, "model.merges");
  expect([](Json& f) { f["model"]["merges"][2] = {"a", "no such token"}; }, "model.merges[2]");
  expect([](Json& f) { f["model"]["merges"][2] = "abc"; }, "model.merges[2]");
  expect([](Json& f) { f["model"]["merges"][2] = 7; }, "model.merges[2]");
  expect([](Json& f) { f["added_tokens"].push_back(added(5, "x9")); }, "has the same");
  expect([](Json& f) { f["added_tokens"].push_back(added(320, "")); }, "content");
  expect([](Json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); }, "has the same");
  expect([](Json& f) { f["added_tokens"][0]["special"] = 1; }, "special");
  expect([](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; }, "does not compile");
  CHECK(error_of([] { Tokenizer::from_json("{\"model\": ", "cut.json"); }).first == Errc::format);
  CHECK(contains(error_of([] { Tokenizer::from_json("{\"model\": ", "cut.json"); }).second, "cut.json"));
  CHECK(error_of([] { Tokenizer::from_json("[]", "list.json"); }).first == Errc::format);
  CHECK(error_of([] { Tokenizer::from_json("\xFF", "bytes.json"); }).first == Errc::format);
  CHECK(error_of([] { Tokenizer::from_file("no/such/file.json"); }).first == Errc::io);
  CHECK(error_of([] { Tokenizer::from_file("."); }).first == Errc::io);
  CHECK(contains(error_of([] { Tokenizer::from_json(toy_text() + std::string("\0{", 2), "nul"); }).second, "NUL"));
  const std::string twice = R"({"model":{"vocab":{"a":0,"b":1,"a":0}}})";
  CHECK(error_of([&] { Tokenizer::from_json(twice, "twice.json"); }).first == Errc::format);
  CHECK(error_of([&] { Tokenizer::from_json(twice, "twice.json"); }).second ==
        "twice.json: the name \"a\" occurs twice in one object");
  const std::string deep = "{\"normalizer\": " + std::string(1000000, '[');
  CHECK(error_of([&] { Tokenizer::from_json(deep + std::string(1000000, ']') + "}", "deep"); }).first == Errc::format);
}

TEST_CASE("what is no regular file of a tokenizer's size is refused without waiting or reading") {
  const dsv41::test::TempFolder folder;
  const auto pipe = folder / "tokenizer.json";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const auto [code, words] = error_of([&] { Tokenizer::from_file(pipe); });
  CHECK(code == Errc::io);
  CHECK(words == pipe.string() + ": is no regular file");

  const auto large = folder.write("large.json", "");
  std::filesystem::resize_file(large, 100'000'001);  // a hole: takes no disk
  const auto [size_code, size_words] = error_of([&] { Tokenizer::from_file(large); });
  CHECK(size_code == Errc::format);
  CHECK(contains(size_words, large.string() + ": has 100000001 bytes, expected at most 100000000"));
}

TEST_CASE("ids far beyond a file's tokens are refused before memory is taken for them") {
  const auto peak_kib = [] {
    ::rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  Json file = toy_json();
  file["model"]["vocab"] = {{"a", 16777215}};
  file["added_tokens"] = Json::array();
  const auto before = peak_kib();
  const auto [code, words] = error_of([&] { tokenizer_of(file); });
  CHECK(peak_kib() - before < 100 * 1024);  // 2^24 entries are more than a gigabyte
  CHECK(code == Errc::format);
  CHECK(words == "test.json: model.vocab[\"a\"]: expected an id below the file's 1 tokens, got 16777215");
}

TEST_CASE("damaged copies of a file load or are refused, and nothing else") {
  const std::string good = toy_text();
  std::mt19937 rng(5);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    for (unsigned k = 0; k <= rng() % 4; ++k) bad[rng() % bad.size()] = static_cast<char>(rng());
    if (i % 3 == 0) bad.resize(rng() % bad.size());
    const auto [code, words] = error_of([&] { Tokenizer::from_json(bad, "damaged").encode("the fox 12"); });
    CHECK((code == Errc::ok || code == Errc::format || code == Errc::unsupported));
  }
}

TEST_CASE("copies share one vocabulary and outlive the original") {
  auto first = std::make_unique<Tokenizer>(tokenizer_of(toy_json()));
  const Tokenizer second = *first;
  const Ids ids = first->encode("the fox");
  first.reset();
  CHECK(second.encode("the fox") == ids);
}
