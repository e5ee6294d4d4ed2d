// SPDX-License-Identifier: MIT
//
// Residual streams, a chunk of channels at a time: while its streams are in the first-level cache they are expanded, collapsed, squared and
// met by the rows of fn. Coefficients are computed with one token a lane.
#include "cpu/kernels/mhc.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "dsv41/numerics/mhc.hpp"
#include "dsv41/numerics/stored.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/mhc.cpp"
#include "hwy/foreach_target.h"
// clang-format off: behind foreach_target
#include "cpu/kernels/elementary-inl.hpp"
#include "cpu/kernels/lanes-inl.hpp"
#include "cpu/kernels/wide-inl.hpp"
#include "hwy/highway.h"
// clang-format on

#ifndef DSV41_CPU_MHC_ONCE
#define DSV41_CPU_MHC_ONCE
namespace dsv41::cpu {
namespace {

constexpr std::int64_t kTileTokens = 6;  // that meet a part of fn together
constexpr std::int64_t kSpan = 4;  // chunks that few tokens go through at once: rows of fn are read in longer runs
constexpr std::int64_t kFewTokens = 2 * kTileTokens;  // below, a copy of fn's chunk does not pay

/// Parts of the scratch.
struct MhcSpace {
  float* z;      // [kTileTokens, kSpan, hc, kMhcChunk] streams, zeros behind the last channel
  float* panel;  // [outputs, hc, kMhcChunk] of fn

  MhcSpace(std::int64_t hc, Cut& cut)
      : z(cut.take<float>(kTileTokens * kSpan * hc * kMhcChunk)),
        panel(cut.take<float>(mhc_outputs(hc) * hc * kMhcChunk)) {}
};

}  // namespace
}  // namespace dsv41::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace dsv41::cpu::HWY_NAMESPACE {
namespace {

constexpr std::int64_t whole_lanes(std::int64_t channels) {
  return (channels + kVirtual - 1) / kVirtual * kVirtual;
}

/// Coefficients of one token, wide, in every lane.
template <int HC>
struct Post {
  Doubles post[HC], comb[HC][HC];

  explicit Post(const float* mix) {
    for (int to = 0; to < HC; ++to) {
      post[to] = hn::Set(Double(), static_cast<double>(mix[HC + to]));
      for (int from = 0; from < HC; ++from)
        comb[from][to] = hn::Set(Double(), static_cast<double>(mix[2 * HC + from * HC + to]));
    }
  }
};

template <bool kRounds>
HWY_INLINE Floats result(Doubles total) {
  const Floats x = narrow(total);
  if constexpr (kRounds) {
    return bf16_round(Narrow(), x);
  } else {
    return x;
  }
}

/// Some channels of numerics::mhc_expand, whole vectors of them: h[j] in place, and to z at kMhcChunk a stream.
template <int HC, bool kRounds>
HWY_INLINE void expand(const float* mix, const float* y, float* const* streams, std::int64_t count, float* z) {
  const Post<HC> m(mix);
  float* h[HC];
  for (int j = 0; j < HC; ++j) h[j] = streams[j];
  for (std::int64_t i = 0; i < count; i += kWideNative) {
    const Doubles out = widen(y + i);
    Doubles in[HC];
    for (int j = 0; j < HC; ++j) in[j] = widen(h[j] + i);
    for (int to = 0; to < HC; ++to) {
      Doubles total = hn::Mul(m.post[to], out);
      for (int from = 0; from < HC; ++from) total = hn::MulAdd(m.comb[from][to], in[from], total);
      const Floats next = result<kRounds>(total);
      hn::StoreU(next, Narrow(), h[to] + i);
      hn::StoreU(next, Narrow(), z + to * kMhcChunk + i);
    }
  }
}

/// Channels [c, c + count) of token t, expanded or as they are, to z [HC, kMhcChunk], zeros behind them up to whole lanes.
template <int HC, bool kRounds>
HWY_INLINE void take(const MhcPass& p, std::int64_t t, std::int64_t c, std::int64_t count, float* z) {
  const std::int64_t whole = count / kWide * kWide, left = count - whole;
  if (p.y.empty()) {
    const In<float, 2> h = p.streams.row(t);
    for (int j = 0; j < HC; ++j) std::copy_n(h.row(j).data() + c, count, z + j * kMhcChunk);
  } else {
    const float *const mix = p.mix.row(t).data(), *const y = p.y.row(t).data() + c;
    const Out<float, 2> next = p.next.row(t);
    float* h[HC];
    for (int j = 0; j < HC; ++j) h[j] = next.row(j).data() + c;
    expand<HC, kRounds>(mix, y, h, whole, z);
    if (left > 0) {
      float last_y[kWide] = {}, last_h[HC][kWide] = {}, last_z[HC * kMhcChunk];
      float* last[HC];
      std::copy_n(y + whole, left, last_y);
      for (int j = 0; j < HC; ++j) last[j] = std::copy_n(h[j] + whole, left, last_h[j]) - left;
      expand<HC, kRounds>(mix, last_y, last, kWide, last_z);
      for (int j = 0; j < HC; ++j) {
        std::copy_n(last[j], left, h[j] + whole);
        std::copy_n(last[j], left, z + j * kMhcChunk + whole);
      }
    }
  }
  for (int j = 0; j < HC; ++j) std::fill(z + j * kMhcChunk + count, z + j * kMhcChunk + whole_lanes(count), 0.0f);
}

/// numerics::mhc_collapse of z to x, and the sum of its squares.
template <int HC, bool kCollapses, bool kSquares, bool kRounds>
HWY_INLINE double collapse(const float* pre, const float* z, std::int64_t count, float* x) {
  Doubles wide_pre[HC];
  Wide sum[HC];  // a sum each, or they would wait for each other
  for (int j = 0; j < HC; ++j) {
    if constexpr (kCollapses) wide_pre[j] = hn::Set(Double(), static_cast<double>(pre[j]));
    if constexpr (kSquares) sum[j] = wide_zero();
  }
  for (std::int64_t i = 0; i < count; i += kWide) {
    float last[kWide];
    float* const to = i + kWide <= count ? x + i : last;
    for (int part = 0; part < kWideParts; ++part) {
      Doubles total = hn::Zero(Double());
      for (int j = 0; j < HC; ++j) {
        const Doubles h = widen(z + j * kMhcChunk + i + part * kWideNative);
        if constexpr (kCollapses) total = hn::MulAdd(wide_pre[j], h, total);
        if constexpr (kSquares) sum[j].part[part] = hn::MulAdd(h, h, sum[j].part[part]);
      }
      if constexpr (kCollapses) hn::StoreU(result<kRounds>(total), Narrow(), to + part * kWideNative);
    }
    if (kCollapses && to == last) std::copy_n(last, count - i, x + i);
  }
  if constexpr (!kSquares) return 0;
  for (int j = 1; j < HC; ++j) {
    for (int i = 0; i < kWideParts; ++i) sum[0].part[i] = hn::Add(sum[0].part[i], sum[j].part[i]);
  }
  return wide_total(sum[0], 0, [](std::int64_t) { return 0.0; });
}

/// How the rows of fn, or of a panel of it, lie.
struct Weights {
  const float* at;      // of output 0, stream 0 and the first channel
  std::int64_t output;  // from one to the next
  std::int64_t stream;
};

/// As many sums as fit into the registers, 32 of AVX-512 and NEON, 16 elsewhere.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86;
constexpr int kTogether = kManyRegisters ? 6 : kParts == 2 ? 3 : 1;  // tokens
constexpr int kOutputs = kManyRegisters ? 4 : kParts == 2 ? 2 : 1;

/// Where a token's streams will be read soon.
struct Ahead {
  const float* at;
  std::int64_t stream;
};

/// Outputs [r, r + R) of four, of T tokens whose z lie `z_stride` apart. Meanwhile the streams of another token are fetched.
template <int HC, int T, int R>
HWY_INLINE void meet(const Weights& w, const float* z, std::int64_t z_stride, std::int64_t channels, const Ahead& ahead,
                     int r, Lanes (&to)[T][4]) {
  Lanes sum[T][R];
  for (int i = 0; i < T; ++i) {
    for (int k = 0; k < R; ++k) sum[i][k] = zero();
  }
  for (int j = 0; j < HC; ++j) {
    const float* const row = w.at + r * w.output + j * w.stream;
    const float* const next = ahead.at + j * ahead.stream;
    for (std::int64_t c = 0; c < channels; c += kVirtual) {
      __builtin_prefetch(next + c, 0, 2);
      Lanes weights[R];
      for (int k = 0; k < R; ++k) weights[k] = load(row + k * w.output + c);
      for (int i = 0; i < T; ++i) {
        const Lanes in = load(z + i * z_stride + j * kMhcChunk + c);
        for (int k = 0; k < R; ++k) add_product(weights[k], in, sum[i][k]);
      }
    }
  }
  for (int i = 0; i < T; ++i) {
    for (int k = 0; k < R; ++k) to[i][r + k] = sum[i][k];
  }
}

/// Four outputs of T tokens, each to y + i * y_stride.
template <int HC, int T>
void meet4(const Weights& w, const float* z, std::int64_t z_stride, std::int64_t channels, const Ahead& ahead, float* y,
           std::int64_t y_stride) {
  Lanes sum[T][4];
  for (int r = 0; r < 4; r += kOutputs) meet<HC, T, kOutputs>(w, z, z_stride, channels, ahead, r, sum);
  for (int i = 0; i < T; ++i) totals4(sum[i][0], sum[i][1], sum[i][2], sum[i][3], y + i * y_stride);
}

/// Calls work(constant) for the constant that `n` is, of 1 .. N.
template <int N, class F>
HWY_INLINE void with_constant(std::int64_t n, const F& work) {
  if constexpr (N > 1) {
    if (n < N) return with_constant<N - 1>(n, work);
  }
  work(std::integral_constant<int, N>());
}

/// Asks for what lies at `bytes` bytes from there.
HWY_INLINE void ask(const void* at, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const std::byte*>(at) + i, 0, 2);
}

/// A part of fn [rows, hc, kMhcChunk] for channels [c, c + count): rows decoded, zeros behind the channels up to whole lanes.
void fill_panel(const Matrix& fn, std::int64_t hc, std::int64_t c, std::int64_t count, float* panel) {
  const std::int64_t dim = fn.cols / hc, row = hc * kMhcChunk;
  for (std::int64_t o = 0; o < fn.rows; ++o) {
    for (std::int64_t j = 0; j < hc; ++j) {
      float* const to = panel + o * row + j * kMhcChunk;
      numerics::decode_row(fn, o, j * dim + c, count, to);
      std::fill(to + count, to + whole_lanes(count), 0.0f);
    }
  }
  std::fill(panel + fn.rows * row, panel + mhc_outputs(hc) * row, 0.0f);
}

/// Asks for the n-th of `parts` parts of what fill_panel() will read.
HWY_INLINE void ask_panel(const Matrix& fn, std::int64_t hc, std::int64_t c, std::int64_t count, std::int64_t n,
                          std::int64_t parts) {
  const std::int64_t dim = fn.cols / hc, runs = fn.rows * hc;
  for (std::int64_t i = runs * n / parts; i < runs * (n + 1) / parts; ++i) {
    const std::int64_t from = i / hc * fn.row_bytes() + (i % hc * dim + c) * fn.row_bytes() / fn.cols;
    ask(fn.data + from, count * fn.row_bytes() / fn.cols);
  }
}

/// A pass over channels [first, end), tile by tile: some tokens, and a chunk of channels or a few.
template <int HC, bool kRounds>
struct Passing {
  static constexpr std::int64_t kChunkFloats = HC * kMhcChunk, kTokenFloats = kSpan * kChunkFloats;
  static constexpr std::int64_t kOutputsOfAll = mhc_outputs(HC);

  const MhcPass& p;
  std::int64_t first, end;
  const MhcParts& parts;
  MhcSpace space;
  std::int64_t tokens = p.streams.extent(0), chunks = mhc_chunks(p.streams.extent(2));
  bool projects = !p.fn.empty();
  /// Rows of fn are read where they are: few tokens, for which a decoded copy does not pay.
  bool in_place = projects && tokens <= kFewTokens && p.fn.format == Format::f32 &&
                  p.streams.extent(2) % kVirtual == 0 && p.fn.rows == kOutputsOfAll;
  std::int64_t span = in_place ? kSpan * kMhcChunk : kMhcChunk;

  /// Tokens [t, t + count), channels [c, last).
  struct Tile {
    std::int64_t t, count, c, last;
  };

  /// The tile behind this one; of no tokens behind the last.
  Tile behind(const Tile& tile) const {
    const std::int64_t t = tile.t + tile.count < tokens ? tile.t + tile.count : 0, c = t > 0 ? tile.c : tile.last;
    return {.t = t, .count = c < end ? std::min(kTileTokens, tokens - t) : 0, .c = c, .last = std::min(c + span, end)};
  }

  float* z_of(std::int64_t i, std::int64_t chunk) const { return space.z + i * kTokenFloats + chunk * kChunkFloats; }

  void enter(const Tile& tile) const {
    for (std::int64_t i = 0; i < tile.count; ++i) {
      const std::int64_t t = tile.t + i;
      for (std::int64_t k = tile.c; k < tile.last; k += kMhcChunk) {
        const std::int64_t count = std::min(kMhcChunk, tile.last - k);
        float* const z = z_of(i, (k - tile.c) / kMhcChunk);
        take<HC, kRounds>(p, t, k, count, z);
        if (p.x.empty()) {
          if (projects) square(t, k) = collapse<HC, false, true, kRounds>(nullptr, z, count, nullptr);
          continue;
        }
        const float* const pre = p.mix.row(t).data();
        float* const x = p.x.row(t).data() + k;
        if (projects) {
          square(t, k) = collapse<HC, true, true, kRounds>(pre, z, count, x);
        } else {
          collapse<HC, true, false, kRounds>(pre, z, count, x);
        }
      }
    }
  }
  double& square(std::int64_t t, std::int64_t k) const { return parts.squares[t * chunks + k / kMhcChunk]; }

  /// Meanwhile what the next tile reads is fetched.
  void project(const Tile& tile, const Tile& next) const {
    const std::int64_t stride = chunks * kOutputsOfAll;
    for (std::int64_t o = 0; o < kOutputsOfAll; o += 4) {
      const bool fetches = !in_place && o / 4 < next.count;
      const In<float, 2> h = fetches ? p.streams.row(next.t + o / 4) : In<float, 2>(space.z, {HC, kMhcChunk});
      const Ahead ahead{.at = h.data() + (fetches ? next.c : 0), .stream = h.stride(0)};
      if (fetches && !p.y.empty()) ask(p.y.row(next.t + o / 4).data() + next.c, (next.last - next.c) * 4);
      if (fetches && !p.x.empty()) ask(p.x.row(next.t + o / 4).data() + next.c, (next.last - next.c) * 4);
      if (!in_place && tile.last < end) {
        ask_panel(p.fn, HC, tile.last, std::min(span, end - tile.last),
                  tile.t / kTileTokens * (kOutputsOfAll / 4) + o / 4,
                  (tokens + kTileTokens - 1) / kTileTokens * (kOutputsOfAll / 4));
      }
      for (std::int64_t k = tile.c; k < tile.last; k += kMhcChunk) {
        const std::int64_t channels = whole_lanes(std::min(kMhcChunk, tile.last - k));
        const Weights w = in_place ? Weights{reinterpret_cast<const float*>(p.fn.data) + o * p.fn.cols + k, p.fn.cols,
                                             p.streams.extent(2)}
                                   : Weights{space.panel + o * kChunkFloats, kChunkFloats, kMhcChunk};
        float* const y = parts.sums + tile.t * stride + k / kMhcChunk * kOutputsOfAll + o;
        const float* const z = z_of(0, (k - tile.c) / kMhcChunk);
        for (std::int64_t i = 0; i < tile.count; i += kTogether) {
          with_constant<kTogether>(tile.count - i, [&](auto n) {
            meet4<HC, decltype(n)::value>(w, z + i * kTokenFloats, kTokenFloats, channels, ahead, y + i * stride,
                                          stride);
          });
        }
      }
    }
  }

  void run() const {
    for (Tile tile{.t = 0, .count = std::min(kTileTokens, tokens), .c = first, .last = std::min(first + span, end)};
         tile.count > 0;) {
      const Tile next = behind(tile);
      if (projects && !in_place && tile.t == 0) fill_panel(p.fn, HC, tile.c, tile.last - tile.c, space.panel);
      enter(tile);
      if (projects) project(tile, next);
      for (std::int64_t i = projects && !in_place ? kOutputsOfAll / 4 : 0; i < next.count; ++i) {
        const std::int64_t bytes = (next.last - next.c) * 4;
        for (int j = 0; j < HC; ++j) ask(p.streams.row(next.t + i).row(j).data() + next.c, bytes);
        if (!p.y.empty()) ask(p.y.row(next.t + i).data() + next.c, bytes);
      }
      tile = next;
    }
  }
};

template <int HC, bool kRounds>
void pass_of(const MhcPass& p, std::int64_t first, std::int64_t end, const MhcParts& parts, float* scratch) {
  Cut cut(scratch);
  Passing<HC, kRounds>{.p = p, .first = first, .end = end, .parts = parts, .space = MhcSpace(HC, cut)}.run();
}

void run_pass(const MhcPass& p, std::int64_t first, std::int64_t end, const MhcParts& parts, float* scratch) {
  with_constant<kMaxStreams>(p.streams.extent(1), [&](auto hc) {
    if (p.numeric == Numeric::deployed) {
      pass_of<decltype(hc)::value, true>(p, first, end, parts, scratch);
    } else {
      pass_of<decltype(hc)::value, false>(p, first, end, parts, scratch);
    }
  });
}

/// numerics::softmax of the rows of comb, one token a lane: element i at comb[i * kVirtual].
void softmax_rows(float* comb, std::int64_t hc) {
  for (std::int64_t row = 0; row < hc; ++row) {
    float* const x = comb + row * hc * kVirtual;
    Native top = hn::Set(D(), -std::numeric_limits<float>::infinity()), total = hn::Zero(D());
    for (std::int64_t k = 0; k < hc; ++k) {
      const Native v = hn::LoadU(D(), x + k * kVirtual);
      top = hn::IfThenElse(hn::Gt(v, top), v, top);
    }
    for (std::int64_t k = 0; k < hc; ++k) {
      const Native e = exp(D(), hn::Sub(hn::LoadU(D(), x + k * kVirtual), top));
      total = hn::Add(total, e);
      hn::StoreU(e, D(), x + k * kVirtual);
    }
    for (std::int64_t k = 0; k < hc; ++k)
      hn::StoreU(hn::Div(hn::LoadU(D(), x + k * kVirtual), total), D(), x + k * kVirtual);
  }
}

/// numerics::sinkhorn, one token a lane.
void sinkhorn(float* comb, std::int64_t hc, std::int32_t iters, float eps) {
  const Native wide_eps = hn::Set(D(), eps);
  const auto normalise = [&](std::int64_t line, std::int64_t step) HWY_ATTR {
    for (std::int64_t v = 0; v < hc; ++v) {
      float* const x = comb + v * line * kVirtual;
      Native total = hn::Zero(D());
      for (std::int64_t k = 0; k < hc; ++k) total = hn::Add(total, hn::LoadU(D(), x + k * step * kVirtual));
      total = hn::Add(total, wide_eps);
      for (std::int64_t k = 0; k < hc; ++k)
        hn::StoreU(hn::Div(hn::LoadU(D(), x + k * step * kVirtual), total), D(), x + k * step * kVirtual);
    }
  };
  for (std::int64_t i = 0; i < hc * hc; ++i)
    hn::StoreU(hn::Add(hn::LoadU(D(), comb + i * kVirtual), wide_eps), D(), comb + i * kVirtual);
  normalise(1, hc);
  for (std::int32_t i = 1; i < iters; ++i) {
    normalise(hc, 1);
    normalise(1, hc);
  }
}

/// numerics::mhc_coefficients, in place; token i is lane i of m [(2 + hc) * hc, kVirtual], of which the first kNative lanes are done.
void coefficients(const ops::MhcCoefficients& op, float* m) {
  const std::int64_t hc = op.streams.extent(1), rows = (2 + hc) * hc;
  for (std::int64_t o = 0; o < rows; ++o) {
    const std::int64_t part = std::min<std::int64_t>(o / hc, 2);
    Native x =
        hn::Add(hn::Mul(hn::LoadU(D(), m + o * kVirtual), hn::Set(D(), op.scale[part])), hn::Set(D(), op.base[o]));
    if (part == 0) x = hn::Add(sigmoid(D(), x), hn::Set(D(), op.rules.hc_eps));
    if (part == 1) x = hn::Mul(hn::Set(D(), 2.0f), sigmoid(D(), x));
    hn::StoreU(x, D(), m + o * kVirtual);
  }
  if (!op.rules.constrained) return;
  softmax_rows(m + 2 * hc * kVirtual, hc);
  sinkhorn(m + 2 * hc * kVirtual, hc, op.rules.iters, op.rules.hc_eps);
}

void run_coefficients(const ops::MhcCoefficients& op, const MhcParts& parts) {
  constexpr std::int64_t kRows = (2 + kMaxStreams) * kMaxStreams;
  const std::int64_t tokens = op.streams.extent(0), hc = op.streams.extent(1), dim = op.streams.extent(2);
  const std::int64_t rows = (2 + hc) * hc, outputs = mhc_outputs(hc), chunks = mhc_chunks(dim);
  alignas(64) float m[kRows * kVirtual];
  for (std::int64_t t = 0; t < tokens; t += kVirtual) {
    const std::int64_t some = std::min(kVirtual, tokens - t);
    std::fill_n(m, rows * kVirtual, 0.0f);
    for (std::int64_t i = 0; i < some; ++i) {
      const float* const sums = parts.sums + (t + i) * chunks * outputs;
      double square = 0;
      float total[kRows] = {};
      for (std::int64_t k = 0; k < chunks; ++k) {
        square += parts.squares[(t + i) * chunks + k];
        for (std::int64_t o = 0; o < rows; ++o) total[o] += sums[k * outputs + o];
      }
      const float rms = static_cast<float>(std::sqrt(square / static_cast<double>(hc * dim) + op.rules.norm_eps));
      const float r = 1.0f / rms;
      for (std::int64_t o = 0; o < rows; ++o) m[o * kVirtual + i] = total[o] * r;
    }
    for (std::int64_t lane = 0; lane < some; lane += kNative) coefficients(op, m + lane);
    for (std::int64_t i = 0; i < some; ++i) {
      float* const mix = op.mix.row(t + i).data();
      for (std::int64_t o = 0; o < rows; ++o) mix[o] = m[o * kVirtual + i];
    }
  }
}

void run_mean(const ops::StreamMean& op) {
  const std::int64_t hc = op.streams.extent(1), dim = op.streams.extent(2);
  const Native count = hn::Set(D(), static_cast<float>(hc));
  for (std::int64_t t = 0; t < op.streams.extent(0); ++t) {
    const In<float, 2> h = op.streams.row(t);
    float* const tap = op.tap.row(t).data();
    std::int64_t c = 0;
    for (; c + kNative <= dim; c += kNative) {
      Native total = hn::Zero(D());
      for (std::int64_t j = 0; j < hc; ++j) total = hn::Add(total, hn::LoadU(D(), h.row(j).data() + c));
      total = hn::Div(total, count);
      hn::StoreU(op.numeric == Numeric::deployed ? bf16_round(D(), total) : total, D(), tap + c);
    }
    for (; c < dim; ++c) tap[c] = numerics::stream_mean(op.numeric, h.data() + c, hc, h.stride(0));
  }
}

}  // namespace
}  // namespace dsv41::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv41::cpu {

namespace {
HWY_EXPORT(run_pass);
HWY_EXPORT(run_coefficients);
HWY_EXPORT(run_mean);
}  // namespace

std::int64_t mhc_scratch(std::int64_t hc) noexcept {
  Cut cut;
  MhcSpace(hc, cut);
  return static_cast<std::int64_t>(cut.floats());
}

void mhc_pass(Target target, const MhcPass& pass, std::int64_t first, std::int64_t end, const MhcParts& parts,
              float* scratch) noexcept {
  HWY_DISPATCH_TABLE(run_pass)[target.index](pass, first, end, parts, scratch);
}

void mhc_coefficients(Target target, const ops::MhcCoefficients& op, const MhcParts& parts) noexcept {
  HWY_DISPATCH_TABLE(run_coefficients)[target.index](op, parts);
}

void stream_mean(Target target, const ops::StreamMean& op) noexcept {
  HWY_DISPATCH_TABLE(run_mean)[target.index](op);
}

}  // namespace dsv41::cpu
#endif
