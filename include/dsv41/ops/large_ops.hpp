// SPDX-License-Identifier: MIT
//
// The ops of a model that need the most workspace: what a backend's prepare() makes room for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/ops/block_attention.hpp"
#include "dsv41/ops/index_select.hpp"
#include "dsv41/ops/linear.hpp"
#include "dsv41/ops/markov.hpp"
#include "dsv41/ops/mhc.hpp"
#include "dsv41/ops/rope.hpp"
#include "dsv41/ops/sparse_attention.hpp"
#include "dsv41/ops/swiglu_experts.hpp"

namespace dsv41::ops {

/// Calls visit(op) for ops without data, shaped so that any op of a step of `rows` rows needs no more workspace than one of them.
template <class Visit>
void for_each_large_op(const ModelConfig& c, std::int64_t rows, const Visit& visit) {
  // Inputs of linears: E4M3 or FP4 weights, for their inputs may be quantised and reordered.
  const std::int64_t widest =
      std::max({c.dim, c.q_rank, c.head_dim, c.o_groups * c.o_rank, c.engram.columns() * c.engram.dim,
                static_cast<std::int64_t>(c.draft.tap_layers.size()) * c.dim});
  visit(Linear{
      .x = {nullptr, {rows, widest}}, .w = {.format = Format::fp4_row, .cols = widest}, .numeric = Numeric::deployed});
  const std::int64_t group = c.heads * c.head_dim / std::max<std::int64_t>(c.o_groups, 1);
  visit(Linear{.x = {nullptr, {rows, c.heads * c.head_dim}},
               .w = {.format = Format::fp4_row, .cols = group},
               .groups = c.o_groups,
               .role = LinearRole::plain_input});
  const std::int64_t ff = std::max<std::int64_t>(c.shared_experts, 1) * c.ff;  // no routed expert is wider
  const auto expert = [&](std::int64_t width) {
    return ExpertWeights{.w1 = {.format = Format::fp4_row, .rows = width, .cols = c.dim},
                         .w2 = {.format = Format::fp4_row, .rows = c.dim, .cols = width},
                         .w3 = {.format = Format::fp4_row, .rows = width, .cols = c.dim}};
  };
  const std::vector<ExpertWeights> experts(static_cast<std::size_t>(c.experts), expert(c.ff));
  visit(SwigluExperts{.x = {nullptr, {rows, c.dim}},
                      .ids = {nullptr, {rows, c.topk}},
                      .experts = experts,
                      .shared = expert(ff),
                      .numeric = Numeric::deployed});
  visit(MhcSeam{.y = {nullptr, {rows, c.dim}},
                .streams = {nullptr, {rows, c.hc, c.dim}},
                .fn = {.rows = c.mix_rows(), .cols = c.hc * c.dim},
                .mix = {nullptr, {rows, c.mix_rows()}},
                .input = {nullptr, {rows, c.dim}}});
  visit(Rope{.x = {nullptr, {rows, c.heads, c.head_dim}}, .frequencies = {nullptr, {c.rope_dim / 2}}});
  visit(SparseAttention{.q = {nullptr, {rows, c.heads, c.head_dim}},
                        .ids = {nullptr, {rows, c.index_topk}},
                        .counts = {nullptr, {rows}},
                        .window = c.window});
  visit(IndexSelect{.q = {nullptr, {rows, c.index_heads, c.index_dim}},
                    .keys = {.format = CacheFormat::index, .width = c.index_dim}});
  visit(BlockAttention{.q = {nullptr, {rows, c.heads, c.head_dim}}, .first_position = c.window, .window = c.window});
  visit(Markov{.tokens = {nullptr, {rows}},
               .embed = {.cols = c.draft.markov_rank},
               .confidence = {.cols = c.dim + c.draft.markov_rank}});
}

}  // namespace dsv41::ops
