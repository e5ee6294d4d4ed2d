// SPDX-License-Identifier: MIT
//
// ops::IndexSelect on the CPU: tiles of keys against some queries, cut into pieces; then the choice, a query at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cpu/context.hpp"
#include "cpu/kernels/index.hpp"
#include "dsv41/numerics/index_score.hpp"
#include "dsv41/ops/index_select.hpp"
#include "dsv41/ref/index_select.hpp"

namespace dsv41::cpu {

/// Queries whose scores are made before their choices; and those that meet a tile of keys while it is open.
inline constexpr std::int64_t kQueryBlock = 32, kQueriesEach = 8;
/// Keys of a piece.
inline constexpr std::int64_t kKeysEach = 256;

/// An op in hand: its workspace and how its keys are scored.
class Selection {
 public:
  Selection(const ops::IndexSelect& op, const Context& context, Cut& cut)
      : op_(op),
        target_(context.target),
        heads_(op.q.extent(1)),
        width_(op.q.extent(2)),
        blocks_(width_ / kScaleBlock) {
    packs_ = stored_format(op.keys.format, width_) == CacheFormat::index && index_spread(width_) >= 0;
    queries_ = std::min({op.q.extent(0), op.scores.extent(0), kQueryBlock});
    opened_ = cut.take<IndexQuery>(queries_);
    weights_ = cut.take<float>(queries_ * heads_);
    if (packs_) {
      values_ = cut.take<std::uint32_t>(queries_ * heads_ * (width_ / 4));
      offsets_ = cut.take<std::int32_t>(queries_ * heads_ * blocks_);
      units_ = cut.take<float>(queries_ * heads_ * blocks_);
    }
    scratch_each_ = index_tile_floats(width_) + width_ + heads_ * ref::kIndexRun;
    scratch_ = cut.take<float>(scratch_each_ * context.workers.count());
  }

  /// Queries that are in hand at a time.
  std::int64_t queries() const { return queries_; }

  std::int64_t visible(std::int64_t t) const { return (op_.first_position + t + 1) / op_.ratio; }
  float* scores(std::int64_t t) const { return op_.scores.row(t % op_.scores.extent(0)).data(); }

  /// Takes query t in hand as number i.
  void open(std::int64_t t, std::int64_t i) {
    IndexQuery& query =
        *new (opened_ + i) IndexQuery{.heads = heads_, .width = width_, .weights = weights_ + i * heads_, .spread = -1};
    bool finite = true;
    for (std::int64_t h = 0; h < heads_; ++h) {
      query.weights[h] = numerics::index_weight(op_.numeric, op_.weights(t, h), op_.weight_scale);
      finite = finite && std::isfinite(query.weights[h]);
    }
    if (!packs_ || !finite) return;
    query.values = values_ + i * heads_ * (width_ / 4);
    query.offsets = offsets_ + i * heads_ * blocks_;
    query.units = units_ + i * heads_ * blocks_;
    open_query(target_, op_.q.row(t).data(), op_.q.stride(1), query);
  }

  /// Some keys, gathered until there are kKeyTile of them.
  class Tile {
   public:
    Tile(const Selection& selection, std::int64_t worker)
        : all_(selection), scratch_(selection.scratch_ + worker * selection.scratch_each_) {
      keys_.values = reinterpret_cast<std::uint8_t*>(scratch_);
      keys_.units = scratch_ + all_.width_ / 4 * kKeyTile;
    }

    /// Takes entries [first, end); calls full() whenever the tile is.
    template <class Full>
    void take(std::int64_t first, std::int64_t end, const Full& full) {
      const std::int64_t page_rows = all_.op_.keys.page_rows, bytes = row_bytes(all_.op_.keys.format, all_.width_);
      while (first < end) {
        const std::byte* row = all_.op_.keys.row(first);
        const std::int64_t last = std::min(end, first + page_rows - first % page_rows);
        for (; first < last; ++first, row += bytes) {
          ids_[count_] = first, rows_[count_++] = row;
          if (count_ == kKeyTile) full();
        }
      }
    }

    std::int64_t count() const { return count_; }

    /// Opens what was taken, for score().
    void open() {
      keys_.spread = -1;
      if (!all_.packs_) return;
      std::fill(rows_ + count_, rows_ + kKeyTile, rows_[0]);
      open_keys(all_.target_, rows_, all_.width_, keys_);
    }

    /// The first `count` keys' scores of query t, in hand as number i.
    void score(std::int64_t t, std::int64_t i, std::int64_t count) const {
      float scores[kKeyTile];
      const IndexQuery& query = all_.opened_[i];
      const ops::IndexSelect& op = all_.op_;
      if (query.spread >= 0 && keys_.spread >= 0 && query.spread + keys_.spread <= index_spread(all_.width_)) {
        score_keys(all_.target_, op.numeric, query, keys_, scores);
      } else {
        float* const key = scratch_ + index_tile_floats(all_.width_);
        float* const products = key + all_.width_;
        for (std::int64_t k = 0; k < count; ++k)
          ref::unpacked_products(op.q.row(t), op.keys, ids_[k], 1, key, products + k);
        numerics::index_scores(op.numeric, products, all_.heads_, ref::kIndexRun, count, op.weights.row(t).data(),
                               op.weight_scale, scores);
      }
      float* const to = all_.scores(t);
      if (ids_[count - 1] - ids_[0] == count - 1) {
        std::copy_n(scores, count, to + ids_[0]);
      } else {
        for (std::int64_t k = 0; k < count; ++k) to[ids_[k]] = scores[k];
      }
    }

    void clear() { count_ = 0; }

   private:
    const Selection& all_;
    float* scratch_;
    IndexKeys keys_;
    std::int64_t ids_[kKeyTile] = {}, count_ = 0;
    const std::byte* rows_[kKeyTile] = {};
  };

  /// Scores entries [first, end), whichever of them a query sees, for queries [begin, last), the first of them in hand as number `i`.
  void score_entries(std::int64_t first, std::int64_t end, std::int64_t begin, std::int64_t last, std::int64_t i,
                     std::int64_t worker) const {
    Tile tile(*this, worker);
    const auto flush = [&] {
      if (tile.count() == 0) return;
      tile.open();
      for (std::int64_t t = begin; t < last; ++t) {
        const std::int64_t count = std::min(tile.count(), visible(t) - first);
        if (count > 0) tile.score(t, i + t - begin, count);
      }
      first += tile.count();
      tile.clear();
    };
    tile.take(first, std::min(end, visible(last - 1)), flush);
    flush();
  }

  /// Scores the visible entries of candidate blocks [first, end) of query t, in hand as number i.
  void score_blocks(std::int64_t first, std::int64_t end, std::int64_t t, std::int64_t i, std::int64_t worker) const {
    Tile tile(*this, worker);
    const auto flush = [&] {
      if (tile.count() == 0) return;
      tile.open();
      tile.score(t, i, tile.count());
      tile.clear();
    };
    for (std::int64_t b = first; b < std::min<std::int64_t>(end, op_.block_counts[t]); ++b)
      candidates(t, b, [&](std::int64_t from, std::int64_t to) { tile.take(from, to, flush); });
    flush();
  }

  /// Keeps the best entries of query t.
  void choose(std::int64_t t) const {
    const float* const scores = this->scores(t);
    const auto score = [scores](std::int32_t e) { return scores[e]; };
    const Out<std::int32_t, 1> ids = op_.ids.row(t);
    op_.counts[t] = ref::keep_best(ids, score, [&](auto& best) {
      if (op_.candidates != ops::CandidateUse::limited) return offer(best, ids, scores, visible(t));
      for (std::int64_t b = 0; b < op_.block_counts[t]; ++b) {
        candidates(t, b, [&](std::int64_t from, std::int64_t to) {
          for (; from < to; ++from) best.offer(static_cast<std::int32_t>(from));
        });
      }
    });
  }

  /// ref::publish_blocks, its block scores written beforehand.
  void publish(std::int64_t t) const {
    const Out<std::int32_t, 1> kept = op_.blocks.row(t);
    const std::int64_t newest = (visible(t) + op_.block - 1) / op_.block - 1;
    op_.block_counts[t] = 0;
    if (newest < 0 || kept.extent(0) == 0) return;
    const float* const tops = block_scores(t);
    const auto score = [tops](std::int32_t b) { return tops[b]; };
    const Out<std::int32_t, 1> others = kept.rows(0, kept.extent(0) - 1);
    const std::int32_t count = ref::keep_best(others, score, [&](auto& best) { offer(best, others, tops, newest); });
    kept[count] = static_cast<std::int32_t>(newest);
    op_.block_counts[t] = count + 1;
  }

  /// The scores of blocks [first, end) of query t but its newest one.
  void score_tops(std::int64_t first, std::int64_t end, std::int64_t t) const {
    end = std::min(end, (visible(t) + op_.block - 1) / op_.block - 1);
    for (std::int64_t b = first; b < end; ++b)
      block_scores(t)[b] = numerics::largest(scores(t) + b * op_.block, op_.block);
  }

 private:
  float* block_scores(std::int64_t t) const { return op_.block_scores.row(t % op_.block_scores.extent(0)).data(); }

  /// Calls visit(first, end) for the visible entries of the b-th candidate block.
  template <class Visit>
  void candidates(std::int64_t t, std::int64_t b, const Visit& visit) const {
    const std::int64_t first = op_.blocks(t, b) * op_.block;
    visit(std::max<std::int64_t>(first, 0), std::min(first + op_.block, visible(t)));
  }

  /// Offers [0, end) in ascending order; behind a full list, where a tie is lost, only what scores more than the worst in it.
  template <class Best>
  void offer(Best& best, Out<std::int32_t, 1> ids, const float* scores, std::int64_t end) const {
    if (ids.extent(0) == 0) return;
    std::int64_t i = 0;
    for (; i < end && best.count() < ids.extent(0); ++i) best.offer(static_cast<std::int32_t>(i));
    if (best.count() < ids.extent(0)) return;  // everything was offered, and there may be no worst one
    while ((i = next_above(target_, scores, i, end, scores[ids[0]])) < end) best.offer(static_cast<std::int32_t>(i++));
  }

  const ops::IndexSelect& op_;
  Target target_;
  std::int64_t heads_, width_, blocks_, queries_ = 0, scratch_each_ = 0;
  bool packs_ = false;
  IndexQuery* opened_ = nullptr;  // [queries]
  float *weights_ = nullptr, *units_ = nullptr, *scratch_ = nullptr;
  std::uint32_t* values_ = nullptr;
  std::int32_t* offsets_ = nullptr;
};

inline std::size_t workspace_floats(const ops::IndexSelect& op, const Context& context) {
  Cut cut;
  Selection(op, context, cut);
  return cut.floats();
}

inline void run(const ops::IndexSelect& op, const Context& context, float* workspace) {
  Cut cut(workspace);
  Selection selection(op, context, cut);
  const bool limited = op.candidates == ops::CandidateUse::limited,
             publishes = op.candidates == ops::CandidateUse::publish;
  for (std::int64_t begin = 0, count; begin < op.q.extent(0); begin += count) {
    count = std::min(selection.queries(), op.q.extent(0) - begin);
    context.each(count, [&](std::int64_t i, std::int64_t) { selection.open(begin + i, i); });
    if (limited) {
      const std::int64_t blocks_each = std::max<std::int64_t>(kKeysEach / op.block, 1);
      const std::int64_t parts = (op.blocks.extent(1) + blocks_each - 1) / blocks_each;
      context.each(count * parts, [&](std::int64_t piece, std::int64_t worker) {
        const std::int64_t i = piece / parts, first = piece % parts * blocks_each;
        selection.score_blocks(first, first + blocks_each, begin + i, i, worker);
      });
    } else {
      const std::int64_t keys_each = publishes ? (kKeysEach + op.block - 1) / op.block * op.block : kKeysEach;
      const std::int64_t parts = (selection.visible(begin + count - 1) + keys_each - 1) / keys_each;
      const std::int64_t groups = (count + kQueriesEach - 1) / kQueriesEach;
      context.each(parts * groups, [&](std::int64_t piece, std::int64_t worker) {
        const std::int64_t first = piece / groups * keys_each, i = piece % groups * kQueriesEach;
        const std::int64_t t = begin + i, last = begin + std::min(count, i + kQueriesEach);
        selection.score_entries(first, first + keys_each, t, last, i, worker);
        for (std::int64_t u = t; publishes && u < last; ++u)
          selection.score_tops(first / op.block, (first + keys_each) / op.block, u);
      });
    }
    const std::int64_t choices = publishes ? 2 : 1;
    context.each(count * choices, [&](std::int64_t piece, std::int64_t) {
      const std::int64_t t = begin + piece / choices;
      piece % choices == 0 ? selection.choose(t) : selection.publish(t);
    });
  }
}

}  // namespace dsv41::cpu
