// SPDX-License-Identifier: MIT
//
// Random test data: the same numbers everywhere, from a seed that a failing test can name. Shares no code with the library.
#pragma once

#include <cstdint>
#include <vector>

namespace dsv41::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {  // splitmix64
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n)); }
  float uniform(double low, double high) {
    return static_cast<float>(low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53);
  }
  /// About normal: a sum of twelve uniforms.
  float normal(double size = 1) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits() >> 11) * 0x1p-53;
    return static_cast<float>(size * sum);
  }
  std::vector<float> normals(std::int64_t count, double size = 1) {
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& x : out) x = normal(size);
    return out;
  }

 private:
  std::uint64_t state_;
};

}  // namespace dsv41::test
