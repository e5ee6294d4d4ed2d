// SPDX-License-Identifier: MIT
//
// EngramMemory: one layer's n-gram table, read and added to every stream through a gate. Row 1b of docs/token_path.md.
#pragma once

#include "dsv41/core/arena.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

struct EngramScratch {
  Out<std::int64_t, 3> table_rows;  // [engram layers, rows of the step, columns]  from EngramHasher
  Out<float, 2> embedding;          // [rows, columns * engram.dim]
  Out<float, 2> keys_value;         // [rows, (hc + 1) * dim]
  Out<float, 2> gates;              // [rows, hc]

  void layout(Cursor& cursor, const ModelConfig& c, std::int64_t n) {
    const EngramConfig& e = c.engram;
    if (e.layers.empty()) return;
    cursor.take(table_rows, {static_cast<std::int64_t>(e.layers.size()), n, e.columns()});
    cursor.take(embedding, {n, e.columns() * e.dim});
    cursor.take(keys_value, {n, (c.hc + 1) * c.dim});
    cursor.take(gates, {n, c.hc});
  }

  EngramScratch rows(std::int64_t first, std::int64_t n) const {
    if (keys_value.empty()) return {};
    const Out<std::int64_t, 3> part(table_rows.data() + first * table_rows.stride(1),
                                    {table_rows.extent(0), n, table_rows.extent(2)},
                                    {table_rows.stride(0), table_rows.stride(1), 1});
    return {part, embedding.rows(first, n), keys_value.rows(first, n), gates.rows(first, n)};
  }
};

class EngramMemory {
 public:
  EngramMemory(const ModelConfig& config, const EngramWeights& weights, Numeric numeric)
      : weights_(weights), eps_(config.norm_eps), numeric_(numeric) {}

  /// table_rows [rows, columns] of this layer's table; streams [rows, hc, dim] updated (architecture.md 7).
  template <ops::Backend B>
  void forward(B& b, In<std::int64_t, 2> table_rows, In<std::uint8_t, 1> image, const EngramScratch& t,
               Out<float, 3> streams) const noexcept {
    b.run(ops::EngramGather{.table_rows = table_rows, .table = weights_.table, .out = t.embedding});
    b.run(ops::Linear{.x = t.embedding, .w = weights_.wkv, .y = t.keys_value, .numeric = numeric_});
    b.run(ops::EngramGate{.keys_value = t.keys_value,
                          .q_weight = weights_.q_weight,
                          .k_weight = weights_.k_weight,
                          .image = image,
                          .streams = streams,
                          .gates = t.gates,
                          .eps = eps_,
                          .numeric = numeric_});
  }

 private:
  EngramWeights weights_;
  double eps_;
  Numeric numeric_;
};

}  // namespace dsv41
