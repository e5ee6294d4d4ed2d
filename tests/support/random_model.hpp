// SPDX-License-Identifier: MIT
//
// A small model with random weights in a backend's memory, and sequences that step through it in any batches. Every mechanism is in it:
// window layers, two kv sources (ratios 2 and 1), a source that reads again, candidates, Engram, shared and routed experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dsv41/model/model.hpp"
#include "dsv41/model/state.hpp"
#include "memory.hpp"

namespace dsv41::test {

inline ModelConfig tiny_config() {
  ModelConfig c;
  c.vocab = 50, c.dim = 48, c.layers = 6, c.max_positions = 1 << 20, c.norm_eps = 1e-20;
  c.heads = 4, c.head_dim = 32, c.rope_dim = 8, c.q_rank = 32, c.o_rank = 16, c.o_groups = 2, c.window = 8;
  c.rope_theta = 10000, c.compress_theta = 160000;
  c.yarn = {.factor = 16, .beta_fast = 32, .beta_slow = 1, .original_positions = 65536};
  c.ratios = {0, 2, 2, 1, 1, 1}, c.kv_sources = {1, 3}, c.index_sources = {1, 3, 5}, c.candidate_source = 3;
  c.index_heads = 2, c.index_dim = 32, c.index_topk = 4, c.candidate_blocks = 3, c.candidate_block = 2;
  c.ff = 32, c.experts = 6, c.shared_experts = 1, c.topk = 2, c.route_scale = 1.5, c.swiglu_limit = 10;
  c.hc = 4, c.hc_iters = 20, c.hc_eps = 1e-6;
  c.engram = {.layers = {0, 2},
              .rows = {},
              .max_ngram = 3,
              .vocab = 11,
              .heads = 2,
              .dim = 32,
              .pad = 2,
              .compressed_vocab = 40};
  return c;
}

template <class B>
class RandomModel {
 public:
  explicit RandomModel(ModelConfig c = tiny_config(), std::uint64_t seed = 1)
      : config(std::move(c)), memory(backend), random_(seed) {
    add_engram_rows();
    weights.embed = matrix(Format::bf16, config.vocab, config.dim, 1);
    weights.head = matrix(Format::bf16, config.vocab, config.dim);
    weights.norm = norm(config.dim);
    for (std::int32_t l = 0; l < config.layers; ++l) weights.layers.push_back(layer(l));
    std::vector<std::int32_t> map;
    for (std::int64_t i = 0; i < config.vocab; ++i)
      map.push_back(static_cast<std::int32_t>(i % config.engram.compressed_vocab));
    token_map = map;
  }

  Model<B> model(Numeric numeric) { return Model<B>(backend, config, weights, token_map, numeric); }

  B backend;
  ModelConfig config;
  Memory<B> memory;
  ModelWeights weights;
  std::vector<std::int32_t> token_map;
  std::map<const SequenceState*, std::vector<std::int32_t>> fed;  ///< each sequence's tokens, for the steps' histories

 private:
  Matrix matrix(Format format, std::int64_t rows, std::int64_t cols, double size = 0) {
    return memory.put(
        random_matrix(random_, format, rows, cols, size > 0 ? size : 1 / std::sqrt(static_cast<double>(cols))), 1);
  }
  Out<float, 1> vector(std::int64_t count, double size) { return memory.put(random_.normals(count, size)); }
  Out<float, 1> norm(std::int64_t count) {
    std::vector<float> w = random_.normals(count, 0.1);
    for (float& x : w) x += 1;
    return memory.put(w);
  }

  void add_engram_rows() {
    EngramConfig& e = config.engram;
    const auto layout = numerics::engram_layout({.layer_ids = {e.layers.begin(), e.layers.end()},
                                                 .max_ngram = e.max_ngram,
                                                 .vocab_size = e.vocab,
                                                 .heads = e.heads,
                                                 .compressed_vocab = e.compressed_vocab});
    e.rows.clear();
    for (const auto& l : layout.layers) e.rows.push_back(l.rows);
  }

  ExpertWeights expert(Format format, std::int64_t ff) {
    return {.w1 = matrix(format, ff, config.dim),
            .w2 = matrix(format, config.dim, ff),
            .w3 = matrix(format, ff, config.dim)};
  }

  SeamWeights seam() {
    return {.fn = matrix(Format::f32, config.mix_rows(), config.hc * config.dim),
            .base = vector(config.mix_rows(), 0.5),
            .scale = vector(3, 0.5),
            .norm = norm(config.dim)};
  }

  LayerWeights layer(std::int32_t l) {
    const ModelConfig& c = config;
    const Schedule schedule = make_schedule(c);
    const LayerPlan& plan = schedule.layers[static_cast<std::size_t>(l)];
    LayerWeights w;
    if (plan.engram >= 0) {
      w.engram = {
          .table = matrix(Format::fp8_row, c.engram.rows[static_cast<std::size_t>(plan.engram)], c.engram.dim, 1),
          .wkv = matrix(Format::fp8_tile, (c.hc + 1) * c.dim, c.engram.columns() * c.engram.dim),
          .q_weight = matrix(Format::bf16, c.hc, c.dim, 1),
          .k_weight = matrix(Format::bf16, c.hc, c.dim, 1)};
    }
    w.attn_seam = seam(), w.ffn_seam = seam();
    w.attn = attention(plan);
    w.moe = {.gate = matrix(Format::bf16, c.experts, c.dim),
             .bias = vector(c.experts, 0.1),
             .bias_vl = vector(c.experts, 0.1),
             .experts = {},
             .shared = {}};
    for (std::int64_t e = 0; e < c.experts; ++e) w.moe.experts.push_back(expert(Format::fp4_row, c.ff));
    if (c.shared_experts > 0) w.moe.shared = expert(Format::fp8_tile, c.shared_experts * c.ff);
    return w;
  }

  AttentionWeights attention(const LayerPlan& plan) {
    const ModelConfig& c = config;
    AttentionWeights w{.wq_a = matrix(Format::fp8_tile, c.q_rank, c.dim),
                       .q_norm = norm(c.q_rank),
                       .wq_b = matrix(Format::fp8_tile, c.heads * c.head_dim, c.q_rank),
                       .wkv = matrix(Format::fp8_tile, c.head_dim, c.dim),
                       .kv_norm = norm(c.head_dim),
                       .sink = vector(c.heads, 1),
                       .wo_a = matrix(Format::fp8_tile, c.o_groups * c.o_rank, c.heads * c.head_dim / c.o_groups),
                       .wo_b = matrix(Format::fp8_tile, c.dim, c.o_groups * c.o_rank),
                       .compressor = {},
                       .indexer = {}};
    if (plan.kind == LayerKind::full) {
      w.compressor = {.wkv = matrix(Format::bf16, c.head_dim, c.dim),
                      .wgate = plan.ratio > 1 ? matrix(Format::bf16, c.head_dim, c.dim, 0.5) : Matrix{},
                      .norm = norm(c.head_dim),
                      .wk = matrix(Format::bf16, c.index_dim, c.head_dim),
                      .k_norm = norm(c.index_dim)};
    }
    if (plan.kind == LayerKind::full || plan.kind == LayerKind::reindex) {
      w.indexer = {.wq_b = matrix(Format::fp8_tile, c.index_heads * c.index_dim, c.q_rank),
                   .weights_proj = matrix(Format::bf16, c.index_heads, c.dim)};
    }
    return w;
  }

  Random random_;
};

/// Tokens that continue one sequence in a step.
template <class B>
struct Piece {
  State<B>* state = nullptr;
  std::vector<std::int32_t> ids;
};

/// A model ready to step: scratch for `limits`, and the caller's rows packed into batches.
template <class B>
class Stepper {
 public:
  Stepper(RandomModel<B>& random, const Limits& limits, Numeric numeric)
      : random_(&random),
        limits_(limits),
        pool_(std::make_unique<CachePool<B>>(random.backend, random.config, kRoom)),
        model_(random.model(numeric)),
        scratch_(random.backend, random.config, limits) {
    random.backend.prepare(random.config, limits.max_rows);
  }

  /// An empty sequence, with all its memory there. The stepper must outlive it.
  State<B> open() {
    State<B> state(*pool_, limits_.max_context);
    state.reserve(limits_.max_context);
    return state;
  }
  CachePool<B>& pool() { return *pool_; }
  const Scratch<B>& scratch() const { return scratch_; }
  const Model<B>& model() const { return model_; }

  /// Runs the pieces as one batch; returns the logits [rows, vocab] of all of them, in order, and moves their positions. With a plan
  /// (of one piece): of the rows that every layer ran.
  std::vector<float> step(const std::vector<Piece<B>>& pieces, std::span<const LayerRows> plan = {}) {
    B& b = random_->backend;
    Memory<B> memory(b);
    const std::int64_t look_back = random_->config.engram.look_back();
    std::vector<std::int32_t> ids;
    std::vector<std::int64_t> positions;
    Array<std::int32_t, 2> history({std::ssize(pieces), look_back});
    std::vector<Segment> segments;
    for (const Piece<B>& p : pieces) {
      p.state->reserve(std::ssize(p.ids));
      SequenceState& s = p.state->sequence();
      segments.push_back({.state = &s,
                          .first_row = static_cast<std::int64_t>(ids.size()),
                          .rows = static_cast<std::int64_t>(p.ids.size()),
                          .first_position = s.position});
      for (std::size_t i = 0; i < p.ids.size(); ++i) positions.push_back(s.position + static_cast<std::int64_t>(i));
      ids.insert(ids.end(), p.ids.begin(), p.ids.end());
      std::vector<std::int32_t>& fed = random_->fed[&s];
      fed.resize(static_cast<std::size_t>(s.position));  // it may have gone back, or have an older one's place
      numerics::engram_history(fed.data(), s.position, look_back,
                               history.values.data() + (std::ssize(segments) - 1) * look_back);
      fed.insert(fed.end(), p.ids.begin(), p.ids.end());
    }
    const auto rows = static_cast<std::int64_t>(ids.size());
    const ScratchViews views = scratch_.views().first_rows(rows);
    const Batch batch{.ids = memory.put(ids),
                      .image = memory.put(std::vector<std::uint8_t>(ids.size())),
                      .image_rows = {},
                      .positions = memory.put(positions),
                      .history = memory.put(history),
                      .segments = segments};
    model_.step(b, batch, views, plan);
    const std::int64_t first = plan.empty() ? 0 : plan.back().queries;
    const auto logits = memory.put(Array<float, 2>({rows - first, random_->config.vocab}));
    model_.logits(b, views, first, rows - first, logits);
    for (const Piece<B>& p : pieces) p.state->advance(std::ssize(p.ids));
    return memory.get(logits);
  }

 private:
  static constexpr std::int64_t kRoom = 3;  // so that a ring takes its rows in small pieces

  RandomModel<B>* random_;
  Limits limits_;
  std::unique_ptr<CachePool<B>> pool_;
  Model<B> model_;
  Scratch<B> scratch_;
};

inline std::vector<std::int32_t> random_tokens(std::uint64_t seed, std::size_t count, std::int64_t vocab) {
  Random random(seed);
  std::vector<std::int32_t> out(count);
  for (std::int32_t& id : out) id = static_cast<std::int32_t>(random.below(vocab));
  return out;
}

inline std::vector<std::int32_t> part(const std::vector<std::int32_t>& ids, std::size_t first, std::size_t count) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(first), ids.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

/// Everything that a sequence remembers: caches as far as they are filled, carries.
template <class B>
std::vector<float> remembered(Memory<B>& memory, const ModelConfig& c, State<B>& state) {
  std::vector<float> out;
  SequenceState& s = state.sequence();
  const auto add = [&](const auto&... rows) {
    const std::vector<float> v = memory.get(rows...);
    out.insert(out.end(), v.begin(), v.end());
  };
  for (const CacheRows& ring : s.rings) {
    for (std::int64_t p = std::max<std::int64_t>(0, s.position - c.window + 1); p < s.position; ++p)
      add(ring, p % ring.rows, std::int64_t{1});
  }
  for (std::size_t i = 0; i < s.sources.size(); ++i) {
    const std::int64_t ratio = c.ratios[static_cast<std::size_t>(c.kv_sources[i])], entries = s.position / ratio;
    add(s.sources[i].entries, std::int64_t{0}, entries);
    add(s.sources[i].index_keys, std::int64_t{0}, entries);
    if (ratio == 1) continue;
    const std::int64_t open = s.position % ratio, slot = (s.position - open) % s.sources[i].carry_kv.extent(0);
    add(s.sources[i].carry_kv.rows(slot, open));
    add(s.sources[i].carry_gate.rows(slot, open));
  }
  return out;
}

}  // namespace dsv41::test
