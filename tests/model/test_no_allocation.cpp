// SPDX-License-Identifier: MIT
//
// A step allocates nothing.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsv41/model/model.hpp"
#include "model/counted_new.hpp"
#include "support/random_drafter.hpp"
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

TEMPLATE_LIST_TEST_CASE("a round of drafting allocates nothing after prepare", "[model]", Backends) {
  ModelConfig far = tiny_draft_config(), wide = tiny_draft_config();
  ModelConfig ranked = tiny_draft_config();
  far.window = 1000;                 // the widest workspace is that of the decoded window,
  wide.draft.tap_layers.resize(40);  // of the quantised taps,
  ranked.draft.markov_rank = 20000;  // or of the Markov head's rows
  for (const ModelConfig& config : {tiny_draft_config(), far, wide, ranked}) {
    for (const Numeric numeric : kNumerics) {
      RandomDrafter<TestType> random(config);
      random.backend().prepare(config, 12);
      Drafting<TestType> drafting = random.drafting(numeric, 12, 12);
      DraftState states[2] = {drafting.open(config.window), drafting.open(config.window)};
      const DraftState* const requests[2] = {&states[0], &states[1]};
      for (DraftState& state : states) state.restart(config.window);  // so that all its slots count
      const DraftContext committed[2] = {{requests[0], 0, 5}, {requests[1], 6, 6}};
      const auto taps = random.memory.put(random.taps(12));
      const DraftBatch batch{
          .ids = random.memory.put(random_tokens(1, 12, config.vocab)),
          .positions = random.memory.put(std::vector<std::int64_t>{5, 6, 7, 8, 9, 10, 6, 7, 8, 9, 10, 11}),
          .requests = requests};
      const auto tokens = random.memory.put(std::vector<std::int32_t>{1, 2});
      const auto logits = random.memory.put(Array<float, 2>({2, config.vocab}));
      const auto z = random.memory.put(std::vector<float>(2));
      for (int round = 0; round < 2; ++round) {
        const std::size_t before = allocations();
        const DraftViews t = drafting.views().first_rows(12);
        drafting.drafter().remember(random.backend(), taps, committed, t);
        states[0].advance(5), states[1].advance(6);
        drafting.drafter().forward(random.backend(), batch, t);
        for (std::int64_t row = 0; row < 6; ++row)
          drafting.drafter().next(random.backend(), batch, row, tokens, t, logits, z);
        CHECK(allocations() - before == 0);
        CHECK(before > 0);
      }
      random.backend().sync();
    }
  }
}
