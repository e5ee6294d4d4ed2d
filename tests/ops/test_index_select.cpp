// SPDX-License-Identifier: MIT
//
// ops::IndexSelect: scores and choices against a full sort. Data are small integers, so that every product and sum is exact, ties abound,
// and ids must agree to the last one.
#include "dsv41/ops/index_select.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "support/memory.hpp"
#include "support/tolerance.hpp"

using namespace dsv41;
using namespace dsv41::test;
using ops::CandidateUse;

namespace {

struct Case {
  std::int64_t tokens, heads, width, first_position, ratio, topk, block, kept;
  std::uint64_t seed;
};

const Case kCases[] = {
    {0, 2, 4, 0, 1, 3, 2, 2, 1},    {1, 1, 1, 0, 1, 1, 1, 1, 2},     {1, 2, 8, 0, 2, 4, 2, 2, 3},
    {9, 2, 8, 0, 1, 4, 2, 2, 4},    {7, 3, 5, 30, 2, 6, 4, 3, 5},    {5, 4, 32, 100, 3, 64, 8, 2, 6},
    {3, 2, 16, 97, 1, 10, 7, 4, 7}, {17, 1, 3, 13, 1, 5, 8, 100, 8}, {2, 32, 128, 300, 1, 50, 8, 10, 9},
};

struct Inputs {
  Array<float, 3> q;
  Array<float, 2> weights, keys;
};

Inputs make(const Case& c) {
  Random random(c.seed);
  const std::int64_t visible = (c.first_position + c.tokens) / c.ratio;
  Inputs in{Array<float, 3>({c.tokens, c.heads, c.width}), Array<float, 2>({c.tokens, c.heads}),
            Array<float, 2>({visible + 3, c.width})};
  for (float& x : in.q.values) x = static_cast<float>(random.below(5) - 2);
  for (float& x : in.keys.values) x = static_cast<float>(random.below(5) - 2);
  for (float& x : in.weights.values) x = static_cast<float>(random.below(400) - 130);  // more bits than bfloat16 has
  return in;
}

struct Outputs {
  std::vector<std::int32_t> ids, counts, blocks, block_counts;
  std::vector<float> scores;

  /// Chosen ids (or blocks) of one row.
  static std::vector<std::int32_t> row(const std::vector<std::int32_t>& list, const std::vector<std::int32_t>& counts,
                                       std::int64_t t) {
    const std::int64_t width = static_cast<std::int64_t>(list.size() / counts.size());
    return {list.begin() + t * width, list.begin() + t * width + counts[static_cast<std::size_t>(t)]};
  }
};

constexpr float kScale = 0.25f;

/// `given` are the blocks that a `limited` selection works in; the sequence's keys begin at row `first_key` of their one page; of the
/// pages only the `present` ones are there.
template <class B>
Outputs run(const Case& c, const Inputs& in, CandidateUse use, Numeric numeric, std::int64_t score_rows,
            const Outputs* given = nullptr, const Paging& paging = {}, std::int64_t first_key = 0,
            const std::vector<bool>* present = nullptr) {
  B backend;
  Memory<B> memory(backend);
  const std::int64_t visible = (c.first_position + c.tokens) / c.ratio, blocks = (visible + c.block - 1) / c.block;
  CacheRows keys = memory.put(CacheFormat::index, in.keys, paging);
  keys.rows -= first_key, keys.offset += first_key * row_bytes(keys.format, keys.width);
  if (present != nullptr) {
    std::vector<std::byte*> pages = memory.get(keys.pages);
    for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = (*present)[i] ? pages[i] : nullptr;
    keys.pages = memory.put(pages);
  }
  ops::IndexSelect op{.q = memory.put(in.q),
                      .weights = memory.put(in.weights),
                      .keys = keys,
                      .ids = memory.put(Array<std::int32_t, 2>({c.tokens, c.topk}, -9)),
                      .counts = memory.put(Array<std::int32_t, 1>({c.tokens}, -9)),
                      .scores = memory.put(Array<float, 2>({score_rows, visible}, 77.0f)),
                      .first_position = c.first_position,
                      .ratio = c.ratio,
                      .block = c.block,
                      .weight_scale = kScale,
                      .candidates = use,
                      .numeric = numeric};
  if (use != CandidateUse::none) {
    op.blocks = memory.put(given ? Array<std::int32_t, 2>({c.tokens, c.kept}, given->blocks)
                                 : Array<std::int32_t, 2>({c.tokens, c.kept}, -9));
    op.block_counts = memory.put(given ? Array<std::int32_t, 1>({c.tokens}, given->block_counts)
                                       : Array<std::int32_t, 1>({c.tokens}, -9));
    op.block_scores = memory.put(Array<float, 2>({score_rows, blocks}));
  }
  op.check();
  backend.run(op);
  return {memory.get(op.ids), memory.get(op.counts), memory.get(op.blocks), memory.get(op.block_counts),
          memory.get(op.scores)};
}

double score(const Case& c, const Inputs& in, Numeric numeric, std::int64_t t, std::int64_t entry) {
  const auto round = [&](double x) { return numeric == Numeric::deployed ? to_bf16(x) : x; };
  double sum = 0;
  for (std::int64_t h = 0; h < c.heads; ++h) {
    double dot = 0;
    for (std::int64_t i = 0; i < c.width; ++i) {
      dot += static_cast<double>(in.q.values[static_cast<std::size_t>((t * c.heads + h) * c.width + i)]) *
             static_cast<double>(in.keys.values[static_cast<std::size_t>(entry * c.width + i)]);
    }
    const double relu = std::isnan(dot) || dot > 0 ? round(dot) : 0;
    sum +=
        round(relu * round(static_cast<double>(in.weights.values[static_cast<std::size_t>(t * c.heads + h)] * kScale)));
  }
  return round(sum);
}

/// Ascending ids of the best k of these (score, id), ties to the lower id, NaN never.
std::vector<std::int32_t> best(std::vector<std::pair<double, std::int32_t>> offered, std::int64_t k) {
  std::erase_if(offered, [](const auto& o) { return std::isnan(o.first); });
  std::sort(offered.begin(), offered.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < offered.size() && i < static_cast<std::size_t>(k); ++i) ids.push_back(offered[i].second);
  std::sort(ids.begin(), ids.end());
  return ids;
}

/// Blocks that a query publishes: best by their largest visible score, the newest one always among them.
std::vector<std::int32_t> published(const Case& c, const Doubles& scores) {
  std::vector<std::pair<double, std::int32_t>> offered;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    const auto b = static_cast<std::int32_t>(static_cast<std::int64_t>(e) / c.block);
    if (offered.empty() || offered.back().second != b) offered.push_back({-HUGE_VAL, b});
    if (scores[e] > offered.back().first) offered.back().first = scores[e];
  }
  if (offered.empty()) return {};
  const std::int32_t newest = offered.back().second;
  offered.pop_back();
  std::erase_if(offered, [](const auto& o) { return o.first == -HUGE_VAL; });
  std::vector<std::int32_t> blocks = best(offered, c.kept - 1);
  blocks.push_back(newest);
  return blocks;
}

/// Checks ids, counts, blocks and the scores of every row.
void check_outputs(const Case& c, const Inputs& in, CandidateUse use, Numeric numeric, const Outputs& got) {
  const std::int64_t entries = (c.first_position + c.tokens) / c.ratio;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const std::int64_t visible = (c.first_position + t + 1) / c.ratio;
    Doubles scores;
    for (std::int64_t e = 0; e < visible; ++e) scores.push_back(score(c, in, numeric, t, e));
    const std::vector<std::int32_t> blocks = published(c, scores);
    std::vector<std::pair<double, std::int32_t>> offered;
    std::size_t wrong = 0;
    for (std::int64_t e = 0; e < visible; ++e) {
      const bool inside = std::binary_search(blocks.begin(), blocks.end(), static_cast<std::int32_t>(e / c.block));
      const double kept = static_cast<double>(got.scores[static_cast<std::size_t>(t * entries + e)]);
      const double want = scores[static_cast<std::size_t>(e)];
      if (use == CandidateUse::limited && !inside) {
        wrong += kept != 77;  // left untouched
      } else {
        offered.push_back({want, static_cast<std::int32_t>(e)});
        wrong += kept != want && !(std::isnan(kept) && std::isnan(want));
      }
    }
    CHECK(wrong == 0);
    CHECK(Outputs::row(got.ids, got.counts, t) == best(offered, c.topk));
    if (use != CandidateUse::none) CHECK(Outputs::row(got.blocks, got.block_counts, t) == blocks);
  }
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("index_select keeps the best visible entries, publishes blocks, and stays inside them",
                        "[index_select]", Backends) {
  for (const Case& c : kCases) {
    for (const Numeric numeric : kNumerics) {
      INFO("seed " << c.seed << ", " << numeric_name(numeric));
      const Inputs in = make(c);
      const std::int64_t all = std::max<std::int64_t>(c.tokens, 1);
      check_outputs(c, in, CandidateUse::none, numeric, run<TestType>(c, in, CandidateUse::none, numeric, all));
      const Outputs publish = run<TestType>(c, in, CandidateUse::publish, numeric, all);
      for (const Paging& paging : kPagings) {
        const Outputs paged = run<TestType>(c, in, CandidateUse::publish, numeric, all, nullptr, paging);
        CHECK(paged.ids == publish.ids);
        CHECK(same_bits(paged.scores, publish.scores));
      }
      check_outputs(c, in, CandidateUse::publish, numeric, publish);
      check_outputs(c, in, CandidateUse::limited, numeric,
                    run<TestType>(c, in, CandidateUse::limited, numeric, all, &publish));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a workspace of one row of scores gives the choices of a workspace for all", "[index_select]",
                        Backends) {
  for (const Case& c : kCases) {
    const Inputs in = make(c);
    const std::int64_t all = std::max<std::int64_t>(c.tokens, 1);
    const Outputs wide = run<TestType>(c, in, CandidateUse::publish, Numeric::exact, all),
                  narrow = run<TestType>(c, in, CandidateUse::publish, Numeric::exact, 1);
    CHECK(narrow.counts == wide.counts);
    CHECK(narrow.block_counts == wide.block_counts);
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      CHECK(Outputs::row(narrow.ids, narrow.counts, t) == Outputs::row(wide.ids, wide.counts, t));
      CHECK(Outputs::row(narrow.blocks, narrow.block_counts, t) == Outputs::row(wide.blocks, wide.block_counts, t));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("B47: 8320 scores, 5000 to 5099 are 1 and the rest 0: those and 0 to 1947, whoever asks",
                        "[index_select]", Backends) {
  const Case c{1, 1, 1, 8319, 1, 2048, 8, 1, 0};
  Inputs in{{{1, 1, 1}, 1}, {{1, 1}, 4}, Array<float, 2>({8320, 1}, -1.0f)};
  for (std::size_t e = 5000; e < 5100; ++e) in.keys.values[e] = 1;
  std::vector<std::int32_t> want(1948);
  std::iota(want.begin(), want.end(), 0);
  for (std::int32_t e = 5000; e < 5100; ++e) want.push_back(e);
  const auto wrong = [&] {
    const Outputs got = run<TestType>(c, in, CandidateUse::none, Numeric::exact, 1);
    return got.ids != want || got.counts != std::vector<std::int32_t>{2048};
  };
  int failures = 0;
  for (int round = 0; round < 100; ++round) failures += wrong();
  for (std::size_t count = 1; count <= 16; ++count) {
    std::vector<int> results(count);
    std::vector<std::thread> threads;
    for (int& result : results) threads.emplace_back([&result, &wrong] { result = wrong(); });
    for (std::thread& t : threads) t.join();
    failures += std::accumulate(results.begin(), results.end(), 0);
  }
  CHECK(failures == 0);
}

TEMPLATE_LIST_TEST_CASE("B47: ids are relative to the row at which a sequence's keys begin in a packed buffer",
                        "[index_select]", Backends) {
  for (const Case& c : kCases) {
    const Inputs in = make(c);
    const std::int64_t rows = in.keys.extents[0], all = std::max<std::int64_t>(c.tokens, 1);
    Array<float, 2> packed({17 + rows, c.width}, 1e30f);  // another sequence's keys in front
    std::copy(in.keys.values.begin(), in.keys.values.end(), packed.values.begin() + 17 * c.width);
    const Outputs want = run<TestType>(c, in, CandidateUse::publish, Numeric::exact, all);
    Inputs other = in;
    other.keys = packed;
    const Outputs got = run<TestType>(c, other, CandidateUse::publish, Numeric::exact, all, nullptr, {}, 17);
    CHECK(got.ids == want.ids);
    CHECK(got.blocks == want.blocks);
  }
}

TEMPLATE_LIST_TEST_CASE("B54: a block id without visible entries gives none, negative ones included", "[index_select]",
                        Backends) {
  const Case c{1, 1, 1, 9, 1, 4, 2, 4, 0};  // ten entries in five blocks
  const Inputs in{{{1, 1, 1}, 1}, {{1, 1}, 4}, Array<float, 2>({10, 1}, 1.0f)};
  const Outputs blocks{{}, {}, {-1, 1, 5, 6}, {4}, {}};
  const Outputs got = run<TestType>(c, in, CandidateUse::limited, Numeric::exact, 1, &blocks);
  CHECK(Outputs::row(got.ids, got.counts, 0) == std::vector<std::int32_t>{2, 3});
  const Outputs beyond{{}, {}, {0, 1, 2, 3}, {5}, {}};
  const Failure failure = failure_of([&] { run<TestType>(c, in, CandidateUse::limited, Numeric::exact, 1, &beyond); });
  CHECK(failure.says("index_select: block_counts holds 5"));
}

TEMPLATE_LIST_TEST_CASE("the block of the newest visible entry is kept although its score is the worst",
                        "[index_select]", Backends) {
  const Case c{1, 1, 1, 9, 1, 3, 2, 2, 0};  // five blocks of two, two kept
  const Inputs in{{{1, 1, 1}, 1}, {{1, 1}, 4}, {{10, 1}, {1, 9, 8, 8, 7, 7, 6, 6, -5, -5}}};
  const Outputs publish = run<TestType>(c, in, CandidateUse::publish, Numeric::exact, 1);
  CHECK(publish.blocks == std::vector<std::int32_t>{0, 4});
  CHECK(publish.ids == std::vector<std::int32_t>{1, 2, 3});  // its own choice is unrestricted
  const Outputs limited = run<TestType>(c, in, CandidateUse::limited, Numeric::exact, 1, &publish);
  CHECK(limited.ids == std::vector<std::int32_t>{0, 1, 8});
}

TEMPLATE_LIST_TEST_CASE("the newest block is kept before others that score +infinity", "[index_select]", Backends) {
  const Inputs in{{{1, 1, 1}, 1}, {{1, 1}, 4}, {{10, 1}, {1, 9, 8, HUGE_VALF, 7, HUGE_VALF, 6, 6, -5, -5}}};
  for (const std::int64_t kept : {1, 2, 3, 4}) {
    const Case c{1, 1, 1, 9, 1, 3, 2, kept, 0};  // five blocks of two; 1 and 2 hold an infinity
    const std::vector<std::int32_t> want[] = {{4}, {1, 4}, {1, 2, 4}, {0, 1, 2, 4}};
    const Outputs got = run<TestType>(c, in, CandidateUse::publish, Numeric::exact, 1);
    CHECK(Outputs::row(got.blocks, got.block_counts, 0) == want[kept - 1]);
  }
}

TEMPLATE_LIST_TEST_CASE("fewer candidate entries than topk are all there is", "[index_select]", Backends) {
  const Case c{1, 1, 1, 8, 1, 6, 4, 1, 0};  // nine entries; the newest block holds one of them
  const Inputs in{{{1, 1, 1}, 1}, {{1, 1}, 4}, Array<float, 2>({9, 1}, 1.0f)};
  const Outputs publish = run<TestType>(c, in, CandidateUse::publish, Numeric::exact, 1);
  const Outputs limited = run<TestType>(c, in, CandidateUse::limited, Numeric::exact, 1, &publish);
  CHECK(limited.counts == std::vector<std::int32_t>{1});
  CHECK(limited.ids[0] == 8);
}

TEMPLATE_LIST_TEST_CASE("an entry whose score is NaN is never selected, whether by key, query or weight",
                        "[index_select]", Backends) {
  const Case c{1, 1, 1, 4, 1, 5, 2, 2, 0};
  Inputs in{{{1, 1, 1}, 1}, {{1, 1}, 4}, {{5, 1}, {1, std::nanf(""), 0, 3, std::nanf("")}}};
  check_outputs(c, in, CandidateUse::publish, Numeric::exact,
                run<TestType>(c, in, CandidateUse::publish, Numeric::exact, 1));
  check_outputs(c, in, CandidateUse::publish, Numeric::deployed,
                run<TestType>(c, in, CandidateUse::publish, Numeric::deployed, 1));
  CHECK(run<TestType>(c, in, CandidateUse::none, Numeric::exact, 1).counts == std::vector<std::int32_t>{3});
  in.weights.values[0] = std::nanf("");
  CHECK(run<TestType>(c, in, CandidateUse::none, Numeric::exact, 1).counts == std::vector<std::int32_t>{0});
  in.weights.values[0] = 4, in.q.values[0] = std::nanf("");
  CHECK(run<TestType>(c, in, CandidateUse::none, Numeric::exact, 1).counts == std::vector<std::int32_t>{0});
}

namespace {

/// Queries and the bytes of their keys, format index.
struct PackedCase {
  std::int64_t heads = 1, width = 32, keys = 200;
  Array<float, 3> q;
  std::vector<std::uint8_t> rows;

  PackedCase(std::int64_t h, std::int64_t w) : heads(h), width(w), q({2, h, w}) {
    rows.resize(static_cast<std::size_t>(keys * row_bytes(CacheFormat::index, w)));
  }

  std::uint8_t* row(std::int64_t i) { return rows.data() + i * row_bytes(CacheFormat::index, width); }
  std::uint8_t* scales(std::int64_t i) { return row(i) + width / 2; }

  /// Random codes everywhere; scale(i, b) is the scale of block b of key i.
  template <class Scale>
  void fill(Random& random, const Scale& scale) {
    for (std::uint8_t& byte : rows) byte = static_cast<std::uint8_t>(random.below(256));
    for (std::int64_t i = 0; i < keys; ++i) {
      for (std::int64_t b = 0; b < width / 32; ++b) scales(i)[b] = static_cast<std::uint8_t>(scale(i, b));
    }
  }

  /// Normal numbers as the indexer makes them, each block of a size of its own.
  template <class Size>
  void quantised_queries(Random& random, const Size& size) {
    for (std::size_t i = 0; i < q.values.size(); ++i)
      q.values[i] = random.normal(size(static_cast<std::int64_t>(i) / 32));
    for (std::int64_t r = 0; r < 2 * heads; ++r) {
      const Doubles row = quantised(quantiser_behind(CacheFormat::index), slice(q.values, r * width, width));
      std::copy(row.begin(), row.end(), q.values.begin() + r * width);
    }
  }
};

/// Whether scores and choices are those that the same keys give where they are stored as float32.
template <class B>
bool as_from_floats(PackedCase& c, Numeric numeric, std::uint64_t seed) {
  B backend;
  Memory<B> memory(backend);
  Random random(seed);
  CacheRows packed = memory.put(CacheFormat::index, Array<float, 2>({c.keys, c.width}), {37, 5});
  const std::vector<std::byte*> pages = memory.get(packed.pages);
  const std::int64_t bytes = row_bytes(CacheFormat::index, c.width);
  for (std::int64_t i = 0; i < c.keys; ++i)
    backend.upload(pages[static_cast<std::size_t>(i / 37)] + 5 + i % 37 * bytes, c.row(i),
                   static_cast<std::size_t>(bytes));
  ops::IndexSelect op{.q = memory.put(c.q),
                      .weights = memory.put(random_array<2>(random, {2, c.heads})),
                      .keys = packed,
                      .first_position = c.keys - 2,
                      .weight_scale = 0.3f,
                      .numeric = numeric};
  const auto run = [&](const CacheRows& keys) {
    op.keys = keys;
    op.ids = memory.put(Array<std::int32_t, 2>({2, 20}, -9));
    op.counts = memory.put(Array<std::int32_t, 1>({2}, -9));
    op.scores = memory.put(Array<float, 2>({2, c.keys}, 77.0f));
    op.check();
    backend.run(op);
    return Outputs{memory.get(op.ids), memory.get(op.counts), {}, {}, memory.get(op.scores)};
  };
  const Outputs got = run(packed), want = run(memory.put(CacheFormat::f32, {{c.keys, c.width}, memory.get(packed)}));
  bool same = got.ids == want.ids && got.counts == want.counts;
  for (std::size_t i = 0; i < got.scores.size(); ++i) {
    same = same && (std::isnan(want.scores[i])
                        ? std::isnan(got.scores[i])
                        : std::bit_cast<std::uint32_t>(got.scores[i]) == std::bit_cast<std::uint32_t>(want.scores[i]));
  }
  return same;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("scores of packed keys are those of the unpacked ones, to the bit, at all scales",
                        "[index_select]", Backends) {
  std::uint64_t seed = 1;
  for (const std::int64_t width : {32, 64, 128, 160}) {
    for (const std::int64_t heads : {1, 2, 3, 4, 5, 9, 32}) {
      // Least and largest scale of the keys: usual ones, subnormal ones, those near infinity and NaN, and all.
      for (const auto& [least, most] : {std::pair{120, 130}, {0, 3}, {244, 252}, {250, 255}, {0, 255}, {100, 140}}) {
        for (const Numeric numeric : kNumerics) {
          INFO("width " << width << ", heads " << heads << ", scales " << least << " to " << most << ", seed " << seed);
          Random random(++seed);
          PackedCase c(heads, width);
          c.fill(random, [&, low = least, count = most - least + 1](auto, auto) { return low + random.below(count); });
          const double size = std::ldexp(1.0, static_cast<int>(random.below(240)) - 120);
          c.quantised_queries(random, [&](std::int64_t block) { return block % 7 == 3 ? 0 : size; });
          CHECK(as_from_floats<TestType>(c, numeric, seed));
        }
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("blocks of far apart scales, in keys or queries, lose what a sum of floats loses",
                        "[index_select]", Backends) {
  // The large block's terms cancel, but across lanes of the sum: what a small block adds to one of them survives or not.
  for (int apart = 0; apart <= 80; ++apart) {
    for (const int in_query : {0, apart / 2, apart}) {
      INFO(apart << " binary orders, " << in_query << " of them in the query");
      Random random(static_cast<std::uint64_t>(apart));
      PackedCase c(3, 64);
      c.fill(random, [&](auto, std::int64_t b) { return b == 0 ? 100 + apart - in_query : 100; });
      for (std::int64_t i = 0; i < c.keys; ++i) {
        std::fill_n(c.row(i), 16, std::uint8_t{0});
        c.row(i)[0] = 0xF7;  // 6 and -6
      }
      c.quantised_queries(random, [](auto) { return 1.0; });
      for (std::int64_t r = 0; r < 6; ++r) {
        float* q = c.q.values.data() + r * 64;
        q[1] = q[0] = 0.5f;
        for (int i = 0; i < 32; ++i) q[i] = std::ldexp(q[i], in_query);
      }
      CHECK(as_from_floats<TestType>(c, Numeric::exact, 1));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("queries that are not of format index score packed keys all the same", "[index_select]",
                        Backends) {
  for (const float value : {0.7f, 2.5f, -7.0f, 0x1p-149f, 3e38f, HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    for (const std::size_t at : {0u, 63u, 64u, 500u}) {
      INFO(value << " at " << at);
      Random random(at);
      PackedCase c(4, 64);
      c.fill(random, [&](auto, auto) { return 120 + random.below(9); });
      c.quantised_queries(random, [](auto) { return 1.0; });
      c.q.values[at] = value;
      CHECK(as_from_floats<TestType>(c, Numeric::exact, at));
    }
  }
  Random random(3);
  PackedCase c(4, 64);
  c.fill(random, [&](auto, auto) { return 120 + random.below(9); });
  for (float& x : c.q.values) x = random.normal();
  CHECK(as_from_floats<TestType>(c, Numeric::exact, 1));
}

TEMPLATE_LIST_TEST_CASE("a limited selection needs the pages of the candidate blocks and no others", "[index_select]",
                        Backends) {
  for (const Paging& paging : {Paging{8, 0}, Paging{5, 3}, Paging{1, 0}, Paging{64, 7}}) {
    for (const Numeric numeric : kNumerics) {
      const Case c{3, 4, 32, 700, 1, 20, 8, 6, 77};
      const Inputs in = make(c);
      const Outputs publish = run<TestType>(c, in, CandidateUse::publish, numeric, c.tokens),
                    dense = run<TestType>(c, in, CandidateUse::limited, numeric, c.tokens, &publish);
      std::vector<bool> needed(static_cast<std::size_t>(703 + 3) / static_cast<std::size_t>(paging.page_rows) + 1);
      for (std::int64_t t = 0; t < c.tokens; ++t) {
        for (const std::int32_t b : Outputs::row(publish.blocks, publish.block_counts, t)) {
          for (std::int64_t e = b * c.block; e < std::min((b + 1) * c.block, c.first_position + t + 1); ++e)
            needed[static_cast<std::size_t>(e / paging.page_rows)] = true;
        }
      }
      const Outputs got = run<TestType>(c, in, CandidateUse::limited, numeric, c.tokens, &publish, paging, 0, &needed);
      CHECK(std::count(needed.begin(), needed.end(), false) > 0);
      CHECK(got.ids == dense.ids);
      CHECK(got.counts == dense.counts);
      CHECK(same_bits(got.scores, dense.scores));
    }
  }
}

TEST_CASE("index_select: check() names the field, what it expects and what it got") {
  const ops::IndexSelect good{.q = shaped<const float, 3>({3, 2, 8}),
                              .weights = shaped<const float, 2>({3, 2}),
                              .keys = shaped_cache(10, 8, CacheFormat::index),
                              .ids = shaped<std::int32_t, 2>({3, 4}),
                              .counts = shaped<std::int32_t, 1>({3}),
                              .blocks = shaped<std::int32_t, 2>({3, 2}),
                              .block_counts = shaped<std::int32_t, 1>({3}),
                              .scores = shaped<float, 2>({1, 10}),
                              .block_scores = shaped<float, 2>({1, 4}),
                              .first_position = 5,
                              .block = 2,
                              .candidates = CandidateUse::publish};
  check_refuses(good, "first_position is -1, expected at least 0", [](auto& op) { op.first_position = -1; });
  check_refuses(good, "ratio is 0, expected at least 1", [](auto& op) { op.ratio = 0; });
  check_refuses(good, "weights is [3, 1], expected [3, 2]", [](auto& op) {
    op.weights = shaped<const float, 2>({3, 1});
  });
  check_refuses(good, "keys is [7, 8], expected at least [8, 8]", [](auto& op) { op.keys = shaped_cache(7, 8); });
  check_refuses(good, "keys is [10, 9], expected [10, 8]", [](auto& op) { op.keys = shaped_cache(10, 9); });
  check_refuses(good, "keys is of format window, expected index or f32",
                [](auto& op) { op.keys.format = CacheFormat::window; });
  check_refuses(good, "keys is 4 pages of 2 rows, expected pages for 10 rows",
                [](auto& op) { op.keys.pages = shaped<std::byte* const, 1>({4}), op.keys.page_rows = 2; });
  check_refuses(good, "ids is [2, 4], expected [3, 4]", [](auto& op) { op.ids = shaped<std::int32_t, 2>({2, 4}); });
  check_refuses(good, "counts is [4], expected [3]", [](auto& op) { op.counts = shaped<std::int32_t, 1>({4}); });
  check_refuses(good, "scores is [1, 7], expected at least [1, 8]", [](auto& op) {
    op.scores = shaped<float, 2>({1, 7});
  });
  check_refuses(good, "scores is [0, 10], expected at least [1, 8]", [](auto& op) {
    op.scores = shaped<float, 2>({0, 10});
  });
  check_refuses(good, "block is 0, expected a positive size", [](auto& op) { op.block = 0; });
  check_refuses(good, "blocks is [1, 2], expected [3, 2]", [](auto& op) {
    op.blocks = shaped<std::int32_t, 2>({1, 2});
  });
  check_refuses(good, "block_counts is [1], expected [3]",
                [](auto& op) { op.block_counts = shaped<std::int32_t, 1>({1}); });
  check_refuses(good, "block_scores is [1, 3], expected at least [1, 4]", [](auto& op) {
    op.block_scores = shaped<float, 2>({1, 3});
  });
  check_refuses(good, "block_scores is [2, 4], expected [1, 4]", [](auto& op) {
    op.block_scores = shaped<float, 2>({2, 4});
  });
}
