// SPDX-License-Identifier: MIT
//
// What this machine can do at most, measured in the run that is compared with it: reading memory, float32 multiply-adds, dot products of
// bytes. For benchmarks only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace dsv41::bench {

/// Rates in units a nanosecond (GB/s, GFLOP/s), all threads together.
struct Bounds {
  std::int64_t threads = 0;
  double read = 0;     ///< bytes read from memory
  double fma = 0;      ///< float32 additions and multiplications, by the best vector instructions
  double dot = 0;      ///< the same of bytes into 32-bit sums; 0: the machine has no instruction for it
  std::string target;  ///< the instruction set, as Highway names it

  /// Nanoseconds that so many bytes of weights and float32 operations take at least.
  double at_least(double bytes, double flop) const { return std::max(bytes / read, flop / fma); }
};

/// The best of several tries each, about a second in all. `bytes` is what is read, in several streams a thread: larger than the last cache,
/// or the rate is the cache's.
Bounds measure_bounds(std::int64_t threads, std::span<const std::byte> bytes);

}  // namespace dsv41::bench
