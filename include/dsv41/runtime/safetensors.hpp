// SPDX-License-Identifier: MIT
//
// The safetensors container: eight bytes of header length, a JSON header, one contiguous payload. The reader checks
// everything a header claims before any tensor can be looked at; the writer leaves no half-written file. Source:
// checkpoint.md 2.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsv41::files {
class FileBytes;
}

namespace dsv41::runtime {

/// Element types with whole bytes. `unknown` is anything else a header names (case B81).
enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f16,
  bf16,
  f32,
  f64,
  unknown
};

/// The spelling in a header ("F8_E4M3"); "unknown" for unknown.
std::string_view dtype_name(DType type) noexcept;

/// Bytes of one element; 0 for unknown.
std::int64_t dtype_bytes(DType type) noexcept;

/// One tensor of a file. `data` may lie at any address: the format does not align (case B86).
struct TensorInfo {
  std::string name;
  DType dtype = DType::unknown;
  std::string dtype_text;  ///< as the header spells it
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
};

/// "BF16 [64, 32]", for messages.
std::string describe(const TensorInfo& tensor);

/// How a file's bytes are reached. `map` falls back to `read` where mapping fails. Only `read` is safe against a file
/// that another process shortens while it is open (a mapping then faults; case B84).
enum class Access : std::uint8_t { map, read };

/// An open file. Immutable; tensors and their bytes live as long as it does. Moves, does not copy.
class SafetensorsFile {
 public:
  /// Errors:  io (missing, unreadable, shorter than it says), format (header not as specified, sizes or offsets that
  ///          disagree, overlaps, holes or trailing bytes: the format forbids holes, and one is the mark of a damaged
  ///          or doctored file), out_of_memory (Access::read, or a fallback to it).
  /// Cost:    parses the header; Access::map touches no payload.
  static SafetensorsFile open(const std::filesystem::path& path, Access access = Access::map);

  /// The same checks over bytes that the caller keeps alive; `origin` names them in messages.
  /// Errors:  io (fewer bytes than they say), format.
  static SafetensorsFile over(std::span<const std::byte> file, std::string origin);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  const std::string& origin() const noexcept;                    ///< the path, for messages
  std::span<const TensorInfo> tensors() const noexcept;          ///< in order of their offsets
  const TensorInfo* find(std::string_view name) const noexcept;  ///< null when absent; logarithmic
  const files::FileBytes* file() const noexcept;  ///< for the library's own sources; null over a caller's bytes

 private:
  struct Impl;
  explicit SafetensorsFile(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// The header of a file that holds these tensors in this order, end to end: {name: {dtype, shape, data_offsets}}, compact,
/// padded with spaces to a multiple of 8, as the release has it. The eight bytes of its length are not part of it. Of the
/// tensors, name, dtype, shape and bytes are read.
///
/// Errors:  invalid_argument (unknown dtype, bytes that are not shape times dtype, a name twice or not UTF-8, a header or
///          payload beyond the format's limits).
std::string safetensors_header(std::span<const TensorInfo> tensors);

/// What write_safetensors stores under one name.
struct TensorSource {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

/// Writes the tensors in the given order, behind their safetensors_header. Writes to a temporary beside the target and
/// renames it, so the target is whole or untouched.
///
/// Errors:  those of safetensors_header; io.
/// Cost:    streams; no copy of the tensors.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorSource> tensors);

}  // namespace dsv41::runtime
