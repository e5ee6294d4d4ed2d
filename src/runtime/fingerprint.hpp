// SPDX-License-Identifier: MIT
//
// What tells one model from another: a digest over what its results follow from. Private to src/runtime.
//
// The digested bytes: a text of this format; the config's values; each tensor of the inventory in its order, and behind a weight its
// scale. A number is 8 bytes, little-endian (a float its float64 bits), a text or list is its length and then its elements, a tensor that
// is not there a 0, one that is there a 1, then the inventory's name of it, dtype and shape, and its first and last kSampleBytes bytes.
#pragma once

#include <cstdint>
#include <span>

#include "dsv41/core/config.hpp"
#include "dsv41/runtime/checkpoint.hpp"
#include "shard_set.hpp"

namespace dsv41::runtime {

/// Bytes looked at from either end of a tensor, or all of a shorter one. Training changes nearly every weight, so few are enough; a model
/// whose tensors differ only between them would pass for the same one.
inline constexpr std::size_t kSampleBytes = 64;

/// Of config and tensors. Names are the inventory's, so an older spelling in the files changes nothing.
Fingerprint model_fingerprint(const ShardSet& shards, const ModelConfig& config);

/// Of a model that hashes tokens through this map: the same ids mean other table rows under another.
Fingerprint with_token_map(const Fingerprint& model, std::span<const std::int32_t> map);

}  // namespace dsv41::runtime
