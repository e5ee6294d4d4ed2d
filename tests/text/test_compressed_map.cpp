// SPDX-License-Identifier: MIT
//
// The engram's vocabulary: normal form, numbering, digest.
#include "dsv41/text/compressed_map.hpp"

#include "text/text_support.hpp"

using namespace dsv41;
using namespace dsv41::text;
using namespace dsv41::text::test;

namespace {

/// A toy tokenizer with two added tokens at its end.
Tokenizer with_tokens(const char* first, const char* second) {
  Json file = toy_json();
  file["added_tokens"].push_back({{"id", 320}, {"content", first}});
  file["added_tokens"].push_back({{"id", 321}, {"content", second}});
  return tokenizer_of(file);
}

}  // namespace

TEST_CASE("the normal form drops case, accents and surplus space") {
  CHECK(normalized_text("Stra\u00dfe \u00c9COLE") == "stra\u00dfe ecole");
  CHECK(normalized_text("\ufb01\u2460\uff21") == "fi1a");
  CHECK(normalized_text("a \t\r\n b") == "a b");
  CHECK(normalized_text("  x  ") == "x");
  CHECK(normalized_text(" ") == " ");
  CHECK(normalized_text("\t\n") == " ");
  CHECK(normalized_text("\u3000") == " ");  // NFKC makes it a plain space
  CHECK(normalized_text("\u2028").empty());
  CHECK(normalized_text("\u0301").empty());
  CHECK(normalized_text("").empty());
  CHECK(normalized_text("\ue000a\ue000") == " a ");
}

TEST_CASE("marks of every kind are dropped, spacing ones included") {
  CHECK(normalized_text("\u0915\u093f") == "\u0915");  // Mc
  CHECK(normalized_text("a\u20dd") == "a");            // Me
  CHECK(normalized_text("a\u0898") == "a\u0898");      // newer than the reference's tables
  CHECK(normalized_text("\u0130") == "i");
  CHECK(normalized_text("\u03a3\u03a3") == "\u03c3\u03c3");  // no final sigma
  CHECK(normalized_text("\u32ff") == "\u32ff");              // decomposes in newer Unicode only
}

TEST_CASE("ill-formed text has no normal form") {
  CHECK(error_of([] { normalized_text("a\xFF"); }).first == Errc::invalid_argument);
}

TEST_CASE("the toy vocabulary has the compressed size of its config") {
  const auto t = tokenizer_of(toy_json());
  const auto map = compressed_token_map(t, t.vocab_size());
  CHECK(map.size() == 320);
  CHECK(compressed_count(map) == 269);
  CHECK(compressed_token_map(t, 10).size() == 10);
  CHECK(error_of([&] { compressed_token_map(t, 0); }).first == Errc::invalid_argument);
  CHECK(error_of([&] { compressed_token_map(t, 321); }).first == Errc::invalid_argument);
}

TEST_CASE("B03: vocabularies of one compressed size but different maps have different digests") {
  const auto a = with_tokens("<qq>", "<QQ>"), b = with_tokens("<qq>", "<a>");
  const auto c = with_tokens("<a>", "<qq>");
  const auto map_a = compressed_token_map(a, 322), map_b = compressed_token_map(b, 322),
             map_c = compressed_token_map(c, 322);
  CHECK(compressed_count(map_a) == 270);
  CHECK(compressed_count(map_b) == 271);
  CHECK(compressed_map_digest(map_a) != compressed_map_digest(map_b));
  CHECK(map_b == map_c);  // the same numbering: which text got which number does not show in the map

  // One pair of tokens of the vocabulary changes places: "a" shares its id with "A", "!" has one of its own.
  Json file = toy_json();
  std::swap(file["model"]["vocab"]["a"], file["model"]["vocab"]["!"]);
  const auto plain = compressed_token_map(tokenizer_of(toy_json()), 320),
             swapped = compressed_token_map(tokenizer_of(file), 320);
  CHECK(compressed_count(swapped) == compressed_count(plain));
  CHECK(swapped != plain);
  CHECK(compressed_map_digest(swapped) != compressed_map_digest(plain));
}

TEST_CASE("B07: ids outside the map are refused before the look-up") {
  const std::vector<std::int32_t> map = {0, 1, 1};
  CHECK(compressed_id(map, 2) == 1);
  CHECK(error_of([&] { compressed_id(map, -1); }).first == Errc::invalid_argument);
  CHECK(error_of([&] { compressed_id(map, 3); }).first == Errc::invalid_argument);
}

TEST_CASE("the digest is FNV-1a over little-endian entries") {
  CHECK(compressed_map_digest({}) == 0xCBF29CE484222325u);
  const std::vector<std::int32_t> one = {0x04030201};
  CHECK(compressed_map_digest(one) == fnv_of_ids(one));
}

TEST_CASE("the released vocabulary compresses to 99,092 ids with the published values", "[v4]") {
  if (!have_v4()) return;
  const auto map = compressed_token_map(v4(), v4().vocab_size());
  CHECK(compressed_count(map) == 99092);
  CHECK(compressed_map_digest(map) == 0x6B5CFA68A5F57BA6u);
  CHECK(compressed_map_digest(compressed_token_map(v41(), 129280)) == 0x6B5CFA68A5F57BA6u);
  for (std::int32_t id = 0; id <= 66; ++id) CHECK(map[static_cast<std::size_t>(id)] == id);
  for (std::int32_t id = 67; id <= 92; ++id) CHECK(map[static_cast<std::size_t>(id)] == id - 32);
  for (const std::int32_t id : {200, 201, 204, 223, 262, 271, 539}) CHECK(map[static_cast<std::size_t>(id)] == 174);
  const std::pair<std::size_t, std::int32_t> known[] = {{93, 67},   {94, 68},   {660, 230}, {260, 35}, {270, 237},
                                                        {671, 237}, {294, 251}, {344, 242}, {2, 2},    {129279, 99091}};
  for (const auto& [id, compressed] : known) CHECK(map[id] == compressed);
}
