// SPDX-License-Identifier: MIT
//
// Selection among 1,048,576 entries: nothing is allocated for a query, and the choice and its ties are those of a full order. In this
// folder because its program counts allocations.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "dsv41/numerics/topk.hpp"
#include "model/counted_new.hpp"
#include "support/memory.hpp"

using namespace dsv41;
using namespace dsv41::test;

namespace {

constexpr std::int64_t kEntries = 1 << 20, kTopk = 512, kBlock = 8, kKept = 64;

/// Ascending ids of the best k among `ids`: larger score first, then the lower id, NaN never.
std::vector<std::int32_t> best(const std::vector<float>& scores, std::vector<std::int32_t> ids, std::int64_t k) {
  const auto score = [&](std::int32_t id) { return scores[static_cast<std::size_t>(id)]; };
  std::erase_if(ids, [&](std::int32_t id) { return std::isnan(score(id)); });
  const auto kept = std::min(static_cast<std::size_t>(k), ids.size());
  std::nth_element(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(),
                   [&](std::int32_t a, std::int32_t b) { return score(a) != score(b) ? score(a) > score(b) : a < b; });
  ids.resize(kept);
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<std::int32_t> all_ids() {
  std::vector<std::int32_t> ids(kEntries);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace

TEST_CASE("among a million entries a query selects without an allocation, ties to the lower index, NaN never") {
  Random random(5);
  RefBackend backend;
  Memory memory(backend);
  // Keys repeat a few hundred rows, so every score comes thousands of times; one of these rows is NaN.
  const Array<float, 2> rows = random_array<2>(random, {kEntries / 4096, 32});
  const CacheRows few = memory.put(CacheFormat::index, rows);
  std::vector<std::uint8_t> pool = memory.bytes(few);
  const std::size_t bytes = static_cast<std::size_t>(row_bytes(CacheFormat::index, 32));
  pool[7 * bytes + bytes - 1] = 255;
  CacheRows keys = memory.put(CacheFormat::index, Array<float, 2>({kEntries, 32}), {1000, 0});
  const std::vector<std::byte*> pages = memory.get(keys.pages);
  std::vector<std::size_t> chosen(kEntries);
  for (std::size_t e = 0; e < chosen.size(); ++e) {
    chosen[e] = static_cast<std::size_t>(random.below(rows.extents[0]));
    backend.upload(pages[e / 1000] + e % 1000 * bytes, &pool[chosen[e] * bytes], bytes);
  }
  const Array<float, 3> q = {{1, 4, 32}, cached(CacheFormat::index, random_array<2>(random, {4, 32})).values};
  ops::IndexSelect op{.q = memory.put(q),
                      .weights = memory.put(random_array<2>(random, {1, 4})),
                      .keys = keys,
                      .ids = memory.put(Array<std::int32_t, 2>({1, kTopk})),
                      .counts = memory.put(Array<std::int32_t, 1>({1})),
                      .blocks = memory.put(Array<std::int32_t, 2>({1, kKept})),
                      .block_counts = memory.put(Array<std::int32_t, 1>({1})),
                      .scores = memory.put(Array<float, 2>({1, kEntries}, 77.0f)),
                      .block_scores = memory.put(Array<float, 2>({1, kEntries / kBlock})),
                      .first_position = kEntries - 1,
                      .block = kBlock,
                      .candidates = ops::CandidateUse::publish};
  op.check();
  ModelConfig config;
  config.index_heads = 4, config.index_dim = 32;
  backend.prepare(config, 1);
  const auto run = [&] {
    const std::size_t before = allocations();
    backend.run(op);
    CHECK(allocations() == before);
    backend.sync();
  };

  run();
  const std::vector<float> scores = memory.get(op.scores);
  std::size_t wrong = 0;
  std::vector<float> of_row(static_cast<std::size_t>(rows.extents[0]),
                            77.0f);  // equal keys score alike, wherever they lie
  for (std::size_t e = 0; e < chosen.size(); ++e) {
    float& first = of_row[chosen[e]];
    first = first == 77.0f ? scores[e] : first;
    wrong += chosen[e] == 7 ? !std::isnan(scores[e]) : scores[e] != first;
  }
  CHECK(wrong == 0);
  CHECK(std::count_if(scores.begin(), scores.end(), [](float s) { return std::isnan(s); }) > 1000);
  CHECK(memory.get(op.ids) == best(scores, all_ids(), kTopk));

  // Blocks: the newest, and the best of the others by their largest entry.
  std::vector<float> tops(kEntries / kBlock, -HUGE_VALF);
  for (std::size_t e = 0; e < scores.size(); ++e) tops[e / kBlock] = std::fmax(tops[e / kBlock], scores[e]);
  std::vector<std::int32_t> others = all_ids();
  others.resize(tops.size() - 1);
  std::vector<std::int32_t> want = best(tops, others, kKept - 1);
  want.push_back(static_cast<std::int32_t>(tops.size() - 1));
  CHECK(memory.get(op.blocks) == want);

  std::vector<std::int32_t> inside;
  for (const std::int32_t b : want) {
    for (std::int32_t e = 0; e < kBlock; ++e) inside.push_back(b * static_cast<std::int32_t>(kBlock) + e);
  }
  op.candidates = ops::CandidateUse::limited;
  op.scores = memory.put(Array<float, 2>({1, kEntries}, 77.0f));
  run();
  std::vector<std::int32_t> ids = memory.get(op.ids);
  ids.resize(static_cast<std::size_t>(memory.get(op.counts)[0]));
  CHECK(ids == best(scores, inside, kTopk));
  const std::vector<float> touched = memory.get(op.scores);
  CHECK(std::count(touched.begin(), touched.end(), 77.0f) == kEntries - kKept * kBlock);
}

TEST_CASE("among a million scores -0 equals +0, the lower index wins a tie, and NaN and -infinity never do") {
  Random random(6);
  const float values[] = {0.0f, -0.0f, std::nanf(""), -HUGE_VALF, -1.0f};
  std::vector<float> scores(kEntries);
  for (float& s : scores) s = values[random.below(5)];
  for (int i = 0; i < 200; ++i) scores[static_cast<std::size_t>(random.below(kEntries))] = random.normal();
  std::vector<std::int32_t> ids(kTopk);
  const auto score = [&](std::int32_t id) { return scores[static_cast<std::size_t>(id)]; };
  numerics::BestK kept(ids.data(), kTopk, score);
  const std::size_t before = allocations();
  for (std::int32_t e = kEntries - 1; e >= 0; --e) kept.offer(e);  // the worst order for ties
  CHECK(allocations() == before);
  CHECK(kept.count() == kTopk);
  std::sort(ids.begin(), ids.end());
  CHECK(ids == best(scores, all_ids(), kTopk));
}
