// SPDX-License-Identifier: MIT
//
// The indexer's score of one entry for one query. Which scores win is in topk.hpp. Source: architecture.md 4 and 9.
#pragma once

#include <cstdint>

#include "dsv41/numerics/elementary.hpp"
#include "dsv41/numerics/reduce.hpp"

namespace dsv41::numerics {

/// A head's part of the score: weight * weight_scale * relu(product), product = q . key in float32. Deployed: the product, the scaled
/// weight and the term are rounded to bfloat16. NaN stays NaN, which is never selected.
DSV41_HD inline float index_term(Numeric numeric, float product, float weight, float weight_scale) {
  const float w = activation(numeric, weight * weight_scale);
  return activation(numeric, relu(activation(numeric, product)) * w);
}

/// Sum of the terms in ascending head, float32, rounded as the class says at the end only. Head h of the query starts at
/// q + h * head_stride; weights [heads].
DSV41_HD inline float index_score(Numeric numeric, const float* q, std::int64_t heads, std::int64_t head_stride,
                                  const float* key, std::int64_t width, const float* weights, float weight_scale) {
  float score = 0.0f;
  for (std::int64_t h = 0; h < heads; ++h) {
    const float product = static_cast<float>(dot(q + h * head_stride, key, width));
    score += index_term(numeric, product, weights[h], weight_scale);
  }
  return activation(numeric, score);
}

}  // namespace dsv41::numerics
