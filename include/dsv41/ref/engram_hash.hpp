// SPDX-License-Identifier: MIT
//
// Reference of ops::EngramHash.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv41/ops/engram_hash.hpp"

namespace dsv41::ref {

inline void run(const ops::EngramHash& op) {
  const std::int64_t past = op.history.extent(0);
  std::int32_t recent[kMaxNgram];  // the history and the current token, oldest first
  std::copy_n(op.history.data(), past, recent);
  for (std::int64_t t = 0; t < op.ids.extent(0); ++t) {
    recent[past] = op.image[t] != 0 ? numerics::kEngramDead : op.token_map[op.ids[t]];
    std::int64_t look[kMaxNgram];
    numerics::engram_look_back(recent, past + 1, op.pad, static_cast<int>(past) + 1, look);
    for (std::size_t l = 0; l < op.layers.size(); ++l) {
      numerics::engram_rows(op.layers[l], look, op.table_rows.row(static_cast<std::int64_t>(l)).row(t).data());
    }
    std::copy(recent + 1, recent + past + 1, recent);
  }
  std::copy_n(recent, past, op.history.data());
}

}  // namespace dsv41::ref
