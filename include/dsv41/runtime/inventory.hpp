// SPDX-License-Identifier: MIT
//
// The one list of tensors that a checkpoint consists of: binding it, checking it, accounting for its sizes and rebuilding the
// released headers all walk it. Source: checkpoint.md 2.2.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/modules/weights.hpp"

namespace dsv41::runtime {

/// How the released checkpoint stores a tensor. What a file at hand stores is read from the file.
enum class Stored : std::uint8_t {
  f32,
  bf16,
  fp8,  ///< F8_E4M3 and one scale per 32x32 tile
  fp4,  ///< I8 (two codes per byte) and one scale per row and 32 columns; rows of other lengths than multiples of 32 as bf16
  table,  ///< F8_E4M3 and one scale per row and 32 columns
};

/// What a tensor works in.
enum class Part : std::uint8_t {
  embed,          ///< token embeddings; the three image vectors that stand in for some
  attention,      ///< projections, norms, sinks
  compressor,     ///< of a kv source, with its index keys
  indexer,        ///< of an index source
  seams,          ///< mHC coefficients, with the norm behind each seam
  router,         ///< gate and its biases
  experts,        ///< routed experts
  shared,         ///< shared experts
  engram_table,   ///< rows chosen by n-grams
  engram,         ///< Engram projection and gate weights
  head,           ///< last norm and output head
  draft,          ///< DSpark stages and heads, less their routed experts
  draft_experts,  ///< routed experts of the DSpark stages
  vision,         ///< tower and aligner
};

/// One tensor of a checkpoint. Where its view belongs is `matrix` or `vector`; both are null in a list made without
/// weights, and for what the text model does not read (vision).
struct TensorSpec {
  std::string name;   ///< in the checkpoint, with its ".weight" where it has one
  std::string alias;  ///< an older spelling that is accepted too; empty: none
  Stored stored = Stored::bf16;
  Part part = Part::embed;
  std::int32_t layer = -1;  ///< backbone layer, or draft stage where `part` says so; -1: outside of both
  bool is_vector = false;
  bool required = true;
  std::int64_t rows = 0;  ///< logical; a vector's length
  std::int64_t cols = 1;  ///< logical: twice the stored bytes of an FP4 row; 1 for a vector
  Matrix* matrix = nullptr;
  In<float, 1>* vector = nullptr;
};

/// Name of the scale beside a weight: "x.weight" -> "x.scale".
std::string scale_name(std::string_view weight);

/// Short name of a part, for reports.
std::string_view part_name(Part part) noexcept;

/// Tensors of a valid config, layer by layer. With `into`, sizes its lists (layers, experts, stages) and points each
/// spec at its slot; the pointers live until those lists change.
///
/// Errors:  none for a config that validate() accepts; others are not looked through here.
/// Cost:    proportional to the number of tensors (about 48,000 in the release, scales not counted).
std::vector<TensorSpec> inventory(const ModelConfig& config, ModelWeights* into = nullptr);

}  // namespace dsv41::runtime
