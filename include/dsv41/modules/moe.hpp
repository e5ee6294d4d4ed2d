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

  MoeScratch first_rows(std::int64_t n) const { return {scores.rows(0, n), ids.rows(0, n), weights.rows(0, n)}; }
};

class Moe {
 public:
  /// `weights` must outlive the module: experts are read in place.
  Moe(const ModelConfig& config, const MoeWeights& weights, Numeric numeric)
      : weights_(&weights),
        score_(config.score),
        gate_temp_(static_cast<float>(config.gate_temp)),
        scale_(static_cast<float>(config.route_scale)),
        limit_(static_cast<float>(config.swiglu_limit)),
        normalise_(config.norm_topk),
        numeric_(numeric) {}

  /// x [rows, dim] -> y [rows, dim]; image [rows] u8 chooses the routing bias (architecture.md 5).
  template <ops::Backend B>
  void forward(B& b, In<float, 2> x, In<std::uint8_t, 1> image, const MoeScratch& t, Out<float, 2> y) const noexcept {
    b.run(
        ops::Linear{.x = x, .w = weights_->gate, .y = t.scores, .role = ops::LinearRole::float32, .numeric = numeric_});
    b.run(ops::TopkRoute{.logits = t.scores,
                         .bias = weights_->bias,
                         .bias_vl = weights_->bias_vl,
                         .image = image,
                         .ids = t.ids,
                         .weights = t.weights,
                         .score = score_,
                         .gate_temp = gate_temp_,
                         .scale = scale_,
                         .normalise = normalise_});
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
  const MoeWeights* weights_;
  ScoreFunction score_;
  float gate_temp_, scale_, limit_;
  bool normalise_;
  Numeric numeric_;
};

}  // namespace dsv41
