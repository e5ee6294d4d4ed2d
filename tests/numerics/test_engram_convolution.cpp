// SPDX-License-Identifier: MIT
//
// The Engram paper's convolution: one position's normed memory, and one channel's sum.
#include "dsv41/numerics/engram_convolution.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

TEST_CASE("a memory row is the norm of gate * value: the gate's size cancels, a closed gate gives zeros") {
  const std::vector<float> value = {3, -4, 0, 0}, weight = {1, 0.5f, 1, 1};
  std::vector<float> row(4);
  for (const float gate : {1.0f, 0.25f}) {
    numerics::engram_memory_row(Numeric::exact, gate, value.data(), weight.data(), 4, 1e-20, row.data());
    CHECK(norm_error(row, {1.2, -0.8, 0, 0}) <= kNorm);
  }
  numerics::engram_memory_row(Numeric::deployed, 1.0f, value.data(), weight.data(), 4, 1e-20, row.data());
  CHECK(row == std::vector<float>{static_cast<float>(to_bf16(1.2)), static_cast<float>(to_bf16(-0.8)), 0, 0});
  numerics::engram_memory_row(Numeric::exact, 0.0f, value.data(), weight.data(), 4, 1e-20, row.data());
  for (const float x : row) CHECK(x == 0.0f);
}

TEST_CASE("a channel adds silu of its sum, reads no lag before `first`, and sums wide") {
  const std::vector<float> kernel = {100, 2, -1, 0.5f}, past = {std::nanf(""), 1, 3, 4};
  const auto at = [&](std::int64_t i) { return past[static_cast<std::size_t>(i)]; };
  const float got = numerics::engram_convolve(Numeric::exact, 10, kernel.data(), 1, 4, at);  // 2 - 3 + 2 = 1
  CHECK(static_cast<double>(got) == Approx(10 + sigmoid(1.0)).epsilon(1e-6));
  CHECK(numerics::engram_convolve(Numeric::exact, 10, kernel.data(), 4, 4, at) == 10.0f);
  CHECK(std::isnan(numerics::engram_convolve(Numeric::exact, 10, kernel.data(), 0, 4, at)));
  const auto one = [](std::int64_t) { return 1.0f; };
  const std::vector<float> wide = {0x1p30f, 1, -0x1p30f};
  CHECK(static_cast<double>(numerics::engram_convolve(Numeric::exact, 0, wide.data(), 0, 3, one)) ==
        Approx(sigmoid(1.0)).epsilon(1e-6));
}
