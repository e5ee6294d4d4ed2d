// SPDX-License-Identifier: MIT
//
// Op: the last token ids -> rows of the n-gram tables. Integers only.
#pragma once

#include <span>
#include <string_view>

#include "dsv41/numerics/engram_hash.hpp"
#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Rows of every Engram layer for consecutive tokens of one sequence. Nothing carries over from call to call: what stood before the
/// first token comes with the call.
///
/// Shapes:  ids [tokens] i32; image [tokens] u8 (not zero: a dead token); token_map [vocab] i32; history [max_ngram - 1] i32, token ids
///          before the first one, oldest first, negative = dead or before the start (a shorter one ends at the start); table_rows
///          [layers, tokens, columns] i64.
/// Rules:   architecture.md 7: a look-back stops at the start and at a dead token; it and everything older hash as `pad`. 64 bits.
///          Ids of the history go through the map like the others. An id outside the map is an error at sync().
/// Match:   exact.
/// Source:  architecture.md 7, checkpoint.md 4.5.
struct EngramHash {
  static constexpr std::string_view name = "engram_hash";
  In<std::int32_t, 1> ids;
  In<std::uint8_t, 1> image;
  In<std::int32_t, 1> token_map;
  std::span<const numerics::EngramHashView> layers;
  std::int64_t pad = 0;  ///< compressed id
  In<std::int32_t, 1> history;
  Out<std::int64_t, 3> table_rows;

  void check() const {
    const std::int64_t tokens = ids.extent(0);
    expect(name, "image", image, {tokens});
    expect(name, "table_rows", table_rows, {static_cast<std::int64_t>(layers.size()), tokens, table_rows.extent(2)});
    expect(name, history.extent(0) + 1 <= kMaxNgram, "history", "room for the longest n-gram", history.extent(0));
  }
};

}  // namespace dsv41::ops
