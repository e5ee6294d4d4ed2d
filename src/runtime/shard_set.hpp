// SPDX-License-Identifier: MIT
//
// The safetensors files of a model folder as one set of tensors. Private to src/runtime.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsv41/runtime/safetensors.hpp"

namespace dsv41::runtime {

/// The first names, and how many there are beyond them, for a message.
std::string listed(const std::vector<std::string>& names);

/// A tensor and the file it is in.
struct Located {
  const TensorInfo* tensor = nullptr;
  const SafetensorsFile* file = nullptr;
  explicit operator bool() const noexcept { return tensor != nullptr; }
};

/// An index: which shard each tensor is in, sorted by tensor name. Refuses shard names that leave the folder (case
/// B83).
struct ShardIndex {
  std::vector<std::string> shards;                             // sorted, each once
  std::vector<std::pair<std::string, std::size_t>> positions;  // tensor, index into shards
};
ShardIndex parse_index(std::string_view text, std::string_view origin);

class ShardSet {
 public:
  /// model.safetensors.index.json decides if it is there: an indexed tensor is read from its own shard and nowhere
  /// else, tensors that the index does not name do not exist. Without one: model.safetensors, else a complete set
  /// model-NNNNN-of-MMMMM.safetensors in which no name occurs twice.
  static ShardSet open(const std::filesystem::path& folder, Access access);

  Located find(std::string_view name) const noexcept;
  const std::filesystem::path& folder() const noexcept { return folder_; }
  std::size_t size() const noexcept { return tensors_.size(); }
  /// Some of the names, for a message.
  std::string examples() const;

 private:
  void take_all();
  void take(const ShardIndex& index, std::string_view origin);

  struct Entry {
    std::string_view name;
    Located at;
  };
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::vector<Entry> tensors_;  // sorted by name
};

}  // namespace dsv41::runtime
