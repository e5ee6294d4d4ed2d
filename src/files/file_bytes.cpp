// SPDX-License-Identifier: MIT
//
// POSIX files behind file_bytes.hpp.
#include "files/file_bytes.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "dsv41/core/error.hpp"

namespace dsv41::files {
namespace {

constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;  // Linux moves at most 2 GiB - 4 KiB per call
constexpr int kNameTries = 1000;

std::string reason(int code) {
  return std::generic_category().message(code);
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw Error(Errc::io, path.string() + ": " + what);
}

/// Closes what it holds.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Opens a regular file and tells its size. Non-blocking, so that a pipe under this name is refused instead of waited
/// for.
std::size_t open_regular(const Descriptor& file, const std::filesystem::path& path) {
  if (file.get() < 0) fail(path, "cannot open: " + reason(errno));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) fail(path, "cannot inspect: " + reason(errno));
  if (!S_ISREG(info.st_mode)) fail(path, "is no regular file");
  if (static_cast<std::uint64_t>(info.st_size) > std::numeric_limits<std::size_t>::max() / 2)
    fail(path, "is too large");
  return static_cast<std::size_t>(info.st_size);
}

int open_flags() {
  return O_RDONLY | O_CLOEXEC | O_NONBLOCK;
}

void read_exactly(int fd, std::span<std::byte> out, const std::filesystem::path& path) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t part = std::min(out.size() - done, kMaxTransfer);
    const ::ssize_t n = ::pread(fd, out.data() + done, part, static_cast<::off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, "cannot read: " + reason(errno));
    if (n == 0) {
      fail(path, "ends after " + std::to_string(done) + " bytes, expected " + std::to_string(out.size()));
    }
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace

FileId FileId::of(int descriptor) noexcept {
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return {};
#if defined(__APPLE__)
  const ::timespec time = info.st_mtimespec;
#else
  const ::timespec time = info.st_mtim;
#endif
  return {.device = static_cast<std::uint64_t>(info.st_dev),
          .inode = static_cast<std::uint64_t>(info.st_ino),
          .size = static_cast<std::uint64_t>(info.st_size),
          .seconds = time.tv_sec,
          .nanoseconds = time.tv_nsec};
}

FileBytes FileBytes::open(const std::filesystem::path& path, bool map) {
  const Descriptor file(::open(path.c_str(), open_flags()));
  FileBytes out;
  out.size_ = open_regular(file, path);
  out.id_ = FileId::of(file.get());
  if (out.size_ == 0) return out;
  if (map) {
    void* at = ::mmap(nullptr, out.size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (at != MAP_FAILED) {
      out.data_ = static_cast<const std::byte*>(at);
      out.mapped_ = true;
      return out;
    }
  }
  out.owned_.reset(new (std::nothrow) std::byte[out.size_]);
  if (!out.owned_) {
    throw Error(Errc::out_of_memory,
                path.string() + ": no memory for a copy of its " + std::to_string(out.size_) + " bytes");
  }
  read_exactly(file.get(), {out.owned_.get(), out.size_}, path);
  out.data_ = out.owned_.get();
  return out;
}

FileBytes::FileBytes(FileBytes&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, false)),
      id_(other.id_),
      owned_(std::move(other.owned_)) {}

FileBytes& FileBytes::operator=(FileBytes&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(id_, other.id_);
  std::swap(owned_, other.owned_);
  return *this;
}

FileBytes::~FileBytes() {
  if (mapped_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void FileBytes::expect(std::span<const std::byte> part, Use use) const noexcept {
  if (!mapped_) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = (reinterpret_cast<std::uintptr_t>(part.data()) + page - 1) / page * page,
                       end = reinterpret_cast<std::uintptr_t>(part.data() + part.size()) / page * page;
  if (first >= end) return;
  void* const at = reinterpret_cast<void*>(first);
  ::madvise(at, end - first, MADV_DONTNEED);
  if (use == Use::by_rows) ::madvise(at, end - first, MADV_RANDOM);
}

bool present(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found;
}

std::string read_text(const std::filesystem::path& path, std::uint64_t limit) {
  const Descriptor file(::open(path.c_str(), open_flags()));
  const std::size_t size = open_regular(file, path);
  if (size > limit) {
    throw Error(Errc::format,
                path.string() + ": has " + std::to_string(size) + " bytes, expected at most " + std::to_string(limit));
  }
  std::string out;
  try {
    out.resize(size);
  } catch (const std::bad_alloc&) {
    throw Error(Errc::out_of_memory, path.string() + ": no memory for its " + std::to_string(size) + " bytes");
  }
  read_exactly(file.get(), std::as_writable_bytes(std::span(out)), path);
  return out;
}

FileWriter::FileWriter(std::filesystem::path target) : target_(std::move(target)) {
  for (int i = 0; i < kNameTries; ++i) {
    temporary_ = target_;
    temporary_ += ".part" + std::to_string(::getpid()) + "-" + std::to_string(i);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0 || errno != EEXIST) break;
  }
  if (descriptor_ < 0) fail("cannot create");
}

FileWriter::~FileWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void FileWriter::fail(const char* what) const {
  files::fail(target_, std::string(what) + ": " + reason(errno));
}

void FileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ::ssize_t n = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxTransfer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void FileWriter::commit() {
  if (::fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS) fail("cannot write");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot rename the finished file");
  ::close(descriptor_);
  descriptor_ = -1;
}

}  // namespace dsv41::files
