// SPDX-License-Identifier: MIT
//
// Every op over views with gaps between their rows, and over no rows at all. A caller may pack several caches into one block, or have
// nothing to do this time.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "dsv41/numerics/engram_hash.hpp"
#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kHc = 3, kDim = 32, kHeads = 2, kMix = (2 + kHc) * kHc;

/// Arrays in a backend's memory with `gap` elements behind every row of every dimension, which nothing may touch.
template <class B>
class Laid {
 public:
  Laid(B& backend, std::int64_t gap) : backend_(&backend), memory_(backend), gap_(gap) {}

  B& backend() { return *backend_; }
  Memory<B>& memory() { return memory_; }

  template <class T, std::size_t Rank>
  Out<T, Rank> put(const Array<T, Rank>& a, bool dense = false) {
    const std::int64_t gap = dense ? 0 : gap_;
    std::array<std::int64_t, Rank> strides{};
    std::int64_t stride = 1;
    for (std::size_t i = Rank; i-- > 0;) strides[i] = stride, stride = stride * a.extents[i] + gap;
    std::vector<T> block(static_cast<std::size_t>(stride), T{111});
    const View<const T, Rank> from(a.values.data(), a.extents);
    copy(from, View<T, Rank>(block.data(), a.extents, strides));
    return {memory_.put(block).data(), a.extents, strides};
  }
  template <class T>
  Out<T, 1> put(const std::vector<T>& v) {
    return put(Array<T, 1>({static_cast<std::int64_t>(v.size())}, v));
  }
  Out<float, 2> random(Random& r, std::int64_t rows, std::int64_t cols) {
    return put(random_array<2>(r, {rows, cols}));
  }
  Out<float, 3> random(Random& r, std::int64_t rows, std::int64_t heads, std::int64_t cols, bool dense = false) {
    return put(random_array<3>(r, {rows, heads, cols}), dense);
  }

  /// A cache of random rows: in one page, or with a gap in pages of two rows, `gap` bytes in front of the first one.
  CacheRows random(Random& r, CacheFormat format, std::int64_t rows) {
    return memory_.put(format, random_array<2>(r, {rows, kDim}), gap_ == 0 ? Paging{} : Paging{2, gap_});
  }

  void collect(const CacheRows& cache) {
    for (const float x : memory_.get(cache)) outputs.push_back(static_cast<double>(x));
    CHECK(memory_.untouched_between(cache));
  }

  /// Appends the view's elements, and whether the gaps are as they were, to the outputs of the case.
  template <class T, std::size_t Rank>
  void collect(const View<T, Rank>& view) {
    if (view.empty()) return;
    std::int64_t used = 1;
    for (std::size_t i = 0; i < Rank; ++i) used += (view.extent(i) - 1) * view.stride(i);
    const std::vector<T> block = memory_.get(View<T, 1>(view.data(), {used}));
    std::vector<T> dense(static_cast<std::size_t>(view.size()));
    copy(View<const T, Rank>(block.data(), view.extents(), strides_of(view)),
         View<T, Rank>(dense.data(), view.extents()));
    for (const T x : dense) outputs.push_back(static_cast<double>(x));
    const auto marks = std::count(block.begin(), block.end(), T{111});
    CHECK(marks == used - view.size());
  }

  std::vector<double> outputs;

 private:
  template <class T, std::size_t Rank>
  static std::array<std::int64_t, Rank> strides_of(const View<T, Rank>& view) {
    std::array<std::int64_t, Rank> out{};
    for (std::size_t i = 0; i < Rank; ++i) out[i] = view.stride(i);
    return out;
  }
  template <class T, std::size_t Rank>
  static void copy(const View<const T, Rank>& from, const View<T, Rank>& to) {
    for (std::int64_t i = 0; i < from.extent(0); ++i) {
      if constexpr (Rank == 1) {
        to[i] = from[i];
      } else {
        copy(from.row(i), to.row(i));
      }
    }
  }

  B* backend_;
  Memory<B> memory_;
  std::int64_t gap_;
};

/// Builds an op of `tokens` rows, runs it unless told not to, and collects what it writes.
template <class B>
struct OpCase {
  std::string_view name;
  std::function<void(Laid<B>&, std::int64_t tokens, bool run)> work;
};

/// Runs one op as its callers do.
template <class B, class Op>
void go(Laid<B>& laid, const Op& op, bool run) {
  op.check();
  if (run) laid.backend().run(op);
  laid.backend().sync();
}

std::vector<std::int32_t> ids_below(Random& r, std::int64_t count, std::int64_t bound) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<std::int32_t>(r.below(bound)));
  return out;
}

template <class B>
ExpertWeights expert(Laid<B>& laid, Random& r) {
  return {.w1 = laid.memory().put(random_matrix(r, Format::fp4_row, 8, kDim)),
          .w2 = laid.memory().put(random_matrix(r, Format::bf16, kDim, 8)),
          .w3 = laid.memory().put(random_matrix(r, Format::fp8_tile, 8, kDim))};
}

/// The ops of the residual streams.
template <class B>
std::vector<OpCase<B>> stream_cases() {
  const auto seam = [](Laid<B>& l, Random& r, std::int64_t tokens) {
    return ops::MhcSeam{.y = l.random(r, tokens, kDim),
                        .streams = l.random(r, tokens, kHc, kDim, true),  // dense by contract
                        .fn = l.memory().put(random_matrix(r, Format::f32, kMix, kHc * kDim)),
                        .base = l.put(r.normals(kMix)),
                        .scale = l.put(r.normals(3)),
                        .norm = l.put(r.normals(kDim)),
                        .mix = l.random(r, tokens, kMix),
                        .input = l.random(r, tokens, kDim),
                        .rules = {.iters = 3, .hc_eps = 1e-6f, .norm_eps = 1e-20}};
  };
  return {
      {ops::MhcSeam::name,
       [=](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(1);
         const ops::MhcSeam op = seam(l, r, tokens);
         go(l, op, run);
         l.collect(op.streams), l.collect(op.mix), l.collect(op.input);
       }},
      {ops::MhcExpand::name,
       [=](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(2);
         ops::MhcExpand op = seam(l, r, tokens).expand();
         op.streams = l.random(r, tokens, kHc, kDim);
         go(l, op, run);
         l.collect(op.streams);
       }},
      {ops::MhcCoefficients::name,
       [=](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(3);
         const ops::MhcCoefficients op = seam(l, r, tokens).coefficients();
         go(l, op, run);
         l.collect(op.mix);
       }},
      {ops::MhcCollapse::name,
       [=](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(4);
         ops::MhcCollapse op = seam(l, r, tokens).collapse();
         op.streams = l.random(r, tokens, kHc, kDim);
         go(l, op, run);
         l.collect(op.x);
       }},
      {ops::StreamMean::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(5);
         const Out<float, 2> tap = l.random(r, tokens, kDim);
         go(l, ops::StreamMean{.streams = l.random(r, tokens, kHc, kDim), .tap = tap}, run);
         l.collect(tap);
       }},
      {ops::Embed::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(6);
         const ops::Embed op{.ids = l.put(ids_below(r, tokens, 9)),
                             .image = l.put(std::vector<std::uint8_t>(static_cast<std::size_t>(tokens), 1)),
                             .image_rows = l.random(r, std::min<std::int64_t>(tokens, 2), kDim),
                             .table = l.memory().put(random_matrix(r, Format::bf16, 9, kDim)),
                             .streams = l.random(r, tokens, kHc, kDim),
                             .mix = l.random(r, tokens, kMix)};
         go(l, op, run);
         l.collect(op.streams), l.collect(op.mix);
       }},
  };
}

/// The ops of attention and its caches.
template <class B>
std::vector<OpCase<B>> attention_cases() {
  return {
      {ops::Rope::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(10);
         std::vector<std::int64_t> positions;
         for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(7 + t);
         const ops::Rope op{.x = l.random(r, tokens, kHeads, kDim),
                            .positions = l.put(positions),
                            .frequencies = l.put(r.normals(4)),
                            .quantiser = numerics::Quantiser::index_fp4};
         go(l, op, run);
         l.collect(op.x);
       }},
      {ops::CacheAppend::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(11);
         const ops::CacheAppend op{.rows = l.random(r, tokens, kDim),
                                   .frequencies = l.put(r.normals(4)),
                                   .cache = l.random(r, CacheFormat::window, 6),
                                   .first_position = 3,
                                   .first_slot = 4};
         go(l, op, run);
         l.collect(op.rows), l.collect(op.cache);
       }},
      {ops::Compress::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(12);
         const ops::Compress op{.kv = l.random(r, tokens, kDim),
                                .gate = l.random(r, tokens, kDim),
                                .carry_kv = l.random(r, 6, kDim),
                                .carry_gate = l.random(r, 6, kDim),
                                .latent = l.random(r, (2 + tokens) / 3, kDim),
                                .first_position = 2,
                                .ratio = 3};
         go(l, op, run);
         l.collect(op.latent), l.collect(op.carry_kv), l.collect(op.carry_gate);
       }},
      {ops::IndexSelect::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(13);
         const auto ints = [&](std::int64_t rows, std::int64_t cols) {
           return l.put(Array<std::int32_t, 2>({rows, cols}, 5));
         };
         ops::IndexSelect op{.q = l.random(r, tokens, kHeads, kDim),
                             .weights = l.random(r, tokens, kHeads),
                             .keys = l.random(r, CacheFormat::index, 20),
                             .ids = ints(tokens, 3),
                             .counts = l.put(Array<std::int32_t, 1>({tokens}, 5)),
                             .blocks = ints(tokens, 2),
                             .block_counts = l.put(Array<std::int32_t, 1>({tokens}, 5)),
                             .scores = l.random(r, std::max<std::int64_t>(tokens, 1), 20),
                             .block_scores = l.random(r, std::max<std::int64_t>(tokens, 1), 10),
                             .first_position = 14,
                             .block = 2,
                             .candidates = ops::CandidateUse::publish};
         go(l, op, run);
         l.collect(op.ids), l.collect(op.counts), l.collect(op.blocks), l.collect(op.block_counts);
         op.candidates = ops::CandidateUse::limited, op.keys = l.random(r, CacheFormat::index, 20);
         if (run) go(l, op, run);
         l.collect(op.ids), l.collect(op.counts);
       }},
      {ops::SparseAttention::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(14);
         Array<std::int32_t, 2> ids({tokens, 2});
         for (std::size_t i = 0; i < ids.values.size(); ++i)
           ids.values[i] = static_cast<std::int32_t>(i % 2 * 4 + i / 2);
         const ops::SparseAttention op{
             .q = l.random(r, tokens, kHeads, kDim),
             .ring = l.random(r, CacheFormat::window, 4 + std::max<std::int64_t>(tokens - 1, 0)),
             .entries = l.random(r, CacheFormat::entry, 9),
             .ids = l.put(ids),
             .counts = l.put(Array<std::int32_t, 1>({tokens}, 2)),
             .sink = l.put(r.normals(kHeads)),
             .out = l.random(r, tokens, kHeads, kDim),
             .first_position = 6,
             .window = 4};
         go(l, op, run);
         l.collect(op.out);
       }},
      {ops::BlockAttention::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(17);
         const ops::BlockAttention op{.q = l.random(r, tokens, kHeads, kDim),
                                      .ring = l.random(r, CacheFormat::window, 6),
                                      .block = l.random(r, tokens, kDim),
                                      .sink = l.put(r.normals(kHeads)),
                                      .out = l.random(r, tokens, kHeads, kDim),
                                      .first_position = 9,
                                      .window = 4};
         go(l, op, run);
         l.collect(op.out);
       }},
      {ops::Linear::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(15);
         for (const Numeric numeric : kNumerics) {
           const ops::Linear op{.x = l.random(r, tokens, 2 * kDim),
                                .w = l.memory().put(random_matrix(r, Format::fp8_tile, 6, kDim)),
                                .y = l.random(r, tokens, 6),
                                .groups = 2,
                                .numeric = numeric};
           go(l, op, run);
           l.collect(op.y);
         }
       }},
      {ops::RmsNorm::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(16);
         const ops::RmsNorm op{.x = l.random(r, tokens, kDim),
                               .weight = l.put(r.normals(kDim)),
                               .y = l.random(r, tokens, kDim),
                               .eps = 1e-20};
         go(l, op, run);
         l.collect(op.y);
       }},
  };
}

/// The ops of experts and n-gram memory.
template <class B>
std::vector<OpCase<B>> lookup_cases() {
  return {
      {ops::TopkRoute::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(20);
         const ops::TopkRoute op{.logits = l.random(r, tokens, 7),
                                 .bias = l.put(r.normals(7)),
                                 .bias_vl = l.put(r.normals(7)),
                                 .image = l.put(Array<std::uint8_t, 1>({tokens}, 1)),
                                 .ids = l.put(Array<std::int32_t, 2>({tokens, 3})),
                                 .weights = l.random(r, tokens, 3)};
         go(l, op, run);
         l.collect(op.logits), l.collect(op.ids), l.collect(op.weights);
       }},
      {ops::Markov::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(27);
         const ops::Markov op{.tokens = l.put(ids_below(r, tokens, 9)),
                              .embed = l.memory().put(random_matrix(r, Format::bf16, 9, 4)),
                              .head = l.memory().put(random_matrix(r, Format::bf16, 9, 4)),
                              .confidence = l.memory().put(random_matrix(r, Format::bf16, 1, kDim + 4)),
                              .base = l.random(r, tokens, 9),
                              .hidden = l.random(r, tokens, kDim),
                              .logits = l.random(r, tokens, 9),
                              .z = l.put(r.normals(tokens))};
         go(l, op, run);
         l.collect(op.logits), l.collect(op.z);
       }},
      {ops::HashRoute::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(21);
         Array<std::int32_t, 2> table({9, 2});
         for (std::size_t i = 0; i < table.values.size(); ++i) table.values[i] = static_cast<std::int32_t>(i % 7);
         const ops::HashRoute op{.logits = l.random(r, tokens, 7),
                                 .token_ids = l.put(ids_below(r, tokens, 9)),
                                 .table = l.put(table),
                                 .ids = l.put(Array<std::int32_t, 2>({tokens, 2})),
                                 .weights = l.random(r, tokens, 2)};
         go(l, op, run);
         l.collect(op.ids), l.collect(op.weights);
       }},
      {ops::SwigluExperts::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(22);
         const std::vector<ExpertWeights> experts{expert(l, r), expert(l, r), expert(l, r), expert(l, r)};
         Array<std::int32_t, 2> ids({tokens, 2});
         for (std::size_t i = 0; i < ids.values.size(); ++i) ids.values[i] = static_cast<std::int32_t>(i % 4);
         const ops::SwigluExperts op{.x = l.random(r, tokens, kDim),
                                     .ids = l.put(ids),
                                     .weights = l.random(r, tokens, 2),
                                     .experts = experts,
                                     .shared = expert(l, r),
                                     .y = l.random(r, tokens, kDim),
                                     .limit = 10};
         go(l, op, run);
         l.collect(op.y);
       }},
      {ops::EngramHash::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(23);
         const auto layout = numerics::engram_layout({{1, 4}, 3, 50, 2, 20});
         const std::vector<numerics::EngramHashView> views{numerics::view_of(layout.layers[0]),
                                                           numerics::view_of(layout.layers[1])};
         const ops::EngramHash op{.ids = l.put(ids_below(r, tokens, 20)),
                                  .image = l.put(Array<std::uint8_t, 1>({tokens})),
                                  .token_map = l.put(ids_below(r, 20, 20)),
                                  .layers = views,
                                  .pad = 2,
                                  .history = l.put(std::vector<std::int32_t>{3, 4}),
                                  .table_rows = l.put(Array<std::int64_t, 3>({2, tokens, 4}))};
         go(l, op, run);
         l.collect(op.table_rows);
       }},
      {ops::EngramGather::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(24);
         Array<std::int64_t, 2> rows({tokens, 3});
         for (std::int64_t& x : rows.values) x = r.below(9);
         const ops::EngramGather op{.table_rows = l.put(rows),
                                    .table = l.memory().put(random_matrix(r, Format::fp8_row, 9, kDim)),
                                    .out = l.random(r, tokens, 3 * kDim)};
         go(l, op, run);
         l.collect(op.out);
       }},
      {ops::EngramGate::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(25);
         const ops::EngramGate op{.keys_value = l.random(r, tokens, (kHc + 1) * kDim),
                                  .q_weight = l.memory().put(random_matrix(r, Format::bf16, kHc, kDim)),
                                  .k_weight = l.memory().put(random_matrix(r, Format::bf16, kHc, kDim)),
                                  .image = l.put(Array<std::uint8_t, 1>({tokens})),
                                  .streams = l.random(r, tokens, kHc, kDim),
                                  .gates = l.random(r, tokens, kHc),
                                  .eps = 1e-20};
         go(l, op, run);
         l.collect(op.streams), l.collect(op.gates);
       }},
      {ops::EngramConvolution::name,
       [](Laid<B>& l, std::int64_t tokens, bool run) {
         Random r(26);
         const ops::EngramConvolution op{.value = l.random(r, tokens, kDim),
                                         .gates = l.random(r, tokens, kHc),
                                         .norm = l.memory().put(random_matrix(r, Format::bf16, kHc, kDim)),
                                         .kernel = l.memory().put(random_matrix(r, Format::bf16, kHc * kDim, 4)),
                                         .ring = l.random(r, tokens + 6, kHc, kDim),
                                         .streams = l.random(r, tokens, kHc, kDim),
                                         .first_position = 5,
                                         .dilation = 2,
                                         .eps = 1e-20};
         go(l, op, run);
         l.collect(op.streams), l.collect(op.ring);
       }},
  };
}

template <class B>
std::vector<OpCase<B>> cases() {
  std::vector<OpCase<B>> out = stream_cases<B>();
  for (const OpCase<B>& c : attention_cases<B>()) out.push_back(c);
  for (const OpCase<B>& c : lookup_cases<B>()) out.push_back(c);
  return out;
}

template <class... Ops>
std::vector<std::string_view> names(ops::List<Ops...>) {
  return {Ops::name...};
}

template <class B>
std::vector<double> outputs(B& backend, const OpCase<B>& c, std::int64_t gap, std::int64_t tokens, bool run = true) {
  Laid<B> laid(backend, gap);
  c.work(laid, tokens, run);
  return laid.outputs;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("B92, B94: the cases below cover every op", "[views]", Backends) {
  std::vector<std::string_view> covered, all = names(ops::All{});
  for (const auto& c : cases<TestType>()) covered.push_back(c.name);
  std::sort(covered.begin(), covered.end()), std::sort(all.begin(), all.end());
  CHECK(covered == all);
}

TEMPLATE_LIST_TEST_CASE("B94: views with gaps give the bits of dense ones, and the gaps stay untouched", "[views]",
                        Backends) {
  for (const auto& c : cases<TestType>()) {
    INFO(c.name);
    TestType backend;
    const std::vector<double> dense = outputs(backend, c, 0, 5);
    CHECK(dense.size() > 5);
    for (const std::int64_t gap : {1, 7, 64}) CHECK(outputs(backend, c, gap, 5) == dense);
    CHECK(outputs(backend, c, 0, 5, false) != dense);  // the op did something
  }
}

TEMPLATE_LIST_TEST_CASE("B92: no rows change nothing and are no error, and the next call works", "[views]", Backends) {
  for (const auto& c : cases<TestType>()) {
    INFO(c.name);
    TestType fresh, backend;
    CHECK(outputs(backend, c, 0, 0) == outputs(backend, c, 0, 0, false));
    CHECK(outputs(backend, c, 0, 5) == outputs(fresh, c, 0, 5));
  }
}

TEST_CASE("B94: check() refuses a view whose elements do not follow each other") {
  float x[8] = {}, y[8] = {}, weight[2] = {1, 1};
  const ops::RmsNorm good{.x = {x, {2, 2}}, .weight = {weight, {2}}, .y = {y, {2, 2}}};
  check_refuses(good, "x is of inner stride 2, expected 1", [&](auto& op) { op.x = {x, {2, 2}, {4, 2}}; });
  check_refuses(good, "y is of inner stride 4, expected 1", [&](auto& op) { op.y = {y, {2, 2}, {1, 4}}; });
}
