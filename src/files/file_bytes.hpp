// SPDX-License-Identifier: MIT
//
// Files as bytes: mapped or read whole, small texts with a limit, and a writer that leaves no half-written file behind.
// Private to src/; programs get write_file_atomically (dsv41/runtime/files.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace dsv41::files {

/// Which file it is, and whether it was written since.
struct FileId {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t seconds = 0, nanoseconds = 0;  ///< of its last modification
  bool operator==(const FileId&) const = default;

  /// Of an open descriptor; all 0 when it tells nothing.
  static FileId of(int descriptor) noexcept;
};

/// A whole file, read-only: a private mapping, or an owned copy where mapping fails or is not wanted (case B84: some
/// network file systems refuse maps; a map of a file that somebody else shortens kills the process, a copy does not).
class FileBytes {
 public:
  /// Errors: io (missing, no regular file, unreadable, shorter than its size says), out_of_memory.
  static FileBytes open(const std::filesystem::path& path, bool map);

  FileBytes(FileBytes&& other) noexcept;
  FileBytes& operator=(FileBytes&& other) noexcept;
  ~FileBytes();

  std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  bool is_mapped() const noexcept { return mapped_; }
  const FileId& id() const noexcept { return id_; }

  /// What will be done with `part` of bytes(). A hint; nothing without a mapping.
  enum class Use : std::uint8_t {
    nothing,  ///< its pages leave this process's memory, and come back from the file if they are read all the same
    by_rows,  ///< the same, and then it is read here and there: a page costs a page, not those around it
  };
  void expect(std::span<const std::byte> part, Use use) const noexcept;

 private:
  FileBytes() = default;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool mapped_ = false;
  FileId id_;
  std::unique_ptr<std::byte[]> owned_;
};

/// Whether the folder has an entry of this name. A link that leads nowhere, or in a circle, is one too: opening it then
/// says what is wrong, while taking it for absent would ignore it in silence.
bool present(const std::filesystem::path& path);

/// A text file of at most `limit` bytes. Errors: io (missing, no regular file, unreadable), format (larger than the
/// limit), out_of_memory.
std::string read_text(const std::filesystem::path& path, std::uint64_t limit);

/// Writes beside the target and renames at commit(): a reader sees the old file or the whole new one. The temporary is
/// a new file, whatever lies there; it is on the disk before it takes the target's name. Errors: io, from any call.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path target);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter();  ///< removes the temporary unless committed

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;
  std::filesystem::path target_, temporary_;
  int descriptor_ = -1;
};

}  // namespace dsv41::files
