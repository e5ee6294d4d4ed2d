// SPDX-License-Identifier: MIT
//
// Where in the files of a model its experts lie, and how one gets from there into memory. Private to src/runtime.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dsv41/core/matrix.hpp"
#include "files/direct_file.hpp"
#include "shard_set.hpp"

namespace dsv41::runtime {

/// Lists of experts, in the order in which a step meets them.
using ExpertLists = std::vector<std::span<const ExpertWeights>>;

/// Experts are numbered list after list.
class ExpertFiles {
 public:
  /// A read that gave nothing, and whose.
  struct Failure {
    std::int32_t expert = -1;
    std::size_t part = 0;
    files::ReadFailure read;
    explicit operator bool() const noexcept { return expert >= 0; }
  };

  /// The views of the lists are those of `shards`, mapped, and live as long as this. Errors: io (a file is not what it was).
  ExpertFiles(const ShardSet& shards, const ExpertLists& lists);

  std::int32_t size() const noexcept { return static_cast<std::int32_t>(experts_.size()); }

  /// Bytes that any of them fits in: its blocks (DirectFile), whole.
  std::size_t slot_bytes() const noexcept { return slot_bytes_; }

  /// Whether all are read past the page cache.
  bool is_direct() const noexcept;

  /// Reads an expert into `slot`, slot_bytes() at a multiple of DirectFile::kBlock. From several threads at once.
  Failure read(std::int32_t expert, std::byte* slot) const noexcept;

  /// Its views of `slot`, and those of the mapped files.
  ExpertWeights in_slot(std::int32_t expert, const std::byte* slot) const noexcept;
  const ExpertWeights& mapped(std::int32_t expert) const noexcept {
    return *experts_[static_cast<std::size_t>(expert)].views;
  }

  /// Bytes of its tensors.
  std::int64_t bytes(std::int32_t expert) const noexcept;

  std::string text(const Failure& failure) const;
  std::string name(std::int32_t expert) const { return std::string(mapped(expert).w1.name); }

 private:
  struct Part {
    const TensorInfo* tensor = nullptr;
    std::int32_t file = 0;
    std::uint64_t offset = 0;  // in the file
    std::size_t at = 0;        // in the slot
    std::size_t kind = 0;      // 2 m + s: matrix m of w1, w2, w3; s 1: its scale
  };
  struct Expert {
    const ExpertWeights* views = nullptr;
    std::array<Part, 6> parts;  // by file and offset
    std::size_t count = 0;
  };
  struct File {
    const SafetensorsFile* shard = nullptr;
    std::unique_ptr<files::DirectFile> file;
  };

  std::int32_t file_number(const SafetensorsFile& shard);
  void locate(const ShardSet& shards, Expert& e);
  static std::size_t run_end(const Expert& e, std::size_t first, std::size_t& bytes) noexcept;

  std::vector<File> files_;
  std::vector<Expert> experts_;
  std::size_t slot_bytes_ = 0;
};

}  // namespace dsv41::runtime
