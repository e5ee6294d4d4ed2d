// SPDX-License-Identifier: MIT
//
// RefBackend: the plain CPU reference. Header-only, one thread, needs nothing but a compiler; it runs every op as its contract states
// and is what other backends are measured against.
#pragma once

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/ops/large_ops.hpp"
#include "dsv41/ops/op.hpp"
#include "dsv41/ref/block_attention.hpp"
#include "dsv41/ref/cache_append.hpp"
#include "dsv41/ref/compress.hpp"
#include "dsv41/ref/embed.hpp"
#include "dsv41/ref/engram_convolution.hpp"
#include "dsv41/ref/engram_gate.hpp"
#include "dsv41/ref/engram_gather.hpp"
#include "dsv41/ref/engram_hash.hpp"
#include "dsv41/ref/hash_route.hpp"
#include "dsv41/ref/index_fault.hpp"
#include "dsv41/ref/index_select.hpp"
#include "dsv41/ref/linear.hpp"
#include "dsv41/ref/markov.hpp"
#include "dsv41/ref/mhc.hpp"
#include "dsv41/ref/rms_norm.hpp"
#include "dsv41/ref/rope.hpp"
#include "dsv41/ref/sparse_attention.hpp"
#include "dsv41/ref/swiglu_experts.hpp"
#include "dsv41/ref/topk_route.hpp"

namespace dsv41 {

class RefBackend {
 public:
  /// Runs the op at once. An op that needs more workspace than prepare() foresaw grows it. Should that fail, or should an op hold an
  /// index that leads outside what it indexes, or name a page that is not there, the op is skipped and sync() throws.
  template <class Op>
  void run(const Op& op) noexcept {
    if constexpr (requires { ref::index_fault(op); }) {
      if (const ref::IndexFault fault = ref::index_fault(op)) {
        if (!fault_) fault_ = fault;
        return;
      }
    }
    if constexpr (requires { ref::workspace_floats(op); }) {
      if (grow(ref::workspace_floats(op))) ref::run(op, workspace_.data());
    } else {
      ref::run(op);
    }
  }

  void prepare(const ModelConfig& c, std::int64_t rows) {
    ops::for_each_large_op(c, rows, [&](const auto& op) {
      if constexpr (requires { ref::workspace_floats(op); }) grow(ref::workspace_floats(op));
    });
    sync();
  }

  void* allocate(std::size_t bytes) {
    void* data = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (data == nullptr) throw Error(Errc::out_of_memory, "ref: cannot allocate " + std::to_string(bytes) + " bytes");
    std::memset(data, 0, bytes);
    return data;
  }
  void release(void* data) noexcept { ::operator delete (data, std::align_val_t{kAlignment}); }
  void upload(void* to, const void* from, std::size_t bytes) noexcept {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) noexcept { upload(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) {
    sync();
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void sync() {
    if (fault_) throw Error(Errc::invalid_argument, std::exchange(fault_, ref::IndexFault{}).text());
    if (lost_floats_ == 0) return;
    const std::size_t floats = std::exchange(lost_floats_, 0);
    throw Error(Errc::out_of_memory, "ref: cannot allocate a workspace of " + std::to_string(floats) + " floats");
  }

 private:
  bool grow(std::size_t floats) noexcept {
    try {
      if (workspace_.size() < floats) workspace_.resize(floats);
      return true;
    } catch (const std::exception&) {  // bad_alloc, or length_error for an absurd size
      lost_floats_ = floats;
      return false;
    }
  }

  static constexpr std::size_t kAlignment = 256;

  std::vector<float> workspace_;
  std::size_t lost_floats_ = 0;
  ref::IndexFault fault_;
};

static_assert(ops::Backend<RefBackend>);

}  // namespace dsv41
