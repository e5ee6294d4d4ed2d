// SPDX-License-Identifier: MIT
//
// MhcSeam: the join between two sublayers of the residual streams. Rows 2a, 6 and 7 of docs/token_path.md.
#pragma once

#include <cstddef>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

/// Adds a sublayer's output to the streams, and reads off the next sublayer's input and coefficients (architecture.md 2).
class MhcSeam {
 public:
  /// Errors: shape_mismatch for a plain residual of more than one stream.
  MhcSeam(const ModelConfig& config, const SeamWeights& weights, Numeric numeric, Residual residual = Residual::mhc)
      : weights_(weights),
        rules_{.iters = config.hc_iters,
               .hc_eps = static_cast<float>(config.hc_eps),
               .norm_eps = config.norm_eps,
               .constrained = residual != Residual::unconstrained},
        numeric_(numeric),
        residual_(residual) {
    if (residual == Residual::plain) ops::expect("mhc", config.hc == 1, "hc", "1 for a plain residual", config.hc);
  }

  /// `y` [rows, dim] is the previous sublayer's output, empty when the streams already hold it; `mix` goes from the previous seam's
  /// coefficients to this one's; `input` [rows, dim] receives the normed input of the sublayer behind this seam.
  /// Plain: `mix` holds 1s (start_plain) and keeps them; of the weights only the norm is read.
  template <ops::Backend B>
  void forward(B& b, In<float, 2> y, Out<float, 3> streams, Out<float, 2> mix, Out<float, 2> input) const noexcept {
    const ops::MhcSeam seam{.y = y,
                            .streams = streams,
                            .fn = weights_.fn,
                            .base = weights_.base,
                            .scale = weights_.scale,
                            .norm = weights_.norm,
                            .mix = mix,
                            .input = input,
                            .rules = rules_,
                            .numeric = numeric_};
    if (residual_ == Residual::mhc || residual_ == Residual::unconstrained) return b.run(seam);
    if (!y.empty()) b.run(seam.expand());
    if (residual_ == Residual::plain) return norm(b, streams.reshaped<2>(input.extents()), input);
    b.run(seam.coefficients());
    b.run(seam.collapse());
    norm(b, input, input);
  }

  /// The coefficients of a plain residual, all 1, into mix [rows, 3]; once, while setting up. What else reads or writes the mix (Embed, an
  /// expand elsewhere, the head's collapse) then needs no other mode.
  template <ops::Allocates B>
  static void start_plain(B& b, Out<float, 2> mix) {
    const std::vector<float> ones(static_cast<std::size_t>(mix.size()), 1.0f);
    b.upload(mix.data(), ones.data(), ones.size() * sizeof(float));
  }

 private:
  template <ops::Backend B>
  void norm(B& b, In<float, 2> x, Out<float, 2> y) const noexcept {
    b.run(ops::RmsNorm{.x = x, .weight = weights_.norm, .y = y, .eps = rules_.norm_eps, .numeric = numeric_});
  }

  SeamWeights weights_;
  ops::MhcRules rules_;
  Numeric numeric_;
  Residual residual_;
};

}  // namespace dsv41
