// SPDX-License-Identifier: MIT
//
// Compressor of a kv source: pools groups of tokens into entries and their index keys. Row 4b of docs/token_path.md.
#pragma once

#include <span>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/modules/sequence.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

struct CompressorScratch {
  Out<float, 2> kv;      // [rows, head_dim]   projections
  Out<float, 2> gate;    // [rows, head_dim]
  Out<float, 2> latent;  // [rows, head_dim]   of the groups that the step completes, in segment order
  Out<float, 2> key;     // [rows, index_dim]  likewise

  void layout(Cursor& cursor, const ModelConfig& c, std::int64_t rows) {
    cursor.take(kv, {rows, c.head_dim});
    cursor.take(gate, {rows, c.head_dim});
    cursor.take(latent, {rows, c.head_dim});
    cursor.take(key, {rows, c.index_dim});
  }

  CompressorScratch rows(std::int64_t first, std::int64_t n) const {
    return {kv.rows(first, n), gate.rows(first, n), latent.rows(first, n), key.rows(first, n)};
  }
};

class Compressor {
 public:
  Compressor(const ModelConfig& config, const CompressorWeights& weights, std::int32_t ratio, In<float, 1> frequencies,
             Numeric numeric)
      : weights_(weights), frequencies_(frequencies), ratio_(ratio), eps_(config.norm_eps), numeric_(numeric) {}

  /// x [rows, dim] -> entries and index keys of the groups completed by these rows, in each sequence's cache of `source`.
  /// A group stands at the position of its first token; the tokens of an open group wait in the cache (architecture.md 3).
  template <ops::Backend B>
  void forward(B& b, In<float, 2> x, std::span<const Segment> segments, std::size_t source,
               const CompressorScratch& t) const noexcept {
    const bool pools = ratio_ > 1;  // ratio 1 is an ordinary linear; pooling is float32 in both classes
    const ops::LinearRole role = pools ? ops::LinearRole::float32 : ops::LinearRole::hidden;
    b.run(ops::Linear{.x = x, .w = weights_.wkv, .y = pools ? t.kv : t.latent, .role = role, .numeric = numeric_});
    if (pools) b.run(ops::Linear{.x = x, .w = weights_.wgate, .y = t.gate, .role = role, .numeric = numeric_});
    std::int64_t completed = 0;  // groups, packed in segment order; at ratio 1 every row is one
    for (const Segment& s : segments) {
      const std::int64_t groups = groups_of(s);
      if (pools) {
        const SourceCache& cache = s.state->sources[source];
        b.run(ops::Compress{.kv = t.kv.rows(s.first_row, s.rows),
                            .gate = t.gate.rows(s.first_row, s.rows),
                            .carry_kv = cache.carry_kv,
                            .carry_gate = cache.carry_gate,
                            .latent = t.latent.rows(completed, groups),
                            .first_position = s.first_position,
                            .ratio = ratio_,
                            .numeric = numeric_});
      }
      completed += groups;
    }
    const Out<float, 2> latent = t.latent.rows(0, completed), key = t.key.rows(0, completed);
    b.run(ops::RmsNorm{.x = latent, .weight = weights_.norm, .y = latent, .eps = eps_, .numeric = numeric_});
    b.run(ops::Linear{.x = latent, .w = weights_.wk, .y = key, .numeric = numeric_});  // from the unrotated latent
    b.run(ops::RmsNorm{.x = key, .weight = weights_.k_norm, .y = key, .eps = eps_, .numeric = numeric_});
    completed = 0;
    for (const Segment& s : segments) {
      const SourceCache& cache = s.state->sources[source];
      const std::int64_t groups = groups_of(s), first = s.first_position / ratio_;
      append(b, latent.rows(completed, groups), first, cache.entries);
      append(b, key.rows(completed, groups), first, cache.index_keys);
      completed += groups;
    }
  }

 private:
  /// Groups that the segment's rows complete.
  std::int64_t groups_of(const Segment& s) const {
    return (s.first_position + s.rows) / ratio_ - s.first_position / ratio_;
  }

  template <ops::Backend B>
  void append(B& b, Out<float, 2> rows, std::int64_t first, const CacheRows& cache) const noexcept {
    b.run(ops::CacheAppend{.rows = rows,
                           .frequencies = frequencies_,
                           .cache = cache,
                           .first_position = first * ratio_,
                           .position_stride = ratio_,
                           .first_slot = first,
                           .numeric = numeric_});
  }

  CompressorWeights weights_;
  In<float, 1> frequencies_;
  std::int64_t ratio_;
  double eps_;
  Numeric numeric_;
};

}  // namespace dsv41
