// SPDX-License-Identifier: MIT
//
// Op: token ids -> residual streams and the first seam's mix. Row 0 of docs/token_path.md.
#pragma once

#include <string_view>

#include "dsv41/ops/shape.hpp"

namespace dsv41::ops {

/// Copies each token's embedding into every stream and starts `pre` as one-hot on stream 0.
///
/// Shapes:  ids [tokens] i32 in [0, vocab); table [vocab, dim]; streams [tokens, hc, dim]; mix [tokens, (2 + hc) * hc].
///          image_rows [n, dim]: replaces the embeddings of the first n tokens whose `image` byte is not zero, in order; may be empty.
/// Rules:   values are copied; only the `pre` part of mix is written. An id outside the table is an error at sync().
/// Match:   exact.
/// Source:  architecture.md 2 and 7 (image spans).
struct Embed {
  static constexpr std::string_view name = "embed";
  In<std::int32_t, 1> ids;
  In<std::uint8_t, 1> image;
  In<float, 2> image_rows;
  Matrix table;
  Out<float, 3> streams;
  Out<float, 2> mix;

  void check() const {
    const std::int64_t tokens = ids.extent(0), hc = streams.extent(1);
    expect(name, "image", image, {tokens});
    expect(name, "streams", streams, {tokens, hc, table.cols});
    expect(name, "mix", mix, {tokens, (2 + hc) * hc});
    if (!image_rows.empty()) expect(name, "image_rows", image_rows, {image_rows.extent(0), table.cols});
  }
};

}  // namespace dsv41::ops
