// SPDX-License-Identifier: MIT
//
// Opening a model folder: checkpoint, tokenizer, token map. The map is built from the tokenizer that encodes prompts, never from a
// second copy (case B03).
#include "dsv41/runtime/model_folder.hpp"

#include <new>
#include <string>
#include <utility>

#include "dsv41/core/error.hpp"
#include "dsv41/text/compressed_map.hpp"
#include "files/file_bytes.hpp"
#include "fingerprint.hpp"

namespace dsv41::runtime {
namespace {

std::string hexadecimal(std::uint64_t value) {
  std::string out = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) out += "0123456789abcdef"[value >> shift & 15];
  return out;
}

ModelFolder open_folder(const std::filesystem::path& folder, const FolderOptions& options) {
  ModelFolder out{.checkpoint = Checkpoint::open(folder, options.access), .tokenizer = std::nullopt, .token_map = {}};
  const ModelConfig& config = out.checkpoint.config();
  const std::filesystem::path file = folder / "tokenizer.json";
  const bool hashes = !config.engram.layers.empty();
  if (!files::present(file)) {
    if (hashes) throw Error(Errc::io, file.string() + ": missing; the Engram layers of config.json hash its tokens");
    return out;
  }
  out.tokenizer = text::Tokenizer::from_file(file);
  const std::int64_t tokens = out.tokenizer->vocab_size();
  if (tokens > config.vocab || (hashes && tokens != config.vocab)) {
    throw Error(Errc::format, file.string() + ": has " + std::to_string(tokens) + " tokens, expected " +
                                  std::to_string(config.vocab) + " (vocab_size of config.json)");
  }
  if (!hashes) return out;
  out.token_map = text::compressed_token_map(*out.tokenizer, static_cast<std::int32_t>(config.vocab));
  const std::uint64_t digest = text::compressed_map_digest(out.token_map);
  if (options.map_digest && digest != *options.map_digest) {
    throw Error(Errc::format, file.string() + ": the digest of its token map is " + hexadecimal(digest) +
                                  ", expected " + hexadecimal(*options.map_digest));
  }
  return out;
}

}  // namespace

ModelFolder ModelFolder::open(const std::filesystem::path& folder, const FolderOptions& options) {
  try {
    return open_folder(folder, options);
  } catch (const std::bad_alloc&) {
    throw Error(Errc::out_of_memory, folder.string() + ": no memory for the tokenizer and its map");
  }
}

Fingerprint ModelFolder::fingerprint() const {
  return with_token_map(checkpoint.fingerprint(), token_map);
}

}  // namespace dsv41::runtime
