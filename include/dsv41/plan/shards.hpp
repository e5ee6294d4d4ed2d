// SPDX-License-Identifier: MIT
//
// The released files of a model, from its config alone: which tensors, in which order, at which offsets, and the exact bytes of every
// safetensors header. What a download must look like can be checked without the download. Source: checkpoint.md 2.1 to 2.3.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/runtime/safetensors.hpp"

namespace dsv41::plan {

/// One tensor of a file; a quantised weight and its scale are two.
struct ShardTensor {
  std::string name;
  runtime::DType dtype = runtime::DType::unknown;
  std::vector<std::int64_t> shape;  ///< as stored: an FP4 row has half as many bytes as columns
  std::uint64_t begin = 0;          ///< first byte, counted from the first byte of the payload
  std::uint64_t end = 0;            ///< one past the last
};

/// One file: eight bytes of header length, header, payload.
struct Shard {
  std::string file;                  ///< model-NNNNN-of-MMMMM.safetensors
  std::vector<ShardTensor> tensors;  ///< in order of their offsets
  std::string header;                ///< JSON padded to a multiple of 8; without the eight bytes before it
  std::string header_sha256;         ///< of `header`, as published; lower-case hexadecimal
  std::uint64_t payload_bytes = 0;

  std::uint64_t file_bytes() const { return 8 + header.size() + payload_bytes; }
};

/// All files of a config, in order.
///
/// Rules:  one file each for vision tower and aligner, for embeddings, for every backbone layer less its Engram, for norm and head, for
///         every draft stage, for every Engram module; parts that the config does not have get no file. Inside a file: F32, BF16,
///         F8_E8M0, F8_E4M3, I8, each by byte-wise name; an Engram module: table, q_weight, k_weight, wkv, each scale behind its weight.
///         Every tensor is there, those that a checkpoint may lack too (gate.bias_vl, confidence head).
/// Errors: what validate() throws; format for Engram row counts that are not the sum of their primes; invalid_argument when a header is
///         beyond the format's limit of 100 MB (some 160,000 experts in a layer).
/// Cost:   proportional to the number of tensors: 96,085 in the release, 10.7 MB of headers.
/// Source: checkpoint.md 2.1. The release's 48 headers have the published SHA-256.
std::vector<Shard> released_shards(const ModelConfig& config);

}  // namespace dsv41::plan
