// SPDX-License-Identifier: MIT
//
// How many experts of a layer, and how many rows of a table, a step reads: the weights it moves grow with these numbers, not with its
// tokens.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "dsv41/core/error.hpp"

namespace dsv41::plan {

namespace detail {

/// Expected number of distinct ones of `count` things of which each of `batch` tokens takes `taken`, n (1 - (1 - k/n)^B).
inline double expected_distinct(std::int64_t count, std::int64_t taken, std::int64_t batch) {
  if (batch == 0) return 0;
  const double share =
      static_cast<double>(taken) / static_cast<double>(count);  // of 1e9 rows too: 1 - share would round it
  return static_cast<double>(count) * -std::expm1(static_cast<double>(batch) * std::log1p(-share));
}

}  // namespace detail

/// Expected number of distinct experts of one layer that `batch` tokens visit, E (1 - (1 - k/E)^B).
///
/// Rules:  exact for tokens that choose independently and every topk-subset alike; real routers are skewed and touch fewer. float64.
/// Errors: invalid_argument unless 1 <= topk <= experts and batch >= 0.
/// Source: architecture.md 5.
inline double expected_experts_touched(std::int64_t experts, std::int64_t topk, std::int64_t batch) {
  if (topk < 1 || topk > experts || batch < 0) {
    throw Error(Errc::invalid_argument,
                "expected_experts_touched: expected 1 <= topk <= experts and batch >= 0, got topk " +
                    std::to_string(topk) + ", experts " + std::to_string(experts) + ", batch " + std::to_string(batch));
  }
  return detail::expected_distinct(experts, topk, batch);
}

/// Expected number of distinct rows that `batch` tokens read of a table of equally long columns, one row of each column a token:
/// columns times n (1 - (1 - 1/n)^B), n = rows / columns. Embeddings are one column.
///
/// Rules:  exact for tokens that choose independently and every row of a column alike; real texts repeat themselves and touch fewer.
///         An Engram module's columns have a prime number of rows each, which differ little. float64.
/// Errors: invalid_argument unless 1 <= columns <= rows and batch >= 0.
inline double expected_rows_touched(std::int64_t rows, std::int64_t columns, std::int64_t batch) {
  if (columns < 1 || columns > rows || batch < 0) {
    throw Error(Errc::invalid_argument,
                "expected_rows_touched: expected 1 <= columns <= rows and batch >= 0, got columns " +
                    std::to_string(columns) + ", rows " + std::to_string(rows) + ", batch " + std::to_string(batch));
  }
  return detail::expected_distinct(rows, columns, batch);
}

}  // namespace dsv41::plan
