// SPDX-License-Identifier: MIT
//
// EngramConvolution: the Engram paper's short convolution behind the gate of EngramMemory, which has added gate * value already. A lineage
// mode for programs that build their own layers: V4.1 has none, and Model does not use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dsv41/core/config.hpp"
#include "dsv41/modules/sequence.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

class EngramConvolution {
 public:
  EngramConvolution(const ModelConfig& config, const EngramConvolutionWeights& weights, Numeric numeric)
      : weights_(weights),
        hc_(config.hc),
        dim_(config.dim),
        dilation_(config.engram.max_ngram),
        eps_(config.norm_eps),
        numeric_(numeric) {}

  /// Slots of a sequence's ring, for steps of at most `max_rows` rows of it.
  std::int64_t slots(std::int64_t max_rows) const { return (weights_.kernel.cols - 1) * dilation_ + max_rows; }

  /// keys_value [rows, (hc + 1) * dim] and gates [rows, hc] as EngramMemory leaves them; streams [rows, hc, dim] updated. Each sequence
  /// remembers in convolution_rings[layer], `layer` counting Engram layers (architecture.md 7, paper variant).
  template <ops::Backend B>
  void forward(B& b, In<float, 2> keys_value, In<float, 2> gates, std::span<const Segment> segments, std::size_t layer,
               Out<float, 3> streams) const noexcept {
    const In<float, 2> value = keys_value.columns(hc_ * dim_, dim_);
    for (const Segment& s : segments) {
      b.run(ops::EngramConvolution{.value = value.rows(s.first_row, s.rows),
                                   .gates = gates.rows(s.first_row, s.rows),
                                   .norm = weights_.norm,
                                   .kernel = weights_.kernel,
                                   .ring = s.state->convolution_rings[layer],
                                   .streams = streams.rows(s.first_row, s.rows),
                                   .first_position = s.first_position,
                                   .dilation = dilation_,
                                   .eps = eps_,
                                   .numeric = numeric_});
    }
  }

 private:
  EngramConvolutionWeights weights_;
  std::int64_t hc_, dim_, dilation_;
  double eps_;
  Numeric numeric_;
};

}  // namespace dsv41
