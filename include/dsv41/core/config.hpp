// SPDX-License-Identifier: MIT
//
// The model's dimensions and schedule, as plain data. Every mechanism follows this struct; no layer number is written in code.
// validate() (config_rules.hpp) refuses what architecture.md section 1 forbids; runtime/config_file.hpp reads config.json.
// Names are those of docs/glossary.md; each comment gives the key of the released config.json and its value there.
#pragma once

#include <cstdint>
#include <vector>

namespace dsv41 {

/// Bounds that fixed-size working arrays are built on; validate() refuses configs beyond them, ops::TopkRoute more groups.
inline constexpr std::int64_t kMaxStreams = 8;
inline constexpr std::int32_t kMaxNgram = 8;
inline constexpr std::int64_t kMaxGroups = 64;

/// Router score functions (architecture.md 5).
enum class ScoreFunction : std::uint8_t { sqrt_softplus, sigmoid, softmax };

/// What a seam does to the residual streams. Released: mhc; the others are its lineage (architecture.md 2), for programs that build their
/// own stack of modules; config.json has no key for it.
enum class Residual : std::uint8_t {
  mhc,  ///< manifold-constrained (arXiv 2512.24880), single pass: an input collapses with the previous seam's pre
  mhc_multi_pass,  ///< the same coefficients, but an input collapses with its own seam's pre
  unconstrained,   ///< hyper-connections (arXiv 2409.19606): comb without softmax and Sinkhorn; single pass
  plain,           ///< one stream, h += y
};

/// YaRN stretching of the rotary frequencies of layers with a compression ratio (architecture.md 3).
struct YarnConfig {
  double factor = 1;                    // rope_scaling.factor [16]
  double beta_fast = 32;                // rope_scaling.beta_fast [32]
  double beta_slow = 1;                 // rope_scaling.beta_slow [1]
  std::int64_t original_positions = 0;  // rope_scaling.original_max_position_embeddings [65536]; 0 = no YaRN

  bool operator==(const YarnConfig&) const = default;
};

/// Hashed n-gram tables (architecture.md 7). No layers: the model has none.
struct EngramConfig {
  std::vector<std::int32_t> layers;   // engram_layer_ids [1, 14]
  std::vector<std::int64_t> rows;     // engram_num_embeddings [384006168, 384016682], one per layer
  std::int32_t max_ngram = 0;         // engram_max_ngram_size [4]
  std::int64_t vocab = 0;             // engram_vocab_size [16000000]: the primes are searched upward from here
  std::int32_t heads = 0;             // engram_n_heads [8]
  std::int64_t dim = 0;               // engram_head_dim [256]
  std::int32_t pad = 0;               // engram_pad_token_id / engram_pad_id [2]: a token id, compressed before use
  std::int64_t compressed_vocab = 0;  // engram_compressed_vocab_size [99092]

  std::int64_t columns() const { return static_cast<std::int64_t>(max_ngram - 1) * heads; }  ///< rows read per token
  std::int64_t look_back() const { return layers.empty() ? 0 : max_ngram - 1; }  ///< older tokens that a token needs

  bool operator==(const EngramConfig&) const = default;
};

/// DSpark draft stages (dspark.md 1). No stages: the checkpoint carries no drafter.
struct DraftConfig {
  std::int32_t stages = 0;               // num_nextn_predict_layers [3]
  std::int32_t block = 0;                // dspark_block_size [5]
  std::int32_t noise_token = 0;          // dspark_noise_token_id [128799]
  std::vector<std::int32_t> tap_layers;  // dspark_target_layer_ids [37, 38, 39]
  std::int64_t markov_rank = 0;          // dspark_markov_rank [256]
  std::int64_t experts = 0;              // dspark_n_routed_experts [128]
  std::int64_t topk = 0;                 // dspark_num_experts_per_tok [3]

  bool operator==(const DraftConfig&) const = default;
};

/// What the shapes of the vision tower and its aligner follow from (checkpoint.md 2.2, 6). The text model does not read it; the list of
/// tensors does. No layers: the checkpoint has no tower, or its config.json does not say all of this.
struct VisionConfig {
  std::int64_t layers = 0;      // vision_config.num_hidden_layers [32]
  std::int64_t dim = 0;         // vision_config.hidden_size [1024]
  std::int64_t ff = 0;          // vision_config.intermediate_size [2816]
  std::int64_t patch = 0;       // vision_config.patch_size [14]
  std::int64_t downsample = 0;  // vision_config.downsample_ratio [3]

  bool operator==(const VisionConfig&) const = default;
};

struct ModelConfig {
  std::int64_t vocab = 0;                  // vocab_size [129280]
  std::int64_t dim = 0;                    // hidden_size [5120]
  std::int32_t layers = 0;                 // num_hidden_layers [40]
  std::int64_t max_positions = 0;          // max_position_embeddings [1048576]
  double norm_eps = 0;                     // rms_norm_eps [1e-20]
  std::int32_t bos = 0, eos = 1, pad = 2;  // bos_token_id [0], eos_token_id [1], pad_token_id [2]
  std::int32_t image_token = -1;           // image_token_id [129264]; -1 when the model has no vision

  // Attention (section 3)
  std::int64_t heads = 0;     // num_attention_heads [64]
  std::int64_t head_dim = 0;  // head_dim [512]
  std::int64_t rope_dim = 0;  // qk_rope_head_dim [64]
  std::int64_t q_rank = 0;    // q_lora_rank [1280]
  std::int64_t o_rank = 0;    // o_lora_rank [1024]
  std::int64_t o_groups = 0;  // o_groups [8]
  std::int64_t window = 0;    // sliding_window [128]
  double rope_theta = 0;      // rope_theta [10000]: layers with ratio 0
  double compress_theta = 0;  // compress_rope_theta [160000]: every other layer
  YarnConfig yarn;

  // Schedule (section 1)
  std::vector<std::int32_t> ratios;  // compress_ratios [2 times 0, 18 times 2, 20 times 1], the first `layers` entries
  std::vector<std::int32_t> kv_sources;     // kv_source_layer_ids [2, 8, 14, 20]
  std::vector<std::int32_t> index_sources;  // index_source_layer_ids [2, 8, 14, 20, 24, 28, 32, 36]
  std::int32_t candidate_source = -1;       // candidate_source_layer_id [20]; -1 = off

  // Indexer (section 4)
  std::int64_t index_heads = 0;       // index_n_heads [32]
  std::int64_t index_dim = 0;         // index_head_dim [128]
  std::int64_t index_topk = 0;        // index_topk [512]
  std::int64_t candidate_blocks = 0;  // candidate_topk_blocks [2048]
  std::int64_t candidate_block = 0;   // candidate_block_size [8]

  // Experts (section 5)
  std::int64_t ff = 0;              // moe_intermediate_size [2304]
  std::int64_t experts = 0;         // n_routed_experts [384]
  std::int64_t shared_experts = 0;  // n_shared_experts [1]; stored as one expert of shared_experts * ff
  std::int64_t topk = 0;            // num_experts_per_tok [6]
  ScoreFunction score = ScoreFunction::sqrt_softplus;  // scoring_func [sqrtsoftplus]
  bool norm_topk = true;                               // norm_topk_prob [true]
  double route_scale = 1;                              // routed_scaling_factor [1.5]
  double gate_temp = 1;                                // gate_temp, absent in the release
  double swiglu_limit = 0;                             // swiglu_limit [10]; 0 = no clamp

  // Residual streams (section 2)
  std::int64_t hc = 1;        // hc_mult [4]
  std::int32_t hc_iters = 0;  // hc_sinkhorn_iters [20]
  double hc_eps = 0;          // hc_eps [1e-6]

  EngramConfig engram;
  DraftConfig draft;
  VisionConfig vision;

  /// Rows of a seam's projection: pre, post and comb logits.
  std::int64_t mix_rows() const { return (2 + hc) * hc; }

  bool operator==(const ModelConfig&) const = default;
};

}  // namespace dsv41
