// SPDX-License-Identifier: MIT
//
// ops::IndexSelect on a CpuBackend: scores, ids and blocks are RefBackend's to the bit, for any instruction set, number of threads, split
// into calls; and where its sums of integers apply.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu/kernels/index.hpp"
#include "cpu/targets.hpp"
#include "dsv41/numerics/reduce.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;
using ops::CandidateUse;

namespace {

struct Inputs {
  Array<float, 3> q;
  Array<float, 2> weights, keys;
  Array<std::int32_t, 2> blocks;
  Array<std::int32_t, 1> block_counts;
  std::int64_t first_position, ratio, topk, block, score_rows;
  CandidateUse use;

  std::int64_t visible() const { return (first_position + q.extents[0]) / ratio; }

  Inputs row(std::int64_t t) const {
    Inputs out = *this;
    out.q = q.rows(t, 1), out.weights = weights.rows(t, 1), out.blocks = blocks.rows(t, 1);
    out.block_counts = block_counts.rows(t, 1), out.first_position += t;
    return out;
  }
};

struct Outputs {
  std::vector<std::int32_t> ids, counts, blocks, block_counts;
  std::vector<float> scores;
};

/// NaN has no bits of its own.
bool same_scores(const std::vector<float>& a, const std::vector<float>& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i)
    same = (std::isnan(a[i]) && std::isnan(b[i])) || std::memcmp(&a[i], &b[i], 4) == 0;
  return same;
}

bool same(const Outputs& a, const Outputs& b, bool scores = true) {
  return a.ids == b.ids && a.counts == b.counts && a.blocks == b.blocks && a.block_counts == b.block_counts &&
         (!scores || same_scores(a.scores, b.scores));
}

/// Queries as the indexer makes them, or a grid of small integers, where ties abound.
Inputs any_inputs(Random& random, std::int64_t width, bool grid) {
  const std::int64_t tokens = 1 + random.below(12), heads = 1 + random.below(10), ratio = 1 + random.below(3);
  const std::int64_t position = random.below(150) * ratio, block = 1 + random.below(12), kept = 1 + random.below(9);
  Inputs in{.q = Array<float, 3>({tokens, heads, width}),
            .weights = random_array<2>(random, {tokens, heads}),
            .keys = Array<float, 2>({(position + tokens) / ratio + 2, width}),
            .blocks = Array<std::int32_t, 2>({tokens, kept}, -9),
            .block_counts = Array<std::int32_t, 1>({tokens}),
            .first_position = position,
            .ratio = ratio,
            .topk = 1 + random.below(80),
            .block = block,
            .score_rows = 1 + random.below(tokens),
            .use = static_cast<CandidateUse>(random.below(3))};
  const auto size = [&] { return std::ldexp(1.0, static_cast<int>(random.below(3))); };
  for (float& x : in.q.values) x = grid ? static_cast<float>(random.below(5) - 2) : random.normal(size());
  for (float& x : in.keys.values) x = grid ? static_cast<float>(random.below(5) - 2) : random.normal(size());
  for (std::int64_t r = 0; r < tokens * heads; ++r)
    numerics::quantise_row(numerics::Quantiser::index_fp4, in.q.values.data() + r * width, width);
  if (in.use != CandidateUse::limited) return in;
  for (std::int64_t t = 0; t < tokens; ++t) {  // ascending, some without entries
    std::vector<std::int32_t> some;
    for (std::int64_t i = 0; i < kept; ++i)
      some.push_back(static_cast<std::int32_t>(random.below(in.visible() / block + 3) - 1));
    std::sort(some.begin(), some.end());
    some.erase(std::unique(some.begin(), some.end()), some.end());
    std::copy(some.begin(), some.end(), in.blocks.values.begin() + t * kept);
    in.block_counts.values[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(some.size());
  }
  return in;
}

/// `spoil` changes the packed keys.
template <class B, class Spoil>
Outputs run(B& backend, const Inputs& in, Numeric numeric, const Paging& paging, const Spoil& spoil) {
  Memory<B> memory(backend);
  const std::int64_t tokens = in.q.extents[0];
  const ops::IndexSelect op{.q = memory.put(in.q),
                            .weights = memory.put(in.weights),
                            .keys = memory.put(CacheFormat::index, in.keys, paging),
                            .ids = memory.put(Array<std::int32_t, 2>({tokens, in.topk}, -9)),
                            .counts = memory.put(Array<std::int32_t, 1>({tokens}, -9)),
                            .blocks = memory.put(in.blocks),
                            .block_counts = memory.put(in.block_counts),
                            .scores = memory.put(Array<float, 2>({in.score_rows, in.visible()}, 77.0f)),
                            .block_scores = memory.put(Array<float, 2>({in.score_rows, in.visible()}, 77.0f)),
                            .first_position = in.first_position,
                            .ratio = in.ratio,
                            .block = in.block,
                            .weight_scale = 0.3f,
                            .candidates = in.use,
                            .numeric = numeric};
  op.check();
  spoil(op.keys);
  backend.run(op);
  Outputs out{memory.get(op.ids), memory.get(op.counts), memory.get(op.blocks), memory.get(op.block_counts),
              memory.get(op.scores)};
  for (std::int64_t t = 0; t < tokens; ++t) {  // what stands behind a list is nobody's
    std::fill(out.ids.begin() + t * in.topk + out.counts[static_cast<std::size_t>(t)],
              out.ids.begin() + (t + 1) * in.topk, -9);
  }
  return out;
}

template <class B>
Outputs run(B& backend, const Inputs& in, Numeric numeric, const Paging& paging = {}) {
  return run(backend, in, numeric, paging, [](const CacheRows&) {});
}

template <class Spoil>
void check_everywhere(const Inputs& in, Numeric numeric, const Spoil& spoil) {
  RefBackend reference;
  const Outputs want = run(reference, in, numeric, {}, spoil);
  for (const Paging& paging : kPagings) {
    CpuBackend backend;
    CHECK(same(run(backend, in, numeric, paging, spoil), want));
  }
  for (const std::string_view target : cpu_targets()) {
    for (const std::int64_t threads : {1, 2, 3, 5}) {
      INFO(target << ", " << threads << " threads");
      CpuBackend backend({.threads = threads, .target = target});
      CHECK(same(run(backend, in, numeric, {}, spoil), want));
    }
  }
}

constexpr std::int64_t kWidths[] = {32, 1, 64, 128, 33, 160, 128, 96};

}  // namespace

TEST_CASE("scores, ids and blocks are the reference's on all instruction sets and threads, a query at a time too") {
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << seed << ", " << numeric_name(numeric));
      Random random(seed);
      const Inputs in = any_inputs(random, kWidths[seed % std::size(kWidths)], seed % 3 == 0);
      check_everywhere(in, numeric, [](const CacheRows&) {});
      CpuBackend backend;
      const Outputs all = run(backend, in, numeric);
      for (std::int64_t t = 0; t < in.q.extents[0]; ++t) {
        Inputs one = in.row(t);
        one.score_rows = 1;
        const Outputs got = run(backend, one, numeric);
        const auto same_row = [t](const std::vector<std::int32_t>& list, const std::vector<std::int32_t>& row) {
          return std::equal(row.begin(), row.end(), list.begin() + t * static_cast<std::int64_t>(row.size()));
        };
        CHECK((same_row(all.ids, got.ids) && same_row(all.counts, got.counts) &&
               same_row(all.block_counts, got.block_counts)));
        if (in.use == CandidateUse::publish) CHECK(same_row(all.blocks, got.blocks));
      }
    }
  }
}

TEST_CASE("a long row: thousands of entries, most of them tied or all of them different") {
  for (const std::int64_t levels : {1, 3, 1000000}) {
    for (const CandidateUse use : {CandidateUse::none, CandidateUse::publish}) {
      Random random(50);
      Inputs in = any_inputs(random, 1, true);
      in = {.q = Array<float, 3>({1, 1, 1}, 1.0f),
            .weights = Array<float, 2>({1, 1}, 1.0f),
            .keys = Array<float, 2>({9000, 1}),
            .blocks = Array<std::int32_t, 2>({1, 100}, -9),
            .block_counts = Array<std::int32_t, 1>({1}),
            .first_position = 8999,
            .ratio = 1,
            .topk = 700,
            .block = 8,
            .score_rows = 1,
            .use = use};
      for (float& x : in.keys.values) x = static_cast<float>(random.below(levels));
      check_everywhere(in, Numeric::exact, [](const CacheRows&) {});
    }
  }
}

TEST_CASE("keys and queries of all scales, zeros, and what is not finite: the reference's bits") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    for (int kind = 0; kind < 9; ++kind) {
      INFO("seed " << seed << ", kind " << kind);
      Random random(100 + seed);
      Inputs in = any_inputs(random, 128, false);
      auto& q = in.q.values;
      const auto some = [&](std::vector<float>& values) -> float& {
        return values[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(values.size())))];
      };
      int least = 127, most = 127;  // scales of the keys
      switch (kind) {
        case 0: least = 0, most = 255; break;
        case 1: least = 120, most = 132; break;  // some tiles are within the spread
        case 2: least = 0, most = 3; break;
        case 3: least = 249, most = 255; break;
        case 4:
          for (float& x : q) x *= 0x1p-52f;
          break;
        case 5: std::fill(q.begin(), q.begin() + 64, 0.0f); break;  // two blocks of zeros
        case 6: some(q) = std::numeric_limits<float>::quiet_NaN(), some(q) = HUGE_VALF; break;
        case 7: some(q) *= 1.37f; break;  // not quantised
        case 8: some(in.weights.values) = HUGE_VALF, some(in.weights.values) = std::nanf(""); break;
      }
      const auto spoil = [&](const CacheRows& keys) {
        if (least == most) return;
        Random scales(seed);
        for (std::int64_t i = 0; i < keys.rows; ++i) {
          for (std::int64_t b = 0; b < 4; ++b)
            keys.row(i)[64 + b] = static_cast<std::byte>(least + scales.below(most - least + 1));
        }
      };
      for (const Numeric numeric : kNumerics) check_everywhere(in, numeric, spoil);
    }
  }
}

TEST_CASE("the kernel takes what quantisers make, refuses the rest, and is exact to the end of its spread") {
  const std::int64_t width = 128, blocks = 4;
  CHECK(cpu::index_spread(width) == 9);  // 128 * 144 * 2^9 < 2^24 < 128 * 144 * 2^10
  for (const std::string_view name : cpu_targets()) {
    const cpu::Target target = cpu::target_named(name).target;
    std::uint32_t values[width / 4];
    std::int32_t offsets[blocks];
    float units[blocks], weight = 1;
    cpu::IndexQuery query{
        .heads = 1, .width = width, .values = values, .offsets = offsets, .units = units, .weights = &weight};
    std::vector<float> tile(static_cast<std::size_t>(cpu::index_tile_floats(width)));
    cpu::IndexKeys keys{.values = reinterpret_cast<std::uint8_t*>(tile.data()),
                        .units = tile.data() + width / 4 * cpu::kKeyTile};
    Random random(60);
    for (int round = 0; round < 200; ++round) {
      INFO(name << ", round " << round);
      const int apart = static_cast<int>(random.below(10));  // of the query; the keys have the rest
      float q[width], key[width];
      for (std::int64_t c = 0; c < width; ++c)
        q[c] = std::ldexp(random.below(2) == 0 ? 6.0f : 0.5f, c < 32 ? apart : 0);
      for (std::int64_t b = 0; b < blocks; ++b) q[b * 32] = std::ldexp(6.0f, b == 0 ? apart : 0);  // decides the scale
      cpu::open_query(target, q, width, query);
      REQUIRE(query.spread == apart);
      std::vector<std::vector<std::byte>> rows;
      const std::byte* pointers[cpu::kKeyTile];
      for (std::int64_t i = 0; i < cpu::kKeyTile; ++i) {
        std::vector<std::byte>& row = rows.emplace_back(row_bytes(CacheFormat::index, width));
        for (std::int64_t c = 0; c < width / 2; ++c)
          row[static_cast<std::size_t>(c)] = std::byte(random.below(4) == 0 ? random.below(256) : 0x77);
        for (std::int64_t b = 0; b < blocks; ++b)
          row[static_cast<std::size_t>(width / 2 + b)] = std::byte(b == 0 ? 136 - apart : 127);
        pointers[i] = row.data();
      }
      cpu::open_keys(target, pointers, width, keys);
      REQUIRE(keys.spread == 9 - apart);
      float scores[cpu::kKeyTile];
      cpu::score_keys(target, Numeric::exact, query, keys, scores);
      for (std::int64_t i = 0; i < cpu::kKeyTile; ++i) {
        numerics::unpack_row(CacheFormat::index, width, pointers[i], 0, width, key);
        CHECK(scores[i] == std::max(static_cast<float>(numerics::dot(q, key, width)), 0.0f));
      }
    }
    std::vector<float> q(static_cast<std::size_t>(width), 1.5f);
    const auto spread_with = [&](float x) {
      q[77] = x;
      cpu::open_query(target, q.data(), width, query);
      return query.spread;
    };
    CHECK(spread_with(1.5f) == 0);
    for (const float x : {1.4f, 7.5f, HUGE_VALF, std::nanf(""), 0x1p-140f, 0x1p100f}) CHECK(spread_with(x) < 0);
  }
}

TEST_CASE("next_above finds the first larger one, past NaN, from any place") {
  for (const std::string_view name : cpu_targets()) {
    const cpu::Target target = cpu::target_named(name).target;
    std::vector<float> x(50, 1.0f);
    x[3] = std::nanf(""), x[20] = 2, x[37] = HUGE_VALF, x[49] = 1.5f;
    const std::int64_t want[] = {20, 37, 49, 50};
    for (std::int64_t first = 0; first <= 50; ++first) {
      const std::int64_t* const next = std::lower_bound(std::begin(want), std::end(want), first);
      CHECK(cpu::next_above(target, x.data(), first, 50, 1.0f) == *next);
      CHECK(cpu::next_above(target, x.data(), std::min<std::int64_t>(first, 20), 20, 1.0f) == 20);  // ends before it
    }
  }
}
