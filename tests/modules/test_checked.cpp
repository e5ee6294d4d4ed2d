// SPDX-License-Identifier: MIT
//
// Checked<B>: a whole step keeps every op's contract, and the first op that breaks one is skipped and told of at sync().
#include <vector>

#include "dsv41/backend/checked.hpp"
#include "dsv41/ref/ref_backend.hpp"
#include "support/catch.hpp"
#include "support/failure.hpp"
#include "support/random_model.hpp"

using namespace dsv41;
using namespace dsv41::test;

TEST_CASE("every op of a step keeps its contract, and checking changes no bit") {
  static_assert(ops::Backend<Checked<RefBackend>>);
  const auto logits = [](auto& random) {
    Stepper stepper(random, {.max_context = 32, .max_rows = 16}, Numeric::exact);
    auto state = stepper.open();
    std::vector<float> out = stepper.step({{&state, {1, 2, 3, 4, 5, 6, 7, 8, 9}}});
    const std::vector<float> more = stepper.step({{&state, {3}}});
    random.backend.sync();
    out.insert(out.end(), more.begin(), more.end());
    return out;
  };
  RandomModel<Checked<RefBackend>> checked;
  RandomModel<RefBackend> plain;
  CHECK(logits(checked) == logits(plain));
}

TEST_CASE("an op that breaks its contract is skipped, and sync throws its error once") {
  Checked<RefBackend> backend;
  float x[4] = {3, 4, 0, 0}, weight[2] = {1, 1}, y[4] = {7, 7, 7, 7};
  ops::RmsNorm op{.x = {x, {2, 2}}, .weight = {weight, {1}}, .y = {y, {2, 2}}};
  backend.run(op);
  CHECK(y[0] == 7);
  const Failure failure = failure_of([&] { backend.sync(); });
  CHECK(failure.code == Errc::shape_mismatch);
  CHECK(failure.message == "rms_norm: weight is [1], expected [2]");
  CHECK_NOTHROW(backend.sync());
  op.weight = {weight, {2}};
  backend.run(op);
  CHECK_NOTHROW(backend.sync());
  CHECK(y[0] != 7);
}

TEST_CASE("a model refuses weights with a layer or an expert missing") {
  RandomModel<RefBackend> random;
  random.weights.layers[2].moe.experts.pop_back();
  Failure failure = failure_of([&] { (void)random.model(Numeric::exact); });
  CHECK(failure.code == Errc::shape_mismatch);
  CHECK(failure.message == "model: number of experts in layer 2 is 5, expected 6");
  random.weights.layers.pop_back();
  failure = failure_of([&] { (void)random.model(Numeric::exact); });
  CHECK(failure.message == "model: number of layers in the weights is 5, expected 6");
}
