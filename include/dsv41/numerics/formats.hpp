// SPDX-License-Identifier: MIT
//
// Element formats of the checkpoint and the caches: decode, and encode with the rounding named. Bit rules only; blocks and their
// scales are in quantisers.hpp. Source: checkpoint.md 2.4, architecture.md 6.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "dsv41/core/hd.hpp"

namespace dsv41::numerics {

/// E8M0 scale: 2^(e - 127); e = 255 is NaN, which loaders refuse.
DSV41_HD inline float e8m0_decode(std::uint8_t e) {
  if (e == 255) return std::numeric_limits<float>::quiet_NaN();
  return e == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<std::uint32_t>(e) << 23);
}

/// The code of a power of two of at least 2^-126; infinity gives 255, NaN.
DSV41_HD inline std::uint8_t e8m0_encode(float power_of_two) {
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(power_of_two) >> 23);
}

DSV41_HD inline float bf16_decode(std::uint16_t h) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(h) << 16);
}

/// float32 -> bfloat16 bits, round to nearest even; NaN stays NaN.
DSV41_HD inline std::uint16_t bf16_encode_rne(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

DSV41_HD inline float bf16_round(float x) {
  return bf16_decode(bf16_encode_rne(x));
}

/// IEEE binary16 -> float32, subnormals included.
DSV41_HD inline float f16_decode(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

/// E4M3 (finite variant): bias 7, subnormals m * 2^-9, largest 448, 0x7F and 0xFF are NaN, no infinity.
DSV41_HD inline float e4m3_decode(std::uint8_t code) {
  const std::uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
  float magnitude;
  if (exponent == 15 && mantissa == 7) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  } else {
    magnitude = std::bit_cast<float>(((exponent + 120u) << 23) | (mantissa << 20));
  }
  return code & 0x80u ? -magnitude : magnitude;
}

/// float32 -> E4M3, round to nearest even; the caller has clamped to +-448. NaN gives the NaN code of its sign.
DSV41_HD inline std::uint8_t e4m3_encode_rne(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint8_t sign = static_cast<std::uint8_t>((bits >> 24) & 0x80u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x43E00000u) return static_cast<std::uint8_t>(sign | 0x7Fu);  // NaN, or beyond 448: not clamped
  if (magnitude < 0x3C800000u) {  // below 2^-6: steps of 2^-9; adding 1.5 * 2^23 rounds to an integer, ties to even
    const float steps = (std::bit_cast<float>(magnitude) * 512.0f + 12582912.0f) - 12582912.0f;
    return static_cast<std::uint8_t>(sign | static_cast<std::uint8_t>(steps));
  }
  const std::uint32_t rounded = (magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20;
  return static_cast<std::uint8_t>(sign | (rounded - (120u << 3)));
}

/// E2M1: bit 3 is the sign, magnitudes 0 .5 1 1.5 2 3 4 6.
DSV41_HD inline float e2m1_decode(std::uint8_t code) {
  const std::uint32_t exponent = (code >> 1) & 3u, mantissa = code & 1u;
  const float magnitude = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                                        : std::bit_cast<float>(((exponent + 126u) << 23) | (mantissa << 22));
  return code & 8u ? -magnitude : magnitude;
}

/// float32 -> E2M1, round to nearest, ties to the even code (.25 -> 0, .75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4).
/// The caller has clamped to +-6.
DSV41_HD inline std::uint8_t e2m1_encode_rne(float x) {
  const float a = std::fabs(x);
  std::uint8_t code = 7;
  if (a <= 0.25f) {
    code = 0;
  } else if (a < 0.75f) {
    code = 1;
  } else if (a <= 1.25f) {
    code = 2;
  } else if (a < 1.75f) {
    code = 3;
  } else if (a <= 2.5f) {
    code = 4;
  } else if (a < 3.5f) {
    code = 5;
  } else if (a <= 5.0f) {
    code = 6;
  }
  return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(x) >> 31 ? code | 8u : code);
}

/// x limited to [-limit, limit]. NaN stays NaN, where std::fmin and std::fmax would hide it.
DSV41_HD inline float clamp_to(float x, float limit) {
  return x > limit ? limit : x < -limit ? -limit : x;
}

/// 2^ceil(log2 t) for positive normal t, on the float's bits: the exponent, plus one if any mantissa bit is set.
DSV41_HD inline float pow2ceil(float t) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(t);
  return std::bit_cast<float>((bits + 0x7FFFFFu) & 0x7F800000u);
}

/// Reads a T at any byte address.
template <class T>
DSV41_HD inline T load_unaligned(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

}  // namespace dsv41::numerics
