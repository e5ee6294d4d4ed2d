// SPDX-License-Identifier: MIT
//
// Keys stand in the lanes: a tile is transposed once, four channels of a key in 32 bits, and all heads, or all queries, meet it without
// sums across lanes. Products are of bytes, sums of integers.
#include "cpu/kernels/index.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/quantisers.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/index.cpp"
#include "hwy/foreach_target.h"
// clang-format off: behind foreach_target
#include "cpu/kernels/elementary-inl.hpp"
#include "cpu/kernels/lanes-inl.hpp"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace dsv41::cpu::HWY_NAMESPACE {
namespace {

using D32 = hn::Rebind<std::int32_t, D>;
using Ints = hn::Vec<D32>;
using numerics::Quantiser;

constexpr std::uint8_t kBias = 12;  // makes keys unsigned, as products of bytes want one side
constexpr std::uint32_t kLeastScale = 127 - 50, kMostScale = 127 + 50;  // of both sides: no float near its range's end

/// Sums of products of bytes in 32-bit lanes: start(), then step() adds four of them, of unsigned keys and signed query values; finish().
/// `offset` is part of the sum in the end.
#if HWY_TARGET == HWY_SCALAR
template <bool kVnni>
HWY_INLINE Ints step(Ints sum, Ints keys, Ints values) {
  const auto k = static_cast<std::uint32_t>(hn::GetLane(keys)), v = static_cast<std::uint32_t>(hn::GetLane(values));
  std::int32_t n = hn::GetLane(sum);
  for (int i = 0; i < 32; i += 8) n += static_cast<std::int32_t>(k >> i & 255) * static_cast<std::int8_t>(v >> i & 255);
  return hn::Set(D32(), n);
}
template <bool kVnni>
HWY_INLINE Ints finish(Ints sum, Ints offset) {
  return hn::Add(sum, offset);
}
#elif HWY_ARCH_X86
// Without VNNI, pairs are summed in 16 bits: over a block eight of them, of 2 * 24 * 12 at most.
template <bool kVnni>
HWY_INLINE Ints step(Ints sum, Ints keys, Ints values) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (kVnni) {  // its intrinsic would want a target of its own for every function on the way here
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(keys.raw), "v"(values.raw));
    return sum;
  }
  return Ints{_mm512_add_epi16(sum.raw, _mm512_maddubs_epi16(keys.raw, values.raw))};
#elif HWY_TARGET <= HWY_AVX2
  return Ints{_mm256_add_epi16(sum.raw, _mm256_maddubs_epi16(keys.raw, values.raw))};
#else
  return Ints{_mm_add_epi16(sum.raw, _mm_maddubs_epi16(keys.raw, values.raw))};
#endif
}
template <bool kVnni>
HWY_INLINE Ints finish(Ints sum, Ints offset) {
  if constexpr (kVnni) return sum;
#if HWY_TARGET <= HWY_AVX3
  return hn::Add(Ints{_mm512_madd_epi16(sum.raw, _mm512_set1_epi16(1))}, offset);
#elif HWY_TARGET <= HWY_AVX2
  return hn::Add(Ints{_mm256_madd_epi16(sum.raw, _mm256_set1_epi16(1))}, offset);
#else
  return hn::Add(Ints{_mm_madd_epi16(sum.raw, _mm_set1_epi16(1))}, offset);
#endif
}
#else
using D16 = hn::Repartition<std::int16_t, D32>;
template <bool kVnni>
HWY_INLINE Ints step(Ints sum, Ints keys, Ints values) {
  const auto k = hn::BitCast(D16(), keys), v = hn::BitCast(D16(), values);
  const auto low = hn::Mul(hn::And(k, hn::Set(D16(), std::int16_t{255})), hn::ShiftRight<8>(hn::ShiftLeft<8>(v)));
  const auto high = hn::Mul(hn::ShiftRight<8>(k), hn::ShiftRight<8>(v));
  return hn::BitCast(D32(), hn::Add(hn::BitCast(D16(), sum), hn::Add(low, high)));
}
template <bool kVnni>
HWY_INLINE Ints finish(Ints sum, Ints offset) {
  return hn::Add(hn::Add(hn::ShiftRight<16>(hn::ShiftLeft<16>(sum)), hn::ShiftRight<16>(sum)), offset);
}
#endif
template <bool kVnni>
HWY_INLINE Ints start(Ints offset) {
  return kVnni ? offset : hn::Zero(D32());
}

constexpr int kTileVectors = kNative * 2 <= kKeyTile ? 2 : 1;
constexpr int kTileHeads = kParts == 1 ? 4 : 2;
constexpr std::int64_t kSteps = kScaleBlock / 4;  // of a block

/// Products of H heads with the keys of some vectors, then their terms added to the scores.
template <bool kVnni, bool kDeployed, int H>
HWY_INLINE void score_heads(const IndexQuery& query, const IndexKeys& keys, std::int64_t head, std::int64_t key,
                            Native (&scores)[kTileVectors]) {
  const std::int64_t blocks = query.width / kScaleBlock;
  const std::uint32_t* const values = query.values + head * blocks * kSteps;
  const std::uint8_t* codes = keys.values + key * 4;
  Native products[H][kTileVectors];
  for (int h = 0; h < H; ++h) {
    for (Native& x : products[h]) x = hn::Zero(D());
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    Ints sums[H][kTileVectors], offsets[H];
    for (int h = 0; h < H; ++h) {
      offsets[h] = hn::Set(D32(), query.offsets[(head + h) * blocks + b]);
      for (Ints& n : sums[h]) n = start<kVnni>(offsets[h]);
    }
    for (std::int64_t s = 0; s < kSteps; ++s, codes += kKeyTile * 4) {
      Ints lanes[kTileVectors];
      for (int v = 0; v < kTileVectors; ++v)
        lanes[v] = hn::LoadU(D32(), reinterpret_cast<const std::int32_t*>(codes) + v * kNative);
      for (int h = 0; h < H; ++h) {
        const Ints value = hn::Set(D32(), static_cast<std::int32_t>(values[(h * blocks + b) * kSteps + s]));
        for (int v = 0; v < kTileVectors; ++v) sums[h][v] = step<kVnni>(sums[h][v], lanes[v], value);
      }
    }
    Native units[kTileVectors];
    for (int v = 0; v < kTileVectors; ++v) units[v] = hn::LoadU(D(), keys.units + b * kKeyTile + key + v * kNative);
    for (int h = 0; h < H; ++h) {
      const Native unit = hn::Set(D(), query.units[(head + h) * blocks + b]);
      for (int v = 0; v < kTileVectors; ++v) {
        const Native n = hn::ConvertTo(D(), finish<kVnni>(sums[h][v], offsets[h]));
        products[h][v] = hn::MulAdd(hn::Mul(n, unit), units[v], products[h][v]);  // exact, so fused or not
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    const Native w = hn::Set(D(), query.weights[head + h]);
    for (int v = 0; v < kTileVectors; ++v) {
      Native x = products[h][v];
      if constexpr (kDeployed) x = bf16_round_number(D(), x);
      x = hn::Mul(hn::Max(x, hn::Zero(D())), w);  // of finite numbers
      if constexpr (kDeployed) x = bf16_round_number(D(), x);
      scores[v] = hn::Add(scores[v], x);
    }
  }
}

template <bool kVnni, bool kDeployed>
void score(const IndexQuery& query, const IndexKeys& keys, float* to) {
  for (std::int64_t key = 0; key < kKeyTile; key += kTileVectors * kNative) {
    Native scores[kTileVectors];
    for (Native& x : scores) x = hn::Zero(D());
    std::int64_t head = 0;
    for (; head + kTileHeads <= query.heads; head += kTileHeads)
      score_heads<kVnni, kDeployed, kTileHeads>(query, keys, head, key, scores);
    for (; head < query.heads; ++head) score_heads<kVnni, kDeployed, 1>(query, keys, head, key, scores);
    for (int v = 0; v < kTileVectors; ++v)
      hn::StoreU(kDeployed ? bf16_round(D(), scores[v]) : scores[v], D(), to + key + v * kNative);
  }
}

void run_score(Numeric numeric, const IndexQuery& query, const IndexKeys& keys, float* scores) {
  const bool deployed = numeric == Numeric::deployed;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  static const bool vnni = (hwy::SupportedTargets() & HWY_AVX3_DL) != 0;
  if (vnni) return deployed ? score<true, true>(query, keys, scores) : score<true, false>(query, keys, scores);
#endif
  return deployed ? score<false, true>(query, keys, scores) : score<false, false>(query, keys, scores);
}

/// Blocks of the query as integers, in the order in which keys are opened: the even channels of each eight, then the odd ones.
void run_open_query(const float* q, std::int64_t stride, IndexQuery& query) {
  const std::int64_t blocks = query.width / kScaleBlock;
  const Native magic = hn::Set(D(), 12582912.0f), limit = hn::Set(D(), static_cast<float>(kBias));
  query.spread = 0;
  for (std::int64_t h = 0; h < query.heads; ++h) {
    std::uint32_t least = 255, most = 0;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const float* const x = q + h * stride + b * kScaleBlock;
      float halves[kScaleBlock];
      Native top = hn::Zero(D());
      for (std::int64_t i = 0; i < kScaleBlock; i += kNative) top = hn::Max(top, hn::Abs(hn::LoadU(D(), x + i)));
      float tops[kNative], amax = 0;
      hn::StoreU(top, D(), tops);
      for (const float t : tops) amax = t > amax ? t : amax;
      const std::uint32_t scale = numerics::scale_encode(Quantiser::index_fp4, amax);
      if (amax != 0.0f) least = std::min(least, scale), most = std::max(most, scale);
      const bool usual = scale >= kLeastScale && scale <= kMostScale;
      const float unit = usual ? numerics::e8m0_decode(static_cast<std::uint8_t>(scale)) : 1.0f;
      auto fits = hn::Eq(top, top);
      for (std::int64_t i = 0; i < kScaleBlock; i += kNative) {
        const Native in = hn::Mul(hn::LoadU(D(), x + i), hn::Set(D(), 2.0f / unit));
        const Native n = hn::Sub(hn::Add(in, magic), magic);
        fits = hn::And(fits, hn::And(hn::Eq(n, in), hn::Le(hn::Abs(in), limit)));  // NaN is not equal
        hn::StoreU(n, D(), halves + i);
      }
      if (!hn::AllTrue(D(), fits)) {
        query.spread = -1;
        return;
      }
      std::int32_t sum = 0;
      for (std::int64_t s = 0; s < kSteps; ++s) {
        std::uint32_t four = 0;
        for (int j = 0; j < 4; ++j) {
          const auto n = static_cast<std::int32_t>(halves[s / 2 * 8 + s % 2 + 2 * j]);
          four |= static_cast<std::uint32_t>(n & 255) << (8 * j);
          sum += n;
        }
        query.values[(h * blocks + b) * kSteps + s] = four;
      }
      query.offsets[h * blocks + b] = -sum * kBias;
      query.units[h * blocks + b] = amax == 0.0f ? 0.0f : unit * 0.25f;
    }
    query.spread = std::max<std::int64_t>(query.spread, static_cast<std::int64_t>(most) - least);
  }
}

/// Sixteen bytes of each of some rows, a register full: rows i, i + 4, .. where it has more than sixteen bytes.
#if HWY_TARGET == HWY_SCALAR
void open_values(const std::byte* const* rows, std::int64_t at, std::uint8_t* to) {
  for (std::int64_t i = 0; i < kKeyTile; ++i) {
    for (std::int64_t j = 0; j < kScaleBlock; ++j) {
      const auto pair = static_cast<std::uint8_t>(rows[i][at + j / 2]);
      const auto code = static_cast<std::uint8_t>(j % 2 ? pair >> 4 : pair & 15);
      const auto twice = static_cast<int>(2 * numerics::e2m1_decode(code));
      to[((j / 8 * 2 + j % 2) * kKeyTile + i) * 4 + j % 8 / 2] = static_cast<std::uint8_t>(twice + kBias);
    }
  }
}
#else
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
using Bytes = hn::Full512<std::uint8_t>;
HWY_INLINE hn::Vec<Bytes> load_rows(const std::byte* const* rows, std::int64_t at) {
  const auto part = [&](std::int64_t i)
                        HWY_ATTR { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + at)); };
  __m512i out = _mm512_castsi128_si512(part(0));
  out = _mm512_inserti32x4(out, part(4), 1);
  out = _mm512_inserti32x4(out, part(8), 2);
  return hn::Vec<Bytes>{_mm512_inserti32x4(out, part(12), 3)};
}
#else
using Bytes = hn::Full128<std::uint8_t>;
HWY_INLINE hn::Vec<Bytes> load_rows(const std::byte* const* rows, std::int64_t at) {
  return hn::LoadU(Bytes(), reinterpret_cast<const std::uint8_t*>(rows[0]) + at);
}
#endif

/// One block, 16 bytes at `at`, of the rows of a tile.
HWY_INLINE void open_values(const std::byte* const* rows, std::int64_t at, std::uint8_t* to) {
  alignas(16) static constexpr std::uint8_t kWorth[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  constexpr Bytes d8;
  constexpr hn::Repartition<std::uint32_t, Bytes> d32;
  constexpr hn::Repartition<std::uint64_t, Bytes> d64;
  constexpr std::int64_t kRows = static_cast<std::int64_t>(hn::MaxLanes(d32));
  const auto worth = hn::LoadDup128(d8, kWorth), low = hn::Set(d8, std::uint8_t{15});
  for (std::int64_t i = 0; i < kKeyTile; i += kRows) {
    const auto a = hn::BitCast(d32, load_rows(rows + i, at)), b = hn::BitCast(d32, load_rows(rows + i + 1, at));
    const auto c = hn::BitCast(d32, load_rows(rows + i + 2, at)), d = hn::BitCast(d32, load_rows(rows + i + 3, at));
    const auto ab01 = hn::BitCast(d64, hn::InterleaveLower(d32, a, b)),
               ab23 = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
    const auto cd01 = hn::BitCast(d64, hn::InterleaveLower(d32, c, d)),
               cd23 = hn::BitCast(d64, hn::InterleaveUpper(d32, c, d));
    const decltype(ab01) groups[4] = {hn::InterleaveLower(d64, ab01, cd01), hn::InterleaveUpper(d64, ab01, cd01),
                                      hn::InterleaveLower(d64, ab23, cd23), hn::InterleaveUpper(d64, ab23, cd23)};
    for (std::int64_t g = 0; g < 4; ++g) {
      const auto odd = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d32, groups[g])));
      std::uint8_t* const at_group = to + (2 * g * kKeyTile + i) * 4;
      hn::StoreU(hn::TableLookupBytes(worth, hn::And(hn::BitCast(d8, groups[g]), low)), d8, at_group);
      hn::StoreU(hn::TableLookupBytes(worth, hn::And(odd, low)), d8, at_group + kKeyTile * 4);
    }
  }
}
#endif

void run_open_keys(const std::byte* const* rows, std::int64_t width, IndexKeys& keys) {
  const std::int64_t blocks = width / kScaleBlock;
  std::uint32_t least[kKeyTile], most[kKeyTile], scales[kKeyTile];
  std::fill_n(least, kKeyTile, 255u);
  std::fill_n(most, kKeyTile, 0u);
  for (std::int64_t b = 0; b < blocks; ++b) {
    open_values(rows, b * kScaleBlock / 2, keys.values + b * kScaleBlock * kKeyTile);
    if (b % 4 == 0) {  // four blocks' scales of a row at once
      for (std::int64_t i = 0; i < kKeyTile; ++i) {
        const std::byte* const from = rows[i] + width / 2 + b;
        scales[i] = 0;
        if (b + 4 <= blocks) {
          std::memcpy(&scales[i], from, 4);
        } else {
          for (std::int64_t k = 0; k < blocks - b; ++k) scales[i] |= static_cast<std::uint32_t>(from[k]) << (8 * k);
        }
      }
    }
    const auto shift = static_cast<unsigned>(b % 4 * 8);
    float* const units = keys.units + b * kKeyTile;
    for (std::int64_t i = 0; i < kKeyTile; ++i) {
      const std::uint32_t scale = scales[i] >> shift & 255;
      least[i] = std::min(least[i], scale), most[i] = std::max(most[i], scale);
      units[i] = std::bit_cast<float>(scale << 23);  // 2^(scale - 127) within the limits
    }
  }
  std::uint32_t lowest = 255, highest = 0, widest = 0;
  for (std::int64_t i = 0; i < kKeyTile; ++i) {
    lowest = std::min(lowest, least[i]), highest = std::max(highest, most[i]);
    widest = std::max(widest, most[i] - least[i]);
  }
  keys.spread = lowest >= kLeastScale && highest <= kMostScale ? widest : -1;
}

std::int64_t run_next_above(const float* x, std::int64_t first, std::int64_t end, float floor) {
  const Native limit = hn::Set(D(), floor);
  for (; first + kNative <= end; first += kNative) {
    const std::int64_t at = hn::FindFirstTrue(D(), hn::Gt(hn::LoadU(D(), x + first), limit));
    if (at >= 0) return first + at;
  }
  while (first < end && !(x[first] > floor)) ++first;
  return first;
}

}  // namespace
}  // namespace dsv41::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv41::cpu {

namespace {
HWY_EXPORT(run_open_query);
HWY_EXPORT(run_open_keys);
HWY_EXPORT(run_score);
HWY_EXPORT(run_next_above);
}  // namespace

void open_query(Target target, const float* q, std::int64_t stride, IndexQuery& query) noexcept {
  HWY_DISPATCH_TABLE(run_open_query)[target.index](q, stride, query);
}

void open_keys(Target target, const std::byte* const* rows, std::int64_t width, IndexKeys& keys) noexcept {
  HWY_DISPATCH_TABLE(run_open_keys)[target.index](rows, width, keys);
}

void score_keys(Target target, Numeric numeric, const IndexQuery& query, const IndexKeys& keys,
                float* scores) noexcept {
  HWY_DISPATCH_TABLE(run_score)[target.index](numeric, query, keys, scores);
}

std::int64_t next_above(Target target, const float* x, std::int64_t first, std::int64_t end, float floor) noexcept {
  return HWY_DISPATCH_TABLE(run_next_above)[target.index](x, first, end, floor);
}

}  // namespace dsv41::cpu
#endif
