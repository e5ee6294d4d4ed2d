// SPDX-License-Identifier: MIT
//
// MhcSeam: the join between two sublayers of the residual streams. Rows 2a, 6 and 7 of docs/token_path.md.
#pragma once

#include "dsv41/core/config.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

/// Adds a sublayer's output to the streams, and reads off the next sublayer's input and coefficients (architecture.md 2).
class MhcSeam {
 public:
  MhcSeam(const ModelConfig& config, const SeamWeights& weights, Numeric numeric)
      : weights_(weights),
        rules_{.iters = config.hc_iters, .hc_eps = static_cast<float>(config.hc_eps), .norm_eps = config.norm_eps},
        numeric_(numeric) {}

  /// `y` [rows, dim] is the previous sublayer's output, empty when the streams already hold it; `mix` goes from the previous seam's
  /// coefficients to this one's; `input` [rows, dim] receives the normed input of the sublayer behind this seam.
  template <ops::Backend B>
  void forward(B& b, In<float, 2> y, Out<float, 3> streams, Out<float, 2> mix, Out<float, 2> input) const noexcept {
    b.run(ops::MhcSeam{.y = y,
                       .streams = streams,
                       .fn = weights_.fn,
                       .base = weights_.base,
                       .scale = weights_.scale,
                       .norm = weights_.norm,
                       .mix = mix,
                       .input = input,
                       .rules = rules_,
                       .numeric = numeric_});
  }

 private:
  SeamWeights weights_;
  ops::MhcRules rules_;
  Numeric numeric_;
};

}  // namespace dsv41
