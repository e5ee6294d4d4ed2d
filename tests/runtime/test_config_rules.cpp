// SPDX-License-Identifier: MIT
//
// Every rule of architecture.md 1, broken one at a time; the message names key and value.
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "../support/catch.hpp"
#include "dsv41/core/config_rules.hpp"
#include "dsv41/numerics/norm.hpp"
#include "runtime/config_json.hpp"

using dsv41::Errc;
using dsv41::ModelConfig;
using namespace dsv41::test;
using nlohmann::json;

namespace {

/// One way to spoil a config, and what the message must name.
struct Spoiled {
  std::string why;
  std::function<void(json&)> change;  // of text_config
  std::string key;
  Errc code = Errc::format;
};

void check_refused(const std::vector<Spoiled>& cases) {
  for (const Spoiled& spoiled : cases) {
    INFO(spoiled.why);
    json j = golden_json();
    spoiled.change(j["text_config"]);
    const auto failure = failure_of([&] { parse(j); });
    INFO(failure.message);
    CHECK(failure.code == spoiled.code);
    CHECK(failure.says(spoiled.key));
    CHECK(failure.says("test.json"));
    CHECK(failure.says("expected"));
  }
}

}  // namespace

TEST_CASE("B85: impossible schedules are refused, naming key and value") {
  check_refused({
      {"kv source with ratio 0",
       [](json& t) {
         t["kv_source_layer_ids"] = {0, 1, 4};
         t["index_source_layer_ids"] = {0, 1, 2, 4, 5};
       },
       "kv_source_layer_ids"},
      {"index source with ratio 0",
       [](json& t) {
         t["index_source_layer_ids"] = {0, 1, 4};
       },
       "index_source_layer_ids"},
      {"kv source that selects nothing",
       [](json& t) {
         t["index_source_layer_ids"] = {1, 2, 5};
       },
       "kv_source_layer_ids"},
      {"index source before any kv source",
       [](json& t) {
         t["compress_ratios"] = {2, 2, 2, 2, 1, 1};
         t["index_source_layer_ids"] = {0, 1, 4};
       },
       "index_source_layer_ids"},
      {"index source of another ratio", [](json& t) { t["compress_ratios"][2] = 4; }, "compress_ratios[2]"},
      {"layer of another ratio", [](json& t) { t["compress_ratios"][3] = 1; }, "compress_ratios[3]"},
      {"layer before any source", [](json& t) { t["compress_ratios"][0] = 2; }, "compress_ratios[0]"},
      {"sources of no layer",
       [](json& t) {
         t["kv_source_layer_ids"] = json::array();
         t["index_source_layer_ids"] = json::array();
       },
       "compress_ratios[1]"},
      {"negative ratio", [](json& t) { t["compress_ratios"][0] = -1; }, "compress_ratios[0]"},
      {"candidate source that does not score", [](json& t) { t["candidate_source_layer_id"] = 3; },
       "candidate_source_layer_id"},
      {"candidate source beyond the layers", [](json& t) { t["candidate_source_layer_id"] = 6; },
       "candidate_source_layer_id"},
      {"candidate blocks of another ratio later", [](json& t) { t["candidate_source_layer_id"] = 2; },
       "candidate_source_layer_id"},
      {"too few ratios",
       [](json& t) {
         t["compress_ratios"] = {0, 2, 2, 2, 1};
       },
       "compress_ratios"},
      {"too many ratios", [](json& t) { t["compress_ratios"] = {0, 2, 2, 2, 1, 1, 0, 0, 0, 0}; }, "compress_ratios"},
      {"a draft stage with a ratio", [](json& t) { t["compress_ratios"] = {0, 2, 2, 2, 1, 1, 0, 1}; },
       "compress_ratios"},
      {"layers out of order",
       [](json& t) {
         t["kv_source_layer_ids"] = {4, 1};
       },
       "kv_source_layer_ids"},
      {"a layer twice",
       [](json& t) {
         t["index_source_layer_ids"] = {1, 2, 2, 4, 5};
       },
       "index_source_layer_ids"},
      {"a layer beyond the last",
       [](json& t) {
         t["index_source_layer_ids"] = {1, 2, 4, 6};
       },
       "index_source_layer_ids"},
      {"a negative layer",
       [](json& t) {
         t["kv_source_layer_ids"] = {-1, 1, 4};
       },
       "kv_source_layer_ids"},
      {"Engram beyond the last layer",
       [](json& t) {
         t["engram_layer_ids"] = {1, 6};
       },
       "engram_layer_ids"},
      {"Engram rows missing", [](json& t) { t["engram_num_embeddings"] = {434}; }, "engram_num_embeddings"},
      {"Engram rows too few for its primes",
       [](json& t) {
         t["engram_num_embeddings"] = {434, 300};
       },
       "engram_num_embeddings"},
      {"tap beyond the last layer",
       [](json& t) {
         t["dspark_target_layer_ids"] = {3, 6};
       },
       "dspark_target_layer_ids"},
      {"no taps", [](json& t) { t["dspark_target_layer_ids"] = json::array(); }, "dspark_target_layer_ids"},
  });
}

TEST_CASE("sizes that fit nothing are refused, naming key and value") {
  std::vector<Spoiled> cases;
  for (const char* key : {"vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "head_dim",
                          "qk_rope_head_dim",
                          "q_lora_rank",
                          "o_lora_rank",
                          "o_groups",
                          "sliding_window",
                          "moe_intermediate_size",
                          "n_routed_experts",
                          "num_experts_per_tok",
                          "hc_mult",
                          "hc_sinkhorn_iters",
                          "index_n_heads",
                          "index_head_dim",
                          "index_topk",
                          "candidate_topk_blocks",
                          "candidate_block_size",
                          "engram_max_ngram_size",
                          "engram_vocab_size",
                          "engram_n_heads",
                          "engram_head_dim",
                          "engram_compressed_vocab_size",
                          "dspark_block_size",
                          "dspark_markov_rank",
                          "dspark_n_routed_experts",
                          "dspark_num_experts_per_tok",
                          "max_position_embeddings"}) {
    for (std::int64_t value : {std::int64_t{0}, std::int64_t{-3}, std::int64_t{1} << 45}) {
      cases.push_back({std::string(key) + " " + std::to_string(value), [=](json& t) { t[key] = value; },
                       // Without layers the length of compress_ratios is what does not fit.
                       key});
    }
    cases.push_back({std::string(key) + " is a text", [=](json& t) { t[key] = "7"; }, key});
    cases.push_back({std::string(key) + " is a fraction", [=](json& t) { t[key] = 7.5; }, key});
  }
  cases.push_back({"odd rope", [](json& t) { t["qk_rope_head_dim"] = 15; }, "qk_rope_head_dim"});
  cases.push_back({"rope wider than a head", [](json& t) { t["qk_rope_head_dim"] = 66; }, "qk_rope_head_dim"});
  cases.push_back({"rope wider than an index head", [](json& t) { t["index_head_dim"] = 14; }, "index_head_dim"});
  cases.push_back({"groups that do not divide", [](json& t) { t["o_groups"] = 3; }, "o_groups"});
  cases.push_back(
      {"more experts chosen than there are", [](json& t) { t["num_experts_per_tok"] = 9; }, "num_experts_per_tok"});
  cases.push_back({"nine streams", [](json& t) { t["hc_mult"] = 9; }, "hc_mult"});
  cases.push_back({"1025 Engram heads", [](json& t) { t["engram_n_heads"] = 1025; }, "1 to 1024"});
  cases.push_back({"1-grams", [](json& t) { t["engram_max_ngram_size"] = 1; }, "engram_max_ngram_size"});
  cases.push_back(
      {"pad beyond the vocabulary", [](json& t) { t["engram_pad_token_id"] = 320; }, "engram_pad_token_id"});
  cases.push_back(
      {"noise beyond the vocabulary", [](json& t) { t["dspark_noise_token_id"] = 320; }, "dspark_noise_token_id"});
  cases.push_back({"more compressed ids than ids", [](json& t) { t["engram_compressed_vocab_size"] = 321; },
                   "engram_compressed_vocab"});
  cases.push_back({"an integer of 64 bits",
                   [](json& t) { t["vocab_size"] = std::numeric_limits<std::uint64_t>::max(); }, "vocab_size"});
  check_refused(cases);
}

TEST_CASE("B31: limits and factors are finite and not negative") {
  std::vector<Spoiled> cases;
  for (const char* key : {"swiglu_limit", "hc_eps", "routed_scaling_factor", "gate_temp", "rms_norm_eps", "rope_theta",
                          "compress_rope_theta"}) {
    cases.push_back({key, [=](json& t) { t[key] = -1.0; }, key});
    cases.push_back({key, [=](json& t) { t[key] = true; }, key});
  }
  cases.push_back({"factor", [](json& t) { t["rope_scaling"]["factor"] = 0; }, "rope_scaling.factor"});
  cases.push_back({"betas", [](json& t) { t["rope_scaling"]["beta_fast"] = 0.5; }, "rope_scaling.beta_fast"});
  cases.push_back({"original", [](json& t) { t["rope_scaling"]["original_max_position_embeddings"] = 0; },
                   "original_max_position"});
  check_refused(cases);

  ModelConfig c = parse(golden_json());
  CHECK_NOTHROW(validate(c));
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0}) {
    for (double ModelConfig::*field :
         {&ModelConfig::swiglu_limit, &ModelConfig::hc_eps, &ModelConfig::norm_eps, &ModelConfig::gate_temp,
          &ModelConfig::route_scale, &ModelConfig::rope_theta, &ModelConfig::compress_theta}) {
      ModelConfig spoiled = c;
      spoiled.*field = bad;
      CHECK(failure_of([&] { validate(spoiled); }).code == Errc::format);
    }
  }
  c.swiglu_limit = 0;  // off
  CHECK_NOTHROW(validate(c));
  for (double beyond : {1e300, 1e-320}) {  // infinity and zero in float32, which steps compute in
    for (double ModelConfig::*field :
         {&ModelConfig::swiglu_limit, &ModelConfig::hc_eps, &ModelConfig::gate_temp, &ModelConfig::route_scale}) {
      ModelConfig spoiled = c;
      spoiled.*field = beyond;
      CHECK(failure_of([&] { validate(spoiled); }).says("that float32 can hold"));
    }
  }
}

TEST_CASE("an epsilon that lets a row of zeros become NaN is refused") {
  const auto config = [](double eps) {
    json j = golden_json();
    j["text_config"]["rms_norm_eps"] = eps;
    return j;
  };
  for (double eps : {0.0, 1e-61, 1e-100, 1e-310, -1e-20, 1.5, 1e300}) {
    const auto failure = failure_of([&] { parse(config(eps)); });
    INFO(failure.message);
    CHECK(failure.code == Errc::format);
    CHECK(failure.says("rms_norm_eps is "));
    CHECK(failure.says("a number from 1e-60 (less turns rows of zeros into NaN) to 1"));
  }
  for (double eps : {1e-60, 1e-20, 1e-6}) {
    const ModelConfig c = parse(config(eps));
    const float zeros[3] = {}, ones[3] = {1, 1, 1};
    float out[3];
    dsv41::numerics::rms_norm_row(zeros, ones, 3, c.norm_eps, dsv41::Numeric::exact, out);
    CHECK(out[0] == 0);
    CHECK(std::isfinite(1.0f / dsv41::numerics::rms(zeros, 3, c.norm_eps)));  // as the mHC mixing row divides
  }
}

TEST_CASE("a config with taps and no drafter is refused, however it was made") {
  ModelConfig c = parse(golden_json());
  REQUIRE(c.draft.stages > 0);
  c.draft.stages = 0;
  const auto failure = failure_of([&] { validate(c); });
  CHECK(failure.code == Errc::format);
  CHECK(failure.says("dspark_target_layer_ids is ["));
  CHECK(failure.says("num_nextn_predict_layers is 0"));
  c.draft = {};
  CHECK_NOTHROW(validate(c));
}

TEST_CASE("values that no module implements are unsupported, naming key and value") {
  check_refused({
      {"gelu", [](json& t) { t["hidden_act"] = "gelu"; }, "gelu", Errc::unsupported},
      {"biases", [](json& t) { t["attention_bias"] = true; }, "attention_bias", Errc::unsupported},
      {"tied", [](json& t) { t["tie_word_embeddings"] = true; }, "tie_word_embeddings", Errc::unsupported},
      {"kv heads", [](json& t) { t["num_key_value_heads"] = 8; }, "num_key_value_heads", Errc::unsupported},
      {"router", [](json& t) { t["topk_method"] = "greedy"; }, "greedy", Errc::unsupported},
      {"score", [](json& t) { t["scoring_func"] = "tanh"; }, "tanh", Errc::unsupported},
      {"rope", [](json& t) { t["rope_scaling"]["rope_type"] = "llama3"; }, "llama3", Errc::unsupported},
      {"rope spelling",
       [](json& t) {
         t["rope_parameters"] = {{"rope_type", "yarn"}};
       },
       "rope_parameters", Errc::unsupported},
      {"hash layers", [](json& t) { t["num_hash_layers"] = 3; }, "num_hash_layers", Errc::unsupported},
      {"expert groups", [](json& t) { t["n_group"] = 8; }, "n_group", Errc::unsupported},
  });
  json j = json::parse(golden_config("release"));
  j["quantization_config"]["weight_block_size"] = {128, 128};
  const auto failure = failure_of([&] { parse(j); });
  CHECK(failure.code == Errc::unsupported);
  CHECK(failure.says("quantization_config.weight_block_size is [128,128]"));
}
