// SPDX-License-Identifier: MIT
//
// A cancel token within a step: no layer begins behind the one in which it was set, and a step that has run its last layer is whole.
#include <cstdint>
#include <type_traits>
#include <vector>

#include "dsv41/core/cancel.hpp"
#include "support/random_model.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// Sets the token while the experts of layer `at` run, and counts those of all layers.
template <class B>
class Cancelling : public B {
 public:
  template <class Op>
  void run(const Op& op) noexcept {
    B::run(op);
    if constexpr (std::is_same_v<Op, ops::SwigluExperts>) {
      if (layers++ == at) token.request();
    }
  }

  CancelToken token;
  std::int64_t at = -1, layers = 0;
};

}  // namespace

TEMPLATE_LIST_TEST_CASE("a cancel is honoured before the next layer, and what the step overwrote is known", "[model]",
                        Backends) {
  RandomModel<Cancelling<TestType>> random;
  Stepper<Cancelling<TestType>> stepper(random, {.max_context = 64, .max_rows = 16}, Numeric::exact);
  auto& backend = random.backend;
  const std::int64_t layers = random.config.layers;
  const std::vector<std::int32_t> ids = random_tokens(1, 30, 50);
  State<Cancelling<TestType>> plain = stepper.open();
  stepper.step({{&plain, part(ids, 0, 16)}});
  const std::vector<float> want = stepper.step({{&plain, part(ids, 16, 2)}});

  Memory<Cancelling<TestType>> memory(backend);
  for (std::int64_t at = -1; at < layers; ++at) {  // -1: set before the step
    INFO("set in layer " << at);
    State<Cancelling<TestType>> state = stepper.open();
    backend.token.reset(), backend.at = -2;
    stepper.step({{&state, part(ids, 0, 16)}});
    if (at < 0) backend.token.request();
    backend.at = at, backend.layers = 0;
    const Segment segment{.state = &state.sequence(), .first_row = 0, .rows = 2, .first_position = 16};
    const auto history = Array<std::int32_t, 2>({1, 2}, part(ids, 14, 2));
    const bool whole = stepper.model().step(backend,
                                            Batch{.ids = memory.put(part(ids, 16, 2)),
                                                  .image = memory.put(std::vector<std::uint8_t>(2)),
                                                  .image_rows = {},
                                                  .positions = memory.put(std::vector<std::int64_t>{16, 17}),
                                                  .history = memory.put(history),
                                                  .segments = {&segment, 1}},
                                            stepper.scratch().views().first_rows(2), {}, &backend.token);
    CHECK(backend.layers == at + 1);
    CHECK(whole == (at + 1 == layers));
    backend.at = -2;
    if (whole) continue;
    state.overwrote(18);  // two rows, within the room: nothing that 16 tokens need is lost
    REQUIRE(state.intact(16));
    CHECK(same_bits(stepper.step({{&state, part(ids, 16, 2)}}), want));
  }
}
