// SPDX-License-Identifier: MIT
//
// The indexer's scores of entries for one query. Which scores win is in topk.hpp. Source: architecture.md 4 and 9.
#pragma once

#include <cstdint>

#include "dsv41/numerics/elementary.hpp"

namespace dsv41::numerics {

/// A head's weight: weight * weight_scale, rounded to bfloat16 in class deployed.
DSV41_HD inline float index_weight(Numeric numeric, float weight, float weight_scale) {
  return activation(numeric, weight * weight_scale);
}

/// A head's part of the score: relu(product) * w, product = q . key in float32, w its index_weight. Deployed: the product and the term are
/// rounded to bfloat16. NaN stays NaN, which is never selected.
DSV41_HD inline float index_term(Numeric numeric, float product, float w) {
  return activation(numeric, relu(activation(numeric, product)) * w);
}

/// Adds one head's terms to `count` scores. The class is a constant in the loop: g++ vectorises no other form of it.
template <Numeric kNumeric>
DSV41_HD inline void add_index_terms(const float* products, std::int64_t count, float w, float* scores) {
  for (std::int64_t i = 0; i < count; ++i) scores[i] += index_term(kNumeric, products[i], w);
}

/// Scores of `count` keys: the sum of the terms in ascending head, float32, rounded as the class says at the end only. Head h's product
/// with key i is products[h * stride + i], a `dot` rounded to float32 (reduce.hpp); weights [heads].
DSV41_HD inline void index_scores(Numeric numeric, const float* products, std::int64_t heads, std::int64_t stride,
                                  std::int64_t count, const float* weights, float weight_scale, float* scores) {
  for (std::int64_t i = 0; i < count; ++i) scores[i] = 0.0f;
  for (std::int64_t h = 0; h < heads; ++h) {
    const float w = index_weight(numeric, weights[h], weight_scale);
    if (numeric == Numeric::deployed) {
      add_index_terms<Numeric::deployed>(products + h * stride, count, w, scores);
    } else {
      add_index_terms<Numeric::exact>(products + h * stride, count, w, scores);
    }
  }
  for (std::int64_t i = 0; i < count; ++i) scores[i] = activation(numeric, scores[i]);
}

}  // namespace dsv41::numerics
