// SPDX-License-Identifier: MIT
//
// Measures the cost table of an engine (modules/dspark/cost_table.hpp) on the machine it runs on: what a step takes by its rows, what
// drafting takes by its requests. Once per machine, model and options is enough: cost_table_file.hpp keeps it. Source: dspark.md 6.4.
#pragma once

#include <cstdint>

#include "dsv41/modules/dspark/cost_table.hpp"
#include "dsv41/runtime/engine.hpp"

namespace dsv41::runtime {

struct ProfileOptions {
  /// Tokens that each measured session holds, 1 to EngineOptions::max_context - 1 - draft. 0: the largest number of whole pages within
  /// that and 8192, or all of that where it is less than a page.
  std::int64_t context = 0;
  std::int64_t max_requests = 1;  ///< that will decode together; more than a step has rows for count as so many
  int repeats = 5;                ///< timed runs of each size, 1 to 1000; the table has their medians
};

/// Times steps and drafts of sessions of its own, which hold pseudo-random tokens and share one context.
///
/// Rules:   - sizes are 1, 2, 3, 4, 6, 8, 12, ... and the largest itself: min(rows of a step, max_requests * (1 + draft)) rows, and
///            max_requests requests of the drafter. Nothing is captured: the graph limit is 0.
///          - a size of up to max_requests rows is a plain step of so many sessions, a larger one a step of all of them with their drafts
///            spread evenly. So plain decoding and a full house cost what was measured; with fewer requests than that, a draft is
///            charged what another session's row takes, which with a cache of its own to read leans against drafts.
///          - as in a generator's step, all rows give logits; drafts are the likeliest tokens, with confidences where there are any.
///          - rows of a step are different tokens, others in every run, for the experts that they touch are part of the cost.
///          - every size is run once without a clock, so that memory is there and copies of shared memory are made; then all sizes in
///            turn, `repeats` times: a slow moment falls on few runs of a size, and medians drop it. Sessions go back after each run.
///          - without a drafter drafts cost nothing: the table's only point of them is 0 ms.
/// Errors:  invalid_argument: options, or a max_context that leaves no context; out_of_memory: the engine's budget has no room for
///          max_requests sessions; cancelled; device; busy; what the listener throws, which is told of each step on its own. However it
///          ends, the engine's other sessions are as before and its memory is free for them again; a prefix cache keeps whole pages of
///          the context like those of any session, and may drop others for them.
/// Cost:    context rows, and repeats + 1 times the sum of the sizes, some 3.5 times the largest. Memory: one context, and a block and a
///          page for each of max_requests.
CostTable profile_costs(Engine& engine, const ProfileOptions& options, const StepControl& control = {});

}  // namespace dsv41::runtime
