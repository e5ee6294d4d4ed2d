// SPDX-License-Identifier: MIT
//
// Recording<B>: a backend that keeps what the ops of a step produced, under the names that the oracle's trace uses. It reads the place
// in the model off the weights' tensor names, so modules need no hooks. One step, one sequence.
#pragma once

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
    inner.run(op);
    record(op);
  }

  void prepare(const ModelConfig& c, std::int64_t rows) { inner.prepare(c, rows); }
  void* allocate(std::size_t bytes) { return inner.allocate(bytes); }
  void release(void* data) noexcept { inner.release(data); }
  void upload(void* to, const void* from, std::size_t bytes) noexcept { inner.upload(to, from, bytes); }
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
    std::vector<double>& out = values[name];
    out.clear();
    flatten(view, out);
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

  void record(const ops::EngramGather& op) {
    at_ = layer_of(op.table.name);
    keep(at_ + "engram_rows", op.table_rows);
  }
  void record(const ops::EngramGate& op) { keep(at_ + "engram_gate", op.gates); }
  void record(const ops::MhcExpand& op) { keep(at_ + "streams", op.streams); }
  void record(const ops::MhcSeam& op) {
    const bool attention = op.fn.name.ends_with("hc_attn_fn");
    const std::int64_t hc = op.streams.extent(1);
    if (attention && !op.y.empty())
      keep(at_ + "streams", op.streams);  // of the layer before: its last output was pending
    at_ = layer_of(op.fn.name);
    keep(at_ + (attention ? "attn_in" : "ffn_in"), op.input);
    if (attention) keep(at_ + "attn_mix", op.mix.columns(2 * hc, hc * hc));
  }
  void record(const ops::Linear& op) {
    if (op.w.name.ends_with("attn.wo_b.weight")) keep(at_ + "attn_out", op.y);
  }
  void record(const ops::SwigluExperts& op) { keep(at_ + "ffn_out", op.y); }
  void record(const ops::TopkRoute& op) {
    keep(at_ + "ffn.expert_ids", op.ids);
    keep(at_ + "ffn.expert_weights", op.weights);
  }
  void record(const ops::CacheAppend& op) {
    const char* name = op.quantiser == numerics::Quantiser::window_fp8  ? "window_kv"
                       : op.quantiser == numerics::Quantiser::entry_fp4 ? "entries"
                                                                        : "index_keys";
    keep(at_ + "attn." + name, op.rows);
  }
  void record(const ops::IndexSelect& op) {
    const std::int64_t tokens = op.q.extent(0), entries = (op.first_position + tokens) / op.ratio;
    std::vector<double>&scores = values[at_ + "attn.index_scores"], &chosen = values[at_ + "attn.chosen"];
    scores.clear();
    chosen.assign(static_cast<std::size_t>(tokens * entries), 0);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t visible = (op.first_position + t + 1) / op.ratio;
      for (std::int64_t e = 0; e < entries; ++e) {
        const bool scored = e < visible && (op.candidates != ops::CandidateUse::limited || in_blocks(op, t, e));
        scores.push_back(scored ? static_cast<double>(op.scores(t, e)) : -HUGE_VAL);
      }
      for (std::int64_t i = 0; i < op.counts[t]; ++i) chosen[static_cast<std::size_t>(t * entries + op.ids(t, i))] = 1;
    }
  }
  static bool in_blocks(const ops::IndexSelect& op, std::int64_t t, std::int64_t entry) {
    for (std::int64_t i = 0; i < op.block_counts[t]; ++i) {
      if (op.blocks(t, i) == entry / op.block) return true;
    }
    return false;
  }

  std::string at_;
};

}  // namespace dsv41::test
