// SPDX-License-Identifier: MIT
//
// What tests of prefill and replay run on: random encoder/decoder splits, and a backend in which reading too much shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dsv41/backend/checked.hpp"
#include "random_model.hpp"

namespace dsv41::test {

/// Where candidate blocks are published, as seen from the boundary.
enum class Publish : std::uint8_t { nowhere, below, at, above };

/// A config with its last kv source anywhere: up to three sources of ratios 1 to 3, window layers between them, reindex layers, candidates
/// published below, at or above the boundary, Engram in either half, 1 to 4 streams, windows of 1 to 9.
inline ModelConfig random_config(std::uint64_t seed) {
  Random random(seed);
  const auto below = [&](std::int64_t n) { return static_cast<std::int32_t>(random.below(n)); };
  ModelConfig c = tiny_config();
  c.dim = 32, c.heads = 2, c.experts = 4, c.layers = 4 + below(4), c.hc = 1 + below(4), c.window = 1 + below(9);
  c.index_topk = 2 + below(4), c.candidate_blocks = 1 + below(3), c.shared_experts = below(2);
  c.kv_sources.clear(), c.index_sources.clear(), c.ratios.assign(static_cast<std::size_t>(c.layers), 0);
  const Publish publish = static_cast<Publish>(seed % 4);
  const std::int32_t first = publish == Publish::below, last = c.layers - (publish == Publish::above ? 2 : 1),
                     boundary = first + below(seed % 3 == 0 ? last - first + 1 : 2);
  std::int32_t ratio = 0;
  for (std::int32_t l = 0; l < c.layers; ++l) {
    const bool forced = publish == Publish::below && l == 0, again = publish == Publish::above && l == boundary + 1;
    const bool owns = forced || l == boundary || (l < boundary && c.kv_sources.size() < 2 && below(2) == 0);
    if (owns) {
      c.kv_sources.push_back(l), c.index_sources.push_back(l);
      if (ratio == 0 || publish != Publish::below) ratio = 1 + below(3);  // behind a publisher: its ratio
    }
    if (!owns && !again && below(4) == 0) continue;  // a window layer
    c.ratios[static_cast<std::size_t>(l)] = ratio;
    if (ratio > 0 && !owns && (again || below(3) == 0)) c.index_sources.push_back(l);
  }
  c.candidate_source = publish == Publish::nowhere ? -1
                       : publish == Publish::below ? 0
                                                   : boundary + (publish == Publish::above);
  const std::int32_t table = below(c.layers - 1);
  c.engram.layers = {table, table + 1 + below(c.layers - 1 - table)};
  return c;
}

/// Memory is NaN until somebody writes it, and every op keeps its contract.
template <class B>
class Poisoned : public Checked<B> {
 public:
  void* allocate(std::size_t bytes) {
    void* data = Checked<B>::allocate(bytes);
    const std::vector<std::uint8_t> ones(bytes, 0xFF);
    this->upload(data, ones.data(), bytes);
    return data;
  }
};

}  // namespace dsv41::test
