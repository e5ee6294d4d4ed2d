// SPDX-License-Identifier: MIT
//
// Parts of a file, read by offset past the page cache: what is kept in memory already should not push other pages out of it. Private to
// src/.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "files/file_bytes.hpp"

namespace dsv41::files {

/// Why a read gave less than was asked for.
struct ReadFailure {
  int code = 0;          ///< errno; 0: the file ends
  std::uint64_t at = 0;  ///< the first byte that is not there
  bool happened = false;
  explicit operator bool() const noexcept { return happened; }
};

class DirectFile {
 public:
  /// Reads begin and end at multiples of this, in the file and in memory: what every block device asks for.
  static constexpr std::size_t kBlock = 4096;

  /// Bytes of the blocks that a range touches.
  static constexpr std::size_t blocks(std::uint64_t offset, std::size_t bytes) noexcept {
    return (static_cast<std::size_t>(offset % kBlock) + bytes + kBlock - 1) / kBlock * kBlock;
  }

  /// Errors: io (missing, unreadable, or not the file that `same` was taken of).
  DirectFile(const std::filesystem::path& path, const FileId& same);
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;
  ~DirectFile();

  /// Byte offset + i of the file to to[offset % kBlock + i], i below `bytes`. `to` lies at a multiple of kBlock and has blocks() bytes, of
  /// which the others may be written too. From several threads at once.
  ///
  /// Rules: without the page cache (O_DIRECT) where the file system has that; else through it, and it is told to drop them again.
  ReadFailure read(std::uint64_t offset, std::size_t bytes, std::byte* to) noexcept;

  bool is_direct() const noexcept { return direct_; }

 private:
  int cached_ = -1, uncached_ = -1;  // descriptors; the second is none where the file system refuses
  std::atomic<bool> direct_{false};
};

/// "Input/output error", or that the file ends.
std::string reason(const ReadFailure& failure);

}  // namespace dsv41::files
