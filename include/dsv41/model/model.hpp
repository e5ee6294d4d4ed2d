// SPDX-License-Identifier: MIT
//
// The backbone: embedding, layers, head. Rows 0, 1a, 10 and 11 of docs/token_path.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsv41/core/arena.hpp"
#include "dsv41/core/cancel.hpp"
#include "dsv41/core/config_rules.hpp"
#include "dsv41/core/schedule.hpp"
#include "dsv41/model/layer.hpp"
#include "dsv41/model/scratch.hpp"
#include "dsv41/modules/engram/hasher.hpp"
#include "dsv41/modules/weights.hpp"
#include "dsv41/numerics/rope.hpp"
#include "dsv41/ops/op.hpp"

namespace dsv41 {

/// A DeepSeek-V4.1 backbone on one backend, in one numeric class. Immutable: sequences live in State, temporaries in Scratch, so any
/// number of sequences share it. Prefill, decode and verification are the same step with other row counts.
template <ops::Backend B>
class Model {
 public:
  /// `weights` must outlive the model; their views are in the backend's memory, the lists of layers and experts are host data.
  /// `token_map`: [vocab] token id -> compressed id in host memory, copied; empty without Engram layers.
  ///
  /// Errors: what validate() and EngramHasher throw; shape_mismatch when a layer or an expert is missing; out_of_memory.
  Model(B& b, const ModelConfig& config, const ModelWeights& weights, std::span<const std::int32_t> token_map,
        Numeric numeric)
      : config_(checked(config, weights)), weights_(&weights), numeric_(numeric) {
    if (!config.engram.layers.empty()) hasher_.emplace(config, token_map);
    constants_ = Arena<B>(b, [&](Cursor& cursor) {
      for (Out<float, 1>& f : frequencies_) cursor.take(f, {config.rope_dim / 2});
      if (hasher_) hasher_->layout(cursor);
    });
    upload_frequencies(b);
    if (hasher_) hasher_->upload(b);
    const Schedule schedule = make_schedule(config);
    for (std::size_t l = 0; l < schedule.layers.size(); ++l) {
      const LayerPlan& plan = schedule.layers[l];
      layers_.emplace_back(config, plan, l, weights.layers[l], frequencies_[plan.ratio > 0], numeric);
    }
  }

  /// Runs the batch through every layer. Each sequence's caches advance; its `position` is the caller's to move afterwards.
  /// Returns whether it ran to its end: `cancel`, when there is one, is looked at before each layer. Otherwise caches hold rows of some
  /// layers, at the batch's positions.
  /// `t` must be cut to the batch's rows (first_rows). Nothing allocates, throws, or reads back from the device.
  /// `plan` [layers]: what each layer runs of the rows (plan_prefill), of a batch of one segment; empty: everything. Rows that a layer
  /// does not run hold nothing of it, and those that do not reach the end have no logits.
  /// On a host backend the caller's floating-point modes must be the usual ones: round to nearest, subnormals kept.
  bool step(B& b, const Batch& batch, const ScratchViews& t, std::span<const LayerRows> plan = {},
            const CancelToken* cancel = nullptr) const noexcept {
    b.run(ops::Embed{.ids = batch.ids,
                     .image = batch.image,
                     .image_rows = batch.image_rows,
                     .table = weights_->embed,
                     .streams = t.streams,
                     .mix = t.mix});
    if (hasher_) hasher_->forward(b, batch, t.engram.table_rows);
    In<float, 2> pending;
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      if (cancel != nullptr && cancel->requested()) return false;
      layers_[l].forward(b, batch, pending, t, plan.empty() ? LayerRows{} : plan[l]);
      pending = t.ffn_out;
    }
    const std::int64_t first = plan.empty() ? 0 : plan.back().queries, rows = batch.rows() - first;
    b.run(ops::MhcExpand{.y = t.ffn_out.rows(first, rows),
                         .mix = t.mix.rows(first, rows),
                         .streams = t.streams.rows(first, rows),
                         .numeric = numeric_});
    return true;
  }

  /// Logits [count, vocab] f32 of rows [first, first + count) of the step just run with `t` (architecture.md 2).
  void logits(B& b, const ScratchViews& t, std::int64_t first, std::int64_t count,
              Out<float, 2> logits) const noexcept {
    const Out<float, 2> x = t.head_in.rows(first, count);
    b.run(ops::MhcCollapse{
        .streams = t.streams.rows(first, count), .mix = t.mix.rows(first, count), .x = x, .numeric = numeric_});
    b.run(ops::RmsNorm{.x = x, .weight = weights_->norm, .y = x, .eps = config_.norm_eps, .numeric = numeric_});
    b.run(ops::Linear{.x = x, .w = weights_->head, .y = logits, .role = ops::LinearRole::float32, .numeric = numeric_});
  }

  const ModelConfig& config() const { return config_; }
  Numeric numeric() const { return numeric_; }
  const Layer& layer(std::size_t i) const { return layers_[i]; }

  /// [rope_dim / 2] in the backend's memory, while the model lives: what layers without a ratio rotate with, and a drafter's stages.
  In<float, 1> window_frequencies() const { return frequencies_[0]; }

 private:
  static const ModelConfig& checked(const ModelConfig& config, const ModelWeights& weights) {
    validate(config);
    auto expect = [](std::string_view what, std::int64_t expected, std::size_t got) {
      if (got != static_cast<std::size_t>(expected)) {
        ops::shape_error("model", what, std::to_string(expected), std::to_string(got));
      }
    };
    expect("number of layers in the weights", config.layers, weights.layers.size());
    for (std::size_t l = 0; l < weights.layers.size(); ++l) {
      expect("number of experts in layer " + std::to_string(l), config.experts, weights.layers[l].moe.experts.size());
    }
    return config;
  }

  void upload_frequencies(B& b) {
    std::vector<float> table(static_cast<std::size_t>(config_.rope_dim / 2));
    for (const bool compressed : {false, true}) {
      numerics::rope_frequencies(compressed ? config_.compress_theta : config_.rope_theta, config_.rope_dim,
                                 compressed ? &config_.yarn : nullptr, table.data());
      b.upload(frequencies_[compressed].data(), table.data(), table.size() * sizeof(float));
    }
  }

  ModelConfig config_;
  const ModelWeights* weights_;
  Numeric numeric_;
  Out<float, 1> frequencies_[2];  // [rope_dim / 2] of window layers, and of layers with a ratio
  Arena<B> constants_;
  std::optional<EngramHasher> hasher_;
  std::vector<Layer> layers_;
};

}  // namespace dsv41
