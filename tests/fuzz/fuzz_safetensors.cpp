// SPDX-License-Identifier: MIT
//
// Fuzzer entry for everything that reads a model folder's text: the first byte chooses container, config or index, the
// rest is the file. Only dsv41::Error may come out, and what is accepted must hold together. replay_main.cpp runs it
// over stored inputs.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "../../src/runtime/shard_set.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/plan/sizes.hpp"
#include "dsv41/runtime/config_file.hpp"
#include "dsv41/runtime/inventory.hpp"
#include "dsv41/runtime/safetensors.hpp"

namespace {

using namespace dsv41::runtime;

constexpr std::int64_t kFewExperts = 4096;  // an inventory that is made in no time

/// A broken promise must stop the fuzzer; throwing past its entry does.
void demand(bool holds, const char* what) {
  if (!holds) throw what;
}

void container(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  const SafetensorsFile file = SafetensorsFile::over(bytes, "input");
  const std::byte* next = nullptr;
  for (const TensorInfo& t : file.tensors()) {
    demand(t.data >= bytes.data() && t.bytes <= static_cast<std::size_t>(bytes.data() + bytes.size() - t.data),
           "bytes outside the file");
    demand(next == nullptr || t.data == next, "tensors do not touch");
    next = t.data + t.bytes;
    demand(file.find(t.name) == &t, "a name that is not found");
    demand(!describe(t).empty(), "no description");
    std::int64_t elements = 1;
    for (std::int64_t extent : t.shape) elements *= extent;
    const std::int64_t element = dtype_bytes(t.dtype);
    demand(element == 0 || static_cast<std::uint64_t>(elements * element) == t.bytes,
           "bytes that are not shape times dtype");
  }
  demand(next == nullptr || next == bytes.data() + bytes.size(), "bytes after the last tensor");
}

void config(std::string_view text) {
  const dsv41::ModelConfig c = parse_config(text, "input");
  if (c.layers * c.experts + c.draft.stages * c.draft.experts > kFewExperts) return;
  for (const TensorSpec& spec : inventory(c)) {
    demand(spec.rows > 0 && spec.cols > 0, "an empty tensor");
    demand(spec.rows <= INT64_MAX / 4 / spec.cols, "a tensor of more than 63 bits");
  }
  demand(dsv41::plan::model_sizes(c).total_bytes > 0, "sizes that wrapped around");
}

void index(std::string_view text) {
  const ShardIndex parsed = parse_index(text, "input");
  for (const auto& [tensor, shard] : parsed.positions)
    demand(shard < parsed.shards.size(), "a shard that is not listed");
  for (const std::string& shard : parsed.shards)
    demand(shard.find('/') == std::string::npos, "a shard outside the folder");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 3) {
      case 0: container(text); break;
      case 1: config(text); break;
      default: index(text); break;
    }
  } catch (const dsv41::Error&) {
    // refused, as it should be
  }
  return 0;
}
