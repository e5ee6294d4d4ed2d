// SPDX-License-Identifier: MIT
//
// JSON in prompts: what Python's json.loads and json.dumps(ensure_ascii=False) do, and SHA-256. Expected strings are
// Python's own output.
#include "text/python_json.hpp"

#include "files/sha256.hpp"
#include "text/text_support.hpp"

using namespace dsv41;
using namespace dsv41::text;
using namespace dsv41::text::test;
using dsv41::files::sha256_hex;

namespace {

std::string again(std::string_view text) {
  return dump_python_json(parse_python_json(text));
}

}  // namespace

TEST_CASE("separators, order and strings are Python's") {
  CHECK(again(R"({"b":1,"a":[true,null,false]})") == R"({"b": 1, "a": [true, null, false]})");
  CHECK(again(R"( [ ] )") == "[]");
  CHECK(again(R"({})") == "{}");
  CHECK(again(R"({"a":1,"b":2,"a":3})") == R"({"a": 3, "b": 2})");
  CHECK(again(R"("\u00e9\/\ud83d\ude00\n\u001f\u007f")") == "\"\u00e9/\U0001F600\\n\\u001f\x7f\"");
  CHECK(again("\"\\b\\f\\r\\t\\\\\\\"\"") == "\"\\b\\f\\r\\t\\\\\\\"\"");
}

TEST_CASE("numbers are Python's") {
  const std::pair<const char*, const char*> numbers[] = {
      {"0", "0"},
      {"-0", "0"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"1.0", "1.0"},
      {"1e0", "1.0"},
      {"1E16", "1e+16"},
      {"1e15", "1000000000000000.0"},
      {"123456789.25e3", "123456789250.0"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"-0.0", "-0.0"},
      {"1e400", "Infinity"},
      {"-1e400", "-Infinity"},
      {"1e-400", "0.0"},
      {"5e-324", "5e-324"},
      {"NaN", "NaN"},
      {"-Infinity", "-Infinity"},
      {"0.1", "0.1"},
      {"2.5e-7", "2.5e-07"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"}};
  for (const auto& [text, expected] : numbers) CHECK(again(text) == expected);
}

TEST_CASE("what Python refuses is refused") {
  for (const char* text :
       {"",      " ",   "01",  "+1",      ".5",        "1.",       "1e",    "-",   "nul",       "[1,]", "{\"a\":1,}",
        "{a:1}", "'a'", "\"a", "\"\\x\"", "\"\\u12\"", "\"a\nb\"", "[1 2]", "1 2", "{\"a\" 1}", "]"}) {
    INFO(text);
    CHECK(error_of([&] { parse_python_json(text); }).first == Errc::format);
  }
  CHECK(error_of([] { parse_python_json("\"\\ud800\""); }).first == Errc::invalid_argument);
  CHECK(error_of([] { parse_python_json("\"\xFF\""); }).first == Errc::invalid_argument);
  CHECK(error_of([] { parse_python_json(std::string(100000, '[')); }).first == Errc::format);
}

TEST_CASE("truth is Python's") {
  for (const char* text : {"0", "0.0", "-0.0", "\"\"", "[]", "{}", "null", "false"})
    CHECK_FALSE(is_truthy(parse_python_json(text)));
  for (const char* text : {"1", "0.5", "\"a\"", "[0]", "{\"a\": 0}", "true", "NaN"})
    CHECK(is_truthy(parse_python_json(text)));
}

TEST_CASE("SHA-256 gives the digests of FIPS 180-4 and of padding borders") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}
