// SPDX-License-Identifier: MIT
//
// Opens a model folder in the released layout: config.json (composite or flat form), model*.safetensors (one file or shards with an
// index). Everything is checked before anything is used; the tensors' bytes stay in the files (memory-mapped) unless asked otherwise.
// Source: checkpoint.md 1 and 2.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <memory>

#include "dsv41/core/config.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/runtime/safetensors.hpp"

namespace dsv41::runtime {

/// Tells one model from another.
using Fingerprint = std::array<std::byte, 32>;

class ShardSet;

/// An opened model folder. Immutable after open; views handed out live as long as it does. Moves, does not copy.
class Checkpoint {
 public:
  /// Reads config and headers, checks names, dtypes, shapes, offsets, overlaps and sizes against the config and the files' lengths,
  /// rejects NaN scales, and binds the views. Tensors the model does not use (vision) are only checked for sane offsets.
  ///
  /// Errors:  io (missing, unreadable, truncated), format (malformed JSON, header or index; wrong dtype, shape, count; NaN scale),
  ///          unsupported (a key or value outside the specification), out_of_memory. Messages name the file and the tensor or key.
  /// Cost:    reads headers, scales (large ones past the page cache) and small vectors; maps the rest. Access::read copies the files into
  ///          memory instead: for file systems that map badly, or whose files somebody may shorten while they are open (a mapping then
  ///          faults).
  static Checkpoint open(const std::filesystem::path& folder, Access access = Access::map);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  const std::filesystem::path& folder() const noexcept;
  const ModelConfig& config() const noexcept;
  const ModelWeights& weights() const noexcept;
  const ShardSet& shards() const noexcept;  ///< for the library's own sources

  /// Of the config's values that results follow from, and of every tensor: name, dtype, shape, first and last 64 bytes.
  ///
  /// Rules:  how the tensors lie in files, and how those are opened, changes nothing. Not for secrets or against forgers: weights between
  ///         the bytes looked at do not count.
  /// Errors: out_of_memory.
  /// Cost:   the first call's; later ones return what it found. About a page read a tensor, 96,085 of them in the release, of which
  ///         open() has read the scales' and vectors' already.
  Fingerprint fingerprint() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv41::runtime
