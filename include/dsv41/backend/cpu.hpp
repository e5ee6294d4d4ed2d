// SPDX-License-Identifier: MIT
//
// CpuBackend: the ops as SIMD kernels on threads. Declarations only; the kernels are in src/cpu and are chosen for the machine at run time.
// Results are the same bits for any number of threads, any batch and any instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "dsv41/core/matrix.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

/// What runs the pieces of an op side by side. A host program with threads of its own may offer them, with the usual floating-point modes:
/// round to nearest, subnormals kept. The library's own take over the modes of the thread that makes them.
class Workers {
 public:
  /// One piece of work. Pieces do not wait for each other.
  class Pieces {
   public:
    virtual void run(std::int64_t piece, std::int64_t worker) noexcept = 0;

   protected:
    ~Pieces() = default;
  };

  virtual ~Workers() = default;

  /// How many there are, at least 1.
  virtual std::int64_t count() const noexcept = 0;

  /// Runs the pieces [0, count), each once, and returns when all are done. No worker, of number 0 to count() - 1, runs two at a time. The
  /// caller may be one of them. Pieces of one call are begun in ascending order, as far as one can say.
  virtual void run(std::int64_t count, Pieces& pieces) noexcept = 0;
};

/// Threads of the library's own: `threads` - 1 of them beside the caller. Between ops they wait awake for some microseconds, then asleep.
/// Errors: invalid_argument for less than 1; out_of_memory when the system gives no thread.
std::unique_ptr<Workers> make_workers(std::int64_t threads);

/// Gives an op the weights of the experts that it chose, where not all experts of a model are in memory. One op at a time: begin(), take()
/// until every expert was given, end().
class ExpertTier {
 public:
  /// An expert that may be read, until the next call.
  struct Resident {
    std::int64_t index = 0;                  ///< into begin()'s list
    const ExpertWeights* weights = nullptr;  ///< the same bytes, at another place
  };

  virtual ~ExpertTier() = default;

  /// What an op will read, each expert once, by the address of its views. The list must live until end(). Experts that the tier does not
  /// keep are given as they are.
  virtual void begin(std::span<const ExpertWeights* const> experts) noexcept = 0;

  /// Some experts that were not given yet, in any order; waits until there is one. None: one cannot be had, which sync() tells.
  virtual std::span<const Resident> take() noexcept = 0;

  virtual void end() noexcept = 0;

  /// Errors: what take() met since the last call. CpuBackend::sync() calls it.
  virtual void sync() = 0;
};

/// Processors that the process may run on, at least 1.
std::int64_t cpu_processors() noexcept;

/// Instruction sets that this build has kernels for and the machine runs, the best first, as Highway names them: "AVX3", "AVX2", "SSE4", ..
std::span<const std::string_view> cpu_targets();

struct CpuOptions {
  std::int64_t threads = 0;      ///< 0: cpu_processors()
  Workers* workers = nullptr;    ///< instead of threads; must outlive the backend
  std::string_view target = {};  ///< one of cpu_targets(), for tests; empty: the best
  ExpertTier* tier =
      nullptr;  ///< where SwigluExperts has its weights from; must outlive the backend; null: where their views point
};

/// Runs each op at once, on all workers. Memory is the host's, so a model reads its weights where they are mapped.
///
/// Rules:   ops whose contract matches bit for bit give RefBackend's bits; sums of products differ from it in the last bits of float32
///          (docs/numerics.md). An op that needs more workspace than prepare() foresaw grows it. Should that fail, or should an op hold an
///          index that leads outside what it indexes, or name a page that is not there, or the tier not have an expert, the op is skipped
///          and sync() throws.
class CpuBackend {
 public:
  /// Errors: invalid_argument for a negative number of threads, or a target that is not in cpu_targets(); out_of_memory.
  explicit CpuBackend(const CpuOptions& options = {});
  ~CpuBackend();
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  /// Any op of ops::All.
  template <class Op>
  void run(const Op& op) noexcept;

  void prepare(const ModelConfig& config, std::int64_t rows);
  void* allocate(std::size_t bytes);
  void release(void* data) noexcept;
  void upload(void* to, const void* from, std::size_t bytes) noexcept;
  void copy(void* to, const void* from, std::size_t bytes) noexcept;
  void download(void* to, const void* from, std::size_t bytes);
  void sync();

  /// The instruction set in use, one of cpu_targets().
  std::string_view target() const noexcept;

  std::int64_t threads() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

static_assert(ops::Backend<CpuBackend>);

}  // namespace dsv41
