// SPDX-License-Identifier: MIT
//
// The running softmax of attention: block by block against a plain softmax, its first maximum, and where class deployed rounds.
#include "dsv41/numerics/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/formulas.hpp"
#include "support/random.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// One value a slot; blocks of `block` slots.
float attend(Numeric numeric, const std::vector<float>& logits, const std::vector<float>& values, float sink,
             std::size_t block) {
  numerics::RunningSoftmax softmax;
  float out = 0;
  for (std::size_t first = 0; first < logits.size(); first += block) {
    const std::size_t count = std::min(block, logits.size() - first);
    std::vector<float> part(logits.begin() + static_cast<std::ptrdiff_t>(first),
                            logits.begin() + static_cast<std::ptrdiff_t>(first + count));
    std::vector<const float*> rows;
    for (std::size_t i = 0; i < count; ++i) rows.push_back(&values[first + i]);
    const float shrink = softmax.add(part.data(), static_cast<std::int64_t>(count));
    numerics::attention_add(numeric, shrink, part.data(), rows.data(), static_cast<std::int64_t>(count), 1, &out);
  }
  numerics::attention_finish(numeric, softmax.denominator(sink), 1, &out);
  return out;
}

}  // namespace

TEST_CASE("any blocks give the plain softmax with a sink") {
  Random random(1);
  for (const std::int64_t count : {1, 5, 64, 65, 200}) {
    const std::vector<float> logits = random.normals(count, 3);
    std::vector<float> values(logits.size());
    for (float& x : values) x = random.uniform(1, 2);
    double above = 0, below = std::exp(0.5);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double p = std::exp(static_cast<double>(logits[i]));
      above += p * static_cast<double>(values[i]), below += p;
    }
    for (const std::size_t block : {std::size_t{1}, std::size_t{3}, std::size_t{64}})
      CHECK(norm_error({attend(Numeric::exact, logits, values, 0.5f, block)}, {above / below}) <= kNormAttention);
  }
}

TEST_CASE("the first maximum is -1e30: lower logits take no part, and nothing becomes NaN") {
  numerics::RunningSoftmax softmax;
  float logits[] = {-HUGE_VALF, -2e30f};
  CHECK(softmax.add(logits, 2) == 1.0f);
  CHECK(softmax.total == 0.0f);
  CHECK(softmax.top == -1e30f);
  float next[] = {0};
  CHECK(softmax.add(next, 1) == 0.0f);
  CHECK(softmax.total == 1.0f);
}

TEST_CASE("class deployed rounds a probability for the product and not in the denominator") {
  numerics::RunningSoftmax softmax;
  float p[] = {0, -0.3f};
  softmax.add(p, 2);
  CHECK(softmax.denominator(-1e4f) == 1 + p[1]);
  const float value = 1, *values[] = {&value};
  float exact = 0, deployed = 0;
  numerics::attention_add(Numeric::exact, 1, p + 1, values, 1, 1, &exact);
  numerics::attention_add(Numeric::deployed, 1, p + 1, values, 1, 1, &deployed);
  CHECK(exact == p[1]);
  CHECK(static_cast<double>(deployed) == to_bf16(static_cast<double>(p[1])));
  CHECK(deployed != exact);
}

TEST_CASE("sums shrink to each new maximum before its slots are added") {
  const float value = 2, *values[] = {&value};
  float p[] = {0.5f}, out = 8;
  numerics::attention_add(Numeric::exact, 0.25f, p, values, 1, 1, &out);
  CHECK(out == 3.0f);
}

TEST_CASE("a logit is the wide dot, rounded, times the rounded scale") {
  Random random(2);
  const std::vector<float> q = random.normals(33), key = random.normals(33);
  double dot = 0;
  for (std::size_t i = 0; i < 33; ++i) dot += static_cast<double>(q[i]) * static_cast<double>(key[i]);
  const float scale = numerics::inverse_root(33);
  CHECK(scale == static_cast<float>(1 / std::sqrt(33.0)));
  CHECK(numerics::attention_logit(q.data(), key.data(), 33, scale) == static_cast<float>(dot) * scale);
}
