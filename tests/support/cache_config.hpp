// SPDX-License-Identifier: MIT
//
// As much of a config as the layout of caches depends on.
#pragma once

#include <cstdint>
#include <vector>

#include "dsv41/core/config.hpp"

namespace dsv41::test {

/// One layer of window attention below a source of each of these ratios; rows of 32 channels.
inline ModelConfig cache_config(std::int64_t window, const std::vector<std::int32_t>& ratios) {
  ModelConfig c;
  c.head_dim = 32, c.index_dim = 32, c.window = window;
  c.ratios = {0};
  for (const std::int32_t ratio : ratios) {
    c.kv_sources.push_back(static_cast<std::int32_t>(c.ratios.size()));
    c.ratios.push_back(ratio);
  }
  c.layers = static_cast<std::int32_t>(c.ratios.size());
  return c;
}

}  // namespace dsv41::test
