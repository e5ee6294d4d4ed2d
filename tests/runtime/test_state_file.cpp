// SPDX-License-Identifier: MIT
//
// Saved sessions as bytes: what lies where, and that nothing but a whole, unchanged one of this model gets in.
#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/catch.hpp"
#include "../support/failure.hpp"
#include "files/sha256.hpp"
#include "runtime/state_file.hpp"

using namespace dsv41;
using namespace dsv41::runtime;
using dsv41::test::Failure;
using dsv41::test::failure_of;

namespace {

constexpr std::size_t kHeader = 112, kDigest = 32;

struct Saved {
  StateHeader header;
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> marks;
  std::vector<std::int64_t> image_positions;
  std::vector<std::vector<float>> image_rows;
  std::string caches;

  bool operator==(const Saved&) const = default;
};

Fingerprint fingerprint_of(int seed) {
  Fingerprint out;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(seed + static_cast<int>(i));
  return out;
}

StateFacts facts() {
  return {.model = fingerprint_of(7),
          .numeric = Numeric::deployed,
          .bounded_replay = true,
          .vocab = 300,
          .dim = 2,
          .max_context = 6};
}

/// Five tokens, the last two of an image, one of which has an embedding; 11 bytes of caches.
Saved sample() {
  Saved s;
  s.ids = {0, 299, 17, 3, 4}, s.marks = {0, 0, 0, 1, 1};
  s.image_positions = {4}, s.image_rows = {{1.5f, -2}};
  s.caches = std::string("caches\0\xff\x80\n.", 11);
  s.header = {.model = facts().model,
              .numeric = Numeric::deployed,
              .bounded_replay = true,
              .with_windows = true,
              .position = 5,
              .image_rows = 1,
              .payload_bytes = 5 * 4 + 5 + (8 + 2 * 4) + 11};
  return s;
}

std::string written(const Saved& s, std::size_t piece = 1000) {
  std::string out;
  const auto take = [&](std::span<const std::byte> bytes) {
    CHECK_FALSE(bytes.empty());
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  StateFileWriter writer(take);
  writer.begin(s.header);
  writer.tokens(s.ids, s.marks);
  for (std::size_t i = 0; i < s.image_rows.size(); ++i) writer.image_row(s.image_positions[i], s.image_rows[i]);
  for (std::span rest(s.caches); !rest.empty(); rest = rest.subspan(std::min(piece, rest.size())))
    writer.write(std::as_bytes(rest.first(std::min(piece, rest.size()))));
  writer.finish();
  return out;
}

/// Gives a text's bytes and counts them.
struct Source {
  std::string text;
  std::size_t given = 0;
  std::size_t operator()(std::span<std::byte> bytes) {
    const std::size_t count = std::min(bytes.size(), text.size() - given);
    std::memcpy(bytes.data(), text.data() + given, count);
    given += count;
    return count;
  }
};

/// As an engine reads: its vectors grow only when the header has been held against everything it knows.
Saved read(Source& source, const StateFacts& known = facts(), std::int64_t cache_bytes = 11) {
  Saved s;
  StateFileReader reader(source, known);
  s.header = reader.begin();
  reader.expect_caches(cache_bytes);
  s.ids.resize(static_cast<std::size_t>(s.header.position));
  s.marks.resize(s.ids.size());
  reader.tokens(s.ids, s.marks);
  for (std::int64_t i = 0; i < s.header.image_rows; ++i) {
    s.image_rows.emplace_back(static_cast<std::size_t>(known.dim));
    s.image_positions.push_back(reader.image_row(s.image_rows.back()));
  }
  s.caches.resize(static_cast<std::size_t>(cache_bytes));
  reader.read(std::as_writable_bytes(std::span(s.caches)));
  reader.finish();
  return s;
}

Failure refused(const std::string& text, const StateFacts& known = facts()) {
  Source source{text};
  const Failure failure = failure_of([&] { read(source, known); });
  INFO(failure.message);
  CHECK(failure.code != Errc::ok);
  CHECK((failure.code == Errc::ok || failure.message.starts_with("saved session: ")));
  return failure;
}

/// A text refused with the header alone read, so that no number of it can have taken memory.
Failure refused_by_header(const std::string& text) {
  Source source{text};
  const Failure failure = failure_of([&] { read(source); });
  CHECK(source.given == kHeader);
  return failure;
}

std::string digest_of(std::string_view bytes) {
  files::Sha256 hash;
  hash.update(std::as_bytes(std::span(bytes)));
  const files::Digest digest = hash.digest();
  return std::string(reinterpret_cast<const char*>(digest.data()), digest.size());
}

/// A copy with other bytes at `at`, and both digests right again: a forger's file.
template <class T>
std::string forged(std::string text, std::size_t at, T value) {
  std::memcpy(text.data() + at, &value, sizeof value);
  text.replace(80, kDigest, digest_of(text.substr(0, 80)));
  text.replace(text.size() - kDigest, kDigest, digest_of(text.substr(0, text.size() - kDigest)));
  return text;
}

template <class T>
T at(const std::string& text, std::size_t offset) {
  T value;
  std::memcpy(&value, text.data() + offset, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("the bytes lie where docs/saved_state.md says") {
  const std::string text = written(sample());
  CHECK(text.size() == kHeader + 52 + kDigest);
  CHECK(text.substr(0, 8) == "dsv41ses");
  CHECK(at<std::uint32_t>(text, 8) == 1);
  CHECK(at<std::uint32_t>(text, 12) == 112);
  CHECK(at<Fingerprint>(text, 16) == fingerprint_of(7));
  CHECK(at<std::uint8_t>(text, 48) == 1);
  CHECK(at<std::uint8_t>(text, 49) == 1);
  CHECK(at<std::uint16_t>(text, 50) == 1);
  CHECK(at<std::uint32_t>(text, 52) == 0);
  CHECK(at<std::int64_t>(text, 56) == 5);
  CHECK(at<std::int64_t>(text, 64) == 1);
  CHECK(at<std::int64_t>(text, 72) == 52);
  CHECK(text.substr(80, 32) == digest_of(text.substr(0, 80)));
  CHECK(at<std::int32_t>(text, 116) == 299);
  CHECK(text.substr(132, 5) == std::string("\0\0\0\1\1", 5));
  CHECK(at<std::int64_t>(text, 137) == 4);
  CHECK(at<float>(text, 149) == -2);
  CHECK(text.substr(153, 11) == sample().caches);
  CHECK(text.substr(164) == digest_of(text.substr(0, 164)));
}

TEST_CASE("what is written is read, however the caches are cut, and no byte beyond it") {
  const Saved whole = sample();
  for (const std::size_t piece : {1, 3, 1000}) CHECK(written(whole, piece) == written(whole));
  Source source{written(whole) + "more"};
  CHECK(read(source) == whole);
  CHECK(source.given == source.text.size() - 4);

  Saved plain = sample();
  plain.header.with_windows = plain.header.bounded_replay = false;
  plain.header.numeric = Numeric::exact;
  StateFacts known = facts();
  known.numeric = Numeric::exact, known.bounded_replay = false;
  Source second{written(plain)};
  CHECK(read(second, known) == plain);

  Saved empty;
  empty.header = {.model = facts().model, .numeric = Numeric::deployed, .bounded_replay = true};
  Source third{written(empty)};
  CHECK(third.text.size() == kHeader + kDigest);
  CHECK(read(third, facts(), 0) == empty);
}

TEST_CASE("a digest does not depend on how its bytes are cut") {
  const std::string text(200, 'x');
  for (std::size_t size = 0; size <= text.size(); ++size) {
    const std::string part = text.substr(0, size);
    for (const std::size_t first :
         {std::size_t{1}, std::size_t{55}, std::size_t{63}, std::size_t{64}, std::size_t{65}}) {
      if (first > size) continue;
      files::Sha256 hash;
      hash.update(std::as_bytes(std::span(part).first(first)));
      (void)hash.digest();  // which changes nothing
      hash.update(std::as_bytes(std::span(part).subspan(first)));
      CHECK(files::hex(hash.digest()) == files::sha256_hex(part));
    }
  }
}

TEST_CASE("any changed byte is an error of the format") {
  const std::string text = written(sample());
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const int mask : {1, 0x80, 0xFF}) {
      INFO("byte " << i << " xor " << mask);
      std::string other = text;
      other[i] = static_cast<char>(other[i] ^ mask);
      const Failure failure = refused(other);
      CHECK(failure.code == Errc::format);
      const bool size = i >= 12 && i < 16;  // then the header seems to be elsewhere
      if (i < 8) CHECK(failure.says("not one: begins with bytes "));
      if (i >= 8 && i < kHeader && !size) CHECK(failure.says("its header is damaged"));
      if (size) CHECK((failure.says("header")));
      const bool checked_at_once = i >= kHeader && i < kHeader + 25 + 8;  // ids, marks, position of the image row
      if (i >= kHeader && !checked_at_once) CHECK(failure.says("its contents are damaged"));
    }
  }
}

TEST_CASE("any early end is an error of the format that says at which byte") {
  const std::string text = written(sample());
  for (std::size_t size = 0; size < text.size(); ++size) {
    const Failure failure = refused(text.substr(0, size));
    CHECK(failure.code == Errc::format);
    CHECK(failure.says("ends at byte " + std::to_string(size) + ", expected its "));
    CHECK(failure.says(size < kHeader ? "header" : size < kHeader + 52 ? "payload" : "checksum"));
  }
  CHECK(refused(text.substr(0, 150)).message == "saved session: ends at byte 150, expected its payload up to byte 153");
}

TEST_CASE("another model, class or version is refused by name") {
  Saved s = sample();
  s.header.model = fingerprint_of(8);
  Failure failure = refused_by_header(written(s));
  CHECK(failure.code == Errc::invalid_argument);
  CHECK(failure.message ==
        "saved session: of another model: fingerprint 08090a0b0c0d0e0f..., expected 0708090a0b0c0d0e..., this one's");

  s = sample(), s.header.bounded_replay = false;
  failure = refused_by_header(written(s));
  CHECK(failure.code == Errc::invalid_argument);
  CHECK(failure.message ==
        "saved session: of numeric class 'deployed', expected 'deployed, bounded replay', this engine's");
  s = sample(), s.header.numeric = Numeric::exact;
  failure = refused_by_header(written(s));
  CHECK(failure.code == Errc::invalid_argument);
  CHECK(failure.says("'exact, bounded replay', expected 'deployed, bounded replay'"));

  const std::string text = written(sample());
  failure = refused_by_header(forged(text, 8, std::uint32_t{2}));
  CHECK(failure.code == Errc::unsupported);
  CHECK(failure.message == "saved session: format version 2, expected 1");
}

TEST_CASE("a version to come with a longer header is told from damage") {
  std::string text = written(sample()).substr(0, 80);
  const std::uint32_t version = 3, size = 200;
  std::memcpy(text.data() + 8, &version, 4);
  std::memcpy(text.data() + 12, &size, 4);
  text += std::string(88, '?');
  text += digest_of(text);
  const Failure failure = refused(text);
  CHECK(failure.code == Errc::unsupported);
  CHECK(failure.says("version 3"));
}

TEST_CASE("numbers of a header with the right digest are not believed either") {
  const std::string text = written(sample());
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  // More than this engine holds is no fault of the file.
  for (const std::int64_t position : {std::int64_t{7}, std::int64_t{1} << 40, kHuge}) {
    const Failure failure = refused_by_header(forged(text, 56, position));
    CHECK(failure.code == Errc::out_of_memory);
    CHECK(failure.says(std::to_string(position) + " tokens, expected at most max_context = 6"));
  }
  const auto format = [&](const std::string& bytes, const std::string& words) {
    const Failure failure = refused_by_header(bytes);
    INFO(failure.message);
    CHECK(failure.code == Errc::format);
    CHECK(failure.says(words));
  };
  format(forged(text, 56, std::int64_t{-1}), "position is -1, expected 0 to 6");
  format(forged(text, 56, std::int64_t{4}), "payload is 52 bytes, expected 47 for 4 tokens, 1 image rows");
  format(forged(text, 64, kHuge), "image rows is 9223372036854775807, expected 0 to 5");
  format(forged(text, 64, std::int64_t{6}), "image rows is 6, expected 0 to 5");
  format(forged(text, 64, std::int64_t{-1}), "image rows is -1");
  format(forged(text, 64, std::int64_t{0}), "payload is 52 bytes, expected 36");
  for (const std::int64_t payload : {kHuge, std::int64_t{-1}, std::int64_t{51}, std::int64_t{53}, std::int64_t{0}})
    format(forged(text, 72, payload), "payload is " + std::to_string(payload) + " bytes, expected 52");
  format(forged(text, 48, std::uint8_t{2}), "numeric class is 2, expected 0 to 1");
  format(forged(text, 49, std::uint8_t{2}), "prefill class is 2, expected 0 to 1");
  format(forged(text, 50, std::uint16_t{2}), "flags is 2, expected 0 to 1");
  format(forged(text, 52, std::uint32_t{1}), "reserved word is 1, expected 0");

  // A header of this version has one size; its digest is where that size puts it.
  std::string longer = text.substr(0, 80) + std::string(8, '\0');
  longer[12] = 120;
  longer += digest_of(longer);
  const Failure failure = refused(longer);
  CHECK(failure.code == Errc::format);
  CHECK(failure.says("size is 120, expected 112"));
  for (const std::uint32_t size : {0u, 47u, 4097u, 0xFFFFFFFFu}) {
    std::string other = text;
    std::memcpy(other.data() + 12, &size, 4);
    Source source{other + std::string(10000, ' ')};
    const Failure refusal = failure_of([&] { read(source); });
    CHECK(refusal.code == Errc::format);
    CHECK(refusal.says("size is " + std::to_string(size) + ", expected 48 to 4096"));
    CHECK(source.given == 16);
  }
}

TEST_CASE("stray ids, marks and image rows stay out even where the checksum is right") {
  const std::string text = written(sample());
  const auto format = [&](const std::string& bytes, const std::string& words) {
    const Failure failure = refused(bytes);
    INFO(failure.message);
    CHECK(failure.code == Errc::format);
    CHECK(failure.says(words));
  };
  format(forged(text, 116, std::int32_t{300}), "token 1 has id 300, expected 0 to 299");
  format(forged(text, 116, std::int32_t{-1}), "token 1 has id -1, expected 0 to 299");
  format(forged(text, 134, std::uint8_t{2}), "token 2 has the image mark 2, expected 0 or 1");
  for (const std::int64_t position : {std::int64_t{0}, std::int64_t{5}, std::int64_t{-1}, std::int64_t{1} << 40})
    format(forged(text, 137, position), "an image row is that of token " + std::to_string(position));

  Saved twice = sample();
  twice.image_rows.push_back({3, 4}), twice.image_positions = {3, 4};
  twice.header.image_rows = 2, twice.header.payload_bytes += 16;
  Source source{written(twice)};
  CHECK(read(source) == twice);
  for (const auto& positions : {std::vector<std::int64_t>{4, 4}, {4, 3}}) {
    twice.image_positions = positions;
    format(written(twice), "expected an image token behind 4 and before 5");
  }
}

TEST_CASE("pieces that do not add up to the payload are the program's fault") {
  std::string out;
  const auto take = [&](std::span<const std::byte> bytes) { out.append(bytes.size(), '.'); };
  const Saved s = sample();
  StateFileWriter writer(take);
  writer.begin(s.header);
  writer.tokens(s.ids, s.marks);
  CHECK(failure_of([&] { writer.finish(); }).code == Errc::internal);
  const std::string large(100, ' ');
  CHECK(failure_of([&] { writer.write(std::as_bytes(std::span(large))); }).code == Errc::internal);
  CHECK(out.size() == kHeader + 25);

  Source source{written(s)};
  StateFileReader reader(source, facts());
  reader.begin();
  std::vector<std::byte> bytes(53);
  CHECK(failure_of([&] { reader.read(std::span(bytes).first(1)); }).code == Errc::internal);  // before expect_caches
  reader.expect_caches(11);
  CHECK(failure_of([&] { reader.read(bytes); }).code == Errc::internal);
  CHECK(failure_of([&] { reader.finish(); }).code == Errc::internal);
  CHECK(source.given == kHeader);
}

TEST_CASE("what the caller's functions throw passes through; a source that gives too much is refused") {
  const auto full = [](std::span<const std::byte>) { throw std::domain_error("disk full"); };
  StateFileWriter writer(full);
  CHECK_THROWS_AS(writer.begin(sample().header), std::domain_error);
  const auto broken = [](std::span<std::byte>) -> std::size_t { throw std::domain_error("gone"); };
  StateFileReader reader(broken, facts());
  CHECK_THROWS_AS(reader.begin(), std::domain_error);
  const auto generous = [](std::span<std::byte> bytes) { return bytes.size() + 1; };
  StateFileReader second(generous, facts());
  const Failure failure = failure_of([&] { second.begin(); });
  CHECK(failure.code == Errc::invalid_argument);
  CHECK(failure.says("gave 17 bytes, expected at most the 16"));
}
