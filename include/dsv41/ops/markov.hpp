// SPDX-License-Identifier: MIT
//
// Op: the sequential part of a draft: what the token before a position does to its logits, and how sure the draft is.
#pragma once

#include <string_view>

#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// logits = base + head e and z = confidence . [hidden ; e], where e is the embed row of each row's token: the one before the position
/// that the logits are for.
///
/// Shapes:  tokens [rows] i32 below vocab; embed, head [vocab, rank]; base, logits [rows, vocab] f32; hidden [rows, dim] f32, not
///          normed; confidence [1, dim + rank] and z [rows] f32, both empty or neither.
/// Layout:  unit inner stride; rows of base and hidden may lie apart, as those of one position of several blocks do. logits may be base.
/// Rules:   float32 in both classes: each sum is wide and rounded once, head e is then added in float32. A negative token is none: e = 0,
///          so that a request without a draft can stay in its batch. A token behind the table is an error at sync().
/// Match:   norm<1e-6>.
/// Cost:    reads the head once a call.
/// Source:  dspark.md 4.
struct Markov {
  static constexpr std::string_view name = "markov";
  In<std::int32_t, 1> tokens;
  Matrix embed;
  Matrix head;
  Matrix confidence;
  In<float, 2> base;
  In<float, 2> hidden;
  Out<float, 2> logits;
  Out<float, 1> z;

  void check() const {
    const std::int64_t rows = tokens.extent(0), vocab = head.rows, rank = embed.cols;
    expect_unit_stride(name, "tokens", tokens);
    expect(name, "head", head, embed.rows, rank);
    expect(name, "base", base, {rows, vocab});
    expect(name, "logits", logits, {rows, vocab});
    expect(name, "z", z, {confidence.empty() ? 0 : rows});
    if (confidence.empty()) return;
    expect(name, "hidden", hidden, {rows, hidden.extent(1)});
    expect(name, "confidence", confidence, 1, hidden.extent(1) + rank);
  }
};

}  // namespace dsv41::ops
