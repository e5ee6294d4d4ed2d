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
  explicit Recorder(std::int64_t vocab) : vocab_(vocab) {}

  /// Rows of tokens that were fed: ids [n], logits [n, vocab].
  void add(std::span<const std::int32_t> ids, dsv41::In<float, 2> logits);

  /// Forgets the last `count` rows, or all where there are fewer: their tokens are gone from the sequence.
  void drop(std::int64_t count);

  /// float32 `logits` [positions, vocab] and int64 `tokens` [positions]; row i follows tokens 0 to i,
  /// behind those of a restored session that were not fed again.
  /// Errors: dsv41::Error io. The file is whole or untouched.
  void save(const std::string& path) const;

 private:
  std::vector<std::int64_t> tokens_;
  std::vector<float> logits_;
  std::int64_t vocab_;
};

}  // namespace generate
