// SPDX-License-Identifier: MIT
//
// A saved session as bytes: header, payload, checksum. What lies where, also for other programs: docs/saved_state.md. This file knows
// tokens, marks and image rows; the caches behind them are bytes that the engine writes and reads in that page's order. Private to
// src/runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "dsv41/core/numeric.hpp"
#include "dsv41/runtime/checkpoint.hpp"
#include "dsv41/runtime/state_io.hpp"
#include "files/sha256.hpp"

namespace dsv41::runtime {

inline constexpr std::uint32_t kStateVersion = 1;
inline constexpr std::int64_t kStateHeaderBytes = 112;

/// "exact" or "deployed", and ", bounded replay" behind it.
std::string numeric_class_name(Numeric numeric, bool bounded_replay);

/// What a header says.
struct StateHeader {
  Fingerprint model{};
  Numeric numeric = Numeric::exact;
  bool bounded_replay = false;
  bool with_windows =
      false;  ///< the caches begin with window rows and open groups; otherwise whoever loads it recomputes them
  std::int64_t position = 0;    ///< tokens
  std::int64_t image_rows = 0;  ///< image tokens that have an embedding of their own
  std::int64_t payload_bytes = 0;

  bool operator==(const StateHeader&) const = default;
};

/// Bytes of a payload. No overflow for what a valid config allows: position and image rows below 2^31, dim at most 2^20.
std::int64_t state_payload_bytes(std::int64_t position, std::int64_t image_rows, std::int64_t dim,
                                 std::int64_t cache_bytes) noexcept;

/// Writes one saved session: begin, tokens, image_row for each, write for the caches in any pieces, finish.
///
/// Errors:  internal where the pieces do not add up to the header's payload; what `out` throws. What was written then is no saved session.
class StateFileWriter {
 public:
  /// What `out` refers to must outlive the writer.
  explicit StateFileWriter(WriteBytes out) noexcept : out_(out) {}

  void begin(const StateHeader& header);
  /// ids, marks [position].
  void tokens(std::span<const std::int32_t> ids, std::span<const std::uint8_t> marks);
  /// Position of an image token, ascending, and its embedding [dim].
  void image_row(std::int64_t position, std::span<const float> embedding);
  void write(std::span<const std::byte> bytes);
  /// The checksum.
  void finish();

 private:
  void put(std::span<const std::byte> bytes);

  WriteBytes out_;
  files::Sha256 hash_;
  std::int64_t left_ = 0;  // of the payload
};

/// What an engine can take.
struct StateFacts {
  Fingerprint model{};
  Numeric numeric = Numeric::exact;
  bool bounded_replay = false;
  std::int64_t vocab = 0;
  std::int64_t dim = 0;
  std::int64_t max_context = 0;
};

/// Reads one saved session: begin, expect_caches, tokens, image_row for each, read for the caches in any pieces, finish. Nothing that it
/// hands out counts before finish() has returned.
///
/// Rules:   asks `in` for the session's own bytes and no further; no number of the file is believed, and no memory depends on it, before
///          begin() and expect_caches() have returned. Ids, marks and positions are looked at even though the checksum is to come: one
///          that is right only says that nobody changed the bytes by accident.
/// Errors:  format: no saved session, a damaged one, one that ends early, or values that no engine writes; unsupported: another version;
///          invalid_argument: of another model or numeric class, or `in` gave more than it was asked for; out_of_memory: more tokens
///          than max_context; internal: calls that do not add up to the payload; what `in` throws.
class StateFileReader {
 public:
  /// What `in` refers to must outlive the reader.
  StateFileReader(ReadBytes in, const StateFacts& facts) noexcept : in_(in), facts_(facts) {}

  /// Reads the header, verifies it, and holds it against the facts, all but its payload_bytes.
  const StateHeader& begin();
  /// Holds payload_bytes against what the caches of this header's position take, which the caller works out.
  void expect_caches(std::int64_t bytes);
  /// ids, marks [position]; marks must stay until the last image_row.
  void tokens(std::span<std::int32_t> ids, std::span<std::uint8_t> marks);
  /// Fills the embedding [dim] of the next image token that has one; returns its position.
  std::int64_t image_row(std::span<float> embedding);
  void read(std::span<std::byte> bytes);
  /// The checksum.
  void finish();

 private:
  void take(std::span<std::byte> bytes, const char* part);
  void check_facts() const;

  ReadBytes in_;
  StateFacts facts_;
  StateHeader header_;
  files::Sha256 hash_;
  std::int64_t offset_ = 0, left_ = 0;  // bytes read; bytes of the payload to come, none before expect_caches
  std::span<const std::uint8_t> marks_;
  std::int64_t last_image_ = -1;
};

}  // namespace dsv41::runtime
