// SPDX-License-Identifier: MIT
//
// Two small matrix products for each block of slots, eight heads against 64 rows and back, with a softmax between them whose lanes are the
// heads. Rows come from the second-level cache, which two rows, or two vectors of channels, for eight heads do not wait for.
#include "cpu/kernels/attention.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/packed.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/attention.cpp"
#include "hwy/foreach_target.h"
// clang-format off: behind foreach_target
#include "cpu/kernels/elementary-inl.hpp"
#include "cpu/kernels/lanes-inl.hpp"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace dsv41::cpu::HWY_NAMESPACE {
namespace {

/// Tiles that fit into the registers: 32 of AVX-512, each sixteen floats; fewer or smaller ones elsewhere.
constexpr bool kWide = kParts == 1;
constexpr int kLogitHeads = kWide ? 8 : 2, kLogitRows = 2;
constexpr int kSumHeads = kWide ? 8 : 4, kSumVectors = kWide ? 2 : 1;
static_assert(kHeads % kLogitHeads == 0 && kHeads % kSumHeads == 0);

HWY_INLINE Lanes all(float x) {
  Lanes out;
  for (int i = 0; i < kParts; ++i) out.part[i] = hn::Set(D(), x);
  return out;
}

HWY_INLINE Lanes scaled(const Lanes& x, const Lanes& by) {
  Lanes out;
  for (int i = 0; i < kParts; ++i) out.part[i] = hn::Mul(x.part[i], by.part[i]);
  return out;
}

/// to[i] = total(x[i]) for sixteen of them.
HWY_INLINE void totals16(const Lanes* x, float* to) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  __m512 y[8], z[4];
  for (int i = 0; i < 8; ++i) {  // lane l with l + 8, of two
    const __m512 a = x[i].part[0].raw, b = x[i + 8].part[0].raw;
    y[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  }
  for (int i = 0; i < 4; ++i)  // l + 4: quarters are x[i], x[i + 8], x[i + 4], x[i + 12]
    z[i] = _mm512_add_ps(_mm512_shuffle_f32x4(y[i], y[i + 4], 0x88), _mm512_shuffle_f32x4(y[i], y[i + 4], 0xDD));
  for (int i = 0; i < 4; i += 2) {  // l + 2
    y[i] = _mm512_add_ps(_mm512_shuffle_ps(z[i], z[i + 1], 0x44), _mm512_shuffle_ps(z[i], z[i + 1], 0xEE));
  }
  const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(y[0], y[2], 0x88), _mm512_shuffle_ps(y[0], y[2], 0xDD));
  _mm512_storeu_ps(to, _mm512_shuffle_f32x4(sums, sums, 0xD8));
#else
  for (int i = 0; i < 16; i += 4) totals4(x[i], x[i + 1], x[i + 2], x[i + 3], to + i);
#endif
}

/// logits[s * kHeads + h] = q_h . row s, before the scale; `count` even.
void logits(const float* q, const float* rows, std::int64_t count, std::int64_t stride, std::int64_t width,
            float* logits) {
  for (std::int64_t s = 0; s < count; s += kLogitRows) {
    const float* const row = rows + s * stride;
    for (std::int64_t h = 0; h < kHeads; h += kLogitHeads) {
      const float* const x = q + h * stride;
      Lanes sum[kLogitRows * kLogitHeads];
      for (Lanes& one : sum) one = zero();
      for (std::int64_t c = 0; c < width; c += kVirtual) {
        Lanes key[kLogitRows];
        for (int r = 0; r < kLogitRows; ++r) key[r] = load(row + r * stride + c);
        for (int i = 0; i < kLogitHeads; ++i) {
          const Lanes in = load(x + i * stride + c);
          for (int r = 0; r < kLogitRows; ++r) add_product(in, key[r], sum[r * kLogitHeads + i]);
        }
      }
      if constexpr (kWide) {
        totals16(sum, logits + s * kHeads);
      } else {
        float to[4];
        totals4(sum[0], sum[1], sum[2], sum[3], to);
        for (int r = 0; r < kLogitRows; ++r) std::copy_n(to + 2 * r, 2, logits + (s + r) * kHeads + h);
      }
    }
  }
}

using D8 = hn::CappedTag<float, kHeads>;
constexpr std::int64_t kNative8 = static_cast<std::int64_t>(hn::MaxLanes(D8()));

/// numerics::RunningSoftmax::add for eight heads: weights [count, kHeads], products in and probabilities out. The slot behind an odd number
/// is computed along with the others and not counted.
void add_softmax(Numeric numeric, const HeadGroup& group, std::int64_t count) {
  float* const w = group.weights();
  const float scale = numerics::inverse_root(group.width());
  float next[2 * kHeads];
  for (std::int64_t h = 0; h < kHeads; h += kNative8) {
    const D8 d;
    hn::Vec<D8> most[4];
    for (auto& m : most) m = hn::LoadU(d, group.top() + h);
    const auto larger = [](auto x, auto y)
                            HWY_ATTR { return hn::IfThenElse(hn::Gt(x, y), x, y); };  // NaN is passed over
    const auto take = [&](std::int64_t slot, auto& top) HWY_ATTR {
      const auto x = hn::Mul(hn::LoadU(d, w + slot * kHeads + h), hn::Set(d, scale));
      hn::StoreU(x, d, w + slot * kHeads + h);
      top = larger(x, top);
    };
    std::int64_t s = 0;
    for (; s + 4 <= count; s += 4) {
      for (int i = 0; i < 4; ++i) take(s + i, most[i]);
    }
    for (; s < count; ++s) take(s, most[0]);
    most[0] = larger(larger(most[1], most[0]), larger(most[3], most[2]));
    hn::StoreU(most[0], d, next + h);
    hn::StoreU(most[0], d, next + kHeads + h);
  }
  for (std::int64_t i = 0; i < 2 * kHeads; i += kNative) {
    const Native before = hn::LoadU(D(), group.top() + i), now = hn::LoadU(D(), next + i);
    hn::StoreU(exp(D(), hn::Sub(before, now)), D(), group.shrink() + i);
    hn::StoreU(now, D(), group.top() + i);
  }
  for (std::int64_t i = 0; i < (count + count % 2) * kHeads; i += kNative)
    hn::StoreU(exp(D(), hn::Sub(hn::LoadU(D(), w + i), hn::LoadU(D(), next + i % (2 * kHeads)))), D(), w + i);
  for (std::int64_t h = 0; h < kHeads; h += kNative8) {
    const D8 d;
    auto sum = hn::Zero(d);
    for (std::int64_t s = 0; s < count; ++s) sum = hn::Add(sum, hn::LoadU(d, w + s * kHeads + h));
    const auto before = hn::Mul(hn::LoadU(d, group.total() + h), hn::LoadU(d, group.shrink() + h));
    hn::StoreU(hn::Add(before, sum), d, group.total() + h);
  }
  if (numeric != Numeric::deployed) return;
  for (std::int64_t i = 0; i < (count + count % 2) * kHeads; i += kNative)
    hn::StoreU(bf16_round(D(), hn::LoadU(D(), w + i)), D(), w + i);
}

/// numerics::attention_add for eight heads.
void add_values(const HeadGroup& group, const float* rows, std::int64_t count) {
  const std::int64_t stride = row_stride(group.width()), width = padded_width(group.width());
  for (std::int64_t c = 0; c < width; c += kSumVectors * kVirtual) {
    for (std::int64_t h = 0; h < kHeads; h += kSumHeads) {
      float* const at = group.sums() + h * stride + c;
      Lanes sum[kSumHeads][kSumVectors];
      for (int i = 0; i < kSumHeads; ++i) {
        const Lanes shrink = all(group.shrink()[h + i]);
        for (int v = 0; v < kSumVectors; ++v) sum[i][v] = scaled(load(at + i * stride + v * kVirtual), shrink);
      }
      const float* w = group.weights() + h;
      const float* row = rows + c;
      for (std::int64_t s = 0; s < count; ++s, w += kHeads, row += stride) {
        Lanes value[kSumVectors];
        for (int v = 0; v < kSumVectors; ++v) value[v] = load(row + v * kVirtual);
        for (int i = 0; i < kSumHeads; ++i) {
          const Lanes p = all(w[i]);
          for (int v = 0; v < kSumVectors; ++v) add_product(p, value[v], sum[i][v]);
        }
      }
      for (int i = 0; i < kSumHeads; ++i) {
        for (int v = 0; v < kSumVectors; ++v) store(sum[i][v], at + i * stride + v * kVirtual);
      }
    }
  }
}

void run_add(Numeric numeric, const HeadGroup& group, const float* rows, std::int64_t count) {
  logits(group.q(), rows, count + count % 2, row_stride(group.width()), padded_width(group.width()), group.weights());
  add_softmax(numeric, group, count);
  add_values(group, rows, count);
}

void run_end(Numeric numeric, const HeadGroup& group, const float* sinks, float* const* out, std::int64_t count) {
  const std::int64_t width = group.width();
  for (std::int64_t h = 0; h < count; ++h) {
    const numerics::RunningSoftmax softmax{.top = group.top()[h], .total = group.total()[h]};
    const float denominator = softmax.denominator(sinks[h]);
    const Native by = hn::Set(D(), denominator);
    const float* const sums = group.sums() + h * row_stride(width);
    std::int64_t c = 0;
    for (; c + kNative <= width; c += kNative) {
      const Native x = hn::Div(hn::LoadU(D(), sums + c), by);
      hn::StoreU(numeric == Numeric::deployed ? bf16_round(D(), x) : x, D(), out[h] + c);
    }
    for (; c < width; ++c) out[h][c] = numerics::activation(numeric, sums[c] / denominator);
  }
}

/// E4M3 codes times 2^-8, as many as d has lanes: what their bits are worth as binary16, subnormals included. NaN comes out as a number.
template <class DF>
HWY_INLINE hn::Vec<DF> e4m3_small(DF d, const std::uint8_t* codes) {
  const hn::Rebind<std::int8_t, DF> d8;
  const hn::Rebind<std::int16_t, DF> d16;
  const hn::Rebind<hwy::float16_t, DF> df16;
  const auto code = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(codes)));
  const auto bits = hn::And(hn::ShiftLeft<7>(code), hn::Set(d16, static_cast<std::int16_t>(0xBF80)));
  return hn::PromoteTo(d, hn::BitCast(df16, bits));
}

/// Bits that are set where one of eight codes is 0x7F or 0xFF: adding 1 then carries into the place of the sign.
HWY_INLINE std::uint64_t nans(const std::uint8_t* codes) {
  const auto eight = numerics::load_unaligned<std::uint64_t>(codes);
  return ((eight & 0x7F7F7F7F7F7F7F7Fu) + 0x0101010101010101u) & 0x8080808080808080u;
}

/// A row of format window; false: a code is NaN or a scale of no usual size, and `to` not what it should be.
HWY_INLINE bool unpack_window(const std::uint8_t* codes, std::int64_t width, float* to) {
  std::uint64_t odd = 0;
  for (std::int64_t i = 0; i < width; i += 8) odd |= nans(codes + i);
  for (std::int64_t b = 0; b < width; b += kScaleBlock) {
    const std::uint32_t scale = codes[width + b / kScaleBlock];
    odd |= scale - 1 < 246 ? 0u : 1u;
    const Native times = hn::Set(D(), std::bit_cast<float>((scale + 8) << 23));  // 2^8 of the scale
    for (std::int64_t c = b; c < b + kScaleBlock; c += kNative)
      hn::StoreU(hn::Mul(e4m3_small(D(), codes + c), times), D(), to + c);
  }
  return odd == 0;
}

/// Sixteen E2M1 values of eight bytes, times the scale. Zero has no sign.
HWY_INLINE void unpack_block(const std::uint8_t* pairs, float scale, float* to) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  alignas(64) static constexpr float kWorth[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};
  const __m512 table = _mm512_mul_ps(_mm512_load_ps(kWorth), _mm512_set1_ps(scale));
  // A byte in 64 bits, and again 28 bits higher: each half's low four bits, which are all that the permutation reads, are a value.
  const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(pairs)));
  _mm512_storeu_ps(to, _mm512_permutexvar_ps(_mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28)), table));
#elif HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < kEntryBlock; ++i)
    to[i] =
        numerics::e2m1_decode(static_cast<std::uint8_t>(i % 2 ? pairs[i / 2] >> 4 : pairs[i / 2] & 15)) * scale + 0.0f;
#else
  alignas(16) static constexpr std::int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  const hn::Full128<std::uint8_t> d8;
  const hn::Full128<std::int8_t> di8;
  const hn::Full128<std::uint64_t> d64;
  const auto bytes = hn::BitCast(d8, hn::Set(d64, numerics::load_unaligned<std::uint64_t>(pairs)));
  const auto codes = hn::InterleaveLower(d8, hn::And(bytes, hn::Set(d8, std::uint8_t{15})), hn::ShiftRight<4>(bytes));
  alignas(16) std::int8_t twice[16];
  hn::Store(hn::TableLookupBytes(hn::Load(di8, kTwice), hn::BitCast(di8, codes)), di8, twice);
  const hn::Rebind<std::int8_t, D> dn8;
  const hn::Rebind<std::int32_t, D> d32;
  const Native half = hn::Set(D(), scale * 0.5f);
  for (std::int64_t i = 0; i < kEntryBlock; i += kNative) {
    const auto value = hn::PromoteTo(d32, hn::LoadU(dn8, twice + i));
    hn::StoreU(hn::Mul(hn::ConvertTo(D(), value), half), D(), to + i);
  }
#endif
}

/// A row of format entry; false: a scale is NaN, likewise.
HWY_INLINE bool unpack_entry(const std::uint8_t* codes, std::int64_t width, float* to) {
  const std::int64_t blocks = width / kEntryBlock;
  const std::uint8_t* const scales = codes + width / 2;
  std::uint64_t odd = 0;
  for (std::int64_t first = 0; first < blocks; first += 8) {
    const std::int64_t count = std::min<std::int64_t>(8, blocks - first);
    const std::uint8_t* eight = scales + first;
    std::uint8_t last[8] = {};
    if (count < 8) eight = std::copy_n(eight, count, last) - count;
    odd |= nans(eight);
    float scale[8];
    for (std::int64_t i = 0; i < 8; i += kNative8)
      hn::StoreU(hn::Mul(e4m3_small(D8(), eight + i), hn::Set(D8(), 256.0f)), D8(), scale + i);
    for (std::int64_t i = 0; i < count; ++i)
      unpack_block(codes + (first + i) * kEntryBlock / 2, scale[i], to + (first + i) * kEntryBlock);
  }
  return odd == 0;
}

void run_unpack(const PackedRow* rows, std::int64_t count, std::int64_t width, float* to) {
  const std::int64_t stride = row_stride(width);
  for (std::int64_t s = 0; s < count; ++s, to += stride) {
    const auto [data, format] = rows[s];
    const auto* const codes = reinterpret_cast<const std::uint8_t*>(data);
    const bool done = format == CacheFormat::window  ? unpack_window(codes, width, to)
                      : format == CacheFormat::entry ? unpack_entry(codes, width, to)
                                                     : false;
    if (!done) numerics::unpack_row(format, width, data, 0, width, to);  // float32 as it is, and what is rare
    std::fill(to + width, to + padded_width(width), 0.0f);
  }
}

}  // namespace
}  // namespace dsv41::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv41::cpu {

namespace {
HWY_EXPORT(run_unpack);
HWY_EXPORT(run_add);
HWY_EXPORT(run_end);
}  // namespace

void unpack_rows(Target target, const PackedRow* rows, std::int64_t count, std::int64_t width, float* to) noexcept {
  HWY_DISPATCH_TABLE(run_unpack)[target.index](rows, count, width, to);
}

void begin_heads(const HeadGroup& group, const float* const* q, std::int64_t count) noexcept {
  const std::int64_t width = group.width(), stride = row_stride(width);
  for (std::int64_t h = 0; h < kHeads; ++h) {
    float* const row = group.q() + h * stride;
    if (h < count) std::copy_n(q[h], width, row);
    std::fill(row + (h < count ? width : 0), row + stride, 0.0f);
  }
  std::fill_n(group.sums(), kHeads * stride, 0.0f);
  std::fill(group.top(), group.total(), numerics::RunningSoftmax().top);
  std::fill(group.total(), group.shrink(), 0.0f);
}

void add_slots(Target target, Numeric numeric, const HeadGroup& group, const float* rows, std::int64_t count) noexcept {
  HWY_DISPATCH_TABLE(run_add)[target.index](numeric, group, rows, count);
}

void end_heads(Target target, Numeric numeric, const HeadGroup& group, const float* sinks, float* const* out,
               std::int64_t count) noexcept {
  HWY_DISPATCH_TABLE(run_end)[target.index](numeric, group, sinks, out, count);
}

}  // namespace dsv41::cpu
#endif
