// SPDX-License-Identifier: MIT
//
// What --logits-out writes: every token fed and the logits behind it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv41/core/view.hpp"

namespace generate {

/// Collects rows in memory (4 * vocab bytes a position) and writes them as one safetensors file.
class Recorder {
 public:
  /// Rows of an append() with logits of all: ids [n], logits [n, vocab].
  void add(std::span<const std::int32_t> ids, dsv41::In<float, 2> logits);

  /// float32 `logits` [positions, vocab] and int64 `tokens` [positions]; row i follows tokens 0 to i.
  /// Errors: dsv41::Error io. The file is whole or untouched.
  void save(const std::string& path) const;

 private:
  std::vector<std::int64_t> tokens_;
  std::vector<float> logits_;
  std::int64_t vocab_ = 0;
};

}  // namespace generate
