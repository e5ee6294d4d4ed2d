// SPDX-License-Identifier: MIT
//
// numerics/elementary.hpp in lanes: the same sequences of float32 operations without fused multiply-adds, hence the same bits. Included
// once per target, inside kernels.
#if defined(DSV41_ELEMENTARY_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV41_ELEMENTARY_INL
#undef DSV41_ELEMENTARY_INL
#else
#define DSV41_ELEMENTARY_INL
#endif

#include <cstdint>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dsv41::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// numerics::exp. Its two factors may be split elsewhere: the product with the first of them is exact either way.
template <class DF>
HWY_INLINE hn::Vec<DF> exp(DF d, hn::Vec<DF> x) {
  const hn::Rebind<std::int32_t, DF> d32;
  const auto magic = hn::Set(d, 12582912.0f), one = hn::Set(d, 1.0f);
  const auto tiny = hn::Lt(x, hn::Set(d, -104.0f)), usual = hn::Lt(x, hn::Set(d, 88.75f));
  const auto at = hn::IfThenZeroElse(tiny, hn::IfThenElseZero(usual, x));
  const auto n = hn::Sub(hn::Add(hn::Mul(at, hn::Set(d, 1.44269504f)), magic), magic);
  const auto r = hn::Add(hn::Sub(at, hn::Mul(n, hn::Set(d, 0.693359375f))), hn::Mul(n, hn::Set(d, 2.12194440e-4f)));
  auto p = hn::Set(d, 1.0f / 5040.0f);
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.0f / 720.0f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.0f / 120.0f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.0f / 24.0f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 1.0f / 6.0f));
  p = hn::Add(hn::Mul(p, r), hn::Set(d, 0.5f));
  p = hn::Add(hn::Add(hn::Mul(hn::Mul(p, r), r), r), one);
  const auto k = hn::ConvertTo(d32, n), half = hn::ShiftRight<1>(k), bias = hn::Set(d32, 127);
  const auto first = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const auto second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(k, half), bias)));
  const auto large = hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Set(d, std::numeric_limits<float>::infinity()), x);
  return hn::IfThenElse(usual, hn::IfThenZeroElse(tiny, hn::Mul(hn::Mul(p, first), second)), large);
}

/// numerics::sigmoid
template <class DF>
HWY_INLINE hn::Vec<DF> sigmoid(DF d, hn::Vec<DF> x) {
  const auto one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, exp(d, hn::Neg(x))));
}

/// numerics::silu
template <class DF>
HWY_INLINE hn::Vec<DF> silu(DF d, hn::Vec<DF> x) {
  return hn::Mul(x, sigmoid(d, x));
}

/// numerics::bf16_round of what is no NaN
template <class DF>
HWY_INLINE hn::Vec<DF> bf16_round_number(DF d, hn::Vec<DF> x) {
  const hn::Rebind<std::uint32_t, DF> d32;
  const auto bits = hn::BitCast(d32, x), odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d32, 0x7FFFu)), odd);
  return hn::BitCast(d, hn::And(rounded, hn::Set(d32, 0xFFFF0000u)));
}

/// numerics::bf16_round
template <class DF>
HWY_INLINE hn::Vec<DF> bf16_round(DF d, hn::Vec<DF> x) {
  const hn::Rebind<std::uint32_t, DF> d32;
  const auto quiet = hn::And(hn::Or(hn::BitCast(d32, x), hn::Set(d32, 0x400000u)), hn::Set(d32, 0xFFFF0000u));
  return hn::IfThenElse(hn::Eq(x, x), bf16_round_number(d, x), hn::BitCast(d, quiet));
}

}  // namespace
}  // namespace dsv41::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
