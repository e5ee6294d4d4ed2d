// SPDX-License-Identifier: MIT
//
// One mHC seam over four residual streams: adds a sublayer's output, reads off the next input, and computes the coefficients that the
// next seam will use. Shows that the single-pass op equals its parts, and that the stream mixing is doubly stochastic.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <vector>

#include "dsv41/ref/ref_backend.hpp"

namespace {

constexpr std::int64_t kStreams = 4, kDim = 16, kMix = (2 + kStreams) * kStreams;

// Any smooth values will do; no random numbers, so every run prints the same.
std::vector<float> wave(std::int64_t n, float step) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(step * static_cast<float>(i + 1));
  return v;
}

}  // namespace

int main() {
  std::vector<float> y = wave(kDim, 0.3f), streams = wave(kStreams * kDim, 0.7f), mix = wave(kMix, 0.9f), input(kDim);
  const std::vector<float> fn = wave(kMix * kStreams * kDim, 0.11f), base = wave(kMix, 0.5f), norm(kDim, 1.0f);
  const float scale[3] = {1.0f, 1.0f, 0.3f};  // of the pre, post and comb logits
  const dsv41::Matrix matrix{
      .rows = kMix, .cols = kStreams * kDim, .data = reinterpret_cast<const std::byte*>(fn.data())};

  dsv41::ops::MhcSeam seam{.y = {y.data(), {1, kDim}}, .streams = {streams.data(), {1, kStreams, kDim}}, .fn = matrix};
  seam.base = {base.data(), {kMix}};
  seam.scale = {scale, {3}};
  seam.norm = {norm.data(), {kDim}};
  seam.mix = {mix.data(), {1, kMix}};
  seam.input = {input.data(), {1, kDim}};
  seam.rules = {.iters = 20, .hc_eps = 1e-6f, .norm_eps = 1e-20};
  seam.check();

  // The same, part by part, on copies.
  std::vector<float> streams_parts = streams, mix_parts = mix, input_parts = input;
  dsv41::ops::MhcSeam parts = seam;
  parts.streams = {streams_parts.data(), {1, kStreams, kDim}};
  parts.mix = {mix_parts.data(), {1, kMix}};
  parts.input = {input_parts.data(), {1, kDim}};

  dsv41::RefBackend backend;
  backend.run(seam);
  backend.run(parts.expand());
  backend.run(parts.collapse());
  backend.run(
      dsv41::ops::RmsNorm{.x = parts.input, .weight = parts.norm, .y = parts.input, .eps = parts.rules.norm_eps});
  backend.run(parts.coefficients());
  const bool equal = streams == streams_parts && mix == mix_parts && input == input_parts;

  float worst = 0.0f;  // distance of the row and column sums of comb[from][to] from 1
  const float* comb = mix.data() + 2 * kStreams;
  for (std::int64_t i = 0; i < kStreams; ++i) {
    float row = 0.0f, column = 0.0f;
    for (std::int64_t j = 0; j < kStreams; ++j) row += comb[i * kStreams + j], column += comb[j * kStreams + i];
    worst = std::max({worst, std::fabs(row - 1.0f), std::fabs(column - 1.0f)});
  }
  std::cout << "single pass equals its parts: " << (equal ? "yes" : "no") << "; sums of comb are 1 within " << worst
            << "\n";
  return std::cout.flush() && equal && worst < 1e-3f ? 0 : 1;
}
