// SPDX-License-Identifier: MIT
//
// Saved sessions, written and checked. Every failure names what is wrong, what was expected and what is there.
#include "state_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <type_traits>

#include "dsv41/core/error.hpp"

namespace dsv41::runtime {
namespace {

static_assert(std::endian::native == std::endian::little,
              "a saved session is little-endian; its arrays are used in place");

constexpr std::string_view kMagic = "dsv41ses";
constexpr std::uint16_t kWithWindows = 1;

/// What every version begins with: magic, version, header size. The size is bounded, so that the header of a version to come can be told
/// from a damaged one without memory of the size that a damaged one claims.
constexpr std::size_t kPrefixBytes = 16, kMostHeaderBytes = 4096;
constexpr std::size_t kDigestBytes = std::tuple_size_v<files::Digest>;

using RawHeader = std::array<std::byte, kStateHeaderBytes>;

/// First bytes of the fields.
enum Field : std::size_t {
  magic_at = 0,
  version_at = 8,
  size_at = 12,
  model_at = 16,
  numeric_at = 48,
  replay_at = 49,
  flags_at = 50,
  zero_at = 52,
  position_at = 56,
  image_rows_at = 64,
  payload_at = 72,
  digest_at = 80,
};
static_assert(digest_at + kDigestBytes == kStateHeaderBytes);

[[noreturn]] void refuse(Errc code, const std::string& message) {
  throw Error(code, "saved session: " + message);
}

template <class T>
void store(RawHeader& raw, Field at, T value) {
  const auto bytes = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  std::copy(bytes.begin(), bytes.end(), raw.begin() + static_cast<std::ptrdiff_t>(at));
}

template <class T>
T load(std::span<const std::byte> raw, Field at) {
  std::array<std::byte, sizeof(T)> bytes;
  std::copy_n(raw.begin() + static_cast<std::ptrdiff_t>(at), sizeof(T), bytes.begin());
  return std::bit_cast<T>(bytes);
}

files::Digest digest_of(std::span<const std::byte> bytes) {
  files::Sha256 hash;
  hash.update(bytes);
  return hash.digest();
}

/// The first bytes of a digest are enough to tell two apart in a message.
std::string short_hex(std::span<const std::byte> digest) {
  return files::hex(digest.first(8)) + "...";
}

template <class T>
void expect(const char* field, T found, T least, T most) {
  if (found >= least && found <= most) return;
  refuse(Errc::format, std::string("its header's ") + field + " is " + std::to_string(found) + ", expected " +
                           std::to_string(least) + (most > least ? " to " + std::to_string(most) : ""));
}

/// Fields of a verified header of this version.
StateHeader parse(std::span<const std::byte> raw) {
  expect("size", raw.size(), std::size_t{kStateHeaderBytes}, std::size_t{kStateHeaderBytes});
  expect<unsigned>("numeric class", load<std::uint8_t>(raw, numeric_at), 0, 1);
  expect<unsigned>("prefill class", load<std::uint8_t>(raw, replay_at), 0, 1);
  expect<unsigned>("flags", load<std::uint16_t>(raw, flags_at), 0, kWithWindows);
  expect<unsigned>("reserved word", load<std::uint32_t>(raw, zero_at), 0, 0);
  return {.model = load<Fingerprint>(raw, model_at),
          .numeric = static_cast<Numeric>(load<std::uint8_t>(raw, numeric_at)),
          .bounded_replay = load<std::uint8_t>(raw, replay_at) != 0,
          .with_windows = load<std::uint16_t>(raw, flags_at) != 0,
          .position = load<std::int64_t>(raw, position_at),
          .image_rows = load<std::int64_t>(raw, image_rows_at),
          .payload_bytes = load<std::int64_t>(raw, payload_at)};
}

}  // namespace

std::string numeric_class_name(Numeric numeric, bool bounded_replay) {
  return std::string(numeric_name(numeric)) + (bounded_replay ? ", bounded replay" : "");
}

std::int64_t state_payload_bytes(std::int64_t position, std::int64_t image_rows, std::int64_t dim,
                                 std::int64_t cache_bytes) noexcept {
  constexpr auto kToken = static_cast<std::int64_t>(sizeof(std::int32_t) + sizeof(std::uint8_t));
  const std::int64_t image_row =
      static_cast<std::int64_t>(sizeof(std::int64_t)) + dim * static_cast<std::int64_t>(sizeof(float));
  return position * kToken + image_rows * image_row + cache_bytes;
}

void StateFileWriter::put(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  hash_.update(bytes);
  out_(bytes);
}

void StateFileWriter::begin(const StateHeader& header) {
  RawHeader raw{};
  const auto magic = std::as_bytes(std::span(kMagic));
  std::copy(magic.begin(), magic.end(), raw.begin());
  store(raw, version_at, kStateVersion);
  store(raw, size_at, static_cast<std::uint32_t>(kStateHeaderBytes));
  store(raw, model_at, header.model);
  store(raw, numeric_at, static_cast<std::uint8_t>(header.numeric));
  store(raw, replay_at, static_cast<std::uint8_t>(header.bounded_replay));
  store(raw, flags_at, header.with_windows ? kWithWindows : std::uint16_t{0});
  store(raw, position_at, header.position);
  store(raw, image_rows_at, header.image_rows);
  store(raw, payload_at, header.payload_bytes);
  store(raw, digest_at, digest_of(std::span(raw).first(digest_at)));
  put(raw);
  left_ = header.payload_bytes;
}

void StateFileWriter::tokens(std::span<const std::int32_t> ids, std::span<const std::uint8_t> marks) {
  write(std::as_bytes(ids));
  write(std::as_bytes(marks));
}

void StateFileWriter::image_row(std::int64_t position, std::span<const float> embedding) {
  write(std::as_bytes(std::span(&position, 1)));
  write(std::as_bytes(embedding));
}

void StateFileWriter::write(std::span<const std::byte> bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size > left_) {
    refuse(Errc::internal, std::to_string(size) + " bytes to write, expected at most " + std::to_string(left_) +
                               ", the rest of the payload");
  }
  put(bytes);
  left_ -= size;
}

void StateFileWriter::finish() {
  if (left_ != 0) refuse(Errc::internal, "ends " + std::to_string(left_) + " bytes before its payload is written");
  put(hash_.digest());
}

void StateFileReader::take(std::span<std::byte> bytes, const char* part) {
  if (bytes.empty()) return;
  const std::size_t given = in_(bytes);
  if (given > bytes.size()) {
    refuse(Errc::invalid_argument, "the source gave " + std::to_string(given) + " bytes, expected at most the " +
                                       std::to_string(bytes.size()) + " that it was asked for");
  }
  if (given < bytes.size()) {
    const auto found = static_cast<std::size_t>(offset_) + given;
    refuse(Errc::format, "ends at byte " + std::to_string(found) + ", expected " + part + " up to byte " +
                             std::to_string(static_cast<std::size_t>(offset_) + bytes.size()));
  }
  offset_ += static_cast<std::int64_t>(given);
}

const StateHeader& StateFileReader::begin() {
  std::array<std::byte, kMostHeaderBytes> buffer;
  take(std::span(buffer).first(kPrefixBytes), "its header");
  const auto magic = std::as_bytes(std::span(kMagic));
  if (!std::equal(magic.begin(), magic.end(), buffer.begin())) {
    refuse(Errc::format, "not one: begins with bytes " + files::hex(std::span(buffer).first(kMagic.size())) +
                             ", expected " + files::hex(magic) + " (" + std::string(kMagic) + ")");
  }
  const std::size_t size = load<std::uint32_t>(buffer, size_at);
  expect("size", size, kPrefixBytes + kDigestBytes, kMostHeaderBytes);
  const auto raw = std::span(buffer).first(size);
  take(raw.subspan(kPrefixBytes), "its header");
  const files::Digest digest = digest_of(raw.first(size - kDigestBytes));
  if (!std::equal(digest.begin(), digest.end(), raw.end() - kDigestBytes)) {
    refuse(Errc::format, "its header is damaged: it says its SHA-256 is " + short_hex(raw.last(kDigestBytes)) +
                             ", which is " + short_hex(digest));
  }
  const auto version = load<std::uint32_t>(raw, version_at);
  if (version != kStateVersion) {
    refuse(Errc::unsupported,
           "format version " + std::to_string(version) + ", expected " + std::to_string(kStateVersion));
  }
  header_ = parse(raw);
  check_facts();
  hash_.update(raw);
  return header_;
}

void StateFileReader::check_facts() const {
  if (header_.model != facts_.model) {
    refuse(Errc::invalid_argument, "of another model: fingerprint " + short_hex(header_.model) + ", expected " +
                                       short_hex(facts_.model) + ", this one's");
  }
  if (header_.numeric != facts_.numeric || header_.bounded_replay != facts_.bounded_replay) {
    refuse(Errc::invalid_argument, "of numeric class '" + numeric_class_name(header_.numeric, header_.bounded_replay) +
                                       "', expected '" + numeric_class_name(facts_.numeric, facts_.bounded_replay) +
                                       "', this engine's");
  }
  if (header_.position > facts_.max_context) {
    refuse(Errc::out_of_memory, std::to_string(header_.position) +
                                    " tokens, expected at most max_context = " + std::to_string(facts_.max_context));
  }
  expect("position", header_.position, std::int64_t{0}, facts_.max_context);
  expect("image rows", header_.image_rows, std::int64_t{0}, header_.position);
}

void StateFileReader::expect_caches(std::int64_t bytes) {
  const std::int64_t whole = state_payload_bytes(header_.position, header_.image_rows, facts_.dim, bytes);
  if (header_.payload_bytes != whole) {
    refuse(Errc::format, "its header's payload is " + std::to_string(header_.payload_bytes) + " bytes, expected " +
                             std::to_string(whole) + " for " + std::to_string(header_.position) + " tokens, " +
                             std::to_string(header_.image_rows) + " image rows and " + std::to_string(bytes) +
                             " bytes of caches");
  }
  left_ = whole;
}

void StateFileReader::tokens(std::span<std::int32_t> ids, std::span<std::uint8_t> marks) {
  read(std::as_writable_bytes(ids));
  read(std::as_writable_bytes(marks));
  const auto stray =
      std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id < 0 || id >= facts_.vocab; });
  if (stray != ids.end()) {
    refuse(Errc::format, "token " + std::to_string(stray - ids.begin()) + " has id " + std::to_string(*stray) +
                             ", expected 0 to " + std::to_string(facts_.vocab - 1));
  }
  const auto mark = std::find_if(marks.begin(), marks.end(), [](std::uint8_t m) { return m > 1; });
  if (mark != marks.end()) {
    refuse(Errc::format, "token " + std::to_string(mark - marks.begin()) + " has the image mark " +
                             std::to_string(*mark) + ", expected 0 or 1");
  }
  marks_ = marks;
}

std::int64_t StateFileReader::image_row(std::span<float> embedding) {
  std::int64_t position = 0;
  read(std::as_writable_bytes(std::span(&position, 1)));
  const bool ascends = position > last_image_ && position < static_cast<std::int64_t>(marks_.size());
  if (!ascends || marks_[static_cast<std::size_t>(position)] == 0) {
    refuse(Errc::format, "an image row is that of token " + std::to_string(position) +
                             ", expected an image token behind " + std::to_string(last_image_) + " and before " +
                             std::to_string(marks_.size()));
  }
  last_image_ = position;
  read(std::as_writable_bytes(embedding));
  return position;
}

void StateFileReader::read(std::span<std::byte> bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size > left_) {
    refuse(Errc::internal, std::to_string(size) + " bytes to read, expected at most " + std::to_string(left_) +
                               ", the rest of the payload");
  }
  take(bytes, "its payload");
  hash_.update(bytes);
  left_ -= size;
}

void StateFileReader::finish() {
  if (left_ != 0) refuse(Errc::internal, std::to_string(left_) + " bytes of its payload were not read");
  files::Digest found;
  take(found, "its checksum");
  const files::Digest digest = hash_.digest();
  if (found != digest) {
    refuse(Errc::format, "its contents are damaged: it says their SHA-256 is " + short_hex(found) + ", which is " +
                             short_hex(digest));
  }
}

}  // namespace dsv41::runtime
