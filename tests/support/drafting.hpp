// SPDX-License-Identifier: MIT
//
// A drafter ready to draft: its scratch and rings in a backend's memory, and rounds that choose the likeliest token of each row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dsv41/modules/dspark/drafter.hpp"
#include "dsv41/modules/dspark/verifier.hpp"
#include "memory.hpp"

namespace dsv41::test {

/// What one request's block came to.
struct Drafts {
  std::vector<float> hidden, base, logits, z;  // [block, dim], [block, vocab], [block, vocab], [block]
  std::vector<std::int32_t> tokens;            // [block]

  bool operator==(const Drafts&) const = default;
};

/// Ids of a block that are not noise, for what a block must not or must depend on: row and id.
using Changes = std::vector<std::pair<std::size_t, std::int32_t>>;

struct DraftRequest {
  const DraftState* state = nullptr;
  std::int32_t anchor = 0;
  Changes changes = {};
};

template <class B>
class Drafting {
 public:
  /// `frequencies`: as Drafter takes them.
  Drafting(B& backend, const ModelConfig& config, const ModelWeights& weights, In<float, 1> frequencies,
           Numeric numeric, const DraftLimits& limits)
      : backend_(&backend),
        config_(config),
        memory_(backend),
        drafter_(config, weights, frequencies, numeric),
        scratch_(backend, config, limits) {}

  /// An empty sequence whose rings hold what a kernel would not like to read.
  DraftState open(std::int64_t slots, const Paging& paging = {}) {
    DraftState state;
    for (std::int32_t s = 0; s < config_.draft.stages; ++s)
      state.rings.push_back(
          memory_.put(CacheFormat::window, Array<float, 2>({slots, config_.head_dim}, 300.0f), paging));
    return state;
  }

  /// Taps of the state's next rows; returns the state, that many rows on.
  DraftState& remember(DraftState& state, const Array<float, 2>& taps) {
    const DraftContext all{.state = &state, .first_row = 0, .rows = taps.extents[0]};
    drafter_.remember(*backend_, memory_.put(taps), std::span(&all, 1), views());
    state.advance(taps.extents[0]);
    return state;
  }

  std::vector<Drafts> draft(const std::vector<DraftRequest>& requests, std::int64_t block) {
    const std::size_t n = requests.size(), rows = static_cast<std::size_t>(block);
    std::vector<std::int32_t> ids(n * rows), tokens;
    std::vector<std::int64_t> positions(n * rows);
    std::vector<const DraftState*> states;
    for (std::size_t r = 0; r < n; ++r) {
      draft_block(config_, requests[r].anchor, *requests[r].state, std::span(ids).subspan(r * rows, rows),
                  std::span(positions).subspan(r * rows, rows));
      for (const auto& [row, id] : requests[r].changes) ids[r * rows + row] = id;
      states.push_back(requests[r].state);
      tokens.push_back(requests[r].anchor);
    }
    const DraftBatch batch{.ids = memory_.put(ids), .positions = memory_.put(positions), .requests = states};
    const DraftViews t = views().first_rows(static_cast<std::int64_t>(n) * block);
    drafter_.forward(*backend_, batch, t);
    std::vector<Drafts> out(n);
    const std::vector<float> hidden = memory_.get(t.hidden), base = memory_.get(t.base);
    for (std::size_t r = 0; r < n; ++r) {
      out[r].hidden = piece(hidden, r, n);
      out[r].base = piece(base, r, n);
    }
    const auto logits = memory_.put(Array<float, 2>({static_cast<std::int64_t>(n), config_.vocab}));
    const auto z = memory_.put(std::vector<float>(drafter_.has_confidence() ? n : 0));
    for (std::int64_t row = 0; row < block; ++row) {
      drafter_.next(*backend_, batch, row, memory_.put(tokens), t, logits, z);
      const std::vector<float> all = memory_.get(logits), sure = memory_.get(z);
      for (std::size_t r = 0; r < n; ++r) {
        const std::vector<float> one = piece(all, r, n);
        out[r].logits.insert(out[r].logits.end(), one.begin(), one.end());
        if (!sure.empty()) out[r].z.push_back(sure[r]);
        tokens[r] = draw_draft({one.data(), {std::ssize(one)}}, 0, 0, requests[r].state->position, row + 1, {});
        out[r].tokens.push_back(tokens[r]);
      }
    }
    return out;
  }
  Drafts draft(const DraftRequest& request, std::int64_t block) { return draft(std::vector{request}, block)[0]; }

  std::vector<std::vector<std::uint8_t>> ring_bytes(const DraftState& state) {
    std::vector<std::vector<std::uint8_t>> out;
    for (const CacheRows& ring : state.rings) out.push_back(memory_.bytes(ring));
    return out;
  }

  Memory<B>& memory() { return memory_; }
  const Drafter& drafter() const { return drafter_; }
  const DraftViews& views() const { return scratch_.views(); }

 private:
  static std::vector<float> piece(const std::vector<float>& all, std::size_t i, std::size_t of) {
    const auto size = static_cast<std::ptrdiff_t>(all.size() / of), first = static_cast<std::ptrdiff_t>(i) * size;
    return {all.begin() + first, all.begin() + first + size};
  }

  B* backend_;
  ModelConfig config_;
  Memory<B> memory_;
  Drafter drafter_;
  DraftScratch<B> scratch_;
};

}  // namespace dsv41::test
