// SPDX-License-Identifier: MIT
//
// The regex layer: classes on which PCRE2 and Oniguruma differ, and what the translation refuses.
#include "text/regex.hpp"

#include "text/text_support.hpp"
#include "text/utf8.hpp"

using namespace dsv41;
using namespace dsv41::text;
using namespace dsv41::text::test;

namespace {

std::vector<std::string> pieces(const Regex& regex, std::string_view text) {
  MatchScratch scratch;
  std::vector<std::string> out;
  regex.split(text, scratch, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

/// Whether one character belongs to a class that U+0001 is no member of: then it is cut off from its neighbours.
bool matches(const Regex& regex, char32_t c) {
  std::string text = "\x01";
  append_utf8(text, c);
  text += '\x01';
  return pieces(regex, text).size() == 3;
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("B17: white space is the 25 White_Space characters, which leaves U+180E and U+200B out") {
  const Regex space("\\s", "test"), in_class("[\\s]", "test"), outside("\\S+", "test");
  int count = 0;
  for (char32_t c = 0; c < 0x3100; ++c) {
    count += matches(space, c);
    CHECK(matches(space, c) == matches(in_class, c));
    CHECK(matches(space, c) == matches(outside, c));  // \S+ runs over all three characters unless c is a space
  }
  CHECK(count == 25);
  for (const char32_t c : {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}) CHECK(matches(space, c));
  for (const char32_t c : {0x180E, 0x200B, 0x200D, 0x2060, 0xFEFF, 0x1C}) CHECK_FALSE(matches(space, c));
}

TEST_CASE("B17: properties know Unicode 16 whatever PCRE2 was built with") {
  const std::pair<const char*, char32_t> members[] = {
      {"\\p{L}", 0x1C89},  {"\\p{L}", 0x31350}, {"\\p{L}", 0x13460}, {"\\p{M}", 0x897},  {"\\p{M}", 0x11F5A},
      {"\\p{N}", 0x10D40}, {"\\p{P}", 0x1B4E},  {"\\p{S}", 0x1FAE8}, {"\\p{S}", 0x2FFC}, {"\\p{L}", 'a'},
      {"\\p{M}", 0x301},   {"\\p{N}", 0xBD},    {"\\p{P}", 0x3002},  {"\\p{S}", 0x20AC}};
  for (const auto& [property, c] : members) {
    INFO(property << " U+" << std::hex << static_cast<unsigned>(c));
    CHECK(matches(Regex(property, "test"), c));
    CHECK(matches(Regex(std::string("[") + property + "]", "test"), c));
    CHECK(matches(Regex(std::string("[^") + property + "]+", "test"), c));  // else one match over all three
  }
  CHECK_FALSE(matches(Regex("\\p{M}", "test"), 0x200D));
  CHECK_FALSE(matches(Regex("\\p{L}", "test"), 0x1D7D8));
}

TEST_CASE("matches and the gaps between them come in order") {
  CHECK(pieces(Regex("\\p{N}{1,3}", "test"), "a1234b") == Strings{"a", "123", "4", "b"});
  CHECK(pieces(Regex("x", "test"), "").empty());
  CHECK(pieces(Regex("x", "test"), "ab") == Strings{"ab"});
  CHECK(pieces(Regex("\\s+(?!\\S)|\\s+", "test"), "a   b  ") == Strings{"a", "  ", " ", "b", "  "});
}

TEST_CASE("an empty match cuts without a piece and without standing still") {
  CHECK(pieces(Regex("x*", "test"), "axb") == Strings{"a", "x", "b"});
  CHECK(pieces(Regex("(?=b)", "test"), "abab") == Strings{"a", "ba", "b"});
}

TEST_CASE("line anchors work per line, as in Ruby syntax") {
  CHECK(pieces(Regex("^a", "test"), "a\nab") == Strings{"a", "\n", "a", "b"});
}

TEST_CASE("constructs that the two engines read differently are refused by name") {
  for (const std::string pattern :
       {"\\w",    "\\d+",   "\\h",     "\\R",   "\\b",  "\\p{Han}", "\\p{Lu}", "\\P{L}", "(?i:a)",  "(?P<n>a)",
        "[a[b]]", "[a&&b]", "a{1,3}+", "a{,3}", "[]a]", "[\\S]",    "\\x41",   "\\1",    "(*FAIL)", "a\\"}) {
    INFO(pattern);
    const auto [code, words] = error_of([&] { Regex(pattern, "file.json: step 1"); });
    CHECK(code == Errc::unsupported);
    CHECK(contains(words, "file.json: step 1"));
  }
  CHECK(error_of([] { Regex("(", "here"); }).first == Errc::format);
  CHECK(error_of([] { Regex("[z-a]", "here"); }).first == Errc::format);
  CHECK(error_of([] { Regex("\xFF", "here"); }).first == Errc::format);
}

TEST_CASE("a pattern that backtracks without end is an error, not a hang") {
  MatchScratch scratch;
  const Regex regex("(?:a|aa)+$", "file.json: step 1");
  const std::string text = std::string(5000, 'a') + "b";
  const auto [code, words] = error_of([&] { regex.split(text, scratch, [](std::string_view) {}); });
  CHECK(code == Errc::internal);
  CHECK(words == "file.json: step 1: the regex gave up (match limit exceeded) in a text of 5001 bytes");
}
