// SPDX-License-Identifier: MIT
//
// The model's block quantisers: scale rules and quantise-dequantise of one row in place. They are part of the model, not an option.
// A row whose length is no multiple of the block stays as it is, except for linear inputs, whose last block is short.
// Source: architecture.md 6 and 9 ("deployed").
#pragma once

#include <cmath>
#include <cstdint>

#include "dsv41/core/matrix.hpp"
#include "dsv41/numerics/formats.hpp"

namespace dsv41::numerics {

enum class Quantiser : std::uint8_t {
  none,
  window_fp8,  ///< window KV: E4M3 per 32, power-of-two scale, maximum floored at 1e-4
  entry_fp4,   ///< compressed KV: E2M1 per 16, E4M3 scale, maximum floored at 6 * 2^-9
  index_fp4,   ///< index queries and keys: E2M1 per 32, power-of-two scale, maximum floored at 6 * 2^-126
  input_fp8,   ///< inputs of FP8 and FP4 linears in class `deployed`: as window_fp8, short last block allowed
};

DSV41_HD constexpr std::int64_t quantiser_block(Quantiser q) {
  return q == Quantiser::entry_fp4 ? 16 : kScaleBlock;
}

/// Scale of a block whose largest magnitude is `amax`.
DSV41_HD inline float quantiser_scale(Quantiser q, float amax) {
  switch (q) {
    case Quantiser::none: return 1.0f;
    case Quantiser::window_fp8:
    case Quantiser::input_fp8: return pow2ceil(std::fmax(amax, 1e-4f) * (1.0f / 448.0f));
    case Quantiser::entry_fp4: {
      const float t = std::fmax(amax, 6.0f * 0x1p-9f) / 6.0f;  // a true division, as released
      return e4m3_decode(e4m3_encode_rne(std::fmin(t, 448.0f)));
    }
    case Quantiser::index_fp4: return pow2ceil(std::fmax(amax, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
  }
  return 1.0f;
}

/// The value that a packed cache would give back for x under `scale`.
DSV41_HD inline float quantised_value(Quantiser q, float x, float scale) {
  const float v = x / scale;
  if (q == Quantiser::entry_fp4 || q == Quantiser::index_fp4) {
    return e2m1_decode(e2m1_encode_rne(clamp_to(v, 6.0f))) * scale;
  }
  return e4m3_decode(e4m3_encode_rne(clamp_to(v, 448.0f))) * scale;
}

/// Quantises and dequantises `count` values of one row in place.
DSV41_HD inline void quantise_row(Quantiser q, float* x, std::int64_t count) {
  const std::int64_t block = quantiser_block(q);
  if (q == Quantiser::none || (q != Quantiser::input_fp8 && count % block != 0)) return;
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t last = first + block < count ? first + block : count;
    float amax = 0.0f;
    for (std::int64_t i = first; i < last; ++i) amax = std::fmax(amax, std::fabs(x[i]));
    const float scale = quantiser_scale(q, amax);
    for (std::int64_t i = first; i < last; ++i) x[i] = quantised_value(q, x[i], scale);
  }
}

}  // namespace dsv41::numerics
