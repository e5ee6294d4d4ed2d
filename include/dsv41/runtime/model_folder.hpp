// SPDX-License-Identifier: MIT
//
// A model folder as a user has it: weights, tokenizer, and the token map that Engram layers hash with, built from that very tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "dsv41/runtime/checkpoint.hpp"
#include "dsv41/text/tokenizer.hpp"

namespace dsv41::runtime {

struct FolderOptions {
  Access access = Access::map;  ///< of the weights' files
  /// What text::compressed_map_digest must give for the token map; absent: not checked.
  std::optional<std::uint64_t> map_digest;
};

struct ModelFolder {
  Checkpoint checkpoint;
  std::optional<text::Tokenizer> tokenizer;  ///< absent when the folder has no tokenizer.json and no layer needs one
  std::vector<std::int32_t> token_map;       ///< [vocab] token id -> compressed id; empty without Engram layers

  /// Opens config.json, the weights and tokenizer.json.
  ///
  /// Errors: what Checkpoint::open and Tokenizer::from_file throw; io when Engram layers need a tokenizer.json that is not there;
  ///         format when the tokenizer has more tokens than the config's vocabulary, or fewer and Engram layers hash them, or its map
  ///         has another digest than options.map_digest: a tokenizer of equal sizes may still number other texts.
  static ModelFolder open(const std::filesystem::path& folder, const FolderOptions& options = {});

  /// Of what the results of token ids follow from: checkpoint.fingerprint() and the token map. Errors and cost as there.
  Fingerprint fingerprint() const;
};

}  // namespace dsv41::runtime
