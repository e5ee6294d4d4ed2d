// SPDX-License-Identifier: MIT
//
// Residual streams of one token. Coefficients: pre, post and a doubly stochastic comb, from the seam's projection, all float32; the place
// of every epsilon and the order of the normalisations are part of the model. And what the coefficients and the taps do to one channel,
// whose streams stand at [j * stride]. Source: architecture.md 2.
#pragma once

#include <cstdint>

#include "dsv41/core/config.hpp"
#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/norm.hpp"
#include "dsv41/numerics/softmax.hpp"

namespace dsv41::numerics {

/// comb[from * hc + to] += eps, then normalised: columns once, then iters - 1 times rows and columns; every divisor gets + eps.
/// On entry each row is a softmax.
DSV41_HD inline void sinkhorn(float* comb, std::int64_t hc, std::int32_t iters, float eps) {
  // line: distance of the vectors that are normalised; step: distance of a vector's elements
  auto normalise = [&](std::int64_t line, std::int64_t step) {
    for (std::int64_t v = 0; v < hc; ++v) {
      float total = 0.0f;
      for (std::int64_t k = 0; k < hc; ++k) total += comb[v * line + k * step];
      for (std::int64_t k = 0; k < hc; ++k) comb[v * line + k * step] /= total + eps;
    }
  };
  for (std::int64_t i = 0; i < hc * hc; ++i) comb[i] += eps;
  normalise(1, hc);
  for (std::int32_t i = 1; i < iters; ++i) {
    normalise(hc, 1);
    normalise(1, hc);
  }
}

/// Projection fn z of the flattened streams z [flat] -> logits m [rows]: times 1 / rms(z), in this order: not fn (z / rms(z)).
DSV41_HD inline void mhc_logits(const float* z, std::int64_t flat, double norm_eps, std::int64_t rows, float* m) {
  const float r = 1.0f / rms(z, flat, norm_eps);
  for (std::int64_t i = 0; i < rows; ++i) m[i] *= r;
}

/// mix = [pre (hc) | post (hc) | comb (hc x hc, comb[from][to])] from logits m [(2 + hc) * hc], base likewise, scale [3].
/// Unconstrained, comb is its logits scale[2] * m + base as they are. mix may be m.
DSV41_HD inline void mhc_coefficients(const float* m, const float* base, const float* scale, std::int64_t hc,
                                      std::int32_t iters, float eps, float* mix, bool constrained = true) {
  for (std::int64_t i = 0; i < hc; ++i) mix[i] = sigmoid(m[i] * scale[0] + base[i]) + eps;
  for (std::int64_t i = hc; i < 2 * hc; ++i) mix[i] = 2.0f * sigmoid(m[i] * scale[1] + base[i]);
  for (std::int64_t from = 0; from < hc; ++from) {
    const std::int64_t row = 2 * hc + from * hc;
    for (std::int64_t k = row; k < row + hc; ++k) mix[k] = m[k] * scale[2] + base[k];
    if (constrained) softmax(mix + row, hc);
  }
  if (constrained) sinkhorn(mix + 2 * hc, hc, iters, eps);
}

/// One channel: h'_to = post_to * y + sum over from of comb[from * hc + to] * h_from, in this order, each a double sum of exact products,
/// rounded once to float32 and then as the class says. hc <= kMaxStreams.
DSV41_HD inline void mhc_expand(Numeric numeric, float y, const float* post, const float* comb, std::int64_t hc,
                                std::int64_t stride, float* h) {
  float next[kMaxStreams];
  for (std::int64_t to = 0; to < hc; ++to) {
    double total = static_cast<double>(post[to]) * static_cast<double>(y);
    for (std::int64_t from = 0; from < hc; ++from)
      total += static_cast<double>(comb[from * hc + to]) * static_cast<double>(h[from * stride]);
    next[to] = static_cast<float>(total);
  }
  for (std::int64_t to = 0; to < hc; ++to) h[to * stride] = activation(numeric, next[to]);
}

/// One channel: sum over streams of pre_j * h_j, summed and rounded as mhc_expand.
DSV41_HD inline float mhc_collapse(Numeric numeric, const float* pre, const float* h, std::int64_t hc,
                                   std::int64_t stride) {
  double x = 0;
  for (std::int64_t j = 0; j < hc; ++j) x += static_cast<double>(pre[j]) * static_cast<double>(h[j * stride]);
  return activation(numeric, static_cast<float>(x));
}

/// One channel: mean of the streams, float32 in ascending stream, rounded as the class says (dspark.md 3.1).
DSV41_HD inline float stream_mean(Numeric numeric, const float* h, std::int64_t hc, std::int64_t stride) {
  float total = 0.0f;
  for (std::int64_t j = 0; j < hc; ++j) total += h[j * stride];
  return activation(numeric, total / static_cast<float>(hc));
}

}  // namespace dsv41::numerics
