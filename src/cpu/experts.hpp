// SPDX-License-Identifier: MIT
//
// ops::SwigluExperts on the CPU: the tokens of each expert side by side, so that its weights are read once a call. Three phases: gate and
// up to hidden values, hidden values to outputs, outputs to sums. With a tier the first two run in waves, of the experts that are there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/context.hpp"
#include "cpu/kernels/elementary.hpp"
#include "cpu/kernels/product.hpp"
#include "cpu/linear.hpp"
#include "dsv41/ops/swiglu_experts.hpp"

namespace dsv41::cpu {

/// Consecutive entries that meet one expert's weights: an entry is a choice of a token, ordered by expert and then by token.
struct ExpertGroup {
  const ExpertWeights* weights = nullptr;
  std::int64_t first = 0, count = 0;  // entries
  std::int64_t first_piece = 0;       // of the phase under way
};

/// Forms in which matrices read a row: plain order, the same through the quantiser, and FP4's order.
inline constexpr int kInputForms = 3;

/// The parts of a workspace that a SwigluExperts takes. `entries`: choices and, for a shared expert, tokens.
struct ExpertSpace {
  std::int64_t entries = 0, each = 0;
  ExpertGroup* groups = nullptr;           // [experts + 1]
  ExpertGroup* wave = nullptr;             // [experts + 1] with a tier: those whose weights are there
  const ExpertWeights** wanted = nullptr;  // [experts + 1] with a tier
  std::int64_t* begin = nullptr;           // [experts + 1] first entry of an expert
  std::int64_t* token = nullptr;           // [entries]
  float* weight = nullptr;                 // [entries]
  std::int64_t* entry_of = nullptr;        // [tokens, topk]
  PackedRows packed[kInputForms];          // [tokens, dim] of a form
  PackedRows hidden;                       // [entries, ff]
  float* out = nullptr;                    // [entries, dim]
  float* scratch = nullptr;                // [workers, each]

  ExpertSpace(const ops::SwigluExperts& op, const Context& context, Cut& cut) {
    const std::int64_t tokens = op.x.extent(0), dim = op.x.extent(1), choices = tokens * op.ids.extent(1);
    const bool shares = op.shared.w1.rows > 0;
    std::int64_t ff = op.shared.w1.rows, wide = 0;
    for (const ExpertWeights& e : op.experts) ff = std::max(ff, e.w1.rows);
    entries = choices + (shares ? tokens : 0);
    wide = std::max(dim, ff);
    const auto experts = static_cast<std::int64_t>(op.experts.size());
    groups = cut.take<ExpertGroup>(experts + 1);
    if (context.tier != nullptr) wave = cut.take<ExpertGroup>(experts + 1);
    if (context.tier != nullptr) wanted = cut.take<const ExpertWeights*>(experts + 1);
    begin = cut.take<std::int64_t>(experts + 1);
    token = cut.take<std::int64_t>(entries);
    weight = cut.take<float>(entries);
    entry_of = cut.take<std::int64_t>(choices);
    for (PackedRows& rows : packed) rows = PackedRows(tokens, dim, cut);
    hidden = PackedRows(entries, ff, cut);
    out = cut.take<float>(entries * dim);
    // pointers to the rows of a piece, its gate and up, then the products' own
    each = 2 * kPieceRows * (1 + piece_width(ff)) + product_scratch(kPieceRows, wide);
    scratch = cut.take<float>(each * context.workers.count());
  }

  /// Hidden values of a piece: whole scale blocks.
  static constexpr std::int64_t piece_width(std::int64_t ff) { return std::min<std::int64_t>(padded_cols(ff), 128); }
};

inline std::size_t workspace_floats(const ops::SwigluExperts& op, const Context& context) {
  Cut cut;
  ExpertSpace(op, context, cut);
  return cut.floats();
}

class ExpertRun {
 public:
  ExpertRun(const ops::SwigluExperts& op, const Context& context, const ExpertSpace& space)
      : op_(op), context_(context), s_(space), tokens_(op.x.extent(0)), dim_(op.x.extent(1)), topk_(op.ids.extent(1)) {}

  void operator()() {
    if (tokens_ == 0) return;
    group();
    pack();
    if (context_.tier == nullptr) {
      put_out({s_.groups, static_cast<std::size_t>(groups_)});
    } else if (!put_out_in_waves(*context_.tier)) {
      return;
    }
    add();
  }

 private:
  /// Outputs of the entries of some groups.
  void put_out(std::span<ExpertGroup> groups) {
    phase(
        groups, [](const ExpertGroup& g) { return g.weights->w1; },
        [&](const ExpertGroup& g, std::int64_t t, std::int64_t n, std::int64_t first, std::int64_t end,
            float* scratch) { hide(g, t, n, first, end, scratch); });
    phase(
        groups, [](const ExpertGroup& g) { return g.weights->w2; },
        [&](const ExpertGroup& g, std::int64_t t, std::int64_t n, std::int64_t first, std::int64_t end,
            float* scratch) { put_out(g, t, n, first, end, scratch); });
  }

  /// The same of all groups, as their weights come. Sums are made when all outputs are there, so the order changes nothing. Returns false
  /// when an expert cannot be had.
  bool put_out_in_waves(ExpertTier& tier) {
    for (std::int64_t g = 0; g < groups_; ++g) s_.wanted[g] = s_.groups[g].weights;
    tier.begin({s_.wanted, static_cast<std::size_t>(groups_)});
    std::int64_t done = 0;
    while (done < groups_) {
      const std::span<const ExpertTier::Resident> resident = tier.take();
      if (resident.empty()) break;
      ExpertGroup* group = s_.wave;
      for (const ExpertTier::Resident& r : resident) {
        *group = s_.groups[r.index];
        (group++)->weights = r.weights;
      }
      put_out({s_.wave, resident.size()});
      done += std::ssize(resident);
    }
    tier.end();
    return done == groups_;
  }

  bool deployed() const { return op_.numeric == Numeric::deployed; }
  bool quantises(const Matrix& w) const { return deployed() && is_quantised(w.format); }

  /// Sorts the choices by expert, then by token.
  void group() {
    const auto experts = static_cast<std::int64_t>(op_.experts.size());
    std::fill_n(s_.begin, experts + 1, 0);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      for (std::int64_t k = 0; k < topk_; ++k) {
        if (op_.ids(t, k) >= 0) ++s_.begin[op_.ids(t, k) + 1];
      }
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      if (s_.begin[e + 1] > 0)
        s_.groups[groups_++] = {
            .weights = &op_.experts[static_cast<std::size_t>(e)], .first = s_.begin[e], .count = s_.begin[e + 1]};
      s_.begin[e + 1] += s_.begin[e];
    }
    std::int64_t entries = s_.begin[experts];
    for (std::int64_t t = 0; t < tokens_; ++t) {
      for (std::int64_t k = 0; k < topk_; ++k) {
        const std::int64_t id = op_.ids(t, k), entry = id < 0 ? -1 : s_.begin[id]++;
        s_.entry_of[t * topk_ + k] = entry;
        if (entry >= 0) s_.token[entry] = t, s_.weight[entry] = op_.weights(t, k);
      }
    }
    shared_ = entries;
    if (!op_.shared.w1.empty()) {
      s_.groups[groups_++] = {.weights = &op_.shared, .first = entries, .count = tokens_};
      for (std::int64_t t = 0; t < tokens_; ++t, ++entries) s_.token[entries] = t, s_.weight[entries] = 1.0f;
    }
    entries_ = entries;
  }

  int form(const Matrix& w) const { return w.format == Format::fp4_row ? 2 : quantises(w) ? 1 : 0; }

  /// Inputs in every form that is needed; a whole plain row serves as it is.
  void pack() {
    const Matrix* wanted[kInputForms] = {};
    for (std::int64_t g = 0; g < groups_; ++g) {
      for (const Matrix* w : {&s_.groups[g].weights->w1, &s_.groups[g].weights->w3}) wanted[form(*w)] = w;
    }
    for (int f = 0; f < kInputForms; ++f) {
      if (wanted[f] == nullptr || (f == 0 && plain_serves(*wanted[f]))) continue;
      context_.each_part(tokens_, piece_rows(dim_), [&](std::int64_t t, std::int64_t end, std::int64_t) {
        for (; t < end; ++t) {
          s_.packed[f].put(context_.target, wanted[f]->format, quantises(*wanted[f]), t, 0, dim_, op_.x.row(t).data());
        }
      });
    }
  }

  bool plain_serves(const Matrix& w) const { return reads_plain(w) && PackedRows::serves(op_.x, dim_); }

  /// The row of a token as w reads it.
  const float* input(const Matrix& w, std::int64_t token) const {
    return form(w) == 0 && plain_serves(w) ? op_.x.row(token).data() : s_.packed[form(w)].row(token);
  }
  std::int64_t input_stride(const Matrix& w) const {
    return form(w) == 0 && plain_serves(w) ? kChunk : s_.packed[form(w)].chunk_stride();
  }

  /// Calls work(group, first entry, entries, first output, end, scratch) for every piece: outputs of a part of an expert's matrix for some
  /// of its entries.
  template <class MatrixOf, class Work>
  void phase(std::span<ExpertGroup> groups, const MatrixOf& matrix_of, const Work& work) {
    std::int64_t pieces = 0;
    for (ExpertGroup& g : groups) {
      g.first_piece = pieces;
      pieces += row_parts(g) * output_parts(g, matrix_of(g));
    }
    context_.each(pieces, [&](std::int64_t piece, std::int64_t worker) {
      const auto group = std::upper_bound(groups.begin(), groups.end(), piece,
                                          [](std::int64_t p, const ExpertGroup& g) { return p < g.first_piece; }) -
                         1;
      const Matrix w = matrix_of(*group);
      const std::int64_t at = piece - group->first_piece, parts = output_parts(*group, w), wide = width(*group, w);
      const std::int64_t t = at / parts * kPieceRows, first = at % parts * wide;
      work(*group, group->first + t, std::min(kPieceRows, group->count - t), first, std::min(first + wide, w.rows),
           s_.scratch + worker * s_.each);
    });
  }

  static std::int64_t row_parts(const ExpertGroup& g) { return (g.count + kPieceRows - 1) / kPieceRows; }
  static std::int64_t width(const ExpertGroup& g, const Matrix& w) {
    return std::min(piece_outputs(w, std::min(g.count, kPieceRows)), ExpertSpace::piece_width(w.rows));
  }
  static std::int64_t output_parts(const ExpertGroup& g, const Matrix& w) {
    return (w.rows + width(g, w) - 1) / width(g, w);
  }

  /// Hidden values [first, end), whole scale blocks, of entries [t, t + n): packed as the expert's w2 reads them.
  void hide(const ExpertGroup& g, std::int64_t t, std::int64_t n, std::int64_t first, std::int64_t end,
            float* scratch) {
    const std::int64_t count = end - first;
    const float** const x = reinterpret_cast<const float**>(scratch);
    float *const gate = scratch + 2 * kPieceRows, *const up = gate + n * count, *const inner = up + n * count;
    const auto product = [&](const Matrix& w, float* y) {
      for (std::int64_t i = 0; i < n; ++i) x[i] = input(w, s_.token[t + i]);
      outputs(context_.target,
              {.x = x, .chunk_stride = input_stride(w), .rows = n, .w = w, .y = y - first, .y_stride = count}, first,
              end, inner);
      if (!deployed()) return;
      round_row(context_.target, y, n * count);
    };
    product(g.weights->w1, gate);
    product(g.weights->w3, up);
    for (std::int64_t i = 0; i < n; ++i) {
      float* const h = gate + i * count;
      weighted_swiglu(context_.target, op_.numeric, s_.weight[t + i], op_.limit, h, up + i * count, count);
      s_.hidden.put(context_.target, g.weights->w2.format, quantises(g.weights->w2), t + i, first, count, h);
    }
  }

  void put_out(const ExpertGroup& g, std::int64_t t, std::int64_t n, std::int64_t first, std::int64_t end,
               float* scratch) {
    const float** const x = reinterpret_cast<const float**>(scratch);
    for (std::int64_t i = 0; i < n; ++i) x[i] = s_.hidden.row(t + i);
    float* const y = s_.out + t * dim_;
    outputs(context_.target,
            {.x = x, .chunk_stride = s_.hidden.chunk_stride(), .rows = n, .w = g.weights->w2, .y = y, .y_stride = dim_},
            first, end, scratch + 2 * kPieceRows);
    if (!deployed()) return;
    for (std::int64_t i = 0; i < n; ++i) round_row(context_.target, y + i * dim_ + first, end - first);
  }

  /// Sums in ascending expert, the shared one last.
  void add() {
    constexpr std::int64_t kChannels = 512;
    const std::int64_t parts = (dim_ + kChannels - 1) / kChannels;
    context_.each(tokens_ * parts, [&](std::int64_t piece, std::int64_t) {
      const std::int64_t t = piece / parts, first = piece % parts * kChannels,
                         count = std::min(kChannels, dim_ - first);
      float* const y = op_.y.row(t).data() + first;
      std::fill_n(y, count, 0.0f);
      const auto add = [&](std::int64_t entry) {
        const float* const out = s_.out + entry * dim_ + first;
        for (std::int64_t c = 0; c < count; ++c) y[c] += out[c];
      };
      // entries are numbered by expert: ascending entry is ascending expert
      for (std::int64_t last = -1;;) {
        std::int64_t next = entries_;
        for (std::int64_t k = 0; k < topk_; ++k) {
          const std::int64_t entry = s_.entry_of[t * topk_ + k];
          if (entry > last && entry < next) next = entry;
        }
        if (next == entries_) break;
        add(next);
        last = next;
      }
      if (!op_.shared.w1.empty()) add(shared_ + t);
      if (!deployed()) return;
      round_row(context_.target, y, count);
    });
  }

  const ops::SwigluExperts& op_;
  const Context& context_;
  const ExpertSpace& s_;
  std::int64_t tokens_, dim_, topk_;
  std::int64_t groups_ = 0, entries_ = 0, shared_ = 0;  // shared_: the shared expert's first entry
};

inline void run(const ops::SwigluExperts& op, const Context& context, float* workspace) {
  Cut cut(workspace);
  const ExpertSpace space(op, context, cut);
  ExpertRun(op, context, space)();
}

}  // namespace dsv41::cpu
