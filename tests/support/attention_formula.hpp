// SPDX-License-Identifier: MIT
//
// Attention of one head in doubles, as the tests of ops::SparseAttention and ops::BlockAttention state it: a plain softmax with a sink,
// summed in blocks of 64 slots because class deployed rounds there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "dsv41/core/numeric.hpp"
#include "formulas.hpp"

namespace dsv41::test {

/// Rows that a query sees, each with its slot, ascending.
using SlotRows = std::vector<std::pair<std::int64_t, Doubles>>;

/// One head's output. Every 64 slots share a running maximum; in class exact that changes nothing.
inline Doubles head_output(const SlotRows& rows, const Doubles& q, double sink, Numeric numeric) {
  const bool deployed = numeric == Numeric::deployed;
  Doubles out(q.size());
  double top = -1e30, total = 0;
  for (std::size_t i = 0; i < rows.size();) {
    const std::int64_t block = rows[i].first / 64;
    std::size_t end = i;
    Doubles logits;
    for (; end < rows.size() && rows[end].first / 64 == block; ++end) {
      double dot = 0;
      for (std::size_t c = 0; c < q.size(); ++c) dot += q[c] * rows[end].second[c];
      logits.push_back(dot / std::sqrt(static_cast<double>(q.size())));
    }
    const double next = std::max(top, *std::max_element(logits.begin(), logits.end())), shrink = std::exp(top - next);
    total *= shrink;
    for (double& x : out) x *= shrink;
    for (std::size_t k = 0; i < end; ++i, ++k) {
      const double p = std::exp(logits[k] - next);
      total += p;
      for (std::size_t c = 0; c < q.size(); ++c) out[c] += (deployed ? to_bf16(p) : p) * rows[i].second[c];
    }
    top = next;
  }
  for (double& x : out) x = as_activation(numeric, x / (total + std::exp(sink - top)));
  return out;
}

}  // namespace dsv41::test
