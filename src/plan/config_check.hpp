// SPDX-License-Identifier: MIT
//
// What a config must satisfy before it is planned with: what loading asks of it. Private to src/plan.
#pragma once

#include <cstddef>
#include <string>

#include "dsv41/core/config_rules.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/numerics/engram_hash.hpp"

namespace dsv41::plan {

/// Errors: format: validate(), and Engram row counts other than the sum of their primes, as modules/engram/hasher.hpp refuses them.
inline void check_config(const ModelConfig& config) {
  validate(config);
  const EngramConfig& e = config.engram;
  if (e.layers.empty()) return;
  const numerics::EngramLayout layout = numerics::engram_layout({.layer_ids = {e.layers.begin(), e.layers.end()},
                                                                 .max_ngram = e.max_ngram,
                                                                 .vocab_size = e.vocab,
                                                                 .heads = e.heads,
                                                                 .compressed_vocab = e.compressed_vocab});
  for (std::size_t i = 0; i < layout.layers.size(); ++i) {
    if (layout.layers[i].rows == e.rows[i]) continue;
    throw Error(Errc::format, "config: engram_num_embeddings of layer " + std::to_string(e.layers[i]) + " is " +
                                  std::to_string(e.rows[i]) + ", expected " + std::to_string(layout.layers[i].rows) +
                                  ": the sum of its primes");
  }
}

}  // namespace dsv41::plan
