// SPDX-License-Identifier: MIT
//
// Model folders: the goldens open and their views are the files' bytes; a folder in which something is missing is refused.
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "../support/catch.hpp"
#include "../support/spoiled_copy.hpp"
#include "dsv41/runtime/checkpoint.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "dsv41/runtime/inventory.hpp"

using dsv41::Errc;
using dsv41::Format;
using dsv41::Matrix;
using dsv41::runtime::Checkpoint;
using namespace dsv41::test;
using nlohmann::json;

namespace {

const std::string kIndex = "model.safetensors.index.json";
using Tensors = std::vector<RawTensor>;

std::string scales_of(const Matrix& m) {
  return std::string(reinterpret_cast<const char*>(m.scales),
                     static_cast<std::size_t>(m.scale_rows() * m.scale_cols()));
}

/// Value of a vector's element as stored, decoded here and not by the library.
float stored_value(const RawTensor& t, std::size_t i) {
  std::uint32_t bits = 0;
  if (t.dtype == "F32") {
    std::memcpy(&bits, t.bytes.data() + 4 * i, 4);
  } else {
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, t.bytes.data() + 2 * i, 2);
  }
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace

TEST_CASE("every golden opens, and each view holds the bytes of its tensor") {
  std::set<Format> formats;
  for (const auto& entry : std::filesystem::directory_iterator(kGoldenFolder)) {
    if (!std::filesystem::exists(entry.path() / kModelFile)) continue;
    INFO(entry.path());
    const Checkpoint checkpoint = Checkpoint::open(entry.path());
    CHECK(checkpoint.folder() == entry.path());
    Tensors raw = read_raw(entry.path() / kModelFile);
    // The inventory of the same config, pointed into a copy of the opened weights, must find what open() bound.
    dsv41::ModelWeights weights = checkpoint.weights();
    std::size_t named_here = 0;
    for (const auto& spec : dsv41::runtime::inventory(checkpoint.config(), &weights)) {
      INFO(spec.name);
      const RawTensor& tensor = named(raw, spec.name);
      ++named_here;
      if (spec.is_vector) {
        REQUIRE(spec.vector->extent(0) == spec.rows);
        for (std::int64_t i = 0; i < spec.rows; ++i)
          REQUIRE((*spec.vector)[i] == stored_value(tensor, static_cast<std::size_t>(i)));
        continue;
      }
      REQUIRE(spec.matrix->rows == spec.rows);
      REQUIRE(spec.matrix->cols == spec.cols);
      REQUIRE(spec.matrix->name == spec.name);
      REQUIRE(bytes_of(*spec.matrix) == tensor.bytes);
      formats.insert(spec.matrix->format);
      if (!dsv41::is_quantised(spec.matrix->format)) continue;
      REQUIRE(scales_of(*spec.matrix) == named(raw, dsv41::runtime::scale_name(spec.name)).bytes);
      ++named_here;
    }
    CHECK(named_here == raw.size());
  }
  CHECK(formats == std::set<Format>{Format::f32, Format::bf16, Format::fp8_tile, Format::fp8_row, Format::fp4_row});
}

TEST_CASE("views outlive a move of the checkpoint") {
  Checkpoint first = Checkpoint::open(kGoldenFolder / "13-deployed");
  const std::byte* data = first.weights().embed.data;
  const Checkpoint second = std::move(first);
  CHECK(second.weights().embed.data == data);
  CHECK(second.weights().norm[0] != 0);
}

TEST_CASE("the inventory of the released config has the released tensors and bytes") {
  const auto config = dsv41::runtime::parse_config(read_file(kGoldenFolder / "release" / "config.json"), "config.json");
  using dsv41::runtime::Stored;
  std::int64_t count[5] = {}, scales = 0, scale_bytes = 0, bytes = 0;
  std::set<std::string> names;
  for (const auto& spec : dsv41::runtime::inventory(config)) {
    CHECK(names.insert(spec.name).second);
    CHECK((spec.matrix == nullptr && spec.vector == nullptr));
    ++count[static_cast<int>(spec.stored)];
    const std::int64_t n = spec.rows * spec.cols;
    const std::int64_t columns = (spec.cols + 31) / 32;
    switch (spec.stored) {
      case Stored::f32: bytes += 4 * n; break;
      case Stored::bf16: bytes += 2 * n; break;
      case Stored::fp8: bytes += n, ++scales, scale_bytes += (spec.rows + 31) / 32 * columns; break;
      case Stored::fp4: bytes += n / 2, ++scales, scale_bytes += spec.rows * columns; break;
      case Stored::table: bytes += n, ++scales, scale_bytes += spec.rows * columns; break;
    }
  }
  // checkpoint.md 2.1.
  CHECK(count[0] == 387);
  CHECK(count[1] == 520);
  CHECK(count[2] + count[4] == 357);
  CHECK(count[3] == 47232);
  CHECK(scales == 47589);
  CHECK(scale_bytes == 23563015184);
  CHECK(static_cast<std::int64_t>(names.size()) + scales == 96085);
  CHECK(bytes + scale_bytes == 510286023000);
}

TEST_CASE("a checkpoint cut at any length is refused") {
  SpoiledCopy copy;
  copy.folder.write("config.json", copy.config.dump());
  const std::string whole = raw_file(copy.tensors);
  for (std::size_t size = 0; size < whole.size(); size += size < 4096 ? 97 : 20011) {
    copy.folder.write(kModelFile, whole.substr(0, size));
    const Failure failure = failure_of([&] { Checkpoint::open(copy.folder.path()); });
    CHECK((failure.code == Errc::io || failure.code == Errc::format));
    CHECK(failure.says(kModelFile));
  }
}

TEST_CASE("B25, B77: a missing tensor is named, whichever it is: a missing bias is no zero bias") {
  const Tensors all = SpoiledCopy().tensors;
  for (std::size_t i = 0; i < all.size(); ++i) {
    SpoiledCopy copy;
    copy.tensors.erase(copy.tensors.begin() + static_cast<std::ptrdiff_t>(i));
    const Failure failure = copy.failure();
    INFO(all[i].name << ": " << failure.message);
    if (all[i].name.ends_with("bias_vl") || all[i].name.find("confidence") != std::string::npos) {
      CHECK(failure.code == Errc::ok);
    } else {
      CHECK(failure.code == Errc::format);
      CHECK(failure.says(all[i].name));
    }
  }
}

TEST_CASE("many missing tensors are counted and some of the present ones shown") {
  SpoiledCopy copy;
  for (RawTensor& t : copy.tensors) t.name = "model." + t.name;
  const std::string folder = copy.folder.path().string();
  check_refused(copy, {folder + ": missing tensors: embed.weight, ", " more; the files hold ", "model.embed.weight"});
}

TEST_CASE("without bias_vl image tokens use the bias, and the drafter works without a confidence head") {
  SpoiledCopy copy;
  std::erase_if(copy.tensors, [](const RawTensor& t) {
    return t.name.ends_with("bias_vl") || t.name.find("confidence") != std::string::npos;
  });
  const Checkpoint checkpoint = copy.open();
  for (const auto* stack : {&checkpoint.weights().layers, &checkpoint.weights().draft.stages}) {
    for (const auto& layer : *stack) CHECK(layer.moe.bias_vl.data() == layer.moe.bias.data());
  }
  CHECK(checkpoint.weights().draft.confidence.empty());
}

TEST_CASE("the predecessor's names of the Markov factors are accepted") {
  SpoiledCopy copy;
  named(copy.tensors, "mtp.0.markov_head.embed.weight").name = "mtp.0.markov_head.markov_w1.weight";
  named(copy.tensors, "mtp.0.markov_head.head.weight").name = "mtp.0.markov_head.markov_w2.weight";
  const Checkpoint checkpoint = copy.open();
  CHECK(bytes_of(checkpoint.weights().draft.markov_head) ==
        named(copy.tensors, "mtp.0.markov_head.markov_w2.weight").bytes);
}

TEST_CASE("B86: data at odd addresses gives the same values") {
  const Checkpoint plain = Checkpoint::open(kGoldenFolder / "13-deployed");
  for (std::size_t pad = 1; pad < 8; ++pad) {
    SpoiledCopy copy;
    copy.tensors.insert(copy.tensors.begin(),
                        RawTensor{"pad", "U8", {static_cast<std::int64_t>(pad)}, std::string(pad, 'x')});
    const Checkpoint shifted = copy.open();
    for (std::int64_t i = 0; i < plain.config().dim; ++i) REQUIRE(shifted.weights().norm[i] == plain.weights().norm[i]);
    CHECK(bytes_of(shifted.weights().head) == bytes_of(plain.weights().head));
  }
}

TEST_CASE("B83: an index sends each tensor to its own shard, and nowhere else") {
  SpoiledCopy copy;
  copy.folder.write("config.json", copy.config.dump());
  Tensors a, b;
  json map = json::object();
  for (std::size_t i = 0; i < copy.tensors.size(); ++i) {
    (i % 2 ? a : b).push_back(copy.tensors[i]);
    map[copy.tensors[i].name] = i % 2 ? "a.st" : "b.st";
  }
  // Both shards hold the norm; the index says whose counts. A stale single file and unindexed extras do not matter.
  RawTensor norm = named(copy.tensors, "norm.weight");
  (map["norm.weight"] == "a.st" ? b : a)
      .push_back({norm.name, "BF16", norm.shape, std::string(norm.bytes.size(), '\0')});
  a.push_back({"extra", "U8", {1}, "x"});
  copy.folder.write("a.st", raw_file(a));
  copy.folder.write("b.st", raw_file(b));
  copy.folder.write(kModelFile, "stale");
  const auto open = [&](const json& weight_map) {
    copy.folder.write(kIndex, json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
    return Checkpoint::open(copy.folder.path());
  };
  CHECK(open(map).weights().norm[0] == stored_value(norm, 0));

  json swapped = map;
  swapped["norm.weight"] = map["norm.weight"] == "a.st" ? "b.st" : "a.st";
  CHECK(open(swapped).weights().norm[0] == 0);

  json lying = map;
  lying["head.weight"] = map["head.weight"] == "a.st" ? "b.st" : "a.st";
  lying["ghost"] = "a.st";
  const Failure lies = failure_of([&] { open(lying); });
  CHECK(lies.code == Errc::format);
  CHECK(lies.says("head.weight"));
  CHECK(lies.says("ghost (a.st)"));

  json missing = map;
  missing["head.weight"] = "c.st";
  const Failure absent = failure_of([&] { open(missing); });
  CHECK(absent.code == Errc::io);
  CHECK(absent.says("missing shards: c.st"));
  // Before anything is opened: the shards that are there need not even be readable.
  copy.folder.write("a.st", "no shard");
  CHECK(failure_of([&] { open(missing); }).says("missing shards: c.st"));
  copy.folder.write("a.st", raw_file(a));

  json unindexed = map;
  unindexed.erase("norm.weight");
  CHECK(failure_of([&] { open(unindexed); }).says("missing tensors: norm.weight"));
}

TEST_CASE("B83: an index that leaves the folder or is no index is refused") {
  SpoiledCopy copy;
  copy.folder.write("config.json", copy.config.dump());
  copy.folder.write(kModelFile, raw_file(copy.tensors));
  const auto failure = [&](const std::string& text) {
    copy.folder.write(kIndex, text);
    return failure_of([&] { Checkpoint::open(copy.folder.path()); });
  };
  for (const char* shard : {"../x", "/x", "a/b", "..", ".", "", "a\\\\b", "a..b", "a\\u0000b"}) {
    const Failure refused = failure(std::string(R"({"weight_map":{"w":")") + shard + R"("}})");
    INFO(shard << ": " << refused.message);
    CHECK(refused.code == Errc::format);
    CHECK(refused.says("same folder"));
  }
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"w":3}})", R"({"weight_map":{"w":"a","w":"a"}})"}) {
    CHECK(failure(text).code == Errc::format);
  }
}

TEST_CASE("numbered shards without an index must be one complete set without duplicates") {
  SpoiledCopy copy;
  copy.folder.write("config.json", copy.config.dump());
  const auto failure = [&] { return failure_of([&] { Checkpoint::open(copy.folder.path()); }); };
  CHECK(failure().code == Errc::io);
  CHECK(failure().says("no model.safetensors"));
  const std::size_t half = copy.tensors.size() / 2;
  const Tensors a(copy.tensors.begin(), copy.tensors.begin() + static_cast<std::ptrdiff_t>(half));
  Tensors b(copy.tensors.begin() + static_cast<std::ptrdiff_t>(half), copy.tensors.end());
  copy.folder.write("model-00001-of-00002.safetensors", raw_file(a));
  CHECK(failure().says("1 of 2"));
  copy.folder.write("model-00002-of-00002.safetensors", raw_file(b));
  CHECK_NOTHROW(Checkpoint::open(copy.folder.path()));
  b.push_back(a[0]);
  copy.folder.write("model-00002-of-00002.safetensors", raw_file(b));
  CHECK(failure().code == Errc::format);
  CHECK(failure().says(a[0].name));
  b.pop_back();
  copy.folder.write("model-00002-of-00002.safetensors", raw_file(b));
  copy.folder.write("model-00001-of-00003.safetensors", raw_file(a));
  CHECK(failure().says("several sets"));
}

TEST_CASE("a folder without what it needs is refused") {
  const TempFolder folder;
  CHECK(failure_of([&] { Checkpoint::open(folder / "absent"); }).code == Errc::io);
  CHECK(failure_of([&] { Checkpoint::open(folder.path()); }).says("config.json"));
  folder.write("config.json", "{}");
  CHECK(failure_of([&] { Checkpoint::open(folder.path()); }).code == Errc::format);
  std::filesystem::remove(folder / "config.json");
  std::filesystem::create_directory(folder / "config.json");
  CHECK(failure_of([&] { Checkpoint::open(folder.path()); }).code == Errc::io);
}

TEST_CASE("an impossible config is refused before any tensor is looked at") {
  SpoiledCopy copy;
  copy.config["text_config"]["compress_ratios"][1] = 0;
  check_refused(copy, {"config.json", "kv_source_layer_ids"});
}
