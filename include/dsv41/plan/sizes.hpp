// SPDX-License-Identifier: MIT
//
// What a config costs, before anything is loaded: parameters, bytes of weights and caches, bytes that a step moves, and what of it fits
// where. Arithmetic on the inventory and the schedule; every figure follows any valid config. In comments, [x] is the release's value.
// Source: architecture.md 10; serving.md 1.2, 2.2 and 4.2.
#pragma once

#include <cstdint>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/runtime/inventory.hpp"

namespace dsv41::plan {

/// Weights of one part, in their released form.
struct PartSize {
  runtime::Part part = runtime::Part::embed;
  std::int64_t tensors = 0;               ///< scales are tensors of their own
  std::int64_t params = 0;                ///< values that the model computes with; scales are none
  std::int64_t bytes = 0;                 ///< scales included
  std::vector<std::int64_t> layer_bytes;  ///< the same bytes, layer by layer (one entry for a part outside of layers)
};

/// Backbone figures unless a comment says otherwise. Params as in PartSize.
struct ModelSizes {
  std::vector<PartSize> parts;  ///< those that the config has, in the order of runtime::Part

  std::int64_t expert_params = 0;             ///< one routed expert, 3 dim ff [35,389,440]
  std::int64_t expert_bytes = 0;              ///< [18,800,640]
  std::int64_t routed_params = 0;             ///< layers * experts of them [543.6 B]
  std::int64_t shared_params = 0;             ///< shared experts of all layers [1.4 B]
  std::int64_t engram_params = 0;             ///< table rows * engram.dim, all modules [196.6 B]
  std::int64_t engram_bytes = 0;              ///< those tables, values and scales [188.8 GiB]
  std::int64_t engram_projection_params = 0;  ///< wkv of one module, (hc + 1) dim * columns * engram.dim [157 M]
  std::int64_t other_params = 0;              ///< neither routed, shared nor Engram: drafter and vision too
  std::int64_t total_params = 0;              ///< everything in the files, drafter and vision too [763,205,315,794]
  std::int64_t total_bytes = 0;               ///< payload of all files [510,286,023,000]

  /// What one decoded token computes with: every layer with topk of its experts, Engram projections, norm and head; of embeddings and
  /// tables the rows that it reads. Not the drafter. [16.1 B, published as 16 B]
  std::int64_t active_decode_params = 0;
  /// What one prompt token computes with where prefill skips (serving.md 1.2): the layers before the last kv source, and of that layer
  /// Engram, norm and compressor, which leave its entry. Neither its window row, which the last rows alone need, nor the head. Without
  /// kv sources: all layers. [7.9 B, published as 8 B]
  std::int64_t active_prefill_params = 0;

  std::int64_t entry_bytes = 0;         ///< one compressed entry: FP4, one E4M3 scale per 16 [288]
  std::int64_t index_key_bytes = 0;     ///< FP4, one E8M0 scale per 32 [68]
  std::int64_t window_row_bytes = 0;    ///< E4M3, one E8M0 scale per 32 [528]
  double kv_bytes_per_token = 0;        ///< sum over kv sources of (entry + index key) / ratio: 3/2 + 1 times 356 [890]
  std::int64_t window_bytes = 0;        ///< rings of one sequence: layers * window rows [2,703,360]
  std::int64_t draft_window_bytes = 0;  ///< those of the drafter's stages [202,752]
  std::int64_t carry_bytes =
      0;  ///< open groups of one sequence: ratio - 1 float32 rows of kv and gate a source [12,288]

  std::int64_t seams = 0;  ///< two a layer [80]
  std::int64_t seam_elements =
      0;  ///< moved by one token at one seam, (2 hc + 2) dim: streams in and out, output in, input out [51,200]
  std::int64_t engram_bytes_per_token =
      0;  ///< table rows that a token reads, values and scales, all modules [48 * 264 = 12,672]
};

/// Errors: what validate() throws; format for Engram row counts that are not the sum of their primes, as loading refuses them; unsupported
///         when a sum exceeds 2^63 - 1.
/// Cost:   one walk over the inventory, and engram_layout().
ModelSizes model_sizes(const ModelConfig& config);

// In what follows `sizes` are those of `config`.

/// Entries and index keys of one sequence of `context` tokens: whole groups only.
///
/// Errors: what validate() throws; invalid_argument for a negative context; unsupported beyond 2^63 - 1.
std::int64_t kv_bytes(const ModelConfig& config, const ModelSizes& sizes, std::int64_t context);

/// Weight bytes that one step of `batch` tokens of different sequences reads from one part, on average and at most all that the part has:
/// all of it; of experts those that expected_experts_touched() counts; of embeddings and tables the rows that expected_rows_touched()
/// counts, so every row is taken for equally likely. 0 for drafter and vision, which a step does not run.
///
/// Errors: invalid_argument for a negative batch.
double part_step_bytes(const ModelConfig& config, const ModelSizes& sizes, const PartSize& part, std::int64_t batch);

struct StepCost {
  std::int64_t batch = 0;
  double experts = 0;       ///< expected distinct experts of a layer [243.8 of 384 at batch 64]
  double expert_bytes = 0;  ///< of all layers
  double bytes = 0;         ///< of all parts; activations and caches are not in it [13.0 GB at batch 1]
};

/// Errors: invalid_argument for a negative batch.
StepCost step_cost(const ModelConfig& config, const ModelSizes& sizes, std::int64_t batch);

}  // namespace dsv41::plan
