// SPDX-License-Identifier: MIT
//
// CpuBackend: which kernel runs an op, and the memory that they share.
#include "dsv41/backend/cpu.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cpu/attention.hpp"
#include "cpu/by_rows.hpp"
#include "cpu/context.hpp"
#include "cpu/experts.hpp"
#include "cpu/index_select.hpp"
#include "cpu/linear.hpp"
#include "cpu/markov.hpp"
#include "cpu/mhc.hpp"
#include "cpu/rows.hpp"
#include "cpu/targets.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/ops/large_ops.hpp"
#include "dsv41/ref/ref_backend.hpp"

#if defined(__linux__)
#include <sched.h>
#endif

namespace dsv41 {

namespace {

constexpr std::size_t kAlignment = 256;

std::int64_t checked_threads(std::int64_t threads) {
  if (threads < 0)
    throw Error(Errc::invalid_argument, "cpu: threads is " + std::to_string(threads) + ", expected at least 0");
  return threads == 0 ? cpu_processors() : threads;
}

}  // namespace

std::int64_t cpu_processors() noexcept {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(CPU_COUNT(&set), 1);
#endif
  return std::max<std::int64_t>(std::thread::hardware_concurrency(), 1);
}

namespace {

/// Multiply-adds of an op, or about as much work.
std::int64_t products(const ops::Linear& op) {
  return op.x.extent(0) * op.w.rows * op.w.cols;
}
std::int64_t products(const ops::Markov& op) {
  return op.tokens.extent(0) * op.head.rows * op.head.cols;
}
std::int64_t products(const ops::SwigluExperts& op) {
  const Matrix& w = op.experts.empty() ? op.shared.w1 : op.experts[0].w1;
  return 3 * op.ids.size() * w.rows * w.cols;
}
std::int64_t products(const ops::SparseAttention& op) {
  return 2 * op.q.size() * (op.window + (op.counts.empty() ? 0 : op.ids.extent(1)));
}
std::int64_t products(const ops::BlockAttention& op) {
  return 2 * op.q.size() * (op.window + op.q.extent(0));
}
std::int64_t products(const ops::IndexSelect& op) {
  return op.q.size() * ((op.first_position + op.q.extent(0)) / op.ratio);
}
/// Ops of some operations on each value.
template <class Op>
std::int64_t products(const Op& op) {
  if constexpr (requires { op.streams; }) return 16 * op.streams.size();
  if constexpr (requires { op.logits; }) return 16 * op.logits.size();
  if constexpr (requires { op.out; }) return 16 * op.out.size();
  if constexpr (requires { op.x; }) return 16 * op.x.size();
  return 0;
}

}  // namespace

class CpuBackend::Impl {
 public:
  explicit Impl(const CpuOptions& options)
      : target_(cpu::target_named(options.target)),
        own_(options.workers == nullptr ? make_workers(checked_threads(options.threads)) : nullptr),
        context_{.workers = own_ ? *own_ : *options.workers, .target = target_.target, .tier = options.tier} {}

  template <class Op>
  void run(const Op& op) noexcept {
    if constexpr (requires { ref::index_fault(op); }) {
      if (const ref::IndexFault fault = ref::index_fault(op)) {
        if (!fault_) fault_ = fault;
        return;
      }
    }
    if constexpr (requires { cpu::run(op, context_, workspace_.data()); }) {
      const cpu::Context context = context_.for_work(products(op));
      if (grow(cpu::workspace_floats(op, context_))) cpu::run(op, context, workspace());
    } else if constexpr (requires { ref::workspace_floats(op); }) {
      if (grow(ref::workspace_floats(op))) ref::run(op, workspace());
    } else {
      ref::run(op);
    }
  }

  void prepare(const ModelConfig& c, std::int64_t rows) {
    ops::for_each_large_op(c, rows, [&](const auto& op) {
      if constexpr (requires { cpu::workspace_floats(op, context_); }) {
        grow(cpu::workspace_floats(op, context_));
      } else if constexpr (requires { ref::workspace_floats(op); }) {
        grow(ref::workspace_floats(op));
      }
    });
    sync();
  }

  void sync() {
    if (context_.tier != nullptr) context_.tier->sync();
    if (fault_) throw Error(Errc::invalid_argument, std::exchange(fault_, ref::IndexFault{}).text());
    if (lost_floats_ == 0) return;
    const std::size_t floats = std::exchange(lost_floats_, 0);
    throw Error(Errc::out_of_memory, "cpu: cannot allocate a workspace of " + std::to_string(floats) + " floats");
  }

  std::string_view target() const { return target_.name; }
  std::int64_t threads() const { return context_.workers.count(); }

 private:
  float* workspace() {
    const auto address = reinterpret_cast<std::uintptr_t>(workspace_.data());
    return workspace_.data() + (kAlignment - address % kAlignment) % kAlignment / sizeof(float);
  }

  bool grow(std::size_t floats) noexcept {
    try {
      if (workspace_.size() < floats + kAlignment / sizeof(float))
        workspace_.resize(floats + kAlignment / sizeof(float));
      return true;
    } catch (const std::exception&) {  // bad_alloc, or length_error for an absurd size
      lost_floats_ = floats;
      return false;
    }
  }

  cpu::NamedTarget target_;
  std::unique_ptr<Workers> own_;
  cpu::Context context_;
  std::vector<float> workspace_;
  std::size_t lost_floats_ = 0;
  ref::IndexFault fault_;
};

CpuBackend::CpuBackend(const CpuOptions& options) : impl_(std::make_unique<Impl>(options)) {}
CpuBackend::~CpuBackend() = default;

template <class Op>
void CpuBackend::run(const Op& op) noexcept {
  impl_->run(op);
}

template void CpuBackend::run(const ops::Embed&) noexcept;
template void CpuBackend::run(const ops::EngramHash&) noexcept;
template void CpuBackend::run(const ops::EngramGather&) noexcept;
template void CpuBackend::run(const ops::EngramGate&) noexcept;
template void CpuBackend::run(const ops::EngramConvolution&) noexcept;
template void CpuBackend::run(const ops::MhcSeam&) noexcept;
template void CpuBackend::run(const ops::MhcExpand&) noexcept;
template void CpuBackend::run(const ops::MhcCoefficients&) noexcept;
template void CpuBackend::run(const ops::MhcCollapse&) noexcept;
template void CpuBackend::run(const ops::StreamMean&) noexcept;
template void CpuBackend::run(const ops::Linear&) noexcept;
template void CpuBackend::run(const ops::RmsNorm&) noexcept;
template void CpuBackend::run(const ops::Rope&) noexcept;
template void CpuBackend::run(const ops::CacheAppend&) noexcept;
template void CpuBackend::run(const ops::Compress&) noexcept;
template void CpuBackend::run(const ops::IndexSelect&) noexcept;
template void CpuBackend::run(const ops::SparseAttention&) noexcept;
template void CpuBackend::run(const ops::BlockAttention&) noexcept;
template void CpuBackend::run(const ops::TopkRoute&) noexcept;
template void CpuBackend::run(const ops::HashRoute&) noexcept;
template void CpuBackend::run(const ops::SwigluExperts&) noexcept;
template void CpuBackend::run(const ops::Markov&) noexcept;

void CpuBackend::prepare(const ModelConfig& config, std::int64_t rows) {
  impl_->prepare(config, rows);
}
void* CpuBackend::allocate(std::size_t bytes) {
  void* data = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (data == nullptr) throw Error(Errc::out_of_memory, "cpu: cannot allocate " + std::to_string(bytes) + " bytes");
  std::memset(data, 0, bytes);
  return data;
}
void CpuBackend::release(void* data) noexcept {
  ::operator delete (data, std::align_val_t{kAlignment});
}
void CpuBackend::upload(void* to, const void* from, std::size_t bytes) noexcept {
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void CpuBackend::copy(void* to, const void* from, std::size_t bytes) noexcept {
  upload(to, from, bytes);
}
void CpuBackend::download(void* to, const void* from, std::size_t bytes) {
  sync();
  if (bytes > 0) std::memcpy(to, from, bytes);
}
void CpuBackend::sync() {
  impl_->sync();
}
std::string_view CpuBackend::target() const noexcept {
  return impl_->target();
}
std::int64_t CpuBackend::threads() const noexcept {
  return impl_->threads();
}

}  // namespace dsv41
