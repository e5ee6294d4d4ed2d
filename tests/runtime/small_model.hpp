// SPDX-License-Identifier: MIT
//
// A model folder of random float32 weights, written for one test: eight tokens, a layer, a draft stage. So small that a hundred
// thousand texts are sampled in seconds, and that the law of a text is a sum over all of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/runtime/config_file.hpp"
#include "dsv41/runtime/inventory.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "support/random.hpp"
#include "support/raw_safetensors.hpp"
#include "support/temp_folder.hpp"

namespace dsv41::test {

/// One layer, a source of ratio 2, whose groups drafts open and complete.
inline nlohmann::json small_config() {
  return {{"vocab_size", 8},
          {"hidden_size", 16},
          {"moe_intermediate_size", 8},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 1},
          {"num_key_value_heads", 1},
          {"head_dim", 16},
          {"qk_rope_head_dim", 8},
          {"q_lora_rank", 8},
          {"o_lora_rank", 8},
          {"o_groups", 1},
          {"hidden_act", "silu"},
          {"swiglu_limit", 10.0},
          {"rms_norm_eps", 1e-20},
          {"max_position_embeddings", 64},
          {"rope_theta", 10000},
          {"rope_scaling", nullptr},
          {"n_routed_experts", 2},
          {"n_shared_experts", 0},
          {"num_experts_per_tok", 1},
          {"scoring_func", "sqrtsoftplus"},
          {"topk_method", "noaux_tc"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 1.5},
          {"sliding_window", 3},
          {"compress_ratios", {2}},
          {"compress_rope_theta", 160000},
          {"kv_source_layer_ids", {0}},
          {"index_source_layer_ids", {0}},
          {"index_n_heads", 1},
          {"index_head_dim", 16},
          {"index_topk", 2},
          {"candidate_source_layer_id", -1},
          {"candidate_topk_blocks", 2},
          {"candidate_block_size", 4},
          {"hc_mult", 1},
          {"hc_sinkhorn_iters", 2},
          {"hc_eps", 1e-6},
          {"engram_layer_ids", nlohmann::json::array()},
          {"engram_max_ngram_size", 3},
          {"engram_vocab_size", 61},
          {"engram_n_heads", 2},
          {"engram_head_dim", 32},
          {"engram_pad_token_id", 2},
          {"num_nextn_predict_layers", 1},
          {"dspark_block_size", 3},
          {"dspark_noise_token_id", 7},
          {"dspark_target_layer_ids", {0}},
          {"dspark_markov_rank", 4},
          {"dspark_n_routed_experts", 2},
          {"dspark_num_experts_per_tok", 1}};
}

/// More of everything, for texts that do not repeat at once: ratios 3 and 1, two streams, two stages, four drafts.
inline nlohmann::json larger_config() {
  nlohmann::json c = small_config();
  c.update({{"vocab_size", 24},
            {"num_hidden_layers", 3},
            {"sliding_window", 5},
            {"compress_ratios", {0, 3, 1}},
            {"kv_source_layer_ids", {1, 2}},
            {"index_source_layer_ids", {1, 2}},
            {"max_position_embeddings", 512},
            {"hc_mult", 2},
            {"num_nextn_predict_layers", 2},
            {"dspark_block_size", 4},
            {"dspark_noise_token_id", 23},
            {"dspark_target_layer_ids", {1, 2}}});
  return c;
}

/// What is wrong with a model.
struct Fault {
  std::string_view without = {};  ///< the end of the name of a tensor that is left out; empty: none
  std::int32_t poisoned = -1;     ///< a token whose embedding is NaN, and with it all that follows from it; -1: none
};

/// The folder's files, written when it is made and removed with it.
class SmallModel {
 public:
  explicit SmallModel(std::uint64_t seed, const nlohmann::json& config = small_config(), const Fault& fault = {})
      : folder_(write(seed, config, fault)) {}

  const runtime::ModelFolder& folder() const { return folder_; }

 private:
  runtime::ModelFolder write(std::uint64_t seed, const nlohmann::json& config, const Fault& fault) {
    const std::string text = nlohmann::json{{"model_type", "deepseek_v41"}, {"text_config", config}}.dump();
    files_.write("config.json", text);
    Random random(seed);
    std::vector<RawTensor> tensors;
    for (const runtime::TensorSpec& t : runtime::inventory(runtime::parse_config(text, "config.json"))) {
      if (t.part == runtime::Part::vision) continue;
      std::vector<float> values = random.normals(t.rows * t.cols, size_of(t));
      if (!fault.without.empty() && t.name.ends_with(fault.without)) continue;
      if (t.name.ends_with("norm.weight")) {
        for (float& x : values) x += 1;
      }
      if (t.name == "embed.weight" && fault.poisoned >= 0)
        std::fill_n(values.begin() + fault.poisoned * t.cols, t.cols, std::numeric_limits<float>::quiet_NaN());
      RawTensor& out = tensors.emplace_back();
      out.name = t.name, out.dtype = "F32", out.shape = {t.rows};
      if (!t.is_vector) out.shape.push_back(t.cols);
      out.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    files_.write("model.safetensors", raw_file(tensors));
    return runtime::ModelFolder::open(files_.path());
  }

  static double size_of(const runtime::TensorSpec& t) {
    if (t.name.ends_with("norm.weight")) return 0.2;
    if (t.is_vector) return 0.3;
    if (t.name.ends_with("embed.weight")) return 1;
    return (t.name.ends_with("head.weight") ? 1.2 : 1.5) / std::sqrt(static_cast<double>(t.cols));
  }

  TempFolder files_;
  runtime::ModelFolder folder_;
};

}  // namespace dsv41::test
