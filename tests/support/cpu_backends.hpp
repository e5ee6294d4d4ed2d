// SPDX-License-Identifier: MIT
//
// Every way to run the CPU backend: what comes out must be the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "catch.hpp"
#include "dsv41/backend/cpu.hpp"

namespace dsv41::test {

/// Calls work(backend) for each instruction set that this machine has, with 1, 2, 3 and 5 threads.
template <class Work>
void for_each_cpu_backend(const Work& work) {
  for (const std::string_view target : cpu_targets()) {
    for (const std::int64_t threads : {1, 2, 3, 5}) {
      INFO(std::string(target) << ", " << threads << " threads");
      CpuBackend backend({.threads = threads, .target = target});
      work(backend);
    }
  }
}

/// A CpuBackend of the kTarget-th best instruction set, or the last there is, on kThreads threads: a type, for what makes its own backend.
template <std::size_t kTarget, std::int64_t kThreads>
class CpuOn : public CpuBackend {
 public:
  CpuOn() : CpuBackend({.threads = kThreads, .target = cpu_targets()[std::min(kTarget, cpu_targets().size() - 1)]}) {}
};

/// The instruction sets of x86-64 with kernels, the best first, and all numbers of threads.
using CpuBackends = std::tuple<CpuOn<0, 1>, CpuOn<0, 2>, CpuOn<1, 3>, CpuOn<2, 5>, CpuOn<3, 1>>;

}  // namespace dsv41::test
