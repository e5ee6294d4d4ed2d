// SPDX-License-Identifier: MIT
//
// A model's fingerprint: the same however its files lie, another one with any value that results follow from.
#include "runtime/fingerprint.hpp"

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../support/spoiled_copy.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "files/sha256.hpp"

using namespace dsv41;
using namespace dsv41::runtime;
using namespace dsv41::test;

namespace {

const std::string kName = "13-deployed";

std::string fingerprint_of(const SpoiledCopy& copy) {
  return files::hex(copy.open().fingerprint());
}

std::string original() {
  return files::hex(Checkpoint::open(kGoldenFolder / kName).fingerprint());
}

}  // namespace

TEST_CASE("a fingerprint is of the model, not of its files") {
  const std::string expected = original();
  SpoiledCopy copy;
  CHECK(fingerprint_of(copy) == expected);
  CHECK(files::hex(Checkpoint::open(copy.folder.path(), Access::read).fingerprint()) == expected);
  const Checkpoint checkpoint = copy.open();
  CHECK(checkpoint.fingerprint() == checkpoint.fingerprint());  // the second is the first's

  std::reverse(copy.tensors.begin(), copy.tensors.end());
  CHECK(fingerprint_of(copy) == expected);

  const TempFolder shards;
  shards.write("config.json", copy.config.dump());
  for (std::size_t shard = 0; shard < 3; ++shard) {
    std::vector<RawTensor> part;
    for (std::size_t i = shard; i < copy.tensors.size(); i += 3) part.push_back(copy.tensors[i]);
    shards.write("model-0000" + std::to_string(shard + 1) + "-of-00003.safetensors", raw_file(part));
  }
  CHECK(files::hex(Checkpoint::open(shards.path()).fingerprint()) == expected);
}

TEST_CASE("the fingerprint of a golden is what it was: saved sessions depend on it") {
  CHECK(original() == "82435e730a5870574490214f0ecf98877f1b97a268c50fa7673be149f85dde6d");
}

TEST_CASE("either end of any tensor counts, and nothing between") {
  const std::string expected = original();
  SpoiledCopy copy;
  std::size_t between = 0;
  const std::vector<RawTensor> tensors = copy.tensors;
  for (std::size_t i = 0; i < tensors.size(); i += 7) {  // every kind is among them
    INFO(tensors[i].name);
    std::string& bytes = copy.tensors[i].bytes;
    const std::size_t size = bytes.size();
    for (const std::size_t at :
         {std::size_t{0}, size - 1, std::min(kSampleBytes, size) - 1, size - std::min(kSampleBytes, size)}) {
      bytes[at] ^= 1;
      CHECK(fingerprint_of(copy) != expected);
      bytes = tensors[i].bytes;
    }
    if (size <= 2 * kSampleBytes) continue;
    ++between;
    bytes[kSampleBytes] ^= 1, bytes[size - kSampleBytes - 1] ^= 1;
    CHECK(fingerprint_of(copy) == expected);
    bytes = tensors[i].bytes;
  }
  CHECK(between > 0);
}

TEST_CASE("dtype and shape count; an older spelling does not, nor a tensor that is not the model's") {
  const std::string expected = original();
  SpoiledCopy copy;
  RawTensor& norm = named(copy.tensors, "norm.weight");
  REQUIRE(norm.dtype == "BF16");
  norm.dtype = "F16";
  CHECK(fingerprint_of(copy) != expected);
  norm.dtype = "BF16";
  named(copy.tensors, "mtp.0.markov_head.embed.weight").name = "mtp.0.markov_head.markov_w1.weight";
  copy.tensors.push_back({"extra", "U8", {1}, "x"});
  CHECK(fingerprint_of(copy) == expected);

  // Of files that open() would refuse: the shape by itself, and a tensor that is not there.
  const ModelConfig config = Checkpoint::open(copy.folder.path()).config();
  const auto of_files = [&] {
    copy.folder.write(kModelFile, raw_file(copy.tensors));
    return files::hex(model_fingerprint(ShardSet::open(copy.folder.path(), Access::map), config));
  };
  CHECK(of_files() == expected);
  RawTensor& embed = named(copy.tensors, "embed.weight");
  std::swap(embed.shape[0], embed.shape[1]);
  CHECK(of_files() != expected);
  std::swap(embed.shape[0], embed.shape[1]);
  dsv41::test::erase(copy.tensors, "layers.0.attn.wkv.scale");
  CHECK(of_files() != expected);
}

TEST_CASE("every value of the config that results follow from counts, and no other") {
  const ShardSet shards = ShardSet::open(kGoldenFolder / kName, Access::map);
  const ModelConfig config = parse_config(read_file(kGoldenFolder / kName / "config.json"), "config.json");
  const Fingerprint expected = model_fingerprint(shards, config);
  CHECK(expected == Checkpoint::open(kGoldenFolder / kName).fingerprint());
  using Change = std::function<void(ModelConfig&)>;
  const std::vector<Change> changes = {
      [](ModelConfig& c) { c.vocab += 1; },
      [](ModelConfig& c) { c.dim += 1; },
      [](ModelConfig& c) { c.norm_eps *= 2; },
      [](ModelConfig& c) { c.heads += 1; },
      [](ModelConfig& c) { c.head_dim += 1; },
      [](ModelConfig& c) { c.rope_dim += 2; },
      [](ModelConfig& c) { c.q_rank += 1; },
      [](ModelConfig& c) { c.o_rank += 1; },
      [](ModelConfig& c) { c.o_groups += 1; },
      [](ModelConfig& c) { c.window += 1; },
      [](ModelConfig& c) { c.rope_theta += 1; },
      [](ModelConfig& c) { c.compress_theta += 1; },
      [](ModelConfig& c) { c.yarn.factor += 1; },
      [](ModelConfig& c) { c.yarn.beta_fast += 1; },
      [](ModelConfig& c) { c.yarn.beta_slow += 1; },
      [](ModelConfig& c) { c.yarn.original_positions += 1; },
      [](ModelConfig& c) { c.ratios.back() += 1; },
      [](ModelConfig& c) { c.index_sources.back() += 1; },
      [](ModelConfig& c) { c.candidate_source = c.candidate_source < 0 ? 0 : -1; },
      [](ModelConfig& c) { c.index_heads += 1; },
      [](ModelConfig& c) { c.index_dim += 1; },
      [](ModelConfig& c) { c.index_topk += 1; },
      [](ModelConfig& c) { c.candidate_blocks += 1; },
      [](ModelConfig& c) { c.candidate_block += 1; },
      [](ModelConfig& c) { c.ff += 1; },
      [](ModelConfig& c) { c.experts += 1; },
      [](ModelConfig& c) { c.shared_experts += 1; },
      [](ModelConfig& c) { c.topk += 1; },
      [](ModelConfig& c) {
        c.score = c.score == ScoreFunction::softmax ? ScoreFunction::sigmoid : ScoreFunction::softmax;
      },
      [](ModelConfig& c) { c.norm_topk = !c.norm_topk; },
      [](ModelConfig& c) { c.route_scale += 1; },
      [](ModelConfig& c) { c.gate_temp += 1; },
      [](ModelConfig& c) { c.swiglu_limit += 1; },
      [](ModelConfig& c) { c.hc += 1; },
      [](ModelConfig& c) { c.hc_iters += 1; },
      [](ModelConfig& c) { c.hc_eps *= 2; },
      [](ModelConfig& c) { c.engram.rows.push_back(1); },
      [](ModelConfig& c) { c.engram.max_ngram += 1; },
      [](ModelConfig& c) { c.engram.vocab += 1; },
      [](ModelConfig& c) { c.engram.heads += 1; },
      [](ModelConfig& c) { c.engram.dim += 1; },
      [](ModelConfig& c) { c.engram.pad += 1; },
      [](ModelConfig& c) { c.engram.compressed_vocab += 1; },
      [](ModelConfig& c) { c.draft.block += 1; },
      [](ModelConfig& c) { c.draft.noise_token += 1; },
      [](ModelConfig& c) { c.draft.tap_layers.push_back(0); },
      [](ModelConfig& c) { c.draft.topk += 1; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    INFO("change " << i);
    ModelConfig changed = config;
    changes[i](changed);
    CHECK(model_fingerprint(shards, changed) != expected);
  }
  ModelConfig roles = config;
  roles.max_positions += 1, roles.bos += 1, roles.eos += 1, roles.pad += 1, roles.image_token += 1;
  CHECK(model_fingerprint(shards, roles) == expected);
  // Lists do not run into one another.
  ModelConfig moved = config;
  moved.kv_sources.push_back(moved.index_sources.front());
  moved.index_sources.erase(moved.index_sources.begin());
  CHECK(model_fingerprint(shards, moved) != expected);
}

TEST_CASE("a folder's fingerprint is of its token map too") {
  const std::filesystem::path path = kGoldenFolder / "01-all-mechanisms";
  const ModelFolder folder = ModelFolder::open(path);
  CHECK(folder.fingerprint() == ModelFolder::open(path, {.access = Access::read}).fingerprint());
  CHECK(folder.fingerprint() != folder.checkpoint.fingerprint());

  // A tokenizer of the same sizes in which two tokens have changed places.
  const TempFolder other;
  std::filesystem::copy(path, other / "model");
  nlohmann::json tokenizer = nlohmann::json::parse(read_file(path / "tokenizer.json"));
  std::swap(tokenizer["model"]["vocab"]["a"], tokenizer["model"]["vocab"]["!"]);
  other.write("model/tokenizer.json", tokenizer.dump());
  const ModelFolder swapped = ModelFolder::open(other / "model");
  CHECK(swapped.checkpoint.fingerprint() == folder.checkpoint.fingerprint());
  CHECK(swapped.fingerprint() != folder.fingerprint());
}
