// SPDX-License-Identifier: MIT
//
// The Engram gate of one stream: the normalised dot, the gate, and the gated sum.
#include "dsv41/numerics/engram_gate.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;
using numerics::engram_gate;

TEST_CASE("the dot does not change when the stream or the key is scaled, and is sqrt(dim) where they agree") {
  Random random(1);
  const std::vector<float> h = random.normals(64), ones(64, 1.0f);
  std::vector<float> big = h;
  for (float& x : big) x *= 0x1p20f;
  const float dot = numerics::engram_dot(h.data(), ones.data(), ones.data(), h.data(), 64, 1e-20);
  CHECK(static_cast<double>(dot) == Approx(8).epsilon(1e-6));
  CHECK(numerics::engram_dot(big.data(), ones.data(), ones.data(), h.data(), 64, 0) ==
        numerics::engram_dot(h.data(), ones.data(), ones.data(), big.data(), 64, 0));
}

TEST_CASE("h * (q * k) is one float32 factor of an exact product") {
  const float h = 1.1f, q = 1.4f, k = 1.7f, key = 1;
  const float factor = h * (q * k);
  CHECK(factor != (h * q) * k);  // so that the case tells the orders apart
  CHECK(numerics::engram_dot(&h, &q, &k, &key, 1, 0) == factor / h);
}

TEST_CASE("an Engram gate of +0 is sigmoid(1e-3), of -0 sigmoid(-1e-3), and signs are symmetric") {
  CHECK(engram_gate(0.0f) == numerics::sigmoid(1e-3f));
  CHECK(engram_gate(-0.0f) == numerics::sigmoid(-1e-3f));
  CHECK(engram_gate(1e-7f) == engram_gate(0.0f));
  CHECK(engram_gate(4.0f) == numerics::sigmoid(2.0f));
  CHECK(engram_gate(-4.0f) == numerics::sigmoid(-2.0f));
}

TEST_CASE("the sum is rounded once") {
  const std::vector<float> value = {0.3f, -7};
  std::vector<float> exact = {1, 2}, deployed = {1, 2};
  numerics::engram_add(Numeric::exact, 0.7f, value.data(), 2, exact.data());
  numerics::engram_add(Numeric::deployed, 0.7f, value.data(), 2, deployed.data());
  CHECK(exact == std::vector<float>{1 + 0.7f * 0.3f, 2 + 0.7f * -7});
  for (std::size_t i = 0; i < 2; ++i) CHECK(static_cast<double>(deployed[i]) == to_bf16(static_cast<double>(exact[i])));
}
