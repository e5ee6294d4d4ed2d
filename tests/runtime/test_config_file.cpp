// SPDX-License-Identifier: MIT
//
// config.json in both spellings, its defaults, and what is no config at all. The released file is byte-exact (its SHA-256 is
// published).
#include <nlohmann/json.hpp>
#include <sstream>

#include "../support/catch.hpp"
#include "dsv41/core/config_rules.hpp"
#include "dsv41/core/schedule.hpp"
#include "runtime/config_json.hpp"

using dsv41::Errc;
using dsv41::ModelConfig;
using dsv41::runtime::parse_config;
using namespace dsv41::test;
using nlohmann::json;

namespace {

template <class T>
std::string list(const std::vector<T>& v) {
  std::string s;
  for (T x : v) s += std::to_string(x) + ",";
  return s;
}

/// Every field of a config, for comparison.
std::string dump(const ModelConfig& c) {
  std::ostringstream s;
  s.precision(17);
  s << c.vocab << ' ' << c.dim << ' ' << c.layers << ' ' << c.max_positions << ' ' << c.norm_eps << ' ' << c.bos << ' '
    << c.eos << ' ' << c.pad << ' ' << c.image_token << '\n'
    << c.heads << ' ' << c.head_dim << ' ' << c.rope_dim << ' ' << c.q_rank << ' ' << c.o_rank << ' ' << c.o_groups
    << ' ' << c.window << ' ' << c.rope_theta << ' ' << c.compress_theta << '\n'
    << c.yarn.factor << ' ' << c.yarn.beta_fast << ' ' << c.yarn.beta_slow << ' ' << c.yarn.original_positions << '\n'
    << list(c.ratios) << ' ' << list(c.kv_sources) << ' ' << list(c.index_sources) << ' ' << c.candidate_source << '\n'
    << c.index_heads << ' ' << c.index_dim << ' ' << c.index_topk << ' ' << c.candidate_blocks << ' '
    << c.candidate_block << '\n'
    << c.ff << ' ' << c.experts << ' ' << c.shared_experts << ' ' << c.topk << ' ' << int(c.score) << ' ' << c.norm_topk
    << ' ' << c.route_scale << ' ' << c.gate_temp << ' ' << c.swiglu_limit << '\n'
    << c.hc << ' ' << c.hc_iters << ' ' << c.hc_eps << '\n'
    << list(c.engram.layers) << ' ' << list(c.engram.rows) << ' ' << c.engram.max_ngram << ' ' << c.engram.vocab << ' '
    << c.engram.heads << ' ' << c.engram.dim << ' ' << c.engram.pad << ' ' << c.engram.compressed_vocab << '\n'
    << c.draft.stages << ' ' << c.draft.block << ' ' << c.draft.noise_token << ' ' << list(c.draft.tap_layers) << ' '
    << c.draft.markov_rank << ' ' << c.draft.experts << ' ' << c.draft.topk;
  return s.str();
}

}  // namespace

TEST_CASE("the released config parses to the published values") {
  const ModelConfig c = parse_config(golden_config("release"), "config.json");
  std::string ratios = "0,0,";
  for (int i = 0; i < 18; ++i) ratios += "2,";
  for (int i = 0; i < 20; ++i) ratios += "1,";
  CHECK(dump(c) ==
        "129280 5120 40 1048576 9.9999999999999995e-21 0 1 2 129264\n"
        "64 512 64 1280 1024 8 128 10000 160000\n"
        "16 32 1 65536\n" +
            ratios +
            " 2,8,14,20, 2,8,14,20,24,28,32,36, 20\n"
            "32 128 512 2048 8\n"
            "2304 384 1 6 0 1 1.5 1 10\n"
            "4 20 9.9999999999999995e-07\n"
            "1,14, 384006168,384016682, 4 16000000 8 256 2 99092\n"
            "3 5 128799 37,38,39, 256 128 3");
  const dsv41::Schedule schedule = make_schedule(c);
  CHECK(schedule.boundary == 20);
  CHECK(schedule.layers[20].publishes_candidates);
  CHECK(schedule.layers[24].limited_to_candidates);
}

TEST_CASE("B85: the flat form of the released config means the same as the composite form") {
  const std::string flat = read_file(kGolden / "release" / "inference_config.json");
  CHECK(dump(parse_config(flat, "flat")) == dump(parse_config(golden_config("release"), "composite")));
}

TEST_CASE("every golden config is accepted") {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kGolden)) {
    if (!std::filesystem::exists(entry.path() / "model.safetensors")) continue;
    INFO(entry.path());
    CHECK_NOTHROW(parse_config(read_file(entry.path() / "config.json"), "golden"));
    ++seen;
  }
  CHECK(seen >= 14);
}

TEST_CASE("absent optional keys take their documented values") {
  json j = golden_json();
  json& t = j["text_config"];
  for (const char* key :
       {"norm_topk_prob", "n_shared_experts", "rope_scaling", "max_position_embeddings", "candidate_source_layer_id",
        "hidden_act", "topk_method", "num_key_value_heads", "engram_pad_token_id"}) {
    t.erase(key);
  }
  const ModelConfig c = parse(j);
  CHECK(c.norm_topk);
  CHECK(c.shared_experts == 1);
  CHECK(c.yarn.original_positions == 0);
  CHECK(c.max_positions == 1048576);
  CHECK(c.candidate_source == 4);  // the last kv source
  CHECK(c.gate_temp == 1);
  CHECK(c.engram.pad == 2);
  CHECK(c.image_token == -1);
}

TEST_CASE("null for an optional key is the same as leaving it out") {
  json j = golden_json();
  j["text_config"]["rope_scaling"] = nullptr;
  j["text_config"]["candidate_source_layer_id"] = nullptr;
  const ModelConfig c = parse(j);
  CHECK(c.yarn.original_positions == 0);
  CHECK(c.candidate_source == 4);
}

TEST_CASE("a negative candidate source turns candidates off") {
  json j = golden_json();
  j["text_config"]["candidate_source_layer_id"] = -7;
  CHECK(parse(j).candidate_source == -1);
}

TEST_CASE("rope_scaling of type default is plain RoPE, in either spelling of the type") {
  json j = golden_json();
  j["text_config"]["rope_scaling"] = {{"rope_type", "default"}};
  CHECK(parse(j).yarn.original_positions == 0);
  j["text_config"]["rope_scaling"] = {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 64}};
  CHECK(parse(j).yarn.factor == 4);
  CHECK(parse(j).yarn.beta_fast == 32);
}

TEST_CASE("zeros of the draft stages after compress_ratios are cut off") {
  json j = golden_json();
  json& ratios = j["text_config"]["compress_ratios"];
  for (int i = 0; i < 3; ++i) {
    ratios.push_back(0);
    CHECK(parse(j).ratios.size() == 6);
  }
}

TEST_CASE("a model without kv sources is legal") {
  json j = golden_json();
  json& t = j["text_config"];
  t["compress_ratios"] = {0, 0, 0, 0, 0, 0};
  t["kv_source_layer_ids"] = json::array();
  t["index_source_layer_ids"] = json::array();
  for (const char* key : {"candidate_source_layer_id", "compress_rope_theta", "index_n_heads", "index_head_dim",
                          "index_topk", "candidate_topk_blocks", "candidate_block_size"}) {
    t.erase(key);
  }
  const ModelConfig c = parse(j);
  CHECK(c.candidate_source == -1);
  CHECK(make_schedule(c).boundary == -1);
}

TEST_CASE("mechanisms that are off leave nothing behind") {
  json j = golden_json();
  j["text_config"]["engram_layer_ids"] = json::array();
  j["text_config"]["engram_num_embeddings"] = json::array();
  j["text_config"]["num_nextn_predict_layers"] = 0;
  const ModelConfig c = parse(j);
  CHECK(c.engram.max_ngram == 0);
  CHECK(c.draft.tap_layers.empty());
}

TEST_CASE("B85: unknown keys are ignored") {
  json j = golden_json();
  j["text_config"]["some_future_key"] = {1, 2};
  j["vision_config"] = {{"hidden_size", 3}};
  CHECK_NOTHROW(parse(j));
}

TEST_CASE("the tower's sizes are read all or none: the text model needs none of them") {
  json j = json::parse(golden_config("release"));
  const dsv41::VisionConfig released = parse(j).vision;
  CHECK(released == dsv41::VisionConfig{32, 1024, 2816, 14, 3});
  CHECK(parse_config(read_file(kGolden / "release" / "inference_config.json"), "flat").vision == released);
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "patch_size", "downsample_ratio"}) {
    INFO(key);
    json changed = j;
    changed["vision_config"].erase(key);
    CHECK(parse(changed).vision == dsv41::VisionConfig{});
    changed["vision_config"][key] = nullptr;
    CHECK(parse(changed).vision == dsv41::VisionConfig{});
    for (const json& bad : {json("3"), json(-1), json(std::int64_t{1} << 40)}) {
      changed["vision_config"][key] = bad;
      const auto failure = failure_of([&] { parse(changed); });
      CHECK(failure.code == Errc::format);
      CHECK(failure.says(std::string("vision_config.") + key));
    }
  }
  j["vision_config"] = nullptr;
  CHECK(parse(j).vision == dsv41::VisionConfig{});
  for (const json& bad : {json(3), json(false), json::array({1})}) {
    j["vision_config"] = bad;
    const auto failure = failure_of([&] { parse(j); });
    CHECK(failure.code == Errc::format);
    CHECK(failure.says("config: vision_config is " + bad.dump() + ", expected an object or null"));
  }
  j["vision_config"] = {{"hidden_size", "3"}};  // a wrong type where other keys are absent
  CHECK(failure_of([&] { parse(j); }).says("vision_config.hidden_size is \"3\""));
}

TEST_CASE("a tower that is described in part is noted with the key that is absent") {
  const auto missing = [](const json& j) {
    dsv41::runtime::ConfigNotes notes{.missing_vision_key = "left over"};
    parse_config(j.dump(), "config.json", &notes);
    return notes.missing_vision_key;
  };
  json j = json::parse(golden_config("release"));
  CHECK(missing(j) == "");
  j["vision_config"].erase("downsample_ratio");
  CHECK(missing(j) == "vision_config.downsample_ratio");
  j["vision_config"] = json::object();
  CHECK(missing(j) == "vision_config.num_hidden_layers");
  j["vision_config"] = nullptr;
  CHECK(missing(j) == "");
  json flat = json::parse(read_file(kGolden / "release" / "inference_config.json"));
  CHECK(missing(flat) == "");
  flat.erase("vision_patch_size");
  CHECK(missing(flat) == "vision_patch_size");
  for (const char* key : {"vision_n_layers", "vision_dim", "vision_inter_dim", "vision_downsample_ratio"})
    flat.erase(key);
  CHECK(missing(flat) == "");
}

TEST_CASE("what is not JSON is told in plain words") {
  for (const char* text : {"{", "", "{\"a\": 1e999}"}) {
    const auto failure = failure_of([&] { parse_config(text, "config.json"); });
    INFO(failure.message);
    CHECK(failure.code == Errc::format);
    CHECK(failure.message.rfind("config.json: not JSON: ", 0) == 0);
    CHECK_FALSE(failure.says("json.exception"));
  }
}

TEST_CASE("B85: another model type is refused, however it begins") {
  for (const char* type : {"deepseek_v4", "deepseek_v41x", "deepseek_v3"}) {
    json j = golden_json();
    j["model_type"] = type;
    const auto failure = failure_of([&] { parse(j); });
    CHECK(failure.code == Errc::unsupported);
    CHECK(failure.says("model_type"));
    CHECK(failure.says(type));
  }
  json j = golden_json();
  j.erase("model_type");
  CHECK(failure_of([&] { parse(j); }).says("model_type"));
}

TEST_CASE("B85: required keys have no defaults") {
  for (const char* key :
       {"vocab_size", "rms_norm_eps", "scoring_func", "swiglu_limit", "compress_ratios", "kv_source_layer_ids",
        "index_topk", "candidate_block_size", "engram_num_embeddings", "dspark_markov_rank", "hc_eps"}) {
    json j = golden_json();
    j["text_config"].erase(key);
    const auto failure = failure_of([&] { parse(j); });
    INFO(failure.message);
    CHECK(failure.code == Errc::format);
    CHECK(failure.says(key));
    CHECK(failure.says("absent"));
  }
}

TEST_CASE("B85: two spellings of one key that disagree are refused") {
  json j = golden_json();
  j["text_config"]["dim"] = 64;
  CHECK_NOTHROW(parse(j));
  j["text_config"]["dim"] = 65;
  CHECK(failure_of([&] { parse(j); }).says("hidden_size"));
}

TEST_CASE("what is not strict JSON is refused") {
  const std::string good = golden_config("01-all-mechanisms");
  const std::string end = good.substr(good.rfind('}'));
  for (std::size_t length = 0; length + end.size() <= good.size(); ++length) {
    CHECK(failure_of([&] { parse_config(good.substr(0, length), "cut"); }).code == Errc::format);
  }
  std::string deep(10000, '[');
  CHECK(failure_of([&] { parse_config(deep, "deep"); }).code == Errc::format);
  deep.clear();
  for (int i = 0; i < 10000; ++i) deep += "{\"a\":";
  CHECK(failure_of([&] { parse_config(deep, "deep"); }).says("nests deeper"));
  CHECK(failure_of([&] { parse_config("{\"a\": 1, \"a\": 1}", "twice"); }).says("twice"));
  CHECK(failure_of([&] { parse_config(good + '\0' + "x", "nul"); }).says("NUL"));
  CHECK(failure_of([&] { parse_config("{\"rms_norm_eps\": 1e999}", "big"); }).code == Errc::format);
  CHECK(failure_of([&] { parse_config("{\"rms_norm_eps\": NaN}", "nan"); }).code == Errc::format);
  for (const char* text : {"", "7", "[]", "null", "\"x\"", "{\"text_config\": 3}", "\xff"}) {
    CHECK(failure_of([&] { parse_config(text, "odd"); }).code == Errc::format);
  }
}
