// SPDX-License-Identifier: MIT
//
// What a sequence was made of, on the host: the cache's rows follow from this and nothing else, so sequences that agree here up to a
// position agree in all cached rows before it. Private to src/runtime.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dsv41/core/view.hpp"
#include "files/sha256.hpp"

namespace dsv41::runtime {

/// The embedding row that was given for the image token at `position`.
struct ImageDigest {
  std::int64_t position = 0;
  files::Digest digest{};  ///< SHA-256 of the row's float32 values in memory order
  bool operator==(const ImageDigest&) const = default;
};

/// The tokens of a sequence; owns nothing.
///
/// Shapes:  ids, marks [positions]; images: ascending by position, none twice.
/// Rules:   a mark is 1 for a token of an image span, otherwise 0. An image token without a digest stands by the embedding of its own id,
///          which is not what any given row stands for (case B59).
struct Content {
  std::span<const std::int32_t> ids;
  std::span<const std::uint8_t> marks;
  std::span<const ImageDigest> images;
};

/// How many leading positions are equal in ids, marks and digests.
///
/// Cost:    O(positions + images).
inline std::int64_t common_prefix(const Content& a, const Content& b) {
  std::int64_t equal = std::ranges::mismatch(a.ids, b.ids).in1 - a.ids.begin();
  equal = std::min(equal, std::ranges::mismatch(a.marks, b.marks).in1 - a.marks.begin());
  const auto [in_a, in_b] = std::ranges::mismatch(a.images, b.images);
  if (in_a != a.images.end())
    equal = std::min(equal, in_a->position);  // of two unequal ones, the first is where they part
  if (in_b != b.images.end()) equal = std::min(equal, in_b->position);
  return equal;
}

/// Of one embedding row.
inline files::Digest digest_of(std::span<const float> row) {
  files::Sha256 hash;
  hash.update(std::as_bytes(row));
  return hash.digest();
}

/// The digests of rows that are given with tokens: row i stands for the i-th marked one; further ones stand for themselves.
///
/// Shapes:  marks [tokens], the first of them at `first_position`; rows [at most the marked tokens, dim].
/// Cost:    hashes 4 * rows * dim bytes.
inline std::vector<ImageDigest> digest_rows(std::span<const std::uint8_t> marks, In<float, 2> rows,
                                            std::int64_t first_position) {
  std::vector<ImageDigest> out;
  out.reserve(static_cast<std::size_t>(rows.extent(0)));
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const auto row = static_cast<std::int64_t>(out.size());
    if (row == rows.extent(0)) break;
    if (marks[i] == 0) continue;
    const std::span values(rows.row(row).data(), static_cast<std::size_t>(rows.extent(1)));
    out.push_back({.position = first_position + static_cast<std::int64_t>(i), .digest = digest_of(values)});
  }
  return out;
}

}  // namespace dsv41::runtime
