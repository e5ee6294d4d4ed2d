// SPDX-License-Identifier: MIT
//
// Weights by mapping and by reading: file systems that refuse maps, files that somebody shortens, and the map of a tokenizer that is not
// the model's.
#include <string>

#include "dsv41/runtime/engine.hpp"
#include "dsv41/text/compressed_map.hpp"
#include "runtime/wrapped_calls.hpp"
#include "support/spoiled_copy.hpp"

using namespace dsv41;
using namespace dsv41::test;
using runtime::Access;
using runtime::Checkpoint;
using runtime::ModelFolder;

namespace {

constexpr const char* kName = "01-all-mechanisms";

/// Every matrix and vector of the layers that tests look at, as bytes.
std::string weights_of(const Checkpoint& checkpoint) {
  const ModelWeights& w = checkpoint.weights();
  std::string out = bytes_of(w.embed) + bytes_of(w.head);
  const auto vector = [&](const In<float, 1>& v) {
    out.append(reinterpret_cast<const char*>(v.data()), static_cast<std::size_t>(v.size()) * sizeof(float));
  };
  vector(w.norm);
  for (const auto* stack : {&w.layers, &w.draft.stages}) {
    for (const LayerWeights& l : *stack) {
      vector(l.attn.q_norm), vector(l.moe.bias);
      for (const Matrix* m : {&l.attn.wq_a, &l.attn.wkv, &l.moe.gate, &l.moe.experts[0].w1}) out += bytes_of(*m);
    }
  }
  return out;
}

std::vector<float> logits_of(const ModelFolder& folder) {
  runtime::Engine engine(folder, {.max_context = 8});
  runtime::Session session = engine.open_session();
  const std::int32_t ids[] = {1, 5, 7, 11};
  session.append({.ids = ids});
  return {session.logits().data(), session.logits().data() + session.logits().size()};
}

}  // namespace

TEST_CASE("B84: a model loads by reads with the bytes and logits of a mapped one") {
  WrappedCalls calls;
  const ModelFolder mapped = ModelFolder::open(kGoldenFolder / kName);
  CHECK(calls.maps == 1);
  CHECK(calls.private_maps == 1);
  const int texts = calls.reads;  // config and tokenizer are always read
  const ModelFolder read = ModelFolder::open(kGoldenFolder / kName, {.access = Access::read});
  CHECK(calls.maps == 1);
  CHECK(calls.reads > 2 * texts);
  CHECK(weights_of(read.checkpoint) == weights_of(mapped.checkpoint));
  CHECK(logits_of(read) == logits_of(mapped));
}

TEST_CASE("B84: where maps are refused the files are read instead") {
  const Checkpoint mapped = Checkpoint::open(kGoldenFolder / kName);
  WrappedCalls calls;
  calls.refuse_maps = true;
  const ModelFolder folder = ModelFolder::open(kGoldenFolder / kName);
  CHECK(calls.maps == 1);
  CHECK(weights_of(folder.checkpoint) == weights_of(mapped));
}

TEST_CASE("B84: a file that another process shortens is an error of the read path, and what is read already stays") {
  SpoiledCopy copy(kName);
  copy.folder.write("config.json", copy.config.dump());
  const auto file = copy.folder.write(kModelFile, raw_file(copy.tensors));
  const Checkpoint before = Checkpoint::open(copy.folder.path(), Access::read);
  const Checkpoint mapped = Checkpoint::open(copy.folder.path());  // not looked at again: its pages would fault
  const std::string bytes = weights_of(before);
  WrappedCalls calls;
  calls.cut_before_read = file;  // after its size was taken
  const auto size = std::filesystem::file_size(file);
  const Failure during = failure_of([&] { (void)runtime::SafetensorsFile::open(file, Access::read); });
  CHECK(during.code == Errc::io);
  CHECK(during.message ==
        file.string() + ": ends after " + std::to_string(size / 2) + " bytes, expected " + std::to_string(size));
  const Failure after = failure_of([&] { Checkpoint::open(copy.folder.path(), Access::read); });
  CHECK(after.code == Errc::io);
  CHECK(after.says(file.string()));
  CHECK(weights_of(before) == bytes);
}

TEST_CASE("B03: a folder whose token map has another digest than the caller's is refused") {
  const ModelFolder folder = ModelFolder::open(kGoldenFolder / kName);
  const std::uint64_t digest = text::compressed_map_digest(folder.token_map);
  CHECK_NOTHROW(ModelFolder::open(kGoldenFolder / kName, {.map_digest = digest}));

  // A tokenizer of the same sizes in which two tokens have changed places.
  const TempFolder other;
  std::filesystem::copy(kGoldenFolder / kName, other / "model");
  nlohmann::json tokenizer = nlohmann::json::parse(read_file(kGoldenFolder / kName / "tokenizer.json"));
  nlohmann::json& vocab = tokenizer["model"]["vocab"];
  std::swap(vocab["a"], vocab["!"]);
  other.write("model/tokenizer.json", tokenizer.dump());
  const ModelFolder swapped = ModelFolder::open(other / "model");
  CHECK(text::compressed_count(swapped.token_map) == text::compressed_count(folder.token_map));
  CHECK(text::compressed_map_digest(swapped.token_map) != digest);
  const Failure failure = failure_of([&] { ModelFolder::open(other / "model", {.map_digest = digest}); });
  CHECK(failure.code == Errc::format);
  CHECK(failure.says("tokenizer.json: the digest of its token map is 0x"));
  CHECK(failure.says(", expected 0x"));
}
