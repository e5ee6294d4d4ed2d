// SPDX-License-Identifier: MIT
//
// MtpHead: multi-token prediction as DeepSeek-V3 drafts with it, one token at a time. A lineage mode: V4.1 drafts blocks (DSpark). The
// transformer block between combine and logits is the caller's, built of whatever modules it likes.
#pragma once

#include <cstdint>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

struct MtpScratch {
  Out<float, 2> joined;  // [rows, 2 * dim]  normed embedding, then normed hidden state
  Out<float, 2> normed;  // [rows, dim]      what the head reads

  void layout(Cursor& cursor, std::int64_t dim, std::int64_t rows) {
    cursor.take(joined, {rows, 2 * dim});
    cursor.take(normed, {rows, dim});
  }

  MtpScratch first_rows(std::int64_t n) const { return {joined.rows(0, n), normed.rows(0, n)}; }
};

/// From the model's last hidden state at position p and the token at p + 1 to logits of the token at p + 2. Source: arXiv 2412.19437,
/// section 2.2; the order of the two halves is that of the released eh_proj.
class MtpHead {
 public:
  MtpHead(const ModelConfig& config, const MtpWeights& weights, Numeric numeric)
      : weights_(weights), dim_(config.dim), eps_(config.norm_eps), numeric_(numeric) {}

  /// hidden [rows, dim]: each position's last hidden state; embeddings [rows, dim] of the tokens after them; x [rows, dim] receives the
  /// block's input.
  template <ops::Backend B>
  void combine(B& b, In<float, 2> hidden, In<float, 2> embeddings, const MtpScratch& t,
               Out<float, 2> x) const noexcept {
    norm(b, embeddings, weights_.embedding_norm, t.joined.columns(0, dim_));
    norm(b, hidden, weights_.hidden_norm, t.joined.columns(dim_, dim_));
    b.run(ops::Linear{.x = t.joined, .w = weights_.proj, .y = x, .numeric = numeric_});
  }

  /// x [rows, dim]: the block's output; logits [rows, vocab], float32 in both classes.
  template <ops::Backend B>
  void logits(B& b, In<float, 2> x, const MtpScratch& t, Out<float, 2> logits) const noexcept {
    norm(b, x, weights_.norm, t.normed);
    b.run(ops::Linear{
        .x = t.normed, .w = weights_.head, .y = logits, .role = ops::LinearRole::float32, .numeric = numeric_});
  }

 private:
  template <ops::Backend B>
  void norm(B& b, In<float, 2> x, In<float, 1> weight, Out<float, 2> y) const noexcept {
    b.run(ops::RmsNorm{.x = x, .weight = weight, .y = y, .eps = eps_, .numeric = numeric_});
  }

  MtpWeights weights_;
  std::int64_t dim_;
  double eps_;
  Numeric numeric_;
};

}  // namespace dsv41
