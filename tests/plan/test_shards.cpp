// SPDX-License-Identifier: MIT
//
// The released files without the release: counts, sizes and header hashes are those that were published (checkpoint.md 2.1 and 2.3), the
// tensors of the golden folders those that another program wrote.
#include <algorithm>
#include <map>
#include <set>

#include "../support/catch.hpp"
#include "../support/golden.hpp"
#include "../support/raw_safetensors.hpp"
#include "dsv41/core/config_rules.hpp"
#include "dsv41/core/v41_flash.hpp"
#include "dsv41/plan/shards.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "files/sha256.hpp"
#include "runtime/safetensors_header.hpp"

using dsv41::ModelConfig;
using dsv41::plan::released_shards;
using dsv41::plan::Shard;
using dsv41::plan::ShardTensor;
using dsv41::runtime::DType;
using namespace dsv41::test;

namespace {

const std::filesystem::path kGolden = DSV41_GOLDEN_DIR;

ModelConfig config_of(const std::filesystem::path& folder) {
  return dsv41::runtime::parse_config(read_file(folder / "config.json"), "config.json");
}

/// Made once: 96,085 tensors.
const std::vector<Shard>& released() {
  static const std::vector<Shard> shards = released_shards(config_of(kGolden / "release"));
  return shards;
}

const ShardTensor& tensor(const Shard& shard, const std::string& name) {
  for (const ShardTensor& t : shard.tensors) {
    if (t.name == name) return t;
  }
  throw std::runtime_error("no tensor " + name + " in " + shard.file);
}

std::string described(std::string dtype, const std::vector<std::int64_t>& shape) {
  for (const std::int64_t extent : shape) dtype += " " + std::to_string(extent);
  return dtype;
}

}  // namespace

TEST_CASE("every published header hash is reproduced") {
  struct Row {
    std::size_t shard, header_bytes;
    const char* sha256;
  };
  const Row rows[] = {{1, 27376, "2a181b0038d7f870193f4cd1df5fc33626afcc45bfb82b41af6fd43aca447b4f"},
                      {2, 344, "d12e3fdffd1199b504f628efad3ffe194a04365beed1234be196c42952af5101"},
                      {3, 258136, "71213f444f9c15a4af6dbcbddc36f7611542884ebb3aadef54de650071357449"},
                      {5, 259096, "c50a8acf025e565be36bf005ae712ad7518a8bcc1d2ed561e413970bbabc86e6"},
                      {13, 260472, "e9246f9e946c8b771d95640635c0cc01d295a312fc374fd87f7d0d67e9c7f0fc"},
                      {17, 261440, "d0869abfd06ac08cc5a376eebf9d7de632227e141e6dcb7109bf0d2bffd3fc79"},
                      {23, 261280, "fef3b0be45a79923f05c0a7e9a8713397d9c9d24dab8e13efc953d609f64efe9"},
                      {27, 260808, "babf9e26761c97df06490e96368e40e3cc916770abe2afffa9b3a45a5734742b"},
                      {42, 260472, "5ca433405c1b16b8776486a174583e7ff2641889b292d70952da7a339687a70c"},
                      {43, 176, "9c6d4d664cfd377322e7c1cb1ed248ff1aea586d6f83373f6b5b36d9f7cc1d54"},
                      {44, 84928, "bcfa221d7a325e0a910e262d782c0e97bd5e5b7cbde6c9b480bb88ab7c23a36e"},
                      {45, 84608, "c8f2cad66c6387793b335cbc10231661b61f2ec7a8c814bccb8d6ae418200675"},
                      {46, 85616, "1baad4e59ff44a15727f0c294d015da70a90502fd5d1e844c1c0939a8194793e"},
                      {47, 656, "e5c5c7fc900caec400644bef07aa5d7e28fc6ca941c8c47592b393963b218242"},
                      {48, 664, "5d8fa4697d7a071c31baeee6947d493c08ea3243261c5d0f79c355ad191b8222"}};
  REQUIRE(released().size() == 48);
  for (const Row& row : rows) {
    INFO("shard " << row.shard);
    const Shard& shard = released()[row.shard - 1];
    CHECK(shard.header.size() == row.header_bytes);
    CHECK(shard.header_sha256 == row.sha256);
    CHECK(dsv41::files::sha256_hex(shard.header) == shard.header_sha256);
  }
}

TEST_CASE("files, tensors and payloads of the release are the published ones") {
  std::map<DType, std::pair<std::int64_t, std::uint64_t>> types;  // tensors, bytes
  std::uint64_t tensors = 0, payload = 0, bytes = 0;
  std::set<std::string> names;
  for (std::size_t i = 0; i < released().size(); ++i) {
    const Shard& shard = released()[i];
    INFO(shard.file);
    std::size_t count = 2334;
    std::uint64_t size = 7389500888;
    switch (i + 1) {
      case 1: count = 263, size = 970506240; break;
      case 2: count = 4, size = 1323857920; break;
      case 3 + 2:
      case 3 + 8:
      case 3 + 14: count = 2342, size = 7405694680; break;
      case 3 + 20: count = 2341, size = 7400451800; break;
      case 3 + 24:
      case 3 + 28:
      case 3 + 32:
      case 3 + 36: count = 2337, size = 7395076568; break;
      case 43: count = 2, size = 1323837440; break;
      case 44: count = 801, size = 2652643800; break;
      case 45: count = 798, size = 2573913560; break;
      case 46: count = 802, size = 2706317272; break;
      case 47: count = 6, size = 101535150272; break;
      case 48: count = 6, size = 101537925968; break;
      default: break;
    }
    CHECK(shard.tensors.size() == count);
    CHECK(shard.payload_bytes == size);
    char file[64];
    std::snprintf(file, sizeof file, "model-%05zu-of-00048.safetensors", i + 1);
    CHECK(shard.file == file);
    std::uint64_t offset = 0;
    for (const ShardTensor& t : shard.tensors) {
      if (t.begin != offset) FAIL_CHECK(t.name << " begins at " << t.begin << ", expected " << offset);
      offset = t.end;
      ++types[t.dtype].first;
      types[t.dtype].second += t.end - t.begin;
      if (!names.insert(t.name).second) FAIL_CHECK("twice: " << t.name);
    }
    CHECK(offset == shard.payload_bytes);
    tensors += shard.tensors.size();
    payload += shard.payload_bytes;
    bytes += shard.file_bytes();
  }
  CHECK(tensors == 96085);
  CHECK(payload == 510286023000);
  CHECK(bytes == 510296708312);
  const std::map<DType, std::pair<std::int64_t, std::uint64_t>> published{{DType::f8_e4m3, {357, 204015223296}},
                                                                          {DType::f8_e8m0, {47589, 23563015184}},
                                                                          {DType::i8, {47232, 278585671680}},
                                                                          {DType::bf16, {520, 3952883712}},
                                                                          {DType::f32, {387, 169229128}}};
  CHECK(types == published);
}

TEST_CASE("single tensors of the release: shapes of each kind, and where they stand") {
  const Shard& layer = released()[3 + 2 - 1];
  using Shape = std::vector<std::int64_t>;
  CHECK(tensor(layer, "layers.2.attn.wq_b.scale").shape == Shape{1024, 40});
  CHECK(tensor(layer, "layers.2.ffn.experts.7.w2.weight").shape == Shape{5120, 1152});
  CHECK(tensor(layer, "layers.2.ffn.experts.7.w2.scale").shape == Shape{5120, 72});
  CHECK(tensor(layer, "layers.2.attn.compressor.wgate.weight").shape == Shape{512, 5120});
  CHECK(tensor(layer, "layers.2.attn.attn_sink").begin == 0);  // F32 first, then by name
  CHECK(layer.tensors.back().name == "layers.2.ffn.experts.99.w3.weight");
  const Shard& engram = released()[47];
  CHECK(engram.tensors[0].name == "layers.14.engram.embed.weight");
  CHECK(engram.tensors[1].shape == Shape{384016682, 8});
  CHECK(engram.tensors[5].name == "layers.14.engram.wkv.scale");
}

TEST_CASE("each header is one that the reader accepts, for exactly these tensors") {
  // The reader compares offsets with a payload of the stated size; it does not look at the bytes, so none need be there.
  for (const Shard& shard : released()) {
    INFO(shard.file);
    CHECK(shard.header.size() % 8 == 0);
    const auto* nowhere = reinterpret_cast<const std::byte*>(shard.header.data());
    const auto read = dsv41::runtime::parse_header(
        shard.header, std::span(nowhere, static_cast<std::size_t>(shard.payload_bytes)), shard.file);
    REQUIRE(read.size() == shard.tensors.size());
    bool equal = true;
    for (std::size_t i = 0; i < read.size(); ++i) {
      const ShardTensor& t = shard.tensors[i];
      equal = equal && read[i].name == t.name && read[i].dtype == t.dtype && read[i].shape == t.shape &&
              read[i].bytes == t.end - t.begin;
    }
    CHECK(equal);
  }
}

TEST_CASE("v41_flash() gives the same files as the released config.json") {
  const auto shards = released_shards(dsv41::v41_flash());
  REQUIRE(shards.size() == released().size());
  for (std::size_t i = 0; i < shards.size(); ++i) CHECK(shards[i].header_sha256 == released()[i].header_sha256);
}

TEST_CASE("a golden folder holds the tensors that its config gives, where it stores the released forms") {
  std::size_t seen = 0, quantised = 0;
  std::vector<std::filesystem::path> folders = golden_folders();
  folders.push_back(DSV41_DEMO_DIR);
  for (const std::filesystem::path& folder : folders) {
    INFO(folder);
    const std::vector<RawTensor> file = read_raw(folder / "model.safetensors");
    // Some folders store every matrix as floats.
    const bool same_form = std::any_of(file.begin(), file.end(), [](auto& t) { return t.dtype == "F8_E8M0"; });
    std::map<std::string, std::string> ours, theirs;  // name -> dtype and shape
    for (const Shard& shard : released_shards(config_of(folder))) {
      for (const ShardTensor& t : shard.tensors) {
        if (same_form) ours[t.name] = described(std::string(dtype_name(t.dtype)), t.shape);
        if (!same_form && t.dtype != DType::f8_e8m0) ours[t.name] = "";
      }
    }
    for (const RawTensor& t : file) {
      theirs[t.name] = same_form ? described(t.dtype, t.shape) : "";
    }
    CHECK(ours == theirs);
    ++seen;
    quantised += same_form ? 1 : 0;
  }
  CHECK(seen == kFolders + 1);
  CHECK(quantised > seen / 2);
}

TEST_CASE("parts that a config does not have get no file, and the rest is numbered without gaps") {
  ModelConfig c = dsv41::v41_flash();
  c.vision = {};
  c.engram = {};
  c.draft = {};
  c.experts = 6;
  const auto shards = released_shards(c);
  REQUIRE(shards.size() == 42);
  CHECK(shards[0].file == "model-00001-of-00042.safetensors");
  REQUIRE(shards[0].tensors.size() == 1);
  CHECK(shards[0].tensors[0].name == "embed.weight");
  CHECK(shards[41].tensors[0].name == "head.weight");
}

TEST_CASE("rows that are no whole scale blocks have no FP4 form") {
  ModelConfig c = config_of(kGolden / "02-window-only");
  c.ff = 48;
  CHECK_NOTHROW(validate(c));
  for (const Shard& shard : released_shards(c)) {
    for (const ShardTensor& t : shard.tensors) {
      if (t.name == "layers.0.ffn.experts.0.w1.weight") CHECK(t.dtype == DType::i8);
      if (t.name != "layers.0.ffn.experts.0.w2.weight") continue;
      CHECK(t.dtype == DType::bf16);
      CHECK(t.shape == std::vector<std::int64_t>{c.dim, 48});
    }
  }
}
