// SPDX-License-Identifier: MIT
//
// Whole rows: sums of squares and of products in eight double lanes, in the order of numerics/reduce.hpp; what follows in float32.
#include "cpu/kernels/rows.hpp"

#include <algorithm>
#include <type_traits>

#include "dsv41/numerics/engram_gate.hpp"
#include "dsv41/numerics/norm.hpp"
#include "dsv41/numerics/stored.hpp"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/rows.cpp"
#include "hwy/foreach_target.h"
// clang-format off: behind foreach_target
#include "cpu/kernels/elementary-inl.hpp"
#include "cpu/kernels/lanes-inl.hpp"
#include "cpu/kernels/wide-inl.hpp"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace dsv41::cpu::HWY_NAMESPACE {
namespace {

double square(float x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

/// numerics::dot of N rows with themselves. Side by side, for the additions of one wait for each other.
template <int N>
HWY_INLINE void squares(const float* const* x, std::int64_t count, double* to) {
  Wide sum[N];
  for (int r = 0; r < N; ++r) sum[r] = wide_zero();
  std::int64_t i = 0;
  for (; i + kWide <= count; i += kWide) {
    for (int r = 0; r < N; ++r) {
      const Wide v = wide_load(x[r] + i);
      add_product(v, v, sum[r]);
    }
  }
  for (int r = 0; r < N; ++r)
    to[r] = wide_total(sum[r], count - i, [&](std::int64_t j) { return square(x[r][i + j]); });
}

/// x / rms: by the wide reciprocal, twice as fast. A quotient of floats is no nearer to a rounding boundary than 2^-49 of itself, and the
/// product is right to 2^-52; only a subnormal quotient can be a tie.
HWY_INLINE Floats divided(Floats x, Doubles inverse) {
  return narrow(hn::Mul(hn::PromoteTo(Double(), x), inverse));
}

/// The end of numerics::rms_norm_row.
HWY_INLINE void scale_row(const float* x, const float* w, float rms, std::int64_t count, Numeric numeric, float* y) {
  const Doubles inverse = hn::Set(Double(), 1.0 / static_cast<double>(rms));
  const auto some = [&](const float* from, const float* weights, float* to) HWY_ATTR {
    const Floats v = hn::Mul(hn::LoadU(Narrow(), weights), divided(hn::LoadU(Narrow(), from), inverse));
    hn::StoreU(numeric == Numeric::deployed ? bf16_round(Narrow(), v) : v, Narrow(), to);
  };
  std::int64_t i = 0;
  for (; i + kWideNative <= count; i += kWideNative) some(x + i, w + i, y + i);
  if (i == count) return;
  float last[kWideNative] = {}, weights[kWideNative] = {};
  std::copy_n(x + i, count - i, last);
  std::copy_n(w + i, count - i, weights);
  some(last, weights, last);
  std::copy_n(last, count - i, y + i);
}

template <int N>
void norm(const ops::RmsNorm& op, std::int64_t first) {
  const std::int64_t width = op.x.extent(1);
  const float* x[N];
  double total[N];
  for (int r = 0; r < N; ++r) x[r] = op.x.row(first + r).data();
  squares<N>(x, width, total);
  for (int r = 0; r < N; ++r) {
    scale_row(x[r], op.weight.data(), numerics::rms_of(total[r], width, op.eps), width, op.numeric,
              op.y.row(first + r).data());
  }
}

void run_norm(const ops::RmsNorm& op) {
  constexpr int kTogether = 4;
  const std::int64_t rows = op.x.extent(0);
  std::int64_t t = 0;
  for (; t + kTogether <= rows; t += kTogether) norm<kTogether>(op, t);
  for (; t < rows; ++t) norm<1>(op, t);
}

/// numerics::decode_row of E4M3 bytes that share scales by 32.
void decode_fp8(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t count, float* to) {
  std::int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Rebind<std::uint8_t, D> d8;
  const hn::Rebind<std::uint32_t, D> d32;
  const hn::Rebind<std::int32_t, D> di32;
  const auto nan = hn::Set(d32, 0x7F), low = hn::Set(d32, 0x7F);
  for (; c + kScaleBlock <= count; c += kScaleBlock) {
    const Native scale = hn::Set(D(), numerics::e8m0_decode(scales[c / kScaleBlock]));
    for (std::int64_t i = c; i < c + kScaleBlock; i += kNative) {
      const auto code = hn::PromoteTo(d32, hn::LoadU(d8, codes + i));
      const auto magnitude = hn::And(code, low);
      const auto sign = hn::ShiftLeft<24>(hn::Sub(code, magnitude));
      // exponent and mantissa at float32's places; subnormals are whole steps of 2^-9
      const Native normal = hn::BitCast(D(), hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(d32, 120u << 23)));
      const Native steps = hn::Mul(hn::ConvertTo(D(), hn::BitCast(di32, magnitude)), hn::Set(D(), 0x1p-9f));
      const auto small = hn::RebindMask(D(), hn::Lt(hn::BitCast(di32, magnitude), hn::Set(di32, 8)));
      Native value = hn::IfThenElse(small, steps, normal);
      value = hn::IfThenElse(hn::RebindMask(D(), hn::Eq(magnitude, nan)),
                             hn::Set(D(), std::numeric_limits<float>::quiet_NaN()), value);
      value = hn::Or(value, hn::BitCast(D(), sign));
      hn::StoreU(hn::Mul(value, scale), D(), to + i);
    }
  }
#endif
  for (; c < count; ++c) to[c] = numerics::e4m3_decode(codes[c]) * numerics::e8m0_decode(scales[c / kScaleBlock]);
}

/// Asks for a row of a table.
HWY_INLINE void ask(const Matrix& table, std::int64_t row) {
  constexpr std::int64_t kLine = 64;
  const std::byte* const data = table.data + row * table.row_bytes();
  for (std::int64_t i = 0; i < table.row_bytes(); i += kLine) hwy::Prefetch(data + i);
  hwy::Prefetch(data + table.row_bytes() - 1);
  if (table.scales != nullptr) hwy::Prefetch(table.scales + row * table.scale_cols());
}

void run_gather(const ops::EngramGather& op, std::int64_t first, std::int64_t end) {
  constexpr std::int64_t kAhead = 8;  // rows: a latency of memory is the time of a few
  const std::int64_t columns = op.table_rows.extent(1), width = op.table.cols;
  const Matrix& table = op.table;
  const auto row_of = [&](std::int64_t i) { return op.table_rows(i / columns, i % columns); };
  for (std::int64_t i = first; i < std::min(first + kAhead, end); ++i) ask(table, row_of(i));
  for (std::int64_t i = first; i < end; ++i) {
    if (i + kAhead < end) ask(table, row_of(i + kAhead));
    const std::int64_t row = row_of(i);
    float* const to = op.out.row(i / columns).data() + i % columns * width;
    if (table.format == Format::fp8_row) {
      decode_fp8(reinterpret_cast<const std::uint8_t*>(table.data) + row * width,
                 table.scales + row * table.scale_cols(), width, to);
    } else {
      numerics::decode_row(table, row, 0, width, to);
    }
  }
}

void run_weights(const ops::EngramGate& op, std::int64_t j, float* qk, float* scratch) {
  const std::int64_t dim = op.streams.extent(2);
  numerics::decode_row(op.q_weight, j, 0, dim, qk);
  numerics::decode_row(op.k_weight, j, 0, dim, scratch);
  for (std::int64_t i = 0; i < dim; ++i) qk[i] *= scratch[i];
}

/// numerics::engram_dot, the weights multiplied beforehand.
HWY_INLINE float dot(const float* h, const float* qk, const float* key, std::int64_t dim, double eps) {
  Wide total = wide_zero(), h_squares = wide_zero(), key_squares = wide_zero();
  std::int64_t i = 0;
  for (; i + kWide <= dim; i += kWide) {
    for (int part = 0; part < kWideParts; ++part) {
      const std::int64_t at = i + part * kWideNative;
      const Floats in = hn::LoadU(Narrow(), h + at);
      const Doubles factor = hn::PromoteTo(Double(), hn::Mul(in, hn::LoadU(Narrow(), qk + at)));
      const Doubles wide_h = hn::PromoteTo(Double(), in), wide_key = widen(key + at);
      total.part[part] = hn::MulAdd(factor, wide_key, total.part[part]);
      h_squares.part[part] = hn::MulAdd(wide_h, wide_h, h_squares.part[part]);
      key_squares.part[part] = hn::MulAdd(wide_key, wide_key, key_squares.part[part]);
    }
  }
  const auto end_of = [&](const Wide& x, const auto& term) { return wide_total(x, dim - i, term); };
  const double product = end_of(total, [&](std::int64_t j) {
    return static_cast<double>(h[i + j] * qk[i + j]) * static_cast<double>(key[i + j]);
  });
  const float norms =
      numerics::rms_of(end_of(h_squares, [&](std::int64_t j) { return square(h[i + j]); }), dim, eps) *
      numerics::rms_of(end_of(key_squares, [&](std::int64_t j) { return square(key[i + j]); }), dim, eps);
  return numerics::engram_dot_of(product, norms, dim);
}

/// numerics::engram_add
HWY_INLINE void add(Numeric numeric, float gate, const float* value, std::int64_t dim, float* h) {
  const Native wide_gate = hn::Set(D(), gate);
  std::int64_t i = 0;
  for (; i + kNative <= dim; i += kNative) {
    const Native v = hn::Add(hn::LoadU(D(), h + i), hn::Mul(wide_gate, hn::LoadU(D(), value + i)));
    hn::StoreU(numeric == Numeric::deployed ? bf16_round(D(), v) : v, D(), h + i);
  }
  numerics::engram_add(numeric, gate, value + i, dim - i, h + i);
}

void run_gate(const ops::EngramGate& op, const float* qk, std::int64_t first, std::int64_t end) {
  const std::int64_t hc = op.streams.extent(1), dim = op.streams.extent(2);
  for (std::int64_t n = first; n < end; ++n) {
    const std::int64_t t = n / hc, j = n % hc;
    float* const h = op.streams.row(t).row(j).data();
    const float* const keys_value = op.keys_value.row(t).data();
    const float agreement = dot(h, qk + j * dim, keys_value + j * dim, dim, op.eps);
    const float gate = op.image[t] != 0 ? 0.0f : numerics::engram_gate(agreement);
    op.gates(t, j) = gate;
    add(op.numeric, gate, keys_value + hc * dim, dim, h);
  }
}

}  // namespace
}  // namespace dsv41::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv41::cpu {

namespace {
HWY_EXPORT(run_norm);
HWY_EXPORT(run_gather);
HWY_EXPORT(run_weights);
HWY_EXPORT(run_gate);
}  // namespace

void norm_rows(Target target, const ops::RmsNorm& op) noexcept {
  HWY_DISPATCH_TABLE(run_norm)[target.index](op);
}

void gather_rows(Target target, const ops::EngramGather& op, std::int64_t first, std::int64_t end) noexcept {
  HWY_DISPATCH_TABLE(run_gather)[target.index](op, first, end);
}

void gate_weights(Target target, const ops::EngramGate& op, std::int64_t j, float* qk, float* scratch) noexcept {
  HWY_DISPATCH_TABLE(run_weights)[target.index](op, j, qk, scratch);
}

void gate_streams(Target target, const ops::EngramGate& op, const float* qk, std::int64_t first,
                  std::int64_t end) noexcept {
  HWY_DISPATCH_TABLE(run_gate)[target.index](op, qk, first, end);
}

}  // namespace dsv41::cpu
#endif
