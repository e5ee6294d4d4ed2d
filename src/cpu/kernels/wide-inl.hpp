// SPDX-License-Identifier: MIT
//
// Eight double lanes on every machine: sums of exact products of floats, in the order of numerics/reduce.hpp. Included once per target,
// inside kernels (Highway's convention).
#if defined(DSV41_WIDE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV41_WIDE_INL
#undef DSV41_WIDE_INL
#else
#define DSV41_WIDE_INL
#endif

#include <cstdint>

#include "dsv41/numerics/reduce.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dsv41::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kWide = numerics::kLanes;
using Double = hn::CappedTag<double, kWide>;
using Narrow = hn::Rebind<float, Double>;  // as many floats
using Doubles = hn::Vec<Double>;
using Floats = hn::Vec<Narrow>;
constexpr std::int64_t kWideNative = static_cast<std::int64_t>(hn::MaxLanes(Double()));
constexpr int kWideParts = static_cast<int>(kWide / kWideNative);

/// Eight doubles in as many registers as they take.
struct Wide {
  Doubles part[kWideParts];
};

HWY_INLINE Wide wide_zero() {
  Wide out;
  for (int i = 0; i < kWideParts; ++i) out.part[i] = hn::Zero(Double());
  return out;
}

HWY_INLINE Doubles widen(const float* from) {
  return hn::PromoteTo(Double(), hn::LoadU(Narrow(), from));
}

HWY_INLINE Wide wide_load(const float* from) {
  Wide out;
  for (int i = 0; i < kWideParts; ++i) out.part[i] = widen(from + i * kWideNative);
  return out;
}

/// sum += a * b for values that were floats: the product is exact, so that fused and not fused are the same.
HWY_INLINE void add_product(const Wide& a, const Wide& b, Wide& sum) {
  for (int i = 0; i < kWideParts; ++i) sum.part[i] = hn::MulAdd(a.part[i], b.part[i], sum.part[i]);
}

/// Rounded to float32, also beyond its range.
HWY_INLINE Floats narrow(Doubles x) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128  // their DemoteTo gives the largest float for infinity
  double from[kWideNative];
  float to[kWideNative];
  hn::StoreU(x, Double(), from);
  for (std::int64_t i = 0; i < kWideNative; ++i) to[i] = static_cast<float>(from[i]);
  return hn::LoadU(Narrow(), to);
#else
  return hn::DemoteTo(Narrow(), x);
#endif
}

/// The end of numerics::sum(): term(i) of the last `count` < 8 elements joins the lanes, which are added in ascending order.
template <class Term>
HWY_INLINE double wide_total(const Wide& x, std::int64_t count, const Term& term) {
  double lane[kWide];
  for (int i = 0; i < kWideParts; ++i) hn::StoreU(x.part[i], Double(), lane + i * kWideNative);
  for (std::int64_t j = 0; j < count; ++j) lane[j] += term(j);
  double total = 0;
  for (const double l : lane) total += l;
  return total;
}

}  // namespace
}  // namespace dsv41::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
