// SPDX-License-Identifier: MIT
//
// Names, shapes and released storage of every tensor, from the config. Order: globals, layers, draft stages, as in
// checkpoint.md 2.2.
#include "dsv41/runtime/inventory.hpp"

#include <cstddef>
#include <utility>

#include "dsv41/core/schedule.hpp"

namespace dsv41::runtime {
namespace {

/// Walks the weights of one config and writes a spec per view.
class Lister {
 public:
  Lister(const ModelConfig& config, std::vector<TensorSpec>& out) : c_(config), out_(out) {}

  void model(ModelWeights& w) {
    matrix("embed.weight", Stored::bf16, c_.vocab, c_.dim, w.embed);
    matrix("head.weight", Stored::bf16, c_.vocab, c_.dim, w.head);
    vector("norm.weight", Stored::bf16, c_.dim, w.norm);
    const Schedule schedule = make_schedule(c_);
    w.layers.resize(schedule.layers.size());
    for (std::size_t l = 0; l < schedule.layers.size(); ++l) {
      const std::string p = "layers." + std::to_string(l) + ".";
      const LayerPlan& plan = schedule.layers[l];
      block(p, c_.experts, w.layers[l]);
      if (plan.kind == LayerKind::full) compressor(p + "attn.", plan.ratio, w.layers[l].attn.compressor);
      if (plan.kind == LayerKind::full || plan.kind == LayerKind::reindex)
        indexer(p + "attn.indexer.", w.layers[l].attn.indexer);
      if (plan.engram >= 0)
        engram(p + "engram.", c_.engram.rows[static_cast<std::size_t>(plan.engram)], w.layers[l].engram);
    }
    if (c_.draft.stages > 0) draft(w.draft);
  }

 private:
  TensorSpec& add(std::string name, Stored stored, std::int64_t rows, std::int64_t cols) {
    TensorSpec& spec = out_.emplace_back();
    spec.name = std::move(name);
    spec.stored = stored;
    spec.rows = rows;
    spec.cols = cols;
    return spec;
  }

  TensorSpec& matrix(std::string name, Stored stored, std::int64_t rows, std::int64_t cols, Matrix& slot) {
    TensorSpec& spec = add(std::move(name), stored, rows, cols);
    spec.matrix = &slot;
    return spec;
  }

  TensorSpec& vector(std::string name, Stored stored, std::int64_t length, In<float, 1>& slot) {
    TensorSpec& spec = add(std::move(name), stored, length, 1);
    spec.is_vector = true;
    spec.vector = &slot;
    return spec;
  }

  void seam(const std::string& fn, const std::string& norm, SeamWeights& w) {
    matrix(fn + "_fn", Stored::f32, c_.mix_rows(), c_.hc * c_.dim, w.fn);
    vector(fn + "_base", Stored::f32, c_.mix_rows(), w.base);
    vector(fn + "_scale", Stored::f32, 3, w.scale);
    vector(norm, Stored::bf16, c_.dim, w.norm);
  }

  void block(const std::string& p, std::int64_t experts, LayerWeights& w) {
    seam(p + "hc_attn", p + "attn_norm.weight", w.attn_seam);
    seam(p + "hc_ffn", p + "ffn_norm.weight", w.ffn_seam);
    attention(p + "attn.", w.attn);
    moe(p + "ffn.", experts, w.moe);
  }

  void attention(const std::string& p, AttentionWeights& w) {
    const std::int64_t width = c_.heads * c_.head_dim, low = c_.o_groups * c_.o_rank;
    matrix(p + "wq_a.weight", Stored::fp8, c_.q_rank, c_.dim, w.wq_a);
    vector(p + "q_norm.weight", Stored::bf16, c_.q_rank, w.q_norm);
    matrix(p + "wq_b.weight", Stored::fp8, width, c_.q_rank, w.wq_b);
    matrix(p + "wkv.weight", Stored::fp8, c_.head_dim, c_.dim, w.wkv);
    vector(p + "kv_norm.weight", Stored::bf16, c_.head_dim, w.kv_norm);
    matrix(p + "wo_a.weight", Stored::fp8, low, width / c_.o_groups, w.wo_a);
    matrix(p + "wo_b.weight", Stored::fp8, c_.dim, low, w.wo_b);
    vector(p + "attn_sink", Stored::f32, c_.heads, w.sink);
  }

  void moe(const std::string& p, std::int64_t experts, MoeWeights& w) {
    matrix(p + "gate.weight", Stored::bf16, experts, c_.dim, w.gate);
    vector(p + "gate.bias", Stored::f32, experts, w.bias);
    vector(p + "gate.bias_vl", Stored::f32, experts, w.bias_vl).required = false;
    w.experts.resize(static_cast<std::size_t>(experts));
    for (std::size_t e = 0; e < w.experts.size(); ++e) {
      expert(p + "experts." + std::to_string(e) + ".", Stored::fp4, c_.ff, w.experts[e]);
    }
    if (c_.shared_experts > 0) expert(p + "shared_experts.", Stored::fp8, c_.shared_experts * c_.ff, w.shared);
  }

  void expert(const std::string& p, Stored stored, std::int64_t ff, ExpertWeights& w) {
    matrix(p + "w1.weight", stored, ff, c_.dim, w.w1);
    matrix(p + "w2.weight", stored, c_.dim, ff, w.w2);
    matrix(p + "w3.weight", stored, ff, c_.dim, w.w3);
  }

  void compressor(const std::string& p, std::int32_t ratio, CompressorWeights& w) {
    matrix(p + "compressor.wkv.weight", Stored::bf16, c_.head_dim, c_.dim, w.wkv);
    if (ratio > 1) matrix(p + "compressor.wgate.weight", Stored::bf16, c_.head_dim, c_.dim, w.wgate);
    vector(p + "compressor.norm.weight", Stored::bf16, c_.head_dim, w.norm);
    matrix(p + "indexer.wk.weight", Stored::bf16, c_.index_dim, c_.head_dim, w.wk);
    vector(p + "indexer.k_norm.weight", Stored::bf16, c_.index_dim, w.k_norm);
  }

  void indexer(const std::string& p, IndexerWeights& w) {
    matrix(p + "wq_b.weight", Stored::fp8, c_.index_heads * c_.index_dim, c_.q_rank, w.wq_b);
    matrix(p + "weights_proj.weight", Stored::bf16, c_.index_heads, c_.dim, w.weights_proj);
  }

  void engram(const std::string& p, std::int64_t rows, EngramWeights& w) {
    matrix(p + "embed.weight", Stored::table, rows, c_.engram.dim, w.table);
    matrix(p + "wkv.weight", Stored::fp8, (c_.hc + 1) * c_.dim, c_.engram.columns() * c_.engram.dim, w.wkv);
    matrix(p + "q_weight", Stored::bf16, c_.hc, c_.dim, w.q_weight);
    matrix(p + "k_weight", Stored::bf16, c_.hc, c_.dim, w.k_weight);
  }

  void draft(DraftWeights& w) {
    w.stages.resize(static_cast<std::size_t>(c_.draft.stages));
    for (std::size_t s = 0; s < w.stages.size(); ++s)
      block("mtp." + std::to_string(s) + ".", c_.draft.experts, w.stages[s]);
    const std::string last = "mtp." + std::to_string(c_.draft.stages - 1) + ".";
    const std::int64_t taps = static_cast<std::int64_t>(c_.draft.tap_layers.size()), rank = c_.draft.markov_rank;
    matrix("mtp.0.main_proj.weight", Stored::fp8, c_.dim, taps * c_.dim, w.main_proj);
    vector("mtp.0.main_norm.weight", Stored::bf16, c_.dim, w.main_norm);
    vector(last + "norm.weight", Stored::bf16, c_.dim, w.norm);
    // The predecessor's names of the Markov factors are accepted too (dspark.md 2, rule a).
    const std::string markov = last + "markov_head.";
    matrix(markov + "embed.weight", Stored::bf16, c_.vocab, rank, w.markov_embed).alias = markov + "markov_w1.weight";
    matrix(markov + "head.weight", Stored::bf16, c_.vocab, rank, w.markov_head).alias = markov + "markov_w2.weight";
    matrix(last + "confidence_head.proj.weight", Stored::bf16, 1, c_.dim + rank, w.confidence).required = false;
  }

  const ModelConfig& c_;
  std::vector<TensorSpec>& out_;
};

}  // namespace

std::string scale_name(std::string_view weight) {
  constexpr std::string_view kSuffix = ".weight";
  if (weight.ends_with(kSuffix)) weight.remove_suffix(kSuffix.size());
  return std::string(weight) + ".scale";
}

std::vector<TensorSpec> inventory(const ModelConfig& config, ModelWeights* into) {
  std::vector<TensorSpec> out;
  ModelWeights scratch;
  Lister(config, out).model(into == nullptr ? scratch : *into);
  if (into == nullptr) {
    for (TensorSpec& spec : out) spec.matrix = nullptr, spec.vector = nullptr;
  }
  return out;
}

}  // namespace dsv41::runtime
