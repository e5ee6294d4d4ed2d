// SPDX-License-Identifier: MIT
//
// Checked<B>: a backend that holds every op against its contract before running it. For tests, for new backends, and for callers who
// build ops over their own memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

#include "dsv41/ops/op.hpp"

namespace dsv41 {

/// Runs what check() accepts; the first op that it refuses is skipped, and its Error is thrown at the next sync().
template <class B>
class Checked {
 public:
  template <class... Args>
  explicit Checked(Args&&... args) : inner_(std::forward<Args>(args)...) {}

  template <class Op>
  void run(const Op& op) noexcept {
    try {
      op.check();
    } catch (...) {
      if (!refused_) refused_ = std::current_exception();
      return;
    }
    inner_.run(op);
  }

  void prepare(const ModelConfig& config, std::int64_t rows) { inner_.prepare(config, rows); }
  void* allocate(std::size_t bytes) { return inner_.allocate(bytes); }
  void release(void* data) noexcept { inner_.release(data); }
  void upload(void* to, const void* from, std::size_t bytes) noexcept { inner_.upload(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) noexcept { inner_.copy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) {
    sync();
    inner_.download(to, from, bytes);
  }
  void sync() {
    inner_.sync();
    if (refused_) std::rethrow_exception(std::exchange(refused_, nullptr));
  }

 private:
  B inner_;
  std::exception_ptr refused_;
};

}  // namespace dsv41
