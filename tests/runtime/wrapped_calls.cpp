// SPDX-License-Identifier: MIT
//
// The wrappers behind wrapped_calls.hpp; the linker gives __real_ names to the C library's functions.
#include "runtime/wrapped_calls.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <utility>

namespace {

std::atomic<dsv41::test::WrappedCalls*> active{nullptr};

}  // namespace

dsv41::test::WrappedCalls::WrappedCalls() {
  active = this;
}
dsv41::test::WrappedCalls::~WrappedCalls() {
  active = nullptr;
}

extern "C" {

void* __real_mmap(void* at, std::size_t bytes, int protection, int flags, int file, ::off_t offset);
::ssize_t __real_pread(int file, void* to, std::size_t bytes, ::off_t offset);

void* __wrap_mmap(void* at, std::size_t bytes, int protection, int flags, int file, ::off_t offset) {
  dsv41::test::WrappedCalls* const active = ::active;
  if (active != nullptr && file >= 0) {
    ++active->maps;
    active->private_maps += (flags & MAP_PRIVATE) != 0 && protection == PROT_READ;
    if (active->refuse_maps) {
      errno = ENODEV;
      return MAP_FAILED;
    }
  }
  return __real_mmap(at, bytes, protection, flags, file, offset);
}

::ssize_t __wrap_pread(int file, void* to, std::size_t bytes, ::off_t offset) {
  dsv41::test::WrappedCalls* const active = ::active;
  if (active != nullptr) {
    ++active->reads;
    const bool direct = (::fcntl(file, F_GETFL) & O_DIRECT) != 0;
    active->direct_reads += direct;
    if (direct && active->refuse_direct) {
      errno = EINVAL;
      return -1;
    }
    if (active->fail_after >= 0 && active->fail_after-- == 0) {
      active->fail_after = 0;  // and so do the others
      errno = active->failure;
      return active->failure == 0 ? 0 : -1;
    }
    if (!active->cut_before_read.empty()) {
      const std::filesystem::path path = std::exchange(active->cut_before_read, std::filesystem::path());
      std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
    }
  }
  const ::ssize_t got = __real_pread(file, to, bytes, offset);
  if (active != nullptr && active->spoil && got > 0) static_cast<unsigned char*>(to)[got / 2] ^= 1;
  return got;
}

}  // extern "C"
