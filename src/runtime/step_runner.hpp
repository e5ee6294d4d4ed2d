// SPDX-License-Identifier: MIT
//
// StepRunner: a model, its scratch and its inputs on one backend; rows of sequences in, logits out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/cancel.hpp"
#include "dsv41/model/model.hpp"
#include "dsv41/runtime/model_folder.hpp"
#include "transcript.hpp"

namespace dsv41::runtime {

/// Consecutive rows of one sequence in a step.
struct StepPiece {
  SequenceState* state = nullptr;
  const Transcript* transcript = nullptr;
  std::int64_t first = 0;  ///< position
  std::int64_t rows = 0;
};

/// Which rows still fit into a step. Embed takes given embeddings for the first image tokens of a step only, so a token with one cannot
/// stand behind an image token without.
class StepRoom {
 public:
  explicit StepRoom(std::int64_t rows) : left_(rows) {}

  /// How many of the transcript's rows [first, end) fit, and takes their room.
  std::int64_t take(const Transcript& transcript, std::int64_t first, std::int64_t end) {
    const std::int64_t most = std::min(end, first + left_);
    std::int64_t p = first;
    for (; p < most; ++p) {
      if (!transcript.is_image(p)) continue;
      const bool given = !transcript.image_row(p).empty();
      if (given && own_) break;
      own_ = own_ || !given;
    }
    left_ = p < most ? 0 : left_ - (p - first);  // a step ends at a row that does not fit
    return p - first;
  }

 private:
  std::int64_t left_;
  bool own_ = false;  // an image token with its own embedding is in the step
};

template <class B>
class StepRunner {
 public:
  StepRunner(B& b, const ModelFolder& folder, Numeric numeric, const Limits& limits)
      : backend_(b),
        limits_(limits),
        model_(b, folder.checkpoint.config(), folder.checkpoint.weights(), folder.token_map, numeric),
        scratch_(b, config(), limits) {
    b.prepare(config(), limits.max_rows);
    const std::int64_t rows = limits.max_rows;
    inputs_ = Arena<B>(b, [&](Cursor& cursor) {
      cursor.take(ids_, {rows});
      cursor.take(image_, {rows});
      cursor.take(positions_, {rows});
      cursor.take(image_rows_, {rows, config().dim});
      cursor.take(history_, {rows, config().engram.look_back()});
    });
    host_ids_.resize(static_cast<std::size_t>(rows));
    host_image_.resize(host_ids_.size());
    host_positions_.resize(host_ids_.size());
    host_history_.resize(static_cast<std::size_t>(history_.size()));
    segments_.reserve(host_ids_.size());
  }

  const ModelConfig& config() const { return model_.config(); }
  const Limits& limits() const { return limits_; }
  const Model<B>& model() const { return model_; }

  /// Taps [rows, taps * dim] of the last step, of rows that entered the layers they are taken at.
  In<float, 2> taps() const { return scratch_.views().taps.rows(0, rows_); }

  /// Runs the pieces' rows, or what `plan` says of those of one piece. Returns false when `cancel` stopped it between layers.
  bool run(std::span<const StepPiece> pieces, std::span<const LayerRows> plan, const CancelToken* cancel) {
    std::size_t row = 0;
    std::int64_t image_row = 0;
    const std::int64_t look_back = history_.extent(1);
    segments_.clear();
    for (const StepPiece& piece : pieces) {
      piece.transcript->history(piece.first, std::span(host_history_)
                                                 .subspan(segments_.size() * static_cast<std::size_t>(look_back),
                                                          static_cast<std::size_t>(look_back)));
      segments_.push_back({.state = piece.state,
                           .first_row = static_cast<std::int64_t>(row),
                           .rows = piece.rows,
                           .first_position = piece.first});
      for (std::int64_t p = piece.first; p < piece.first + piece.rows; ++p, ++row) {
        host_ids_[row] = piece.transcript->ids()[static_cast<std::size_t>(p)];
        host_image_[row] = piece.transcript->is_image(p);
        host_positions_[row] = p;
        const std::span<const float> given = piece.transcript->image_row(p);
        if (!given.empty()) backend_.upload(image_rows_.row(image_row++).data(), given.data(), given.size_bytes());
      }
    }
    const auto segments = static_cast<std::int64_t>(segments_.size());
    rows_ = static_cast<std::int64_t>(row);
    backend_.upload(ids_.data(), host_ids_.data(), row * sizeof host_ids_[0]);
    backend_.upload(image_.data(), host_image_.data(), row * sizeof host_image_[0]);
    backend_.upload(positions_.data(), host_positions_.data(), row * sizeof host_positions_[0]);
    backend_.upload(history_.data(), host_history_.data(),
                    static_cast<std::size_t>(segments * look_back) * sizeof host_history_[0]);
    return model_.step(backend_,
                       Batch{.ids = ids_.rows(0, rows_),
                             .image = image_.rows(0, rows_),
                             .image_rows = image_rows_.rows(0, image_row),
                             .positions = positions_.rows(0, rows_),
                             .history = history_.rows(0, segments),
                             .segments = segments_},
                       scratch_.views().first_rows(rows_), plan, cancel);
  }

  /// Room for `rows` rows of logits. Errors: out_of_memory.
  void reserve_logits(std::int64_t rows) {
    if (logits_.extent(0) >= rows) return;
    Out<float, 2> larger;  // taken over only once its memory is there
    Arena<B> arena(backend_, [&](Cursor& cursor) { cursor.take(larger, {rows, config().vocab}); });
    logits_arena_ = std::move(arena);
    logits_ = larger;
  }

  /// Logits of rows [first, first + count) of the last step, into host memory. Errors: device, and what else the backend met.
  void fetch_logits(std::int64_t first, std::int64_t count, float* host) {
    const Out<float, 2> out = logits_.rows(0, count);
    model_.logits(backend_, scratch_.views().first_rows(rows_), first, count, out);
    backend_.download(host, out.data(), static_cast<std::size_t>(out.size()) * sizeof(float));
  }

 private:
  B& backend_;
  Limits limits_;
  Model<B> model_;
  Scratch<B> scratch_;
  Out<std::int32_t, 1> ids_;
  Out<std::uint8_t, 1> image_;
  Out<std::int64_t, 1> positions_;
  Out<float, 2> image_rows_;
  Out<std::int32_t, 2> history_;
  Arena<B> inputs_;
  std::vector<std::int32_t> host_ids_, host_history_;  // staging of uploads
  std::vector<std::uint8_t> host_image_;
  std::vector<std::int64_t> host_positions_;
  std::vector<Segment> segments_;
  std::int64_t rows_ = 0;  // of the last step
  Out<float, 2> logits_;   // one buffer serves all sessions: it is read back before the next step
  Arena<B> logits_arena_;
};

}  // namespace dsv41::runtime
