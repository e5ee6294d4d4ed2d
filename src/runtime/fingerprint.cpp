// SPDX-License-Identifier: MIT
//
// Values -> canonical bytes -> SHA-256.
#include "fingerprint.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <string>
#include <string_view>
#include <vector>

#include "dsv41/runtime/inventory.hpp"
#include "files/sha256.hpp"

namespace dsv41::runtime {
namespace {

/// Digests values. A structure is taken apart with a name for each of its fields: a field that is new does not compile before someone
/// has decided here whether results follow from it.
class Digester {
 public:
  void bytes(std::span<const std::byte> b) { hash_.update(b); }

  template <class... T>
  void values(const T&... all) {
    (value(all), ...);
  }

  void value(std::integral auto number) { eight(static_cast<std::uint64_t>(static_cast<std::int64_t>(number))); }
  void value(double number) { eight(std::bit_cast<std::uint64_t>(number)); }
  void value(ScoreFunction score) { value(static_cast<int>(score)); }
  void value(std::string_view text) {
    value(text.size());
    bytes(std::as_bytes(std::span(text)));
  }
  template <class T>
  void value(const std::vector<T>& list) {
    value(list.size());
    for (const T& element : list) value(element);
  }
  void value(const YarnConfig& yarn) {
    const auto& [factor, beta_fast, beta_slow, original_positions] = yarn;
    values(factor, beta_fast, beta_slow, original_positions);
  }
  void value(const EngramConfig& engram) {
    const auto& [layers, rows, max_ngram, vocab, heads, dim, pad, compressed_vocab] = engram;
    values(layers, rows, max_ngram, vocab, heads, dim, pad, compressed_vocab);
  }
  void value(const DraftConfig& draft) {
    const auto& [stages, block, noise_token, tap_layers, markov_rank, experts, topk] = draft;
    values(stages, block, noise_token, tap_layers, markov_rank, experts, topk);
  }
  void value(const VisionConfig& vision) {
    const auto& [layers, dim, ff, patch, downsample] = vision;
    values(layers, dim, ff, patch, downsample);
  }

  /// Left out: max_positions, a limit; bos, eos, pad and image_token, which say what callers feed and where they stop.
  void value(const ModelConfig& config) {
    const auto& [vocab, dim, layers, max_positions, norm_eps, bos, eos, pad, image_token, heads, head_dim, rope_dim,
                 q_rank, o_rank, o_groups, window, rope_theta, compress_theta, yarn, ratios, kv_sources, index_sources,
                 candidate_source, index_heads, index_dim, index_topk, candidate_blocks, candidate_block, ff, experts,
                 shared_experts, topk, score, norm_topk, route_scale, gate_temp, swiglu_limit, hc, hc_iters, hc_eps,
                 engram, draft, vision] = config;
    values(vocab, dim, layers, norm_eps, heads, head_dim, rope_dim, q_rank, o_rank, o_groups, window, rope_theta,
           compress_theta, yarn, ratios, kv_sources, index_sources, candidate_source, index_heads, index_dim,
           index_topk, candidate_blocks, candidate_block, ff, experts, shared_experts, topk, score, norm_topk,
           route_scale, gate_temp, swiglu_limit, hc, hc_iters, hc_eps, engram, draft, vision);
  }

  void tensor(std::string_view name, const Located& at) {
    value(static_cast<bool>(at));
    if (!at) return;
    const TensorInfo& tensor = *at.tensor;
    values(name, tensor.dtype_text, tensor.shape);
    const std::span all(tensor.data, static_cast<std::size_t>(tensor.bytes));
    const std::size_t head = std::min(all.size(), kSampleBytes), tail = std::min(all.size() - head, kSampleBytes);
    bytes(all.first(head));
    bytes(all.last(tail));
  }

  Fingerprint result() const { return hash_.digest(); }

 private:
  void eight(std::uint64_t number) {
    std::array<std::byte, 8> out;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(number >> (8 * i));
    bytes(out);
  }

  files::Sha256 hash_;
};

}  // namespace

Fingerprint model_fingerprint(const ShardSet& shards, const ModelConfig& config) {
  Digester out;
  out.values(std::string_view("dsv41 model 1"), config);
  for (const TensorSpec& spec : inventory(config)) {
    Located at = shards.find(spec.name);
    if (!at && !spec.alias.empty()) at = shards.find(spec.alias);
    out.tensor(spec.name, at);
    out.tensor(scale_name(spec.name), at ? shards.find(scale_name(at.tensor->name)) : Located{});
  }
  return out.result();
}

Fingerprint with_token_map(const Fingerprint& model, std::span<const std::int32_t> map) {
  Digester out;
  out.value(std::string_view("dsv41 model and token map 1"));
  out.bytes(model);
  out.value(map.size());
  for (const std::int32_t id : map) out.value(id);
  return out.result();
}

}  // namespace dsv41::runtime
