// SPDX-License-Identifier: MIT
//
// ops::SparseAttention and ops::BlockAttention on a CpuBackend: RefBackend's values, and the same bits for any instruction set, number of
// threads, split into calls and place of a row.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpu/kernels/attention.hpp"
#include "cpu/targets.hpp"
#include "dsv41/numerics/attention.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

struct Sparse {
  Array<float, 3> q;
  Array<float, 2> ring, entries;
  Array<std::int32_t, 2> ids;
  Array<std::int32_t, 1> counts;
  std::vector<float> sink;
  std::int64_t first_position = 0, first_visible = 0, window = 0;
  CacheFormat ring_format = CacheFormat::window, entry_format = CacheFormat::entry;
  std::vector<std::pair<std::int64_t, std::uint8_t>> ring_bytes = {}, entry_bytes = {};  // put over row 0 of each

  Sparse row(std::int64_t t) const {
    Sparse out = *this;
    out.q = q.rows(t, 1), out.ids = ids.rows(t, 1), out.counts = counts.rows(t, 1), out.first_position += t;
    return out;
  }
};

/// Any shape: odd widths, windows not full, ids outside, none selected.
Sparse any_sparse(Random& random, std::int64_t width) {
  const std::int64_t tokens = 1 + random.below(5), heads = 1 + random.below(19), window = 1 + random.below(140);
  const std::int64_t rows = random.below(150), topk = 1 + random.below(100), position = random.below(200);
  Sparse in{.q = random_array<3>(random, {tokens, heads, width}, 1 + static_cast<double>(random.below(4))),
            .ring = random_array<2>(random, {window + tokens - 1 + random.below(3), width}),
            .entries = random_array<2>(random, {rows, width}),
            .ids = Array<std::int32_t, 2>({tokens, topk}),
            .counts = Array<std::int32_t, 1>({tokens}),
            .sink = random.normals(heads, 2),
            .first_position = position,
            .first_visible = random.below(2) == 0 ? 0 : random.below(position + 1),
            .window = window};
  for (std::int32_t& id : in.ids.values) id = static_cast<std::int32_t>(random.below(rows + 4) - 2);
  for (std::int32_t& count : in.counts.values)
    count = static_cast<std::int32_t>(random.below(4) == 0 ? 0 : random.below(topk + 1));
  return in;
}

template <class B>
std::vector<float> run(B& backend, const Sparse& in, Numeric numeric, const Paging& paging = {}) {
  Memory<B> memory(backend);
  const CacheRows ring = memory.put(in.ring_format, in.ring, paging),
                  entries = memory.put(in.entry_format, in.entries, paging);
  for (const auto& [at, byte] : in.ring_bytes) ring.row(0)[at] = std::byte{byte};
  for (const auto& [at, byte] : in.entry_bytes) entries.row(0)[at] = std::byte{byte};
  const ops::SparseAttention op{.q = memory.put(in.q),
                                .ring = ring,
                                .entries = entries,
                                .ids = memory.put(in.ids),
                                .counts = memory.put(in.counts),
                                .sink = memory.put(in.sink),
                                .out = memory.put(Array<float, 3>(in.q.extents, -1.0f)),
                                .first_position = in.first_position,
                                .first_visible = in.first_visible,
                                .window = in.window,
                                .numeric = numeric};
  op.check();
  backend.run(op);
  return memory.get(op.out);
}

struct Block {
  Array<float, 3> q;
  Array<float, 2> ring, block;
  std::vector<float> sink;
  std::int64_t first_position, first_visible, window;
};

Block any_block(Random& random, std::int64_t width) {
  const std::int64_t tokens = 1 + random.below(9), heads = 1 + random.below(11), window = 1 + random.below(140),
                     position = random.below(300);
  return {random_array<3>(random, {tokens, heads, width}, 2),
          random_array<2>(random, {window + random.below(3), width}),
          random_array<2>(random, {tokens, width}),
          random.normals(heads, 2),
          position,
          random.below(2) == 0 ? 0 : random.below(position + 1),
          window};
}

template <class B>
std::vector<float> run(B& backend, const Block& in, Numeric numeric, const Paging& paging = {}) {
  Memory<B> memory(backend);
  const ops::BlockAttention op{.q = memory.put(in.q),
                               .ring = memory.put(CacheFormat::window, in.ring, paging),
                               .block = memory.put(in.block),
                               .sink = memory.put(in.sink),
                               .out = memory.put(Array<float, 3>(in.q.extents, -1.0f)),
                               .first_position = in.first_position,
                               .first_visible = in.first_visible,
                               .window = in.window,
                               .numeric = numeric};
  op.check();
  backend.run(op);
  return memory.get(op.out);
}

/// RefBackend's result within the op's class; and the same bits on all targets, with all numbers of threads and through all pagings.
template <class In>
void check_everywhere(const In& in, Numeric numeric) {
  RefBackend reference;
  CpuBackend best;
  const std::vector<float> got = run(best, in, numeric);
  check_close(got, doubles_of(run(reference, in, numeric)), numeric, kNormAttention);
  for (const Paging& paging : kPagings) CHECK(same_bits(run(best, in, numeric, paging), got));
  for (const std::string_view target : cpu_targets()) {
    for (const std::int64_t threads : {1, 2, 3, 5}) {
      INFO(target << ", " << threads << " threads");
      CpuBackend backend({.threads = threads, .target = target});
      CHECK(same_bits(run(backend, in, numeric), got));
    }
  }
}

constexpr std::int64_t kWidths[] = {1, 8, 16, 31, 32, 48, 64, 96, 128, 160};

}  // namespace

TEST_CASE(
    "sparse attention is the reference's, to the bit the same on all instruction sets and threads, a row at a time "
    "too") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << seed << ", " << numeric_name(numeric));
      Random random(seed);
      const Sparse in = any_sparse(random, kWidths[seed % std::size(kWidths)]);
      check_everywhere(in, numeric);
      CpuBackend backend;
      const Array<float, 3> all(in.q.extents, run(backend, in, numeric));
      for (std::int64_t t = 0; t < in.q.extents[0]; ++t)
        CHECK(same_bits(run(backend, in.row(t), numeric), all.rows(t, 1).values));
    }
  }
}

TEST_CASE("block attention is the reference's, to the bit the same on all instruction sets and threads") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << seed << ", " << numeric_name(numeric));
      Random random(seed);
      check_everywhere(any_block(random, kWidths[seed % std::size(kWidths)]), numeric);
    }
  }
}

TEST_CASE("a head's result does not depend on the heads beside it, nor does a query's on how pieces are cut") {
  Random random(40);
  for (const std::int64_t heads : {1, 7, 8, 9, 17, 40}) {  // tokens * heads decide how many heads a piece has
    Sparse in = any_sparse(random, 64);
    in.q = random_array<3>(random, {9, heads, 64}), in.ring = random_array<2>(random, {in.window + 8, 64});
    in.ids = Array<std::int32_t, 2>({9, 1}), in.counts = Array<std::int32_t, 1>({9}), in.sink = random.normals(heads);
    CpuBackend backend;
    const std::vector<float> all = run(backend, in, Numeric::exact);
    for (std::int64_t t = 0; t < 9; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        Sparse one = in.row(t);
        const auto from = in.q.values.begin() + (t * heads + h) * 64;
        one.q = Array<float, 3>({1, 1, 64}, std::vector<float>(from, from + 64));
        one.sink = {in.sink[static_cast<std::size_t>(h)]};
        const auto at = all.begin() + (t * heads + h) * 64;
        CHECK(same_bits(run(backend, one, Numeric::exact), std::vector<float>(at, at + 64)));
      }
    }
  }
}

TEST_CASE("a row gives the same bits from the ring and from the entries") {
  Random random(41);
  for (const std::int64_t width : {33, 64}) {
    const Array<float, 2> rows =
        cached(CacheFormat::entry, cached(CacheFormat::window, random_array<2>(random, {90, width})));
    Sparse in{.q = random_array<3>(random, {1, 3, width}),
              .ring = rows,
              .entries = Array<float, 2>({0, width}),
              .ids = Array<std::int32_t, 2>({1, 60}),
              .counts = Array<std::int32_t, 1>({1}),
              .sink = random.normals(3),
              .first_position = 89,
              .window = 90,
              .ring_format = CacheFormat::f32,
              .entry_format = CacheFormat::f32};
    Sparse other = in;  // 30 rows in the ring, 60 selected
    other.ring = rows.rows(0, 30), other.window = 30, other.first_position = 29, other.entries = rows.rows(30, 60);
    other.counts.values = {60};
    for (std::int32_t i = 0; i < 60; ++i) other.ids.values[static_cast<std::size_t>(i)] = i;
    CpuBackend backend;
    const std::vector<float> want = run(backend, in, Numeric::exact);
    CHECK(same_bits(run(backend, other, Numeric::exact), want));
    other.entry_format = CacheFormat::entry;  // of values that it holds exactly
    CHECK(same_bits(run(backend, other, Numeric::exact), want));
  }
}

TEST_CASE("every code of a row, every scale, and what is not finite: as the reference reads them") {
  Random random(42);
  const std::int64_t width = 256;
  Sparse in{.q = Array<float, 3>({1, 1, width}),  // zeros: every slot weighs the same, so outputs show the values
            .ring = Array<float, 2>({1, width}),
            .entries = Array<float, 2>({1, width}),
            .ids = Array<std::int32_t, 2>({1, 1}),
            .counts = Array<std::int32_t, 1>({1}),
            .sink = {-50},
            .window = 1};
  const auto check = [&] {
    RefBackend reference;
    const std::vector<float> want = run(reference, in, Numeric::exact);
    for (const std::string_view target : cpu_targets()) {
      CpuBackend backend({.threads = 1, .target = target});
      const std::vector<float> got = run(backend, in, Numeric::exact);
      for (std::size_t c = 0; c < got.size(); ++c) {
        INFO(target << ", channel " << c << ": " << got[c] << " of " << want[c]);
        if (!(std::isnan(got[c]) && std::isnan(want[c])) && got[c] != want[c]) FAIL_CHECK();
      }
    }
  };
  const auto all_codes = [&](std::uint8_t skipped) {
    for (std::int64_t c = 0; c < width; ++c)
      in.ring_bytes.push_back({c, static_cast<std::uint8_t>(c % 128 == skipped ? 1 : c)});
  };
  for (const int scale : {0, 1, 2, 100, 127, 140, 245, 246, 247, 248, 254, 255}) {
    INFO("window scale " << scale);
    in.ring_bytes.clear();
    all_codes(127);
    for (std::int64_t b = 0; b < width / 32; ++b)
      in.ring_bytes.push_back({width + b, static_cast<std::uint8_t>(b % 2 ? scale : 127)});
    check();
  }
  in.ring_bytes.clear();
  all_codes(255);  // NaN codes among them
  check();
  in.ring_bytes.clear(), in.counts.values = {1};
  for (int scale = 0; scale < 256; scale += 16) {
    INFO("entry scales from " << scale);
    in.entry_bytes.clear();
    for (std::int64_t i = 0; i < width / 2; ++i)
      in.entry_bytes.push_back({i, static_cast<std::uint8_t>(random.below(256))});
    for (std::int64_t b = 0; b < 16; ++b)
      in.entry_bytes.push_back({width / 2 + b, static_cast<std::uint8_t>(scale + b)});
    check();
  }
}

TEST_CASE("infinite and NaN rows and queries give NaN where the reference does, and nowhere else") {
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
    for (int where = 0; where < 3; ++where) {
      Random random(43);
      Sparse in = any_sparse(random, 33);  // stored as float32
      in.ids.values.assign(in.ids.values.size(), 0), in.counts.values.assign(in.counts.values.size(), 1);
      in.entries = random_array<2>(random, {2, 33});
      (where == 0 ? in.q.values : where == 1 ? in.ring.values : in.entries.values)[5] = bad;
      RefBackend reference;
      CpuBackend backend;
      INFO(bad << " in input " << where);
      CHECK(norm_error(run(backend, in, Numeric::exact), doubles_of(run(reference, in, Numeric::exact))) <=
            kNormAttention);
    }
  }
}

TEST_CASE("the softmax of the kernel is numerics::RunningSoftmax to the bit") {
  for (const std::string_view name : cpu_targets()) {
    const cpu::Target target = cpu::target_named(name).target;
    Random random(44);
    std::vector<float> state(static_cast<std::size_t>(cpu::HeadGroup::floats(1)));
    std::vector<float> rows(static_cast<std::size_t>(cpu::block_floats(1)));
    const cpu::HeadGroup group(state.data(), 1);
    float one[cpu::kHeads];
    const float* q[cpu::kHeads];
    for (std::int64_t h = 0; h < cpu::kHeads; ++h) one[h] = random.normal(3), q[h] = one + h;
    cpu::begin_heads(group, q, cpu::kHeads);
    numerics::RunningSoftmax want[cpu::kHeads];
    for (const std::int64_t count : {64, 1, 63, 2, 64, 5}) {
      std::vector<float> values;
      for (std::int64_t s = 0; s < count; ++s) values.push_back(random.normal(s % 7 == 0 ? 60 : 3));  // some underflow
      std::vector<cpu::PackedRow> packed;
      for (const float& v : values) packed.push_back({reinterpret_cast<const std::byte*>(&v), CacheFormat::f32});
      cpu::unpack_rows(target, packed.data(), count, 1, rows.data());
      cpu::add_slots(target, Numeric::exact, group, rows.data(), count);
      for (std::int64_t h = 0; h < cpu::kHeads; ++h) {
        std::vector<float> logits;
        for (const float v : values) logits.push_back(one[h] * v);
        const float shrink = want[h].add(logits.data(), count);
        INFO(name << ", head " << h << ", " << count << " slots");
        CHECK(group.top()[h] == want[h].top);
        CHECK(group.total()[h] == want[h].total);
        CHECK(group.shrink()[h] == shrink);
        for (std::int64_t s = 0; s < count; ++s)
          if (group.weights()[s * cpu::kHeads + h] != logits[static_cast<std::size_t>(s)])
            FAIL_CHECK("probability of slot " << s);
      }
    }
  }
}
