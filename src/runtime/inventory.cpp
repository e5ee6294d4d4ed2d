// SPDX-License-Identifier: MIT
//
// Names, shapes and released storage of every tensor, from the config. Order: globals, layers, draft stages, vision, as in
// checkpoint.md 2.2; an Engram module in the order of its file (2.1).
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
    part_ = Part::embed;
    matrix("embed.weight", Stored::bf16, c_.vocab, c_.dim, w.embed);
    part_ = Part::head;
    matrix("head.weight", Stored::bf16, c_.vocab, c_.dim, w.head);
    vector("norm.weight", Stored::bf16, c_.dim, w.norm);
    const Schedule schedule = make_schedule(c_);
    w.layers.resize(schedule.layers.size());
    for (std::size_t l = 0; l < schedule.layers.size(); ++l) {
      const std::string p = "layers." + std::to_string(l) + ".";
      const LayerPlan& plan = schedule.layers[l];
      layer_ = static_cast<std::int32_t>(l);
      block(p, c_.experts, w.layers[l]);
      if (plan.kind == LayerKind::full) compressor(p + "attn.", plan.ratio, w.layers[l].attn.compressor);
      if (plan.kind == LayerKind::full || plan.kind == LayerKind::reindex)
        indexer(p + "attn.indexer.", w.layers[l].attn.indexer);
      if (plan.engram >= 0)
        engram(p + "engram.", c_.engram.rows[static_cast<std::size_t>(plan.engram)], w.layers[l].engram);
    }
    if (c_.draft.stages > 0) draft(w.draft);
    if (c_.vision.layers > 0) vision();
  }

 private:
  TensorSpec& add(std::string name, Stored stored, std::int64_t rows, std::int64_t cols) {
    TensorSpec& spec = out_.emplace_back();
    spec.name = std::move(name);
    spec.stored = stored;
    spec.part = part_;
    spec.layer = layer_;
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

  /// Of a backbone layer; a draft stage's blocks are all Part::draft, its experts apart.
  void part(Part backbone) {
    part_ = !drafting_ ? backbone : backbone == Part::experts ? Part::draft_experts : Part::draft;
  }

  void block(const std::string& p, std::int64_t experts, LayerWeights& w) {
    part(Part::seams);
    seam(p + "hc_attn", p + "attn_norm.weight", w.attn_seam);
    seam(p + "hc_ffn", p + "ffn_norm.weight", w.ffn_seam);
    attention(p + "attn.", w.attn);
    moe(p + "ffn.", experts, w.moe);
  }

  void attention(const std::string& p, AttentionWeights& w) {
    part(Part::attention);
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
    part(Part::router);
    matrix(p + "gate.weight", Stored::bf16, experts, c_.dim, w.gate);
    vector(p + "gate.bias", Stored::f32, experts, w.bias);
    vector(p + "gate.bias_vl", Stored::f32, experts, w.bias_vl).required = false;
    part(Part::experts);
    w.experts.resize(static_cast<std::size_t>(experts));
    for (std::size_t e = 0; e < w.experts.size(); ++e) {
      expert(p + "experts." + std::to_string(e) + ".", Stored::fp4, c_.ff, w.experts[e]);
    }
    part(Part::shared);
    if (c_.shared_experts > 0) expert(p + "shared_experts.", Stored::fp8, c_.shared_experts * c_.ff, w.shared);
  }

  void expert(const std::string& p, Stored stored, std::int64_t ff, ExpertWeights& w) {
    const auto packed = [&](std::int64_t cols) {  // an FP4 row is whole scale blocks (weight_forms refuses others)
      return stored == Stored::fp4 && cols % kScaleBlock != 0 ? Stored::bf16 : stored;
    };
    matrix(p + "w1.weight", packed(c_.dim), ff, c_.dim, w.w1);
    matrix(p + "w2.weight", packed(ff), c_.dim, ff, w.w2);
    matrix(p + "w3.weight", packed(c_.dim), ff, c_.dim, w.w3);
  }

  void compressor(const std::string& p, std::int32_t ratio, CompressorWeights& w) {
    part(Part::compressor);
    matrix(p + "compressor.wkv.weight", Stored::bf16, c_.head_dim, c_.dim, w.wkv);
    if (ratio > 1) matrix(p + "compressor.wgate.weight", Stored::bf16, c_.head_dim, c_.dim, w.wgate);
    vector(p + "compressor.norm.weight", Stored::bf16, c_.head_dim, w.norm);
    matrix(p + "indexer.wk.weight", Stored::bf16, c_.index_dim, c_.head_dim, w.wk);
    vector(p + "indexer.k_norm.weight", Stored::bf16, c_.index_dim, w.k_norm);
  }

  void indexer(const std::string& p, IndexerWeights& w) {
    part(Part::indexer);
    matrix(p + "wq_b.weight", Stored::fp8, c_.index_heads * c_.index_dim, c_.q_rank, w.wq_b);
    matrix(p + "weights_proj.weight", Stored::bf16, c_.index_heads, c_.dim, w.weights_proj);
  }

  void engram(const std::string& p, std::int64_t rows, EngramWeights& w) {
    part(Part::engram_table);
    matrix(p + "embed.weight", Stored::table, rows, c_.engram.dim, w.table);
    part(Part::engram);
    matrix(p + "q_weight", Stored::bf16, c_.hc, c_.dim, w.q_weight);
    matrix(p + "k_weight", Stored::bf16, c_.hc, c_.dim, w.k_weight);
    matrix(p + "wkv.weight", Stored::fp8, (c_.hc + 1) * c_.dim, c_.engram.columns() * c_.engram.dim, w.wkv);
  }

  void draft(DraftWeights& w) {
    w.stages.resize(static_cast<std::size_t>(c_.draft.stages));
    drafting_ = true;
    for (std::size_t s = 0; s < w.stages.size(); ++s) {
      layer_ = static_cast<std::int32_t>(s);
      block("mtp." + std::to_string(s) + ".", c_.draft.experts, w.stages[s]);
    }
    part_ = Part::draft;
    layer_ = 0;
    const std::string last = "mtp." + std::to_string(c_.draft.stages - 1) + ".";
    const std::int64_t taps = static_cast<std::int64_t>(c_.draft.tap_layers.size()), rank = c_.draft.markov_rank;
    matrix("mtp.0.main_proj.weight", Stored::fp8, c_.dim, taps * c_.dim, w.main_proj);
    vector("mtp.0.main_norm.weight", Stored::bf16, c_.dim, w.main_norm);
    layer_ = c_.draft.stages - 1;
    vector(last + "norm.weight", Stored::bf16, c_.dim, w.norm);
    // The predecessor's names of the Markov factors are accepted too (dspark.md 2, rule a).
    const std::string markov = last + "markov_head.";
    matrix(markov + "embed.weight", Stored::bf16, c_.vocab, rank, w.markov_embed).alias = markov + "markov_w1.weight";
    matrix(markov + "head.weight", Stored::bf16, c_.vocab, rank, w.markov_head).alias = markov + "markov_w2.weight";
    matrix(last + "confidence_head.proj.weight", Stored::bf16, 1, c_.dim + rank, w.confidence).required = false;
  }

  /// The text model has no views of these.
  void vision() {
    const VisionConfig& v = c_.vision;
    const auto weight = [&](const std::string& name, std::int64_t rows, std::int64_t cols, bool bias) {
      add(name + ".weight", Stored::bf16, rows, cols);
      if (bias) add(name + ".bias", Stored::bf16, rows, 1).is_vector = true;
    };
    const auto one = [&](const std::string& name, std::int64_t length) {
      add(name, Stored::bf16, length, 1).is_vector = true;
    };
    layer_ = -1;
    part_ = Part::embed;
    for (const char* name : {"image_start", "image_newline", "image_end"}) one(name, c_.dim);
    part_ = Part::vision;
    weight("vision.patch_embed.proj", v.dim, 3 * v.patch * v.patch, true);  // red, green, blue
    for (std::int64_t b = 0; b < v.layers; ++b) {
      const std::string p = "vision.blocks." + std::to_string(b) + ".";
      one(p + "norm1.weight", v.dim);
      one(p + "norm2.weight", v.dim);
      weight(p + "attn.wqkv", 3 * v.dim, v.dim, true);
      weight(p + "attn.wo", v.dim, v.dim, true);
      weight(p + "mlp.w1", 2 * v.ff, v.dim, false);
      weight(p + "mlp.w2", v.dim, v.ff, false);
    }
    one("vision.norm.weight", v.dim);
    weight("aligner.w1", c_.dim, v.dim * v.downsample * v.downsample, true);
    weight("aligner.w2", c_.dim, c_.dim, true);
  }

  const ModelConfig& c_;
  std::vector<TensorSpec>& out_;
  Part part_ = Part::embed;
  std::int32_t layer_ = -1;
  bool drafting_ = false;
};

}  // namespace

std::string_view part_name(Part part) noexcept {
  switch (part) {
    case Part::embed: return "embed";
    case Part::attention: return "attention";
    case Part::compressor: return "compressor";
    case Part::indexer: return "indexer";
    case Part::seams: return "seams";
    case Part::router: return "router";
    case Part::experts: return "experts";
    case Part::shared: return "shared";
    case Part::engram_table: return "engram_table";
    case Part::engram: return "engram";
    case Part::head: return "head";
    case Part::draft: return "draft";
    case Part::draft_experts: return "draft_experts";
    case Part::vision: return "vision";
  }
  return "unknown";
}

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
