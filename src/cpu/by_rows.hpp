// SPDX-License-Identifier: MIT
//
// Ops whose rows do not know of each other and whose cost is small beside the products': the reference's formula, rows split over workers.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "cpu/context.hpp"
#include "dsv41/ops/op.hpp"
#include "dsv41/ref/hash_route.hpp"
#include "dsv41/ref/rope.hpp"
#include "dsv41/ref/topk_route.hpp"

namespace dsv41::cpu {

/// Rows [first, first + n) of an op.
inline ops::Rope part(ops::Rope op, std::int64_t first, std::int64_t n) {
  op.x = op.x.rows(first, n);
  op.positions = op.positions.rows(first, n);
  return op;
}
inline ops::TopkRoute part(ops::TopkRoute op, std::int64_t first, std::int64_t n) {
  op.logits = op.logits.rows(first, n);
  op.image = op.image.rows(first, n);
  op.ids = op.ids.rows(first, n);
  op.weights = op.weights.rows(first, n);
  return op;
}
inline ops::HashRoute part(ops::HashRoute op, std::int64_t first, std::int64_t n) {
  op.logits = op.logits.rows(first, n);
  op.token_ids = op.token_ids.rows(first, n);
  op.ids = op.ids.rows(first, n);
  op.weights = op.weights.rows(first, n);
  return op;
}

inline std::int64_t rows_of(const ops::Rope& op) {
  return op.x.extent(0);
}
inline std::int64_t rows_of(const ops::TopkRoute& op) {
  return op.logits.extent(0);
}
inline std::int64_t rows_of(const ops::HashRoute& op) {
  return op.logits.extent(0);
}

/// Values that a row works on: what decides how many rows make a piece.
inline std::int64_t row_work(const ops::Rope& op) {
  return op.x.extent(1) * op.x.extent(2) + 16 * op.frequencies.extent(0);
}
inline std::int64_t row_work(const ops::TopkRoute& op) {
  return 16 * op.logits.extent(1);
}
inline std::int64_t row_work(const ops::HashRoute& op) {
  return 16 * op.logits.extent(1);
}

template <class Op>
concept ByRows = requires(const Op& op) {
  { part(op, 0, 0) } -> std::same_as<Op>;
};

template <ByRows Op>
std::size_t workspace_floats(const Op& op, const Context& context) {
  if constexpr (requires { ref::workspace_floats(op); }) {
    return ref::workspace_floats(op) * static_cast<std::size_t>(context.workers.count());
  } else {
    return 0;
  }
}

template <ByRows Op>
void run(const Op& op, const Context& context, float* workspace) {
  context.each_part(rows_of(op), piece_rows(row_work(op)),
                    [&](std::int64_t first, std::int64_t end, std::int64_t worker) {
                      const Op rows = part(op, first, end - first);
                      if constexpr (requires { ref::workspace_floats(op); }) {
                        ref::run(rows, workspace + worker * static_cast<std::int64_t>(ref::workspace_floats(op)));
                      } else {
                        ref::run(rows);
                      }
                    });
}

}  // namespace dsv41::cpu
