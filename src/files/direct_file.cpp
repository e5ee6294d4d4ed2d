// SPDX-License-Identifier: MIT
//
// O_DIRECT where there is such a thing, posix_fadvise elsewhere.
#include "files/direct_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "dsv41/core/error.hpp"

namespace dsv41::files {
namespace {

constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;  // as in file_bytes.cpp; a multiple of kBlock

/// Reads `size` bytes, of which the first `needed` must be there: the last block of a file is short.
ReadFailure read_range(int file, std::uint64_t offset, std::byte* to, std::size_t size, std::size_t needed) noexcept {
  for (std::size_t done = 0; done < needed;) {
    const ::ssize_t n =
        ::pread(file, to + done, std::min(size - done, kMaxTransfer), static_cast<::off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {.code = n < 0 ? errno : 0, .at = offset + done, .happened = true};
    done += static_cast<std::size_t>(n);
  }
  return {};
}

}  // namespace

DirectFile::DirectFile(const std::filesystem::path& path, const FileId& same) {
  cached_ = ::open(path.c_str(), kFlags);
  if (cached_ < 0) throw Error(Errc::io, path.string() + ": cannot open: " + std::generic_category().message(errno));
  if (FileId::of(cached_) != same) {
    ::close(cached_);
    throw Error(Errc::io, path.string() + ": is not the file any more that the model was opened from");
  }
#if defined(O_DIRECT)
  // The same file again: by its name, as a descriptor does not change over. A race is caught by the check.
  uncached_ = ::open(path.c_str(), kFlags | O_DIRECT);
  if (uncached_ >= 0 && FileId::of(uncached_) != same) ::close(std::exchange(uncached_, -1));
#endif
  direct_ = uncached_ >= 0;
}

DirectFile::~DirectFile() {
  for (const int file : {cached_, uncached_}) {
    if (file >= 0) ::close(file);
  }
}

ReadFailure DirectFile::read(std::uint64_t offset, std::size_t bytes, std::byte* to) noexcept {
  const std::size_t skip = offset % kBlock;
  if (direct_) {
    const ReadFailure failure = read_range(uncached_, offset - skip, to, blocks(offset, bytes), skip + bytes);
    if (!failure || failure.code != EINVAL) return failure;
    direct_ = false;  // opened, but does not read so: some network file systems, and devices with larger blocks
  }
  const ReadFailure failure = read_range(cached_, offset, to + skip, bytes, bytes);
#if defined(POSIX_FADV_DONTNEED)
  if (!failure) {
    ::posix_fadvise(cached_, static_cast<::off_t>(offset), static_cast<::off_t>(bytes), POSIX_FADV_DONTNEED);
  }
#endif
  return failure;
}

std::string reason(const ReadFailure& failure) {
  return failure.code == 0 ? "the file ends there" : std::generic_category().message(failure.code);
}

}  // namespace dsv41::files
