// SPDX-License-Identifier: MIT
//
// Pooling of one channel: the softmax mean, the divided probability, strides, and the one rounding of class deployed.
#include "dsv41/numerics/pool.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;
using numerics::pool;

TEST_CASE("a pool is the mean of the values under the softmax of the gates, whatever the strides") {
  Random random(1);
  for (const std::int64_t ratio : {1, 2, 3, 4, 16}) {
    std::vector<float> kv(static_cast<std::size_t>(2 * ratio));
    for (float& x : kv) x = random.uniform(1, 2);
    const std::vector<float> gate = random.normals(3 * ratio, 2);
    double above = 0, below = 0;
    for (std::int64_t j = 0; j < ratio; ++j) {
      const double p = std::exp(static_cast<double>(gate[static_cast<std::size_t>(3 * j)]));
      above += p * static_cast<double>(kv[static_cast<std::size_t>(2 * j)]), below += p;
    }
    const float got = pool(Numeric::exact, kv.data(), 2, gate.data(), 3, ratio);
    CHECK(norm_error({got}, {above / below}) <= kNorm);
    CHECK(static_cast<double>(pool(Numeric::deployed, kv.data(), 2, gate.data(), 3, ratio)) ==
          to_bf16(static_cast<double>(got)));
  }
}

TEST_CASE("products are added in float32, in ascending position") {
  // Probabilities of a quarter: 1, then two halves of its last bit, each lost to the even neighbour; a wide sum would keep both.
  const float kv[] = {4, 0x1p-22f, 0x1p-22f, 0}, back[] = {0, 0x1p-22f, 0x1p-22f, 4}, gate[] = {0, 0, 0, 0};
  CHECK(pool(Numeric::exact, kv, 1, gate, 1, 4) == 1.0f);
  CHECK(pool(Numeric::exact, back, 1, gate, 1, 4) == 1.0f + 0x1p-23f);
}

TEST_CASE("each probability is divided before it weighs") {
  const float kv[] = {3e38f, 3e38f, 3e38f}, gate[] = {5, 5, 5};  // products of undivided ones would overflow
  CHECK(std::isfinite(pool(Numeric::exact, kv, 1, gate, 1, 3)));
}

TEST_CASE("a group of one is its value") {
  const float kv = 1.25f, gate = -80;
  CHECK(pool(Numeric::exact, &kv, 1, &gate, 1, 1) == 1.25f);
}
