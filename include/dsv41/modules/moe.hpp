// SPDX-License-Identifier: MIT
//
// Mixture of experts: router, routed experts, shared expert. Rows 8 and 9 of docs/token_path.md.
#pragma once

#include "dsv41/core/arena.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

struct MoeScratch {
  Out<float, 2> scores;      // [rows, experts]  router logits, then scores
  Out<std::int32_t, 2> ids;  // [rows, topk]     chosen experts, best first
  Out<float, 2> weights;     // [rows, topk]

  void layout(Cursor& cursor, std::int64_t experts, std::int64_t topk, std::int64_t rows) {
    cursor.take(scores, {rows, experts});
    cursor.take(ids, {rows, topk});
    cursor.take(weights, {rows, topk});
  }

  MoeScratch rows(std::int64_t first, std::int64_t n) const {
    return {scores.rows(first, n), ids.rows(first, n), weights.rows(first, n)};
  }
};

/// How the router chooses where it is not as released (architecture.md 5, lineage modes).
struct RouterModes {
  std::int64_t groups = 1, topk_groups = 1;  ///< node-limited groups of DeepSeek-V3 (ops/topk_route.hpp)
  In<std::int32_t, 2> hash_table;  ///< [vocab, topk] experts of each token (ops/hash_route.hpp), instead of the groups

  bool hashes() const { return hash_table.extent(1) > 0; }
};

class Moe {
 public:
  /// `weights` must outlive the module: experts are read in place.
  ///
  /// Errors: shape_mismatch for groups that TopkRoute refuses, and for a hash table that is not [vocab, topk] or comes with groups.
  Moe(const ModelConfig& config, const MoeWeights& weights, Numeric numeric, const RouterModes& modes = {})
      : weights_(&weights),
        modes_(modes),
        score_(config.score),
        gate_temp_(static_cast<float>(config.gate_temp)),
        scale_(static_cast<float>(config.route_scale)),
        limit_(static_cast<float>(config.swiglu_limit)),
        normalise_(config.norm_topk),
        numeric_(numeric) {
    if (!modes.hashes()) {
      ops::TopkRoute::check_groups(config.experts, config.topk, modes.groups, modes.topk_groups);
    } else {
      ops::expect("moe", "hash_table", modes.hash_table, {config.vocab, config.topk});
      ops::expect("moe", modes.groups == 1, "groups", "1 beside a hash table", modes.groups);
    }
  }

  /// x [rows, dim] -> y [rows, dim]; image [rows] u8 chooses the routing bias (architecture.md 5). A hash table needs the rows' token_ids.
  template <ops::Backend B>
  void forward(B& b, In<float, 2> x, In<std::uint8_t, 1> image, const MoeScratch& t, Out<float, 2> y,
               In<std::int32_t, 1> token_ids = {}) const noexcept {
    b.run(
        ops::Linear{.x = x, .w = weights_->gate, .y = t.scores, .role = ops::LinearRole::float32, .numeric = numeric_});
    if (!modes_.hashes()) {
      choose(b, image, t);
    } else {
      look_up(b, token_ids, t);
    }
    b.run(ops::SwigluExperts{.x = x,
                             .ids = t.ids,
                             .weights = t.weights,
                             .experts = weights_->experts,
                             .shared = weights_->shared,
                             .y = y,
                             .limit = limit_,
                             .numeric = numeric_});
  }

 private:
  template <ops::Backend B>
  void choose(B& b, In<std::uint8_t, 1> image, const MoeScratch& t) const noexcept {
    b.run(ops::TopkRoute{.logits = t.scores,
                         .bias = weights_->bias,
                         .bias_vl = weights_->bias_vl,
                         .image = image,
                         .ids = t.ids,
                         .weights = t.weights,
                         .score = score_,
                         .gate_temp = gate_temp_,
                         .scale = scale_,
                         .normalise = normalise_,
                         .groups = modes_.groups,
                         .topk_groups = modes_.topk_groups});
  }

  template <ops::Backend B>
  void look_up(B& b, In<std::int32_t, 1> token_ids, const MoeScratch& t) const noexcept {
    b.run(ops::HashRoute{.logits = t.scores,
                         .token_ids = token_ids,
                         .table = modes_.hash_table,
                         .ids = t.ids,
                         .weights = t.weights,
                         .score = score_,
                         .gate_temp = gate_temp_,
                         .scale = scale_,
                         .normalise = normalise_});
  }

  const MoeWeights* weights_;
  RouterModes modes_;
  ScoreFunction score_;
  float gate_temp_, scale_, limit_;
  bool normalise_;
  Numeric numeric_;
};

}  // namespace dsv41
