// SPDX-License-Identifier: MIT
//
// What mmap and pread do in this test program: it is linked with --wrap for both (tests/CMakeLists.txt), so a file system that refuses
// maps, a disk that fails, or a file that somebody shortens, needs no such machine.
#pragma once

#include <atomic>
#include <filesystem>

namespace dsv41::test {

/// Counts the calls while it lives, and changes them if told to. Threads may read meanwhile.
class WrappedCalls {
 public:
  WrappedCalls();
  WrappedCalls(const WrappedCalls&) = delete;
  WrappedCalls& operator=(const WrappedCalls&) = delete;
  ~WrappedCalls();

  bool refuse_maps = false;               ///< mmap fails with ENODEV, as on some network file systems
  std::filesystem::path cut_before_read;  ///< the next pread first cuts this file to half its size; empty: it does not
  int maps = 0, private_maps = 0;
  std::atomic<int> reads{0};
  std::atomic<int> direct_reads{0};        ///< of these, with O_DIRECT
  std::atomic<bool> refuse_direct{false};  ///< those fail with EINVAL, as where a file system only lets open with it
  std::atomic<int> fail_after{-1};         ///< preads that still succeed; then `failure`; -1: all
  std::atomic<int> failure{0};             ///< errno; 0: pread finds the end of the file
  std::atomic<bool> spoil{false};          ///< a byte in the middle of what was read is another
};

}  // namespace dsv41::test
