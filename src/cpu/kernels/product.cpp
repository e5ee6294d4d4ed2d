// SPDX-License-Identifier: MIT
//
// Dot products in sixteen lanes over weights in their stored form. Few rows decode a weight in registers and meet it at once; many rows
// decode a panel of outputs into the first-level cache and meet it tile by tile. Both add in the same order.
#include "cpu/kernels/product.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "dsv41/numerics/quantisers.hpp"
#include "dsv41/numerics/stored.hpp"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/product.cpp"
#include "hwy/foreach_target.h"
// clang-format off: behind foreach_target
#include "cpu/kernels/lanes-inl.hpp"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace dsv41::cpu::HWY_NAMESPACE {
namespace {

/// One row of a weight and where its blocks begin.
struct Row {
  const std::uint8_t* data;
  const float* scales;  // decoded, one a block
  const float* tail;    // the part block, decoded and packed [32], where there is one
};

constexpr std::int64_t block_bytes(Format f) {
  return f == Format::f32 ? 128 : f == Format::f16 || f == Format::bf16 ? 64 : f == Format::fp4_row ? 16 : 32;
}

/// Columns [32 block, 32 block + 32) of a row: elements 0 .. 15 and 16 .. 31 of the packed order.
template <Format F>
HWY_INLINE void decode(const Row& row, std::int64_t block, Lanes& first, Lanes& second) {
  Lanes* const half[2] = {&first, &second};
  const std::uint8_t* const at = row.data + block * block_bytes(F);
  if constexpr (F == Format::f32) {
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < kParts; ++i)
        half[h]->part[i] = hn::LoadU(D(), reinterpret_cast<const float*>(at) + h * kVirtual + i * kNative);
    }
  } else if constexpr (F == Format::bf16) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<std::uint32_t, D> d32;
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < kParts; ++i) {
        const auto bits = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(at) + h * kVirtual + i * kNative);
        half[h]->part[i] = hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
      }
    }
  } else if constexpr (F == Format::f16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < kParts; ++i) {
        const auto* const from = reinterpret_cast<const hwy::float16_t*>(at) + h * kVirtual + i * kNative;
        half[h]->part[i] = hn::PromoteTo(D(), hn::LoadU(d16, from));
      }
    }
  } else if constexpr (F == Format::fp8_tile) {  // fp8_row alike: only the scales differ
    // As binary16 the bits of E4M3 are worth 2^-8 of it, subnormals included. NaN codes come out as 480: decodes_fast() looks for them.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    const __m512i codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
    const __m512i bits = _mm512_and_si512(_mm512_slli_epi16(codes, 7), _mm512_set1_epi16(static_cast<short>(0xBF80)));
    const __m512 scale = _mm512_set1_ps(row.scales[block] * 256.0f);
    first.part[0] = Native{_mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(bits)), scale)};
    second.part[0] = Native{_mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1)), scale)};
#else
    const hn::Rebind<std::int8_t, D> d8;
    const hn::Rebind<std::int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> df16;
    const auto kept = hn::Set(d16, static_cast<std::int16_t>(0xBF80));  // the sign's copies leave one
    const Native scale = hn::Set(D(), row.scales[block] * 256.0f);
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < kParts; ++i) {
        const auto code =
            hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(at) + h * kVirtual + i * kNative));
        const auto bits = hn::And(hn::ShiftLeft<7>(code), kept);
        half[h]->part[i] = hn::Mul(hn::PromoteTo(D(), hn::BitCast(df16, bits)), scale);
      }
    }
#endif
  } else {
    static_assert(F == Format::fp4_row);
#if HWY_TARGET <= HWY_AVX3
    alignas(64) static constexpr float kWorth[16] = {0,    .5f,  1,  1.5f,  2,  3,  4,  6,
                                                     -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    const __m512 table = _mm512_mul_ps(_mm512_load_ps(kWorth), _mm512_set1_ps(row.scales[block]));
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
    first.part[0] = Native{_mm512_permutexvar_ps(bytes, table)};  // reads the low four bits of a lane
    second.part[0] = Native{_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table)};
#elif HWY_TARGET == HWY_SCALAR
    for (int i = 0; i < kVirtual; ++i) {
      first.part[i] = hn::Set(D(), numerics::e2m1_decode(at[i] & 15) * row.scales[block]);
      second.part[i] = hn::Set(D(), numerics::e2m1_decode(at[i] >> 4) * row.scales[block]);
    }
#else
    alignas(16) static constexpr std::int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const hn::Full128<std::uint8_t> d8;
    const hn::Full128<std::int8_t> di8;
    const auto table = hn::Load(di8, kTwice);
    const auto pair = hn::LoadU(d8, at);
    alignas(16) std::int8_t twice[32];
    hn::Store(hn::TableLookupBytes(table, hn::BitCast(di8, hn::And(pair, hn::Set(d8, 15)))), di8, twice);
    hn::Store(hn::TableLookupBytes(table, hn::BitCast(di8, hn::ShiftRight<4>(pair))), di8, twice + 16);
    const hn::Rebind<std::int8_t, D> dn8;
    const hn::Rebind<std::int32_t, D> d32;
    const Native scale = hn::Set(D(), row.scales[block] * 0.5f);
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < kParts; ++i) {
        const auto value = hn::PromoteTo(d32, hn::LoadU(dn8, twice + h * kVirtual + i * kNative));
        half[h]->part[i] = hn::Mul(hn::ConvertTo(D(), value), scale);
      }
    }
#endif
  }
}

/// E8M0 codes to floats.
HWY_INLINE void decode_scales(const std::uint8_t* codes, std::int64_t count, float* to) {
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Rebind<std::uint8_t, D> d8;
  const hn::Rebind<std::uint32_t, D> d32;
  for (; i + kNative <= count; i += kNative) {
    const auto code = hn::PromoteTo(d32, hn::LoadU(d8, codes + i));
    auto bits = hn::Max(hn::ShiftLeft<23>(code), hn::Set(d32, 0x00400000u));  // code 0 is 2^-127
    bits = hn::IfThenElse(hn::Eq(code, hn::Set(d32, 255u)), hn::Set(d32, 0x7FC00000u), bits);
    hn::StoreU(hn::BitCast(D(), bits), D(), to + i);
  }
#endif
  for (; i < count; ++i) to[i] = numerics::e8m0_decode(codes[i]);
}

/// Whether one of `count` E4M3 codes is 0x7F or 0xFF: then adding 1 carries into the sign.
HWY_INLINE bool has_nan(const std::uint8_t* codes, std::int64_t count) {
  std::uint8_t found = 0;
  std::int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::uint8_t> d8;
  const auto one = hn::Set(d8, 1);
  auto any = hn::Zero(d8);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d8));
  for (; i + lanes <= count; i += lanes) {
    const auto code = hn::LoadU(d8, codes + i);
    any = hn::Or(any, hn::Xor(code, hn::Add(code, one)));
  }
  if (!hn::AllTrue(d8, hn::Eq(hn::And(any, hn::Set(d8, 0x80)), hn::Zero(d8)))) return true;
#endif
  for (; i < count; ++i) found = static_cast<std::uint8_t>(found | (codes[i] ^ (codes[i] + 1)));
  return (found & 0x80) != 0;
}

/// Which outputs and rows share a decoded weight: as many sums as fit into the registers, 32 of AVX-512, 16 taken elsewhere.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86;
constexpr int kTileRows = kManyRegisters ? 6 : kParts == 2 ? 3 : 1;
constexpr int kTileOutputs = kManyRegisters ? 4 : kParts == 2 ? 2 : 1;
constexpr int kRegisters = kManyRegisters ? 32 : 16;
constexpr std::int64_t kFewRows = kManyRegisters || kParts == 2 ? 4 : 2;  // that share decoding in registers
constexpr std::int64_t kPanelOutputs = 8, kPanelCols = kChunk;            // 16 KiB of decoded weights
constexpr std::int64_t kRowBlock = 96;                                    // rows that share a decoded panel
static_assert(kPanelOutputs % kTileOutputs == 0 && kRowBlock % kTileRows == 0);

/// A product and what of its weight is decoded beforehand.
struct Work {
  const Product* product;
  std::int64_t blocks;  // whole scale blocks of a row
  std::int64_t padded;  // columns with the last, part block

  std::int64_t tail() const { return padded - blocks * kScaleBlock; }
};

/// Scratch of `count` opened rows.
constexpr std::int64_t open_scratch(std::int64_t cols, std::int64_t count) {
  return count * (scale_blocks(cols) + kScaleBlock) + 16;
}

/// y[r] = the total of sum[r]
template <int R>
HWY_INLINE void put_totals(const Lanes* sum, float* y) {
  if constexpr (R == 4) {
    totals4(sum[0], sum[1], sum[2], sum[3], y);
  } else {
    for (int r = 0; r < R; ++r) y[r] = total(sum[r]);
  }
}

/// `count` rows o, o + step, .. with their scales decoded, and their part blocks, where there are some, decoded and packed. `scratch`:
/// open_scratch(cols, count) floats.
template <Format F>
HWY_INLINE void open(const Work& work, std::int64_t o, std::int64_t step, std::int64_t count, float* scratch,
                     Row* rows) {
  const Matrix& w = work.product->w;
  const std::int64_t scale_cols = scale_blocks(w.cols);
  float *const tails = scratch, *scales = scratch + count * kScaleBlock;
  for (std::int64_t r = 0; r < count; ++r) {
    rows[r].data = reinterpret_cast<const std::uint8_t*>(w.data) + (o + r * step) * w.row_bytes();
    rows[r].scales = scales + r * scale_cols;
    rows[r].tail = tails + r * kScaleBlock;
  }
  if constexpr (F == Format::fp4_row) {
    for (std::int64_t r = 0; r < count; ++r)
      decode_scales(w.scales + (o + r * step) * scale_cols, scale_cols, scales + r * scale_cols);
  } else if constexpr (F == Format::fp8_tile) {
    const std::int64_t tall = w.format == Format::fp8_tile ? kScaleBlock : 1;  // rows that share a row of scales
    for (std::int64_t r = 0, decoded = -1; r < count; ++r) {
      const std::int64_t row = (o + r * step) / tall;
      if (decoded != row) {
        scales = scratch + count * kScaleBlock + r * scale_cols;
        decode_scales(w.scales + row * scale_cols, scale_cols, scales);
        decoded = row;
      }
      rows[r].scales = scales;
    }
  }
  if (work.tail() == 0) return;
  const std::int64_t from = work.blocks * kScaleBlock;
  for (std::int64_t r = 0; r < count; ++r) {
    float plain[kScaleBlock] = {};
    numerics::decode_row(w, o + r * step, from, w.cols - from, plain);
    for (std::int64_t k = 0; k < kScaleBlock; ++k)
      tails[r * kScaleBlock + (F == Format::fp4_row ? k % 2 * kVirtual + k / 2 : k)] = plain[k];
  }
}

/// Outputs o, o + step, .. of R rows of weights, of T rows: every weight is decoded once, in registers, and meets all rows at once. As o
/// goes up, each of the R reads on in a part of the matrix of its own: streams that lie in pages of their own are what processors read
/// ahead best.
template <Format F, int R, int T>
void few(const Work& work, std::int64_t o, std::int64_t step, float* scratch) {
  const Product& p = *work.product;
  Row rows[R];
  open<F>(work, o, step, R, scratch, rows);
  Lanes sum[T][R];
  for (int i = 0; i < T; ++i) {
    for (int r = 0; r < R; ++r) sum[i][r] = zero();
  }
  constexpr std::int64_t kAhead = 512;  // bytes to fetch before they are needed: measured, of 0 to 12288
  const std::int64_t chunk = p.chunk_stride == kChunk ? work.padded : kChunk;  // rows in one piece: one chunk
  for (std::int64_t k = 0, at = 0; k < work.padded; k += chunk, at += p.chunk_stride) {
    const float* x[T];
    for (int i = 0; i < T; ++i) x[i] = p.x[i] + at;
    const std::int64_t end = std::min(k + chunk, work.blocks * kScaleBlock) / kScaleBlock;
    std::int64_t b = k / kScaleBlock;
    for (; b < end; ++b) {
      Lanes first[R], second[R];
      for (int r = 0; r < R; ++r) {
        hwy::Prefetch(rows[r].data + b * block_bytes(F) + kAhead);
        decode<F>(rows[r], b, first[r], second[r]);
      }
      for (int i = 0; i < T; ++i) {
        const Lanes low = load(x[i]), high = load(x[i] + kVirtual);
        for (int r = 0; r < R; ++r) add_product(first[r], low, sum[i][r]);
        for (int r = 0; r < R; ++r) add_product(second[r], high, sum[i][r]);
        x[i] += kScaleBlock;
      }
    }
    if (work.tail() == 0 || k + chunk < work.padded) continue;
    for (std::int64_t half = 0; half < kScaleBlock; half += kVirtual) {
      for (int r = 0; r < R; ++r) {
        for (int i = 0; i < T; ++i) add_product(load(rows[r].tail + half), load(x[i] + half), sum[i][r]);
      }
    }
  }
  for (int i = 0; i < T; ++i) {
    float y[R];
    put_totals<R>(sum[i], y);
    for (int r = 0; r < R; ++r) p.y[i * p.y_stride + o + r * step] = y[r];
  }
}

/// Rows x [T] against R outputs of a panel [outputs, kPanelCols]. `sums` [T, R] of lanes, `stride` apart a row: read unless `starts`, and
/// written unless `ends`, when the totals go to y.
template <int T, int R>
HWY_INLINE void tile(const float* const* x, const float* panel, std::int64_t cols, float* sums, std::int64_t stride,
                     bool starts, bool ends, float* y, std::int64_t y_stride) {
  Lanes sum[T][R];
  if (starts) {
    for (int i = 0; i < T; ++i) {
      for (int r = 0; r < R; ++r) sum[i][r] = zero();
    }
  } else {
    for (int i = 0; i < T; ++i) {
      for (int r = 0; r < R; ++r) sum[i][r] = load(sums + i * stride + r * kVirtual);
    }
  }
  for (std::int64_t k = 0; k < cols; k += kVirtual) {
    Lanes w[R];
    for (int r = 0; r < R; ++r) w[r] = load(panel + r * kPanelCols + k);
    for (int i = 0; i < T; ++i) {
      const Lanes in = load(x[i] + k);
      for (int r = 0; r < R; ++r) add_product(w[r], in, sum[i][r]);
    }
  }
  if (!ends) {
    for (int i = 0; i < T; ++i) {
      for (int r = 0; r < R; ++r) store(sum[i][r], sums + i * stride + r * kVirtual);
    }
  } else {
    int i = 0;
    if constexpr (R == 4) {
      for (; i + 2 <= T; i += 2) totals8(sum[i], sum[i + 1], y + i * y_stride, y + (i + 1) * y_stride);
    }
    for (; i < T; ++i) put_totals<R>(sum[i], y + i * y_stride);
  }
}

/// Calls work(constant) for the constant that `n` is, of 1 .. N.
template <int N, class F>
HWY_INLINE void with_constant(std::int64_t n, const F& work) {
  if constexpr (N > 1) {
    if (n < N) return with_constant<N - 1>(n, work);
  }
  work(std::integral_constant<int, N>());
}

/// Outputs that T rows take side by side: sums, decoded weights and an input in registers.
constexpr int few_outputs(int rows) {
  for (int outputs = 4; outputs > 1; --outputs) {
    if ((rows + 2) * outputs * kParts + 2 * kParts <= kRegisters) return outputs;
  }
  return 1;
}

template <Format F>
void few_rows(const Work& work, std::int64_t first, std::int64_t end, float* scratch) {
  with_constant<kFewRows>(work.product->rows, [&](auto rows) {
    constexpr int T = decltype(rows)::value, R = few_outputs(T);
    const std::int64_t step = (end - first) / R;
    for (std::int64_t o = first; o < first + step; ++o) few<F, R, T>(work, o, step, scratch);
    for (std::int64_t o = first + R * step; o < end; ++o) few<F, 1, T>(work, o, 1, scratch);
  });
}

/// kFast: as decode<F> does it; otherwise value by value.
template <Format F, bool kFast>
void many_rows(const Work& work, std::int64_t first, std::int64_t end, float* scratch) {
  const Product& p = *work.product;
  float* const panel = scratch;
  float* const sums = panel + kPanelOutputs * kPanelCols;  // [rows of a block, panel outputs] of lanes
  float* const opened = sums + std::min(p.rows, kRowBlock) * kPanelOutputs * kVirtual;
  constexpr std::int64_t kSumStride = kPanelOutputs * kVirtual;
  // as many rows as a second-level cache keeps while the outputs go by
  constexpr std::int64_t kFloats = 192 * 1024;
  const std::int64_t fit =
      std::clamp(kFloats / work.padded / kTileRows * kTileRows, std::int64_t{4 * kTileRows}, kRowBlock);
  for (std::int64_t begin = 0; begin < p.rows; begin += fit) {
    const std::int64_t block_end = std::min(p.rows, begin + fit);
    for (std::int64_t o = first; o < end; o += kPanelOutputs) {
      const std::int64_t count = std::min(kPanelOutputs, end - o);
      Row rows[kPanelOutputs];
      open<F>(work, o, 1, count, opened, rows);
      for (std::int64_t k = 0; k < work.padded; k += kPanelCols) {
        const std::int64_t cols = std::min(kPanelCols, work.padded - k);
        for (std::int64_t r = 0; r < count; ++r) {
          float* to = panel + r * kPanelCols;
          if constexpr (!kFast) {
            static_assert(F != Format::fp4_row, "its packed order is another");
            const std::int64_t some = std::min(cols, p.w.cols - k);
            numerics::decode_row(p.w, o + r, k, some, to);
            std::fill(to + some, to + cols, 0.0f);
            continue;
          }
          const std::int64_t last = std::min(work.blocks, (k + cols) / kScaleBlock);
          for (std::int64_t b = k / kScaleBlock; b < last; ++b, to += kScaleBlock) {
            Lanes one, two;
            decode<F>(rows[r], b, one, two);
            store(one, to);
            store(two, to + kVirtual);
          }
          if (last * kScaleBlock < k + cols) std::memcpy(to, rows[r].tail, kScaleBlock * sizeof(float));
        }
        const bool starts = k == 0, ends = k + cols == work.padded;
        for (std::int64_t t = begin; t < block_end; t += kTileRows) {
          const float* x[kTileRows];
          const std::int64_t some = std::min<std::int64_t>(kTileRows, block_end - t);
          for (std::int64_t i = 0; i < some; ++i) x[i] = p.x[t + i] + k / kChunk * p.chunk_stride;
          with_constant<kTileRows>(some, [&](auto n) {
            constexpr int T = decltype(n)::value;
            std::int64_t r = 0;
            float* const at = sums + (t - begin) * kSumStride;
            float* const y = p.y + t * p.y_stride + o;
            for (; r + kTileOutputs <= count; r += kTileOutputs) {
              tile<T, kTileOutputs>(x, panel + r * kPanelCols, cols, at + r * kVirtual, kSumStride, starts, ends, y + r,
                                    p.y_stride);
            }
            for (; r < count; ++r)
              tile<T, 1>(x, panel + r * kPanelCols, cols, at + r * kVirtual, kSumStride, starts, ends, y + r,
                         p.y_stride);
          });
        }
      }
    }
  }
}

/// Whether the fast decoding of E4M3 gives the values of rows [first, end): it knows no NaN, and takes scales up to 2^119 (code 246).
bool decodes_fast(const Matrix& w, std::int64_t first, std::int64_t end) {
  const std::int64_t tall = w.format == Format::fp8_tile ? kScaleBlock : 1, scale_cols = scale_blocks(w.cols);
  const std::uint8_t* const scales = w.scales + first / tall * scale_cols;
  const std::int64_t count = ((end - 1) / tall - first / tall + 1) * scale_cols;
  std::uint8_t top = 0;
  for (std::int64_t i = 0; i < count; ++i) top = std::max(top, scales[i]);
  return top <= 246 && !has_nan(reinterpret_cast<const std::uint8_t*>(w.data) + first * w.cols, (end - first) * w.cols);
}

template <Format F>
void product_of(const Work& work, std::int64_t first, std::int64_t end, float* scratch) {
  if (work.product->rows <= kFewRows) {
    few_rows<F>(work, first, end, scratch);
  } else {
    many_rows<F, true>(work, first, end, scratch);
  }
  if constexpr (F == Format::fp8_tile) {  // only now: the codes have been read ahead, and are in a cache
    if (!decodes_fast(work.product->w, first, end)) many_rows<F, false>(work, first, end, scratch);
  }
}

void run_product(const Product& p, std::int64_t first, std::int64_t end, float* scratch) {
  const Work work{.product = &p, .blocks = p.w.cols / kScaleBlock, .padded = padded_cols(p.w.cols)};
  if (p.rows == 0) return;
  switch (p.w.format) {
    case Format::f32: return product_of<Format::f32>(work, first, end, scratch);
    case Format::f16: return product_of<Format::f16>(work, first, end, scratch);
    case Format::bf16: return product_of<Format::bf16>(work, first, end, scratch);
    case Format::fp8_tile:
    case Format::fp8_row: return product_of<Format::fp8_tile>(work, first, end, scratch);
    case Format::fp4_row: return product_of<Format::fp4_row>(work, first, end, scratch);
  }
}

/// numerics::quantise_row of Quantiser::input_fp8 for one whole block; false: not done, for a value is not finite.
HWY_INLINE bool quantise_block(const float* from, float* to) {
#if HWY_TARGET == HWY_SCALAR
  (void)from, (void)to;
  return false;
#else
  Lanes x[2] = {load(from), load(from + kVirtual)};
  Native top = hn::Zero(D());
  auto odd = hn::Ne(top, top);
  for (const Lanes& half : x) {
    for (int i = 0; i < kParts; ++i) {
      const Native a = hn::Abs(half.part[i]);
      top = hn::Max(top, a);
      odd = hn::Or(odd, hn::Not(hn::Lt(a, hn::Set(D(), 3.0e38f))));  // infinite, NaN, or nearly
    }
  }
  if (!hn::AllFalse(D(), odd)) return false;
  const float amax = hn::GetLane(hn::MaxOfLanes(D(), top));
  const float scale = numerics::e8m0_decode(numerics::scale_encode(numerics::Quantiser::input_fp8, amax));
  const Native unit = hn::Set(D(), scale),
               inverse = hn::Set(D(), 1.0f / scale);  // powers of two: both products are exact divisions
  const hn::Rebind<std::uint32_t, D> d32;
  const Native limit = hn::Set(D(), 448.0f), magic = hn::Set(D(), 12582912.0f);
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < kParts; ++i) {
      const Native v = hn::Max(hn::Min(hn::Mul(x[h].part[i], inverse), limit), hn::Neg(limit));
      const auto bits = hn::BitCast(d32, hn::Abs(v));
      const auto even =
          hn::And(hn::ShiftRight<20>(bits), hn::Set(d32, 1u));  // three bits of mantissa stay, ties to even
      const auto rounded = hn::And(hn::Add(bits, hn::Add(hn::Set(d32, 0x7FFFFu), even)), hn::Set(d32, 0xFFF00000u));
      const Native steps = hn::Sub(hn::Add(hn::Mul(hn::Abs(v), hn::Set(D(), 512.0f)), magic), magic);
      const Native small = hn::Mul(steps, hn::Set(D(), 0x1p-9f));  // below 2^-6: steps of 2^-9
      const Native magnitude =
          hn::IfThenElse(hn::Lt(hn::Abs(v), hn::Set(D(), 0x1p-6f)), small, hn::BitCast(D(), rounded));
      hn::StoreU(hn::Mul(hn::CopySign(magnitude, v), unit), D(), to + h * kVirtual + i * kNative);
    }
  }
  return true;
#endif
}

void run_pack(Format format, bool quantise, const float* from, std::int64_t cols, float* to) {
  for (std::int64_t k = 0; k < cols; k += kScaleBlock) {
    const std::int64_t count = std::min(kScaleBlock, cols - k);
    float block[kScaleBlock] = {};
    if (!quantise) {
      std::copy_n(from + k, count, block);
    } else if (count < kScaleBlock || !quantise_block(from + k, block)) {
      std::copy_n(from + k, count, block);
      numerics::quantise_row(numerics::Quantiser::input_fp8, block, count);
    }
    if (format != Format::fp4_row) {
      std::copy_n(block, kScaleBlock, to + k);
      continue;
    }
#if HWY_TARGET == HWY_SCALAR
    for (std::int64_t i = 0; i < kVirtual; ++i) to[k + i] = block[2 * i], to[k + kVirtual + i] = block[2 * i + 1];
#else
    for (std::int64_t i = 0; i < kVirtual; i += kNative) {
      Native even, odd;
      hn::LoadInterleaved2(D(), block + 2 * i, even, odd);
      hn::StoreU(even, D(), to + k + i);
      hn::StoreU(odd, D(), to + k + kVirtual + i);
    }
#endif
  }
}

}  // namespace
}  // namespace dsv41::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv41::cpu {

namespace {
HWY_EXPORT(run_product);
HWY_EXPORT(run_pack);
}  // namespace

void pack_row(Target target, Format format, bool quantise, const float* from, std::int64_t cols, float* to) noexcept {
  HWY_DISPATCH_TABLE(run_pack)[target.index](format, quantise, from, cols, to);
}

std::int64_t product_scratch(std::int64_t rows, std::int64_t cols) noexcept {
  using namespace HWY_NAMESPACE;  // the sizes are those of every target
  return open_scratch(cols, kPanelOutputs) + kPanelOutputs * kPanelCols +
         std::min(rows, kRowBlock) * kPanelOutputs * kVirtual;
}

void outputs(Target target, const Product& product, std::int64_t first, std::int64_t end, float* scratch) noexcept {
  HWY_DISPATCH_TABLE(run_product)[target.index](product, first, end, scratch);
}

}  // namespace dsv41::cpu
#endif
