// SPDX-License-Identifier: MIT
//
// Reference of ops::EngramHash.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv41/ops/engram_hash.hpp"

namespace dsv41::ref {

inline void run(const ops::EngramHash& op) {
  constexpr int kLast = kMaxNgram - 1;
  std::int32_t recent[kMaxNgram];  // compressed ids of the history and, last, the current token, oldest first
  std::fill_n(recent, kLast, numerics::kEngramDead);
  const std::int64_t past = op.history.extent(0);
  for (std::int64_t i = 0; i < past; ++i)
    recent[kLast - past + i] = op.history[i] < 0 ? numerics::kEngramDead : op.token_map[op.history[i]];
  for (std::int64_t t = 0; t < op.ids.extent(0); ++t) {
    recent[kLast] = op.image[t] != 0 ? numerics::kEngramDead : op.token_map[op.ids[t]];
    std::int64_t look[kMaxNgram];
    numerics::engram_look_back(recent, kMaxNgram, op.pad, kMaxNgram, look);
    for (std::size_t l = 0; l < op.layers.size(); ++l) {
      numerics::engram_rows(op.layers[l], look, op.table_rows.row(static_cast<std::int64_t>(l)).row(t).data());
    }
    std::copy(recent + 1, recent + kMaxNgram, recent);
  }
}

}  // namespace dsv41::ref
