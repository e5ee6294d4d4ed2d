// SPDX-License-Identifier: MIT
//
// How many experts of a layer a step reads: the weights it moves grow with this number, not with its rows.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "dsv41/core/error.hpp"

namespace dsv41::plan {

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
  const double missed = 1.0 - static_cast<double>(topk) / static_cast<double>(experts);  // by one token, for one expert
  return static_cast<double>(experts) * (1.0 - std::pow(missed, static_cast<double>(batch)));
}

}  // namespace dsv41::plan
