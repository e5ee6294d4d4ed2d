// SPDX-License-Identifier: MIT
//
// DraftRunner: the drafter, its scratch and its inputs on one backend. Taps of a step in, context of sequences; anchors in, drafts out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "dsv41/core/arena.hpp"
#include "dsv41/modules/dspark/drafter.hpp"
#include "dsv41/modules/dspark/verifier.hpp"
#include "dsv41/runtime/engine.hpp"
#include "dsv41/runtime/model_folder.hpp"

namespace dsv41::runtime {

/// One sequence's block.
struct DraftPiece {
  const DraftState* state = nullptr;
  const SessionDraft* request = nullptr;
};

/// Blocks of one pass at most: a row of a block has logits over the whole vocabulary, 0.5 MB in the release.
inline constexpr std::int64_t kMostRequests = 64;

template <class B>
class DraftRunner {
 public:
  /// `block`: rows of a draft block. `max_rows`: of a step, and of the blocks of one pass, but at least one block and at most
  /// kMostRequests.
  DraftRunner(B& b, const ModelFolder& folder, In<float, 1> frequencies, Numeric numeric, std::int64_t block,
              std::int64_t max_rows)
      : backend_(b),
        config_(folder.checkpoint.config()),
        block_(block),
        most_(std::clamp<std::int64_t>(max_rows / block, 1, kMostRequests)),
        drafter_(config_, folder.checkpoint.weights(), frequencies, numeric),
        scratch_(b, config_, {.context_rows = max_rows, .block_rows = most_ * block}) {
    b.prepare(config_, std::max(max_rows, most_ * block));
    inputs_ = Arena<B>(b, [&](Cursor& cursor) {
      cursor.take(ids_, {most_ * block});
      cursor.take(positions_, {most_ * block});
      cursor.take(tokens_, {most_});
      cursor.take(logits_, {most_, config_.vocab});
      if (drafter_.has_confidence()) cursor.take(z_, {most_});
    });
    host_ids_.resize(static_cast<std::size_t>(most_ * block));
    host_positions_.resize(host_ids_.size());
    host_tokens_.resize(static_cast<std::size_t>(most_));
    host_z_.resize(host_tokens_.size());
    host_logits_.resize(static_cast<std::size_t>(logits_.size()));
    q_.resize(static_cast<std::size_t>(config_.vocab));
    states_.reserve(host_tokens_.size());
  }

  bool has_confidence() const { return drafter_.has_confidence(); }

  /// Context from taps of a step. Rows of `committed` count from the step's first; their states do not move.
  void remember(In<float, 2> taps, std::span<DraftContext> committed) {
    if (committed.empty()) return;
    std::int64_t first = taps.extent(0), end = 0;
    for (const DraftContext& c : committed) {
      first = std::min(first, c.first_row);
      end = std::max(end, c.first_row + c.rows);
    }
    for (DraftContext& c : committed) c.first_row -= first;
    drafter_.remember(backend_, taps.rows(first, end - first), committed, scratch_.views());
  }

  /// Fills what the pieces' requests ask for. Errors: device, and what else the backend met.
  void draft(std::span<const DraftPiece> pieces) {
    for (std::size_t first = 0; first < pieces.size(); first += static_cast<std::size_t>(most_))
      draft_pass(pieces.subspan(first, std::min(static_cast<std::size_t>(most_), pieces.size() - first)));
  }

 private:
  /// The blocks run whole however few drafts are asked for: every row sees all of its block, so that a draft does not depend on what else
  /// is wanted.
  void draft_pass(std::span<const DraftPiece> pieces) {
    const auto requests = std::ssize(pieces), rows = requests * block_;
    const auto block = static_cast<std::size_t>(block_);
    std::int64_t longest = 0;
    states_.clear();
    for (std::size_t r = 0; r < pieces.size(); ++r) {
      const SessionDraft& request = *pieces[r].request;
      draft_block(config_, request.anchor, *pieces[r].state, std::span(host_ids_).subspan(r * block, block),
                  std::span(host_positions_).subspan(r * block, block));
      host_tokens_[r] = request.anchor;
      longest = std::max(longest, std::ssize(request.tokens));
      states_.push_back(pieces[r].state);
    }
    upload(ids_, host_ids_, rows);
    upload(positions_, host_positions_, rows);
    const DraftBatch batch{.ids = ids_.rows(0, rows), .positions = positions_.rows(0, rows), .requests = states_};
    const DraftViews t = scratch_.views().first_rows(rows);
    drafter_.forward(backend_, batch, t);
    for (std::int64_t row = 0; row < longest; ++row) {
      upload(tokens_, host_tokens_, requests);
      const Out<float, 2> logits = logits_.rows(0, requests);
      const Out<float, 1> z = z_.empty() ? z_ : z_.rows(0, requests);
      drafter_.next(backend_, batch, row, tokens_.rows(0, requests), t, logits, z);
      backend_.download(host_logits_.data(), logits.data(), static_cast<std::size_t>(logits.size()) * sizeof(float));
      if (!z.empty()) backend_.download(host_z_.data(), z.data(), static_cast<std::size_t>(z.size()) * sizeof(float));
      for (std::size_t r = 0; r < pieces.size(); ++r) host_tokens_[r] = choose(pieces[r], r, row);
    }
  }

  /// Draft `row` of request `r`, out of what was just downloaded; -1: it has none, for it asks for fewer or its drafts have ended.
  std::int32_t choose(const DraftPiece& piece, std::size_t r, std::int64_t row) {
    const SessionDraft& out = *piece.request;
    if (row >= std::ssize(out.tokens)) return -1;
    const std::int64_t choices = out.choices == 0 ? config_.vocab : out.choices;
    const In<float, 1> logits(host_logits_.data() + static_cast<std::int64_t>(r) * config_.vocab, {choices});
    const auto i = static_cast<std::size_t>(row);
    std::int32_t id = -1;
    if (host_tokens_[r] >= 0) {
      id = draw_draft(logits, out.temperature, out.seed, piece.state->position, row + 1, {q_.data(), {choices}});
      if (!out.logits.empty()) std::copy_n(logits.data(), choices, out.logits.row(row).data());
    }
    if (!out.confidences.empty()) out.confidences[i] = host_tokens_[r] >= 0 ? host_z_[r] : kNoConfidence;
    return out.tokens[i] = id;
  }

  template <class T>
  void upload(Out<T, 1> to, const std::vector<T>& from, std::int64_t count) {
    backend_.upload(to.data(), from.data(), static_cast<std::size_t>(count) * sizeof(T));
  }

  B& backend_;
  const ModelConfig& config_;
  std::int64_t block_, most_;
  Drafter drafter_;
  DraftScratch<B> scratch_;
  Out<std::int32_t, 1> ids_, tokens_;
  Out<std::int64_t, 1> positions_;
  Out<float, 2> logits_;
  Out<float, 1> z_;
  Arena<B> inputs_;
  std::vector<std::int32_t> host_ids_, host_tokens_;  // staging
  std::vector<std::int64_t> host_positions_;
  std::vector<float> host_logits_, host_z_;
  std::vector<double> q_;
  std::vector<const DraftState*> states_;
};

}  // namespace dsv41::runtime
