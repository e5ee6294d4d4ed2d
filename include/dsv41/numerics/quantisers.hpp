// SPDX-License-Identifier: MIT
//
// The model's block quantisers: codes and scales, and quantise-dequantise of one row in place. They are part of the model, not an option.
// A row whose length is no multiple of the block stays as it is, except for linear inputs, whose last block is short.
// Source: architecture.md 6 and 9 ("deployed").
#pragma once

#include <cmath>
#include <cstdint>

#include "dsv41/core/cache_rows.hpp"
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
  return q == Quantiser::entry_fp4 ? kEntryBlock : kScaleBlock;
}

/// The quantiser of a cache of this format.
DSV41_HD constexpr Quantiser quantiser_of(CacheFormat f) {
  switch (f) {
    case CacheFormat::f32: return Quantiser::none;
    case CacheFormat::window: return Quantiser::window_fp8;
    case CacheFormat::entry: return Quantiser::entry_fp4;
    case CacheFormat::index: return Quantiser::index_fp4;
  }
  return Quantiser::none;
}

/// What the scale of a block follows from. NaN has no part in it.
DSV41_HD inline float largest_magnitude(const float* x, std::int64_t count) {
  float amax = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) amax = std::fmax(amax, std::fabs(x[i]));
  return amax;
}

/// The stored scale of a block whose largest magnitude is `amax`. An infinite one gives E8M0's NaN, and E4M3's largest.
DSV41_HD inline std::uint8_t scale_encode(Quantiser q, float amax) {
  switch (q) {
    case Quantiser::none: break;
    case Quantiser::window_fp8:
    case Quantiser::input_fp8: return e8m0_encode(pow2ceil(std::fmax(amax, 1e-4f) * (1.0f / 448.0f)));
    case Quantiser::entry_fp4: {
      const float t = std::fmax(amax, 6.0f * 0x1p-9f) / 6.0f;  // a true division, as released
      return e4m3_encode_rne(std::fmin(t, 448.0f));
    }
    case Quantiser::index_fp4: return e8m0_encode(pow2ceil(std::fmax(amax, 6.0f * 0x1p-126f) * (1.0f / 6.0f)));
  }
  return e8m0_encode(1.0f);
}

DSV41_HD inline float scale_decode(Quantiser q, std::uint8_t scale) {
  return q == Quantiser::entry_fp4 ? e4m3_decode(scale) : e8m0_decode(scale);
}

/// The stored code of x in a block of this decoded scale. Under a NaN scale it is 0, and every value of the block NaN. E2M1 has no NaN:
/// one becomes 6 with its sign.
DSV41_HD inline std::uint8_t value_encode(Quantiser q, float x, float scale) {
  if (!(scale > 0.0f)) return 0;
  const float v = x / scale;
  const bool fp4 = q == Quantiser::entry_fp4 || q == Quantiser::index_fp4;
  return fp4 ? e2m1_encode_rne(clamp_to(v, 6.0f)) : e4m3_encode_rne(clamp_to(v, 448.0f));
}

/// What a code is worth, times the scale.
DSV41_HD inline float value_decode(Quantiser q, std::uint8_t code) {
  return q == Quantiser::entry_fp4 || q == Quantiser::index_fp4 ? e2m1_decode(code) : e4m3_decode(code);
}

/// Quantises and dequantises `count` values of one row in place.
DSV41_HD inline void quantise_row(Quantiser q, float* x, std::int64_t count) {
  const std::int64_t block = quantiser_block(q);
  if (q == Quantiser::none || (q != Quantiser::input_fp8 && count % block != 0)) return;
  for (std::int64_t first = 0; first < count; first += block) {
    const std::int64_t last = first + block < count ? first + block : count;
    const float scale = scale_decode(q, scale_encode(q, largest_magnitude(x + first, last - first)));
    for (std::int64_t i = first; i < last; ++i) x[i] = value_decode(q, value_encode(q, x[i], scale)) * scale;
  }
}

}  // namespace dsv41::numerics
