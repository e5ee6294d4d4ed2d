// SPDX-License-Identifier: MIT
//
// A checkpoint of any config in the released layout that is all zeros, as sparse files: they have the released sizes and take no room. What
// is planted goes where plan/shards.hpp says, not where the loader would look for it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "dsv41/core/error.hpp"
#include "dsv41/plan/shards.hpp"
#include "support/temp_folder.hpp"

namespace dsv41::bench {

class SparseModel {
 public:
  /// `config_text`: config.json, of `config`.
  SparseModel(const ModelConfig& config, const std::string& config_text) : shards_(plan::released_shards(config)) {
    folder_.write("config.json", config_text);
    for (std::size_t s = 0; s < shards_.size(); ++s) {
      const plan::Shard& shard = shards_[s];
      const int file = ::open(path(s).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      files_.push_back(file);
      const std::uint64_t length = shard.header.size();
      if (file < 0 || ::ftruncate(file, static_cast<::off_t>(shard.file_bytes())) != 0) fail(s);
      put(s, 0, &length, sizeof length);
      put(s, sizeof length, shard.header.data(), shard.header.size());
      for (const plan::ShardTensor& t : shard.tensors) places_[t.name] = {s, &t};
      apparent_bytes_ += shard.file_bytes();
    }
  }
  ~SparseModel() {
    for (const int file : files_) ::close(file);
  }
  SparseModel(const SparseModel&) = delete;
  SparseModel& operator=(const SparseModel&) = delete;

  const std::filesystem::path& folder() const { return folder_.path(); }
  const std::vector<plan::Shard>& shards() const { return shards_; }
  std::uint64_t apparent_bytes() const { return apparent_bytes_; }

  std::size_t bytes(const std::string& name) const {
    const plan::ShardTensor& t = *places_.at(name).tensor;
    return static_cast<std::size_t>(t.end - t.begin);
  }

  /// Bytes from `offset` of a tensor on. Errors: invalid_argument when it does not have them; io.
  void plant(const std::string& name, std::uint64_t offset, const void* bytes, std::size_t count) {
    const auto at = places_.find(name);
    if (at == places_.end()) throw Error(Errc::invalid_argument, "sparse_release: no tensor " + name);
    const auto& [shard, tensor] = at->second;
    if (offset + count > tensor->end - tensor->begin)
      throw Error(Errc::invalid_argument,
                  "sparse_release: tensor " + name + " ends before byte " + std::to_string(offset + count));
    put(shard, sizeof(std::uint64_t) + shards_[shard].header.size() + tensor->begin + offset, bytes, count);
  }
  template <class T>
  void plant(const std::string& name, std::uint64_t offset, const std::vector<T>& values) {
    plant(name, offset, values.data(), values.size() * sizeof(T));
  }

 private:
  struct Place {
    std::size_t shard = 0;
    const plan::ShardTensor* tensor = nullptr;
  };

  std::filesystem::path path(std::size_t shard) const { return folder_ / shards_[shard].file; }
  [[noreturn]] void fail(std::size_t shard) const {
    throw Error(Errc::io, path(shard).string() + ": " + std::generic_category().message(errno));
  }
  void put(std::size_t shard, std::uint64_t offset, const void* bytes, std::size_t count) {
    if (::pwrite(files_[shard], bytes, count, static_cast<::off_t>(offset)) != static_cast<::ssize_t>(count))
      fail(shard);
  }

  test::TempFolder folder_;
  std::vector<plan::Shard> shards_;
  std::vector<int> files_;
  std::unordered_map<std::string, Place> places_;
  std::uint64_t apparent_bytes_ = 0;
};

}  // namespace dsv41::bench
