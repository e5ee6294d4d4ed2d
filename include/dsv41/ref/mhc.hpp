// SPDX-License-Identifier: MIT
//
// References of the residual-stream ops. The single-pass seam runs its parts, so it equals them by construction here; other backends are
// tested against this.
#pragma once

#include <cstdint>

#include "dsv41/numerics/mhc.hpp"
#include "dsv41/ops/mhc.hpp"
#include "dsv41/ref/linear.hpp"
#include "dsv41/ref/rms_norm.hpp"

namespace dsv41::ref {

inline void run(const ops::MhcExpand& op) {
  const std::int64_t hc = op.streams.extent(1);
  for (std::int64_t t = 0; t < op.streams.extent(0); ++t) {
    const Out<float, 2> h = op.streams.row(t);
    const float *const post = op.mix.row(t).data() + hc, *const comb = post + hc;
    for (std::int64_t c = 0; c < h.extent(1); ++c)
      numerics::mhc_expand(op.numeric, op.y(t, c), post, comb, hc, h.stride(0), h.data() + c);
  }
}

inline void run(const ops::MhcCollapse& op) {
  for (std::int64_t t = 0; t < op.streams.extent(0); ++t) {
    const In<float, 2> h = op.streams.row(t);
    const float* const pre = op.mix.row(t).data();
    for (std::int64_t c = 0; c < h.extent(1); ++c)
      op.x(t, c) = numerics::mhc_collapse(op.numeric, pre, h.data() + c, h.extent(0), h.stride(0));
  }
}

inline void run(const ops::MhcCoefficients& op) {
  const std::int64_t tokens = op.streams.extent(0), hc = op.streams.extent(1), flat = hc * op.streams.extent(2);
  const In<float, 2> z = op.streams.reshaped<2>({tokens, flat});
  run(ops::Linear{.x = z, .w = op.fn, .y = op.mix, .role = ops::LinearRole::float32}, nullptr);
  for (std::int64_t t = 0; t < tokens; ++t) {
    float* const m = op.mix.row(t).data();
    numerics::mhc_logits(z.row(t).data(), flat, op.rules.norm_eps, op.mix.extent(1), m);
    numerics::mhc_coefficients(m, op.base.data(), op.scale.data(), hc, op.rules.iters, op.rules.hc_eps, m,
                               op.rules.constrained);
  }
}

inline void run(const ops::MhcSeam& op) {
  if (!op.y.empty()) run(op.expand());
  run(op.collapse());
  run(ops::RmsNorm{.x = op.input, .weight = op.norm, .y = op.input, .eps = op.rules.norm_eps, .numeric = op.numeric});
  run(op.coefficients());
}

inline void run(const ops::StreamMean& op) {
  for (std::int64_t t = 0; t < op.streams.extent(0); ++t) {
    const In<float, 2> h = op.streams.row(t);
    for (std::int64_t c = 0; c < h.extent(1); ++c)
      op.tap(t, c) = numerics::stream_mean(op.numeric, h.data() + c, h.extent(0), h.stride(0));
  }
}

}  // namespace dsv41::ref
