// SPDX-License-Identifier: MIT
//
// Recording<B>: a backend that keeps what the ops of a sequence's steps produced, under the names that the oracle's trace uses. It reads
// the place in the model off the weights' tensor names, so modules need no hooks. One sequence on a host backend, from its first step on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/ops/op.hpp"

namespace dsv41::test {

template <class B>
class Recording {
 public:
  template <class Op>
  void run(const Op& op) noexcept {
    if constexpr (requires { before(op); }) before(op);
    inner.run(op);
    record(op);
  }

  void prepare(const ModelConfig& c, std::int64_t rows) { inner.prepare(c, rows); }
  void* allocate(std::size_t bytes) { return inner.allocate(bytes); }
  void release(void* data) noexcept { inner.release(data); }
  void upload(void* to, const void* from, std::size_t bytes) noexcept { inner.upload(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) noexcept { inner.copy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) { inner.download(to, from, bytes); }
  void sync() { inner.sync(); }

  B inner;
  std::map<std::string, std::vector<double>> values;

 private:
  /// "layers.3." of "layers.3.attn.wo_b.weight"
  static std::string layer_of(std::string_view tensor) {
    return std::string(tensor.substr(0, tensor.find('.', tensor.find('.') + 1) + 1));
  }

  template <class T, std::size_t Rank>
  void keep(const std::string& name, const View<T, Rank>& view) {
    flatten(view, values[name]);
  }
  template <class T>
  static void flatten(const View<T, 1>& view, std::vector<double>& out) {
    for (std::int64_t i = 0; i < view.extent(0); ++i) out.push_back(static_cast<double>(view[i]));
  }
  template <class T, std::size_t Rank>
  static void flatten(const View<T, Rank>& view, std::vector<double>& out) {
    for (std::int64_t i = 0; i < view.extent(0); ++i) flatten(view.row(i), out);
  }

  template <class Op>
  void record(const Op&) {}

  void record(const ops::Embed& op) {
    const std::int64_t rows = op.streams.extent(0), dim = op.streams.extent(2);
    keep("embeddings",
         op.streams.reshaped<2>({rows, op.streams.extent(1) * dim}).columns(0, dim));  // stream 0 of equals
  }
  void record(const ops::EngramGather& op) {
    at_ = layer_of(op.table.name);
    keep(at_ + "engram_rows", op.table_rows);
  }
  void record(const ops::EngramGate& op) {
    keep(at_ + "engram_gate", op.gates);
    keep(at_ + "engram_streams", op.streams);
  }
  void record(const ops::MhcExpand& op) { keep(at_ + "streams", op.streams); }
  void record(const ops::StreamMean& op) { keep(at_ + "tap", op.tap); }

  /// A seam collapses with the pre that it then replaces.
  void before(const ops::MhcSeam& op) {
    old_mix_.clear();
    flatten(op.mix, old_mix_);
  }
  void record(const ops::MhcSeam& op) {
    const bool attention = op.fn.name.ends_with("hc_attn_fn");
    const std::int64_t rows = op.streams.extent(0), hc = op.streams.extent(1);
    if (attention && !op.y.empty())
      keep(at_ + "streams", op.streams);  // of the layer before: its last output was pending
    at_ = layer_of(op.fn.name);
    const std::string name = at_ + (attention ? "attn_" : "ffn_");
    if (!attention) keep(at_ + "attn_streams", op.streams);
    const std::vector<float> mix(old_mix_.begin(), old_mix_.end());
    std::vector<float> collapsed(static_cast<std::size_t>(rows * op.streams.extent(2)));
    const Out<float, 2> x(collapsed.data(), {rows, op.streams.extent(2)});
    inner.run(
        ops::MhcCollapse{.streams = op.streams, .mix = {mix.data(), op.mix.extents()}, .x = x, .numeric = op.numeric});
    keep(name + "collapsed", x);
    keep(name + "in", op.input);
    keep(name + "pre", op.mix.columns(0, hc));
    keep(name + "post", op.mix.columns(hc, hc));
    keep(name + "mix", op.mix.columns(2 * hc, hc * hc));
  }
  void record(const ops::Linear& op) {
    if (op.w.name.ends_with("attn.wo_b.weight")) keep(at_ + "attn_out", op.y);
    if (op.w.name != "head.weight") return;
    keep("head_in", op.x);
    keep("logits", op.y);
  }
  void record(const ops::Rope& op) {
    if (!op.inverse) keep(at_ + (op.quantiser == numerics::Quantiser::none ? "attn.q" : "attn.index_q"), op.x);
  }
  void record(const ops::SwigluExperts& op) { keep(at_ + "ffn_out", op.y); }
  void record(const ops::TopkRoute& op) {
    keep(at_ + "ffn.expert_scores", op.logits);
    keep(at_ + "ffn.expert_ids", op.ids);
    keep(at_ + "ffn.expert_weights", op.weights);
  }
  void record(const ops::CacheAppend& op) {
    const char* name = op.cache.format == CacheFormat::window  ? "window_kv"
                       : op.cache.format == CacheFormat::entry ? "entries"
                                                               : "index_keys";
    keep(at_ + "attn." + name, op.rows);
  }
  void record(const ops::IndexSelect& op) {
    const std::int64_t tokens = op.q.extent(0), before = op.first_position, entries = (before + tokens) / op.ratio;
    double* scores = rows_of(at_ + "attn.index_scores", before, tokens, before / op.ratio, entries, -HUGE_VAL);
    double* chosen = rows_of(at_ + "attn.chosen", before, tokens, before / op.ratio, entries, 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t visible = (before + t + 1) / op.ratio;
      for (std::int64_t e = 0; e < visible; ++e) {
        if (op.candidates != ops::CandidateUse::limited || in_blocks(op, t, e))
          scores[t * entries + e] = static_cast<double>(op.scores(t, e));
      }
      for (std::int64_t i = 0; i < op.counts[t]; ++i) chosen[t * entries + op.ids(t, i)] = 1;
    }
    if (op.candidates != ops::CandidateUse::publish) return;
    const auto blocks = [&](std::int64_t positions) { return (positions / op.ratio + op.block - 1) / op.block; };
    const std::int64_t all = blocks(before + tokens);
    double* kept = rows_of(at_ + "attn.candidates", before, tokens, blocks(before), all, 0);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t i = 0; i < op.block_counts[t]; ++i) kept[t * all + op.blocks(t, i)] = 1;
  }

  /// The place of `more` new rows behind `rows` old ones in a table whose rows grow from `narrow` to `wide` columns.
  double* rows_of(const std::string& name, std::int64_t rows, std::int64_t more, std::int64_t narrow, std::int64_t wide,
                  double fill) {
    std::vector<double> grown(static_cast<std::size_t>((rows + more) * wide), fill);
    std::vector<double>& old = values[name];
    for (std::int64_t r = 0; r < rows; ++r) std::copy_n(old.data() + r * narrow, narrow, grown.data() + r * wide);
    old = std::move(grown);
    return old.data() + rows * wide;
  }
  static bool in_blocks(const ops::IndexSelect& op, std::int64_t t, std::int64_t entry) {
    for (std::int64_t i = 0; i < op.block_counts[t]; ++i) {
      if (op.blocks(t, i) == entry / op.block) return true;
    }
    return false;
  }

  std::string at_;
  std::vector<double> old_mix_;
};

}  // namespace dsv41::test
