// SPDX-License-Identifier: MIT
//
// A step allocates nothing.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsv41/model/model.hpp"
#include "model/counted_new.hpp"
#include "support/random_model.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

/// One whose widest workspace is that of the experts, one where it is the Engram projection's quantised input, and one where it is a
/// query's decoded window.
std::vector<ModelConfig> configs() {
  ModelConfig wide = tiny_config();
  wide.engram.dim = 256;
  ModelConfig far = tiny_config();
  far.window = 1000;
  return {tiny_config(), wide, far};
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("a step and its logits allocate nothing after prepare, from one row up to all of them",
                        "[model]", Backends) {
  for (const ModelConfig& config : configs()) {
    for (const Numeric numeric : kNumerics) {
      RandomModel<TestType> random(config);
      const Limits limits{.max_context = 64, .max_rows = 17};
      Stepper<TestType> stepper(random, limits, numeric);  // prepares the backend for 17 rows
      State<TestType> state = stepper.open();
      std::vector<LayerRows> plan;  // of a prompt that replays its last window: the step cuts batch and scratch
      for (const std::int64_t rows : {17, 1, 5}) {
        std::vector<std::int64_t> positions(static_cast<std::size_t>(rows));
        for (std::int64_t i = 0; i < rows; ++i) positions[static_cast<std::size_t>(i)] = state.sequence().position + i;
        const Segment segment{
            .state = &state.sequence(), .first_row = 0, .rows = rows, .first_position = state.position()};
        const Batch batch{.ids = random.memory.put(random_tokens(1, static_cast<std::size_t>(rows), 50)),
                          .image = random.memory.put(std::vector<std::uint8_t>(static_cast<std::size_t>(rows))),
                          .image_rows = {},
                          .positions = random.memory.put(positions),
                          .history = random.memory.put(Array<std::int32_t, 2>({1, 2}, numerics::kEngramDead)),
                          .segments = {&segment, 1}};
        const auto logits = random.memory.put(Array<float, 2>({rows, 50}));
        plan_prefill(
            random.config, make_schedule(random.config), Prefill::replay,
            {.begin = state.position(), .end = state.position() + rows, .first = state.position(), .rows = rows}, plan);
        const std::int64_t first = plan.back().queries;
        const std::size_t before = allocations();
        const ScratchViews views = stepper.scratch().views().first_rows(rows);
        stepper.model().step(random.backend, batch, views);
        stepper.model().step(random.backend, batch, views, plan);
        stepper.model().logits(random.backend, views, first, rows - first, logits.rows(first, rows - first));
        CHECK(allocations() - before == 0);
        CHECK(before > 0);
        state.sequence().position += rows;
      }
    }
  }
}
