// SPDX-License-Identifier: MIT
//
// What a ModelConfig must satisfy before anything is sized or scheduled from it. Messages name the key of config.json
// (composite spelling: text_config inside) and the value found. Source: architecture.md 1. The exact Engram row counts (sums of primes) are
// checked by the hasher.
#pragma once

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dsv41/core/config.hpp"
#include "dsv41/core/error.hpp"

namespace dsv41 {

namespace config_rules {

// Bounds that keep the byte count of every tensor inside 63 bits. The largest are wq_b, heads * head_dim * q_rank <=
// 2^60 elements, and a table, rows * dim <= 2^60.
inline constexpr std::int64_t kMaxDim = 1 << 20;
inline constexpr std::int64_t kMaxVocab = (std::int64_t{1} << 31) - 1;  // token ids are int32
inline constexpr std::int64_t kMaxTableRows = std::int64_t{1} << 40;
inline constexpr std::int64_t kMaxLayers = 1024;
inline constexpr std::int64_t kMaxExpertsInAll = 1 << 18;  // over all layers; the release has 15,360
inline constexpr std::int64_t kMaxTableHeads = 1024;       // what engram_layout() takes; the release has 8
inline constexpr std::int64_t kMaxTableInput = 1 << 20;    // columns of engram.wkv

inline constexpr double kMinNormEpsilon = 1e-60;  // the release has 1e-20

[[noreturn]] inline void refuse(const std::string& key, const std::string& found, const std::string& expected) {
  throw Error(Errc::format, "config: " + key + " is " + found + ", expected " + expected);
}

inline std::string text(double value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

template <class T>
std::string text(const std::vector<T>& list) {
  std::string s = "[";
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (i == 64) return s + ", ...]";
    s += (i ? ", " : "") + std::to_string(list[i]);
  }
  return s + "]";
}

inline void range(const char* key, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) {
    refuse(key, std::to_string(value), std::to_string(low) + " to " + std::to_string(high));
  }
}

inline void dimension(const char* key, std::int64_t value) {
  range(key, value, 1, kMaxDim);
}

inline void token(const char* key, std::int64_t id, const ModelConfig& c) {
  range(key, id, 0, c.vocab - 1);
}

/// Steps compute in float32, so a number must be one there too.
inline void positive(const char* key, double value) {
  const float narrow = static_cast<float>(value);
  if (!std::isfinite(narrow) || narrow <= 0) refuse(key, text(value), "a number above 0 that float32 can hold");
}

/// A zero row divides by the root of this in float32: far below 1e-60 the root or its inverse leaves float32, and the row
/// becomes NaN.
inline void norm_epsilon(const char* key, double value) {
  if (!(value >= kMinNormEpsilon && value <= 1)) {
    refuse(key, text(value), "a number from " + text(kMinNormEpsilon) + " (less turns rows of zeros into NaN) to 1");
  }
}

inline void not_negative(const char* key, double value) {
  const float narrow = static_cast<float>(value);
  if (!std::isfinite(narrow) || value < 0 || (value > 0 && narrow == 0)) {
    refuse(key, text(value), "0, or a number above it that float32 can hold");
  }
}

inline bool contains(const std::vector<std::int32_t>& list, std::int32_t layer) {
  for (std::int32_t x : list) {
    if (x == layer) return true;
  }
  return false;
}

/// Layer numbers: strictly ascending, all of them existing layers.
inline void layer_list(const char* key, const std::vector<std::int32_t>& list, const ModelConfig& c) {
  std::int32_t last = -1;
  for (std::int32_t layer : list) {
    if (layer <= last || layer >= c.layers) {
      refuse(key, text(list), "strictly ascending layers in 0 to " + std::to_string(c.layers - 1));
    }
    last = layer;
  }
}

inline void check_sizes(const ModelConfig& c) {
  range("vocab_size", c.vocab, 1, kMaxVocab);
  dimension("hidden_size", c.dim);
  range("num_hidden_layers", c.layers, 1, kMaxLayers);
  range("max_position_embeddings", c.max_positions, 1, kMaxVocab);
  dimension("num_attention_heads", c.heads);
  dimension("head_dim", c.head_dim);
  range("qk_rope_head_dim", c.rope_dim, 2, c.head_dim);
  if (c.rope_dim % 2 != 0) refuse("qk_rope_head_dim", std::to_string(c.rope_dim), "an even number");
  dimension("q_lora_rank", c.q_rank);
  dimension("o_lora_rank", c.o_rank);
  dimension("o_groups", c.o_groups);
  if (c.heads * c.head_dim % c.o_groups != 0) {
    refuse("o_groups", std::to_string(c.o_groups),
           "a divisor of num_attention_heads * head_dim = " + std::to_string(c.heads * c.head_dim));
  }
  dimension("sliding_window", c.window);
  dimension("moe_intermediate_size", c.ff);
  dimension("n_routed_experts", c.experts);
  range("n_shared_experts", c.shared_experts, 0, 1024);
  range("num_experts_per_tok", c.topk, 1, c.experts);
  if (c.layers * c.experts > kMaxExpertsInAll) {
    refuse("n_routed_experts", std::to_string(c.experts),
           "at most " + std::to_string(kMaxExpertsInAll) + " experts over all layers");
  }
  range("hc_mult", c.hc, 1, kMaxStreams);
  range("hc_sinkhorn_iters", c.hc_iters, 1, 1000);
  token("bos_token_id", c.bos, c);
  token("eos_token_id", c.eos, c);
  token("pad_token_id", c.pad, c);
  if (c.image_token != -1) token("image_token_id", c.image_token, c);
}

inline void check_numbers(const ModelConfig& c) {
  norm_epsilon("rms_norm_eps", c.norm_eps);
  not_negative("hc_eps", c.hc_eps);
  not_negative("swiglu_limit", c.swiglu_limit);
  positive("routed_scaling_factor", c.route_scale);
  positive("gate_temp", c.gate_temp);
  // Frequencies divide by ln(theta), so 1 is no base.
  if (!std::isfinite(c.rope_theta) || c.rope_theta <= 1) refuse("rope_theta", text(c.rope_theta), "a number above 1");
  const YarnConfig& y = c.yarn;
  range("rope_scaling.original_max_position_embeddings", y.original_positions, 0, kMaxVocab);
  if (y.original_positions > 0) {
    positive("rope_scaling.factor", y.factor);
    positive("rope_scaling.beta_fast", y.beta_fast);
    positive("rope_scaling.beta_slow", y.beta_slow);
    if (y.beta_fast < y.beta_slow) {
      refuse("rope_scaling.beta_fast", text(y.beta_fast), "at least beta_slow = " + text(y.beta_slow));
    }
  }
}

/// Ratios and sources: every compressed layer has, at or before it, a kv source of its own ratio (architecture.md 1).
inline void check_sources(const ModelConfig& c) {
  if (std::int64_t(c.ratios.size()) != c.layers) {
    refuse("compress_ratios", text(c.ratios), std::to_string(c.layers) + " entries (num_hidden_layers)");
  }
  layer_list("kv_source_layer_ids", c.kv_sources, c);
  layer_list("index_source_layer_ids", c.index_sources, c);
  std::int32_t source = -1;
  for (std::int32_t l = 0; l < c.layers; ++l) {
    const std::int32_t ratio = c.ratios[static_cast<std::size_t>(l)];
    const std::string entry = "compress_ratios[" + std::to_string(l) + "]";
    range(entry.c_str(), ratio, 0, kMaxDim);
    const bool owns = contains(c.kv_sources, l), scores = contains(c.index_sources, l);
    const char* list = owns ? "kv_source_layer_ids" : "index_source_layer_ids";
    const std::string here = "a list with layer " + std::to_string(l);
    if ((owns || scores) && ratio == 0) refuse(list, here, "layers with a ratio; " + entry + " is 0");
    if (owns && !scores)
      refuse(list, here, "kv sources that are index sources too (nothing would select their entries)");
    if (owns) source = l;
    if (ratio == 0) continue;
    if (source < 0 && scores) refuse(list, here, "a kv source at or before each index source");
    if (source < 0) refuse(entry, std::to_string(ratio), "0, for no kv source comes at or before the layer");
    const std::int32_t owner = c.ratios[static_cast<std::size_t>(source)];
    if (ratio != owner) {
      refuse(entry, std::to_string(ratio),
             "0 or the ratio of its kv source, layer " + std::to_string(source) + ": " + std::to_string(owner));
    }
  }
}

inline void check_indexer(const ModelConfig& c) {
  if (c.kv_sources.empty()) {
    if (c.candidate_source >= 0)
      refuse("candidate_source_layer_id", std::to_string(c.candidate_source), "an index source or -1");
    return;
  }
  if (!std::isfinite(c.compress_theta) || c.compress_theta <= 1) {
    refuse("compress_rope_theta", text(c.compress_theta), "a number above 1");
  }
  dimension("index_n_heads", c.index_heads);
  dimension("index_head_dim", c.index_dim);
  range("index_topk", c.index_topk, 1, kMaxDim);
  if (c.rope_dim > c.index_dim) {
    refuse("index_head_dim", std::to_string(c.index_dim), "at least qk_rope_head_dim = " + std::to_string(c.rope_dim));
  }
  if (c.candidate_source < 0) return;
  const std::string found = std::to_string(c.candidate_source);
  if (!contains(c.index_sources, c.candidate_source)) {
    refuse("candidate_source_layer_id", found, "an index source, one of " + text(c.index_sources) + ", or -1");
  }
  const std::int32_t ratio = c.ratios[static_cast<std::size_t>(c.candidate_source)];
  for (std::int32_t l : c.index_sources) {
    if (l > c.candidate_source && c.ratios[static_cast<std::size_t>(l)] != ratio) {
      refuse("candidate_source_layer_id", found,
             "a layer followed only by index sources of its ratio; layer " + std::to_string(l) + " has another");
    }
  }
  range("candidate_topk_blocks", c.candidate_blocks, 1, kMaxDim);
  range("candidate_block_size", c.candidate_block, 1, kMaxDim);
}

inline void check_engram(const ModelConfig& c) {
  const EngramConfig& e = c.engram;
  layer_list("engram_layer_ids", e.layers, c);
  if (e.rows.size() != e.layers.size()) {
    refuse("engram_num_embeddings", text(e.rows), std::to_string(e.layers.size()) + " entries, as engram_layer_ids");
  }
  if (e.layers.empty()) return;
  range("engram_max_ngram_size", e.max_ngram, 2, kMaxNgram);
  range("engram_n_heads", e.heads, 1, kMaxTableHeads);
  dimension("engram_head_dim", e.dim);
  if (e.columns() * e.dim > kMaxTableInput) {
    refuse(
        "engram_head_dim", std::to_string(e.dim),
        "at most " + std::to_string(kMaxTableInput) + " values over the " + std::to_string(e.columns()) + " columns");
  }
  range("engram_vocab_size", e.vocab, 2, kMaxVocab);
  range("engram_compressed_vocab_size", e.compressed_vocab, 1, c.vocab);
  token("engram_pad_token_id", e.pad, c);
  for (std::int64_t rows : e.rows) {
    // Each column has a prime number of rows, and no prime is smaller than engram_vocab_size.
    if (rows < e.columns() * e.vocab || rows > kMaxTableRows) {
      refuse("engram_num_embeddings", text(e.rows),
             "from " + std::to_string(e.columns() * e.vocab) + " to " + std::to_string(kMaxTableRows) + " rows each");
    }
  }
}

inline void check_draft(const ModelConfig& c) {
  const DraftConfig& d = c.draft;
  range("num_nextn_predict_layers", d.stages, 0, 64);
  layer_list("dspark_target_layer_ids", d.tap_layers, c);
  if (d.stages == 0 && !d.tap_layers.empty()) {
    refuse("dspark_target_layer_ids", text(d.tap_layers),
           "[], for num_nextn_predict_layers is 0: nothing reads the taps");
  }
  if (d.stages == 0) return;
  if (d.tap_layers.empty()) refuse("dspark_target_layer_ids", "[]", "the layers that the drafter reads");
  range("dspark_block_size", d.block, 1, 1024);
  token("dspark_noise_token_id", d.noise_token, c);
  dimension("dspark_markov_rank", d.markov_rank);
  range("dspark_n_routed_experts", d.experts, 1, kMaxExpertsInAll / d.stages);
  range("dspark_num_experts_per_tok", d.topk, 1, d.experts);
}

inline void check_vision(const ModelConfig& c) {
  const VisionConfig& v = c.vision;
  range("vision_config.num_hidden_layers", v.layers, 0, kMaxLayers);
  if (v.layers == 0) return;
  dimension("vision_config.hidden_size", v.dim);
  dimension("vision_config.intermediate_size", v.ff);
  range("vision_config.patch_size", v.patch, 1, 1024);
  range("vision_config.downsample_ratio", v.downsample, 1, 1024);
}

}  // namespace config_rules

/// Refuses a config that no schedule or buffer can be derived from. A config without kv sources (window layers only) is
/// legal.
///
/// Errors:  format, with the key as in config.json, the value found and what was expected.
/// Cost:    a few comparisons per layer.
/// Source:  architecture.md 1; case B31 (limits are finite and not negative).
inline void validate(const ModelConfig& c) {
  config_rules::check_sizes(c);
  config_rules::check_numbers(c);
  config_rules::check_sources(c);
  config_rules::check_indexer(c);
  config_rules::check_engram(c);
  config_rules::check_draft(c);
  config_rules::check_vision(c);
}

}  // namespace dsv41
