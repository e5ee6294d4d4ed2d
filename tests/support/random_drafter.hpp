// SPDX-License-Identifier: MIT
//
// A small drafter with random weights in a backend's memory: its stages are the layers of a random model of window layers only.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "drafting.hpp"
#include "dsv41/numerics/rope.hpp"
#include "random_model.hpp"

namespace dsv41::test {

inline ModelConfig tiny_draft_config() {
  ModelConfig c = tiny_config();
  c.draft = {
      .stages = 3, .block = 5, .noise_token = 49, .tap_layers = {2, 3, 5}, .markov_rank = 8, .experts = 5, .topk = 3};
  return c;
}

template <class B>
class RandomDrafter {
 public:
  explicit RandomDrafter(ModelConfig c = tiny_draft_config())
      : config(std::move(c)), stages_(stage_model(config)), memory(stages_.memory), weights(stages_.weights) {
    const DraftConfig& d = config.draft;
    const std::int64_t taps = static_cast<std::int64_t>(d.tap_layers.size()) * config.dim;
    DraftWeights& w = weights.draft;
    w.stages = std::move(weights.layers);
    weights.layers.clear();
    w.main_proj = matrix(Format::fp8_tile, config.dim, taps);
    w.main_norm = memory.put(std::vector<float>(static_cast<std::size_t>(config.dim), 1.25f));
    w.norm = memory.put(std::vector<float>(static_cast<std::size_t>(config.dim), 0.75f));
    w.markov_embed = matrix(Format::bf16, config.vocab, d.markov_rank);
    w.markov_head = matrix(Format::bf16, config.vocab, d.markov_rank);
    w.confidence = matrix(Format::bf16, 1, config.dim + d.markov_rank);
  }

  B& backend() { return stages_.backend; }
  Drafting<B> drafting(Numeric numeric = Numeric::exact, std::int64_t context_rows = 64, std::int64_t block_rows = 24) {
    std::vector<float> frequencies(static_cast<std::size_t>(config.rope_dim / 2));
    numerics::rope_frequencies(config.rope_theta, config.rope_dim, nullptr, frequencies.data());
    return {backend(), config,
            weights,   memory.put(frequencies),
            numeric,   {.context_rows = context_rows, .block_rows = block_rows}};
  }
  Array<float, 2> taps(std::int64_t rows, std::uint64_t seed = 9) {
    Random random(seed);
    return random_array<2>(random, {rows, static_cast<std::int64_t>(config.draft.tap_layers.size()) * config.dim});
  }

  ModelConfig config;

 private:
  static ModelConfig stage_model(ModelConfig c) {
    c.layers = c.draft.stages, c.experts = c.draft.experts;
    c.ratios.assign(static_cast<std::size_t>(c.layers), 0);
    c.kv_sources = {}, c.index_sources = {}, c.candidate_source = -1, c.engram.layers = {};
    return c;
  }
  Matrix matrix(Format format, std::int64_t rows, std::int64_t cols) {
    return memory.put(random_matrix(random_, format, rows, cols, 2 / std::sqrt(static_cast<double>(cols))));
  }

  RandomModel<B> stages_;
  Random random_{77};

 public:
  Memory<B>& memory;
  ModelWeights& weights;
};

}  // namespace dsv41::test
