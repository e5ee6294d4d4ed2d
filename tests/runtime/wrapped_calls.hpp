// SPDX-License-Identifier: MIT
//
// What mmap and pread do in this test program: it is linked with --wrap for both (tests/CMakeLists.txt), so a file system that refuses
// maps, or a file that somebody shortens, needs no such machine.
#pragma once

#include <filesystem>

namespace dsv41::test {

/// Counts the calls while it lives, and changes them if told to.
class WrappedCalls {
 public:
  WrappedCalls();
  WrappedCalls(const WrappedCalls&) = delete;
  WrappedCalls& operator=(const WrappedCalls&) = delete;
  ~WrappedCalls();

  bool refuse_maps = false;               ///< mmap fails with ENODEV, as on some network file systems
  std::filesystem::path cut_before_read;  ///< the next pread first cuts this file to half its size; empty: it does not
  int maps = 0, private_maps = 0, reads = 0;
};

}  // namespace dsv41::test
