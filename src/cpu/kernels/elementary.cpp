// SPDX-License-Identifier: MIT
//
// Rows of the experts' hidden values, and rounding to bfloat16.
#include "cpu/kernels/elementary.hpp"

#include "dsv41/numerics/elementary.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/elementary.cpp"
#include "hwy/foreach_target.h"
// clang-format off: behind foreach_target
#include "cpu/kernels/elementary-inl.hpp"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace dsv41::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void run_swiglu(Numeric numeric, float weight, float limit, float* gate, const float* up, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto w = hn::Set(d, weight), most = hn::Set(d, limit), least = hn::Set(d, -limit);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto g = hn::LoadU(d, gate + i), u = hn::LoadU(d, up + i);
    if (limit > 0.0f) {  // comparisons, not minima: NaN stays
      g = hn::IfThenElse(hn::Gt(g, most), most, g);
      u = hn::IfThenElse(hn::Gt(u, most), most, hn::IfThenElse(hn::Lt(u, least), least, u));
    }
    auto h = hn::Mul(w, hn::Mul(silu(d, g), u));
    if (numeric == Numeric::deployed) h = bf16_round(d, h);
    hn::StoreU(h, d, gate + i);
  }
  for (; i < count; ++i) gate[i] = numerics::weighted_swiglu(numeric, weight, gate[i], up[i], limit);
}

void run_round(float* x, std::int64_t count) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(bf16_round(d, hn::LoadU(d, x + i)), d, x + i);
  for (; i < count; ++i) x[i] = numerics::bf16_round(x[i]);
}

}  // namespace
}  // namespace dsv41::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv41::cpu {

namespace {
HWY_EXPORT(run_swiglu);
HWY_EXPORT(run_round);
}  // namespace

void weighted_swiglu(Target target, Numeric numeric, float weight, float limit, float* gate, const float* up,
                     std::int64_t count) noexcept {
  HWY_DISPATCH_TABLE(run_swiglu)[target.index](numeric, weight, limit, gate, up, count);
}

void round_row(Target target, float* x, std::int64_t count) noexcept {
  HWY_DISPATCH_TABLE(run_round)[target.index](x, count);
}

}  // namespace dsv41::cpu
#endif
