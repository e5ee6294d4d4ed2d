// SPDX-License-Identifier: MIT
//
// Tensors of the files -> views of the modules. Private to src/runtime.
#pragma once

#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/modules/weights.hpp"
#include "shard_set.hpp"

namespace dsv41::runtime {

/// Fills `weights` with views: matrices of the files' bytes, vectors of `arena` (as float32). Every shape, dtype and
/// scale is checked against the config first. The code points of the matrices themselves (half a terabyte) are not
/// read: an E4M3 NaN among them is not found here.
///
/// Errors: format, with file, tensor, what was expected and what was found.
void bind_weights(const ShardSet& shards, const ModelConfig& config, ModelWeights& weights, std::vector<float>& arena);

}  // namespace dsv41::runtime
