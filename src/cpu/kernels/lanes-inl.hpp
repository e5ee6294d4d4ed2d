// SPDX-License-Identifier: MIT
//
// Sixteen float lanes on every machine: the unit that sums of products are kept in, so that their order, and with it every bit, is the same
// for all instruction sets. Included once per target, inside kernels (Highway's convention).
#if defined(DSV41_LANES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV41_LANES_INL
#undef DSV41_LANES_INL
#else
#define DSV41_LANES_INL
#endif

#include <cmath>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dsv41::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kVirtual = 16;  // lanes of a sum, on every machine
using D = hn::CappedTag<float, kVirtual>;
using Native = hn::Vec<D>;
constexpr std::int64_t kNative = static_cast<std::int64_t>(hn::MaxLanes(D()));
constexpr int kParts = static_cast<int>(kVirtual / kNative);

/// Sixteen floats in as many registers as they take.
struct Lanes {
  Native part[kParts];
};

HWY_INLINE Lanes zero() {
  Lanes out;
  for (int i = 0; i < kParts; ++i) out.part[i] = hn::Zero(D());
  return out;
}

HWY_INLINE Lanes load(const float* from) {
  Lanes out;
  for (int i = 0; i < kParts; ++i) out.part[i] = hn::LoadU(D(), from + i * kNative);
  return out;
}

HWY_INLINE void store(const Lanes& x, float* to) {
  for (int i = 0; i < kParts; ++i) hn::StoreU(x.part[i], D(), to + i * kNative);
}

/// sum += a * b, rounded once. Where the machine has no such instruction it is done by software: slow, and the same bits.
HWY_INLINE void add_product(const Lanes& a, const Lanes& b, Lanes& sum) {
#if HWY_NATIVE_FMA
  for (int i = 0; i < kParts; ++i) sum.part[i] = hn::MulAdd(a.part[i], b.part[i], sum.part[i]);
#else
  float x[kVirtual], y[kVirtual], z[kVirtual];
  store(a, x), store(b, y), store(sum, z);
  for (std::int64_t i = 0; i < kVirtual; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  sum = load(z);
#endif
}

#if HWY_TARGET != HWY_SCALAR
/// The first two steps of total(): lanes i with i + 8, then i + 4.
template <int kCount, class DN>
HWY_INLINE hn::Vec<hn::Full128<float>> quarter_of(DN, const hn::Vec<DN>* part) {
  const hn::Full128<float> d4;
  if constexpr (kCount == 4) {
    return hn::Add(hn::Add(part[0], part[2]), hn::Add(part[1], part[3]));
  } else if constexpr (kCount == 2) {
    const auto eight = hn::Add(part[0], part[1]);
    return hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
  } else {
    const hn::Half<DN> d8;
    const auto eight = hn::Add(hn::LowerHalf(d8, part[0]), hn::UpperHalf(d8, part[0]));
    return hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
  }
}
HWY_INLINE hn::Vec<hn::Full128<float>> quarter(const Lanes& x) {
  return quarter_of<kParts>(D(), x.part);
}
#endif

/// to[i] = the lanes of x[i] as a tree: lane i with i + 8, then i + 4, i + 2, i + 1.
HWY_INLINE void totals4(const Lanes& a, const Lanes& b, const Lanes& c, const Lanes& d, float* to) {
#if HWY_TARGET == HWY_SCALAR
  const Lanes* const all[4] = {&a, &b, &c, &d};
  for (int i = 0; i < 4; ++i) {
    float lane[kVirtual];
    store(*all[i], lane);
    for (std::int64_t half = kVirtual / 2; half > 0; half /= 2) {
      for (std::int64_t k = 0; k < half; ++k) lane[k] += lane[k + half];
    }
    to[i] = lane[0];
  }
#else
  const hn::Full128<float> d4;
  const auto qa = quarter(a), qb = quarter(b), qc = quarter(c), qd = quarter(d);
  // [a0 a1 b0 b1] + [a2 a3 b2 b3]
  const auto ab = hn::Add(hn::ConcatLowerLower(d4, qb, qa), hn::ConcatUpperUpper(d4, qb, qa));
  const auto cd = hn::Add(hn::ConcatLowerLower(d4, qd, qc), hn::ConcatUpperUpper(d4, qd, qc));
  hn::StoreU(hn::Add(hn::ConcatEven(d4, cd, ab), hn::ConcatOdd(d4, cd, ab)), d4, to);
#endif
}

/// The same of two groups of four.
HWY_INLINE void totals8(const Lanes* first, const Lanes* second, float* to_first, float* to_second) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const auto fold =
      [](const Lanes* x) HWY_ATTR {  // lanes of 128 bits: what is left of x[0], .., x[3] after i + 8 and i + 4
        const auto pair = [](__m512 a, __m512 b) HWY_ATTR {
          return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
        };
        const __m512 ab = pair(x[0].part[0].raw, x[1].part[0].raw), cd = pair(x[2].part[0].raw, x[3].part[0].raw);
        return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
      };
  const __m512 q = fold(first), r = fold(second);
  const __m512 two =
      _mm512_add_ps(_mm512_shuffle_ps(q, r, 0x44), _mm512_shuffle_ps(q, r, 0xEE));  // [q0+q2 q1+q3 r0+r2 r1+r3]
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xB1));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m256 out = _mm512_castps512_ps256(_mm512_permutexvar_ps(order, one));
  _mm_storeu_ps(to_first, _mm256_castps256_ps128(out));
  _mm_storeu_ps(to_second, _mm256_extractf128_ps(out, 1));
#else
  totals4(first[0], first[1], first[2], first[3], to_first);
  totals4(second[0], second[1], second[2], second[3], to_second);
#endif
}

HWY_INLINE float total(const Lanes& x) {
  float to[4];
  const Lanes none = zero();
  totals4(x, none, none, none, to);
  return to[0];
}

}  // namespace
}  // namespace dsv41::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
