// SPDX-License-Identifier: MIT
//
// The loops behind bounds.hpp, for the instruction set that the kernels of CpuBackend would be chosen for.
#include "bench/bounds.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/bounds.cpp"
#include "hwy/foreach_target.h"
// clang-format off: behind foreach_target
#include "hwy/highway.h"
// clang-format on

#if defined(__x86_64__) && HWY_ONCE
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace dsv41::bench::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// A sum over all bytes: eight streams side by side keep more lines on their way than one.
std::uint64_t read_all(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kStreams = 8;
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t lanes = hn::Lanes(d), part = bytes / kStreams / 256 * 256;
  auto a = hn::Zero(d), b = hn::Zero(d);
  for (std::size_t i = 0; i < part; i += 256) {
    for (std::size_t s = 0; s < kStreams; ++s) {
      const auto* from = reinterpret_cast<const std::uint64_t*>(data + s * part + i);
      for (std::size_t k = 0; k < 256 / sizeof(std::uint64_t); k += 2 * lanes) {
        a = hn::Add(a, hn::LoadU(d, from + k));
        b = hn::Add(b, hn::LoadU(d, from + k + lanes % 32));
      }
    }
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
}

/// Multiply-adds in ten chains: enough for a latency of five at two a cycle. Each begins with another number, or a compiler would see that
/// they are one. Returns something that depends on all.
float multiply_add(std::int64_t rounds) {
  const hn::ScalableTag<float> d;
  const auto m = hn::Set(d, 0.999f), c = hn::Set(d, 0.001f);
  auto a0 = hn::Set(d, 0.0f), a1 = hn::Set(d, 0.1f), a2 = hn::Set(d, 0.2f), a3 = hn::Set(d, 0.3f),
       a4 = hn::Set(d, 0.4f);
  auto a5 = hn::Set(d, 0.5f), a6 = hn::Set(d, 0.6f), a7 = hn::Set(d, 0.7f), a8 = hn::Set(d, 0.8f),
       a9 = hn::Set(d, 0.9f);
  for (std::int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, m, c), a1 = hn::MulAdd(a1, m, c), a2 = hn::MulAdd(a2, m, c), a3 = hn::MulAdd(a3, m, c);
    a4 = hn::MulAdd(a4, m, c), a5 = hn::MulAdd(a5, m, c), a6 = hn::MulAdd(a6, m, c), a7 = hn::MulAdd(a7, m, c);
    a8 = hn::MulAdd(a8, m, c), a9 = hn::MulAdd(a9, m, c);
  }
  const auto x = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  return hn::GetLane(hn::Add(x, hn::Add(a8, a9)));
}

/// Operations of one round of multiply_add().
double flop_of_round() {
  return 2.0 * 10 * static_cast<double>(hn::Lanes(hn::ScalableTag<float>()));
}

const char* target() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace
}  // namespace dsv41::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv41::bench {
namespace {

HWY_EXPORT(read_all);
HWY_EXPORT(multiply_add);
HWY_EXPORT(flop_of_round);
HWY_EXPORT(target);

#if defined(__x86_64__)
constexpr double kDotOps = 2.0 * 10 * 64;  // of one round

/// As multiply_add(), on bytes. Highway has no such operation before 1.1.
__attribute__((target("avx512f,avx512bw,avx512vnni"))) int dot_bytes(std::int64_t rounds) {
  const __m512i u = _mm512_set1_epi8(3), s = _mm512_set1_epi8(-2);
  __m512i a0 = _mm512_set1_epi32(0), a1 = _mm512_set1_epi32(1), a2 = _mm512_set1_epi32(2), a3 = _mm512_set1_epi32(3);
  __m512i a4 = _mm512_set1_epi32(4), a5 = _mm512_set1_epi32(5), a6 = _mm512_set1_epi32(6), a7 = _mm512_set1_epi32(7);
  __m512i a8 = _mm512_set1_epi32(8), a9 = _mm512_set1_epi32(9);
  for (std::int64_t i = 0; i < rounds; ++i) {
    a0 = _mm512_dpbusd_epi32(a0, u, s), a1 = _mm512_dpbusd_epi32(a1, u, s), a2 = _mm512_dpbusd_epi32(a2, u, s);
    a3 = _mm512_dpbusd_epi32(a3, u, s), a4 = _mm512_dpbusd_epi32(a4, u, s), a5 = _mm512_dpbusd_epi32(a5, u, s);
    a6 = _mm512_dpbusd_epi32(a6, u, s), a7 = _mm512_dpbusd_epi32(a7, u, s), a8 = _mm512_dpbusd_epi32(a8, u, s);
    a9 = _mm512_dpbusd_epi32(a9, u, s);
  }
  a0 = _mm512_add_epi32(_mm512_add_epi32(a0, a1), _mm512_add_epi32(a2, a3));
  a4 = _mm512_add_epi32(_mm512_add_epi32(a4, a5), _mm512_add_epi32(a6, a7));
  alignas(64) int lanes[16];
  _mm512_store_si512(lanes, _mm512_add_epi32(_mm512_add_epi32(a0, a4), _mm512_add_epi32(a8, a9)));
  return lanes[0];
}

bool has_dot() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
}
#else
constexpr double kDotOps = 0;
int dot_bytes(std::int64_t) {
  return 0;
}
bool has_dot() {
  return false;
}
#endif

std::atomic<std::uint64_t> sink;  // results go here, or their loops would not run

/// Nanoseconds from the first start of work(thread) to the last end, on threads that start together; the best of some tries.
template <class Work>
double best_ns(std::int64_t threads, const Work& work) {
  constexpr int kTries = 5;
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    std::atomic<std::int64_t> waiting{threads};
    std::vector<std::thread> others;
    const auto one = [&](std::int64_t t) {
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      work(t);
    };
    for (std::int64_t t = 1; t < threads; ++t) others.emplace_back(one, t);
    while (waiting > 1) std::this_thread::yield();
    const auto start = std::chrono::steady_clock::now();
    one(0);
    for (std::thread& t : others) t.join();
    const double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    best = i == 0 ? ns : std::min(best, ns);
  }
  return best;
}

}  // namespace

Bounds measure_bounds(std::int64_t threads, std::span<const std::byte> bytes) {
  constexpr std::int64_t kRounds = 4'000'000;
  const auto count = static_cast<double>(threads);
  const std::size_t part = bytes.size() / static_cast<std::size_t>(threads) / 4096 * 4096;
  Bounds out{.threads = threads, .target = HWY_DYNAMIC_DISPATCH(target)()};
  out.read = static_cast<double>(part) * count / best_ns(threads, [&](std::int64_t t) {
               sink += HWY_DYNAMIC_DISPATCH(read_all)(bytes.data() + static_cast<std::size_t>(t) * part, part);
             });
  out.fma = HWY_DYNAMIC_DISPATCH(flop_of_round)() * kRounds * count /
            best_ns(threads, [&](std::int64_t) { sink += HWY_DYNAMIC_DISPATCH(multiply_add)(kRounds) > 0 ? 1 : 0; });
  if (has_dot())
    out.dot = kDotOps * kRounds * count /
              best_ns(threads, [&](std::int64_t) { sink += static_cast<std::uint64_t>(dot_bytes(kRounds)); });
  return out;
}

}  // namespace dsv41::bench
#endif
