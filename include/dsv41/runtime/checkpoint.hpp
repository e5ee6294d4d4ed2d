// SPDX-License-Identifier: MIT
//
// Opens a model folder in the released layout: config.json (composite or flat form), model*.safetensors (one file or shards with an
// index). Everything is checked before anything is used; the tensors' bytes stay in the files (memory-mapped) unless asked otherwise.
// Source: checkpoint.md 1 and 2.
#pragma once

#include <filesystem>
#include <memory>

#include "dsv41/core/config.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/runtime/safetensors.hpp"

namespace dsv41::runtime {

/// An opened model folder. Immutable after open; views handed out live as long as it does. Moves, does not copy.
class Checkpoint {
 public:
  /// Reads config and headers, checks names, dtypes, shapes, offsets, overlaps and sizes against the config and the files' lengths,
  /// rejects NaN scales, and binds the views. Tensors the model does not use (vision) are only checked for sane offsets.
  ///
  /// Errors:  io (missing, unreadable, truncated), format (malformed JSON, header or index; wrong dtype, shape, count; NaN scale),
  ///          unsupported (a key or value outside the specification), out_of_memory. Messages name the file and the tensor or key.
  /// Cost:    reads headers, scales and small vectors; maps the rest. Access::read copies the files into memory instead: for file
  ///          systems that map badly, or whose files somebody may shorten while they are open (a mapping then faults).
  static Checkpoint open(const std::filesystem::path& folder, Access access = Access::map);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& folder() const noexcept;
  const ModelConfig& config() const noexcept;
  const ModelWeights& weights() const noexcept;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv41::runtime
