// SPDX-License-Identifier: MIT
//
// The inventory, distributed over files and sorted as the release is.
#include "dsv41/plan/shards.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "config_check.hpp"
#include "dsv41/runtime/inventory.hpp"
#include "files/sha256.hpp"
#include "stored_form.hpp"

namespace dsv41::plan {
namespace {

using runtime::DType;
using runtime::Part;
using runtime::TensorInfo;
using runtime::TensorSpec;

/// Files in their order: what they hold, and which of several.
enum class Content { vision, embeddings, layer, head, stage, engram };
using FileKey = std::pair<Content, std::int32_t>;

FileKey file_of(const TensorSpec& spec) {
  switch (spec.part) {
    case Part::vision: return {Content::vision, 0};
    case Part::embed: return {Content::embeddings, 0};
    case Part::head: return {Content::head, 0};
    case Part::draft:
    case Part::draft_experts: return {Content::stage, spec.layer};
    case Part::engram_table:
    case Part::engram: return {Content::engram, spec.layer};
    default: return {Content::layer, spec.layer};
  }
}

std::size_t storage_class(DType type) {
  constexpr std::array kOrder{DType::f32, DType::bf16, DType::f8_e8m0, DType::f8_e4m3, DType::i8};
  return static_cast<std::size_t>(std::find(kOrder.begin(), kOrder.end(), type) - kOrder.begin());
}

TensorInfo stored(std::string name, StoredTensor&& tensor) {
  TensorInfo out;
  out.name = std::move(name);
  out.dtype = tensor.dtype;
  out.bytes = static_cast<std::uint64_t>(tensor.bytes());
  out.shape = std::move(tensor.shape);
  return out;
}

std::string five_digits(std::size_t number) {
  const std::string digits = std::to_string(number);
  return std::string(5 - std::min<std::size_t>(digits.size(), 5), '0') + digits;
}

Shard shard_of(std::string file, std::vector<TensorInfo> tensors) {
  Shard out;
  out.file = std::move(file);
  std::uint64_t offset = 0;
  for (TensorInfo& t : tensors) {
    const std::uint64_t end = offset + t.bytes;  // four tensors of at most 2^60 elements and small ones: no overflow
    out.tensors.push_back({t.name, t.dtype, t.shape, offset, end});
    offset = end;
  }
  out.header = runtime::safetensors_header(tensors);
  out.header_sha256 = files::sha256_hex(out.header);
  out.payload_bytes = offset;
  return out;
}

}  // namespace

std::vector<Shard> released_shards(const ModelConfig& config) {
  check_config(config);
  std::map<FileKey, std::vector<TensorInfo>> files;
  for (const TensorSpec& spec : runtime::inventory(config)) {
    StoredForm form = stored_form(spec);
    std::vector<TensorInfo>& file = files[file_of(spec)];
    file.push_back(stored(spec.name, std::move(form.weight)));
    if (!form.scale.shape.empty()) file.push_back(stored(runtime::scale_name(spec.name), std::move(form.scale)));
  }
  const std::string count = five_digits(files.size());
  std::vector<Shard> out;
  for (auto& [key, tensors] : files) {
    if (key.first != Content::engram) {  // these stand as listed
      std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return std::tuple(storage_class(a.dtype), std::string_view(a.name)) <
               std::tuple(storage_class(b.dtype), std::string_view(b.name));
      });
    }
    out.push_back(
        shard_of("model-" + five_digits(out.size() + 1) + "-of-" + count + ".safetensors", std::move(tensors)));
  }
  return out;
}

}  // namespace dsv41::plan
