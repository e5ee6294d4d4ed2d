// SPDX-License-Identifier: MIT
//
// EngramHasher: token ids -> table rows of every Engram layer. Row 1a of docs/token_path.md. One hasher serves the whole model: the
// look-back is the same for all layers, so a step hashes once, before its first layer, and the tables' reads can start then.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/config.hpp"
#include "dsv41/core/error.hpp"
#include "dsv41/modules/sequence.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

class EngramHasher {
 public:
  /// `token_map` [vocab]: token id -> compressed id, in host memory; read here only.
  ///
  /// Errors: format when the map's size, its number of distinct ids or a table's row count differ from the config
  ///         (architecture.md 7: refuse to load); what engram_layout throws.
  EngramHasher(const ModelConfig& config, std::span<const std::int32_t> token_map)
      : host_map_(token_map.begin(), token_map.end()) {
    const EngramConfig& e = config.engram;
    check_map(config);
    layout_ = numerics::checked_engram_layout(e);
    pad_ = host_map_[static_cast<std::size_t>(e.pad)];
  }

  /// Takes the constants' places in the backend's memory.
  void layout(Cursor& cursor) {
    const auto layers = static_cast<std::int64_t>(layout_.layers.size());
    cursor.take(token_map_, {static_cast<std::int64_t>(host_map_.size())});
    cursor.take(multipliers_, {layers, static_cast<std::int64_t>(layout_.layers[0].multipliers.size())});
    cursor.take(primes_, {layers, static_cast<std::int64_t>(layout_.layers[0].primes.size())});
    cursor.take(offsets_, primes_.extents());
  }

  /// Copies the constants there.
  template <ops::Allocates B>
  void upload(B& b) {
    b.upload(token_map_.data(), host_map_.data(), host_map_.size() * sizeof host_map_[0]);
    for (std::size_t i = 0; i < layout_.layers.size(); ++i) {
      const numerics::EngramLayerLayout& from = layout_.layers[i];
      const auto row = static_cast<std::int64_t>(i);
      auto copy = [&](Out<std::int64_t, 1> to, const std::vector<std::int64_t>& values) {
        b.upload(to.data(), values.data(), values.size() * sizeof values[0]);
      };
      copy(multipliers_.row(row), from.multipliers);
      copy(primes_.row(row), from.primes);
      copy(offsets_.row(row), from.offsets);
      numerics::EngramHashView view = numerics::view_of(from);
      view.multipliers = multipliers_.row(row).data();
      view.primes = primes_.row(row).data();
      view.offsets = offsets_.row(row).data();
      views_.push_back(view);
    }
  }

  /// table_rows [engram layers, batch rows, columns] i64; segment i looks back on row i of the batch's history.
  template <ops::Backend B>
  void forward(B& b, const Batch& batch, Out<std::int64_t, 3> table_rows) const noexcept {
    DSV41_DCHECK(batch.segments.empty() || batch.history.extent(1) + 1 == views_[0].max_ngram);
    std::int64_t i = 0;
    for (const Segment& s : batch.segments) {
      const Out<std::int64_t, 3> own(table_rows.data() + s.first_row * table_rows.stride(1),
                                     {table_rows.extent(0), s.rows, table_rows.extent(2)},
                                     {table_rows.stride(0), table_rows.stride(1), 1});
      b.run(ops::EngramHash{.ids = batch.ids.rows(s.first_row, s.rows),
                            .image = batch.image.rows(s.first_row, s.rows),
                            .token_map = token_map_,
                            .layers = views_,
                            .pad = pad_,
                            .history = batch.history.row(i++),
                            .table_rows = own});
    }
  }

 private:
  void check_map(const ModelConfig& config) const {
    const EngramConfig& e = config.engram;
    auto refuse = [](const std::string& what, std::int64_t expected, std::int64_t got) {
      throw Error(Errc::format,
                  what + " is " + std::to_string(got) + ", expected " + std::to_string(expected) + " (tokenizer.json)");
    };
    const auto ids = static_cast<std::int64_t>(host_map_.size());
    if (ids != config.vocab) refuse("token map: number of token ids", config.vocab, ids);
    std::int32_t distinct = 0;  // ids are numbered in order of first appearance
    for (std::size_t i = 0; i < host_map_.size(); ++i) {
      const std::int32_t id = host_map_[i];
      if (id == distinct) ++distinct;
      if (id < 0 || id >= distinct) refuse("token map: compressed id of token " + std::to_string(i), distinct, id);
    }
    if (distinct != e.compressed_vocab)
      refuse("token map: number of compressed ids (engram_compressed_vocab_size)", e.compressed_vocab, distinct);
  }

  std::vector<std::int32_t> host_map_;
  numerics::EngramLayout layout_;
  Out<std::int32_t, 1> token_map_;  // from here on: in the backend's memory
  Out<std::int64_t, 2> multipliers_, primes_, offsets_;
  std::vector<numerics::EngramHashView> views_;  // host structs of pointers into that memory
  std::int64_t pad_ = 0;
};

}  // namespace dsv41
