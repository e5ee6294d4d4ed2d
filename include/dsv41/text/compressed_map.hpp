// SPDX-License-Identifier: MIT
//
// The engram's own, smaller vocabulary: token ids whose text differs only in case, accents or spacing share one id.
// Built once from the tokenizer that encodes the prompts (never from a second copy), read before every engram hash.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/text/tokenizer.hpp"

namespace dsv41::text {

/// Token id -> compressed id, numbered by first appearance.
///
/// Shapes: result [vocab_size].
/// Rules:  the key of an id is normalized_text of its decoded text, or that text where the normal form is empty, or the
///         vocabulary's spelling where the text holds U+FFFD (a part of a character). Keys of all kinds share one
///         numbering.
/// Errors: invalid_argument unless 0 < vocab_size <= tokenizer.vocab_size(); out_of_memory.
/// Match:  exact with the Rust `tokenizers` library. Cost: some 100 ms for 129280 ids; cold.
/// Source: released inference/engram.py.
std::vector<std::int32_t> compressed_token_map(const Tokenizer& tokenizer, std::int32_t vocab_size);

/// NFKC, NFD, marks dropped, lower case, runs of space, tab, CR and LF to one space, White_Space stripped from both
/// ends (except where one space is all there is). Errors: invalid_argument for ill-formed UTF-8; out_of_memory.
///
/// "Marks" are those of every kind (Mn, Mc, Me), of the Unicode version that the Rust library knows.
std::string normalized_text(std::string_view utf8);

/// Number of compressed ids; must equal engram_compressed_vocab_size.
std::int32_t compressed_count(std::span<const std::int32_t> map) noexcept;

/// 64-bit FNV-1a over the map's entries as little-endian int32: equal counts do not make equal maps.
std::uint64_t compressed_map_digest(std::span<const std::int32_t> map) noexcept;

/// map[id]. Errors: invalid_argument for an id outside the map, negative ones included.
std::int32_t compressed_id(std::span<const std::int32_t> map, std::int32_t id);

}  // namespace dsv41::text
