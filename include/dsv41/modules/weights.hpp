// SPDX-License-Identifier: MIT
//
// Views of the weights, one struct per module: immutable, owned by whoever loaded them (Checkpoint, or the caller's own memory),
// in memory that the backend reads; the structs and their lists are host data.
// Matrices stay in their stored form; vectors are float32. Tensor names are those of checkpoint.md 2.2, shapes [out, in].
#pragma once

#include <cstdint>
#include <vector>

#include "dsv41/core/matrix.hpp"
#include "dsv41/core/view.hpp"

namespace dsv41 {

/// One mHC seam, with the norm of the sublayer behind it.
struct SeamWeights {
  Matrix fn;           // [(2 + hc) * hc, hc * dim]  hc_attn_fn, hc_ffn_fn
  In<float, 1> base;   // [(2 + hc) * hc]            hc_*_base
  In<float, 1> scale;  // [3]                        hc_*_scale
  In<float, 1> norm;   // [dim]                      attn_norm.weight, ffn_norm.weight
};

/// Compressor of a kv source: its entries and their index keys.
struct CompressorWeights {
  Matrix wkv;           // [head_dim, dim]       attn.compressor.wkv
  Matrix wgate;         // [head_dim, dim]       attn.compressor.wgate; empty at ratio 1
  In<float, 1> norm;    // [head_dim]            attn.compressor.norm.weight
  Matrix wk;            // [index_dim, head_dim] attn.indexer.wk
  In<float, 1> k_norm;  // [index_dim]           attn.indexer.k_norm.weight
};

/// Indexer of an index source.
struct IndexerWeights {
  Matrix wq_b;          // [index_heads * index_dim, q_rank]  attn.indexer.wq_b
  Matrix weights_proj;  // [index_heads, dim]                 attn.indexer.weights_proj
};

struct AttentionWeights {
  Matrix wq_a;                   // [q_rank, dim]
  In<float, 1> q_norm;           // [q_rank]
  Matrix wq_b;                   // [heads * head_dim, q_rank]
  Matrix wkv;                    // [head_dim, dim]
  In<float, 1> kv_norm;          // [head_dim]
  In<float, 1> sink;             // [heads]                                attn_sink
  Matrix wo_a;                   // [o_groups * o_rank, heads * head_dim / o_groups]
  Matrix wo_b;                   // [dim, o_groups * o_rank]
  CompressorWeights compressor;  // empty unless the layer is a kv source
  IndexerWeights indexer;        // empty unless the layer is an index source
};

struct MoeWeights {
  Matrix gate;           // [experts, dim]  ffn.gate.weight
  In<float, 1> bias;     // [experts]       ffn.gate.bias
  In<float, 1> bias_vl;  // [experts]       ffn.gate.bias_vl; `bias` where the checkpoint has none
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;  // width shared_experts * ff; empty when the config has none
};

struct EngramWeights {
  Matrix table;     // [rows, engram.dim]                             engram.embed
  Matrix wkv;       // [(hc + 1) * dim, columns * engram.dim]         engram.wkv
  Matrix q_weight;  // [hc, dim]                                      engram.q_weight
  Matrix k_weight;  // [hc, dim]                                      engram.k_weight
};

/// The convolution behind an Engram gate: the paper's, in no released checkpoint (modules/engram/convolution.hpp).
struct EngramConvolutionWeights {
  Matrix norm;    // [hc, dim]
  Matrix kernel;  // [hc * dim, lags]  row j * dim + c: channel c of stream j, oldest first
};

/// One backbone layer or draft stage.
struct LayerWeights {
  EngramWeights engram;  // empty unless the config lists the layer
  SeamWeights attn_seam;
  AttentionWeights attn;
  SeamWeights ffn_seam;
  MoeWeights moe;
};

/// The DSpark drafter (dspark.md 2).
struct DraftWeights {
  std::vector<LayerWeights> stages;  // mtp.K
  Matrix main_proj;                  // [dim, taps * dim]     mtp.0.main_proj
  In<float, 1> main_norm;            // [dim]                 mtp.0.main_norm.weight
  In<float, 1> norm;                 // [dim]                 mtp.LAST.norm.weight
  Matrix markov_embed;               // [vocab, markov_rank]  mtp.LAST.markov_head.embed
  Matrix markov_head;                // [vocab, markov_rank]  mtp.LAST.markov_head.head
  Matrix confidence;                 // [1, dim + markov_rank]  mtp.LAST.confidence_head.proj; may be empty
};

/// A single-token draft head of DeepSeek-V3's kind, in no V4.1 checkpoint (modules/mtp.hpp). Names as its checkpoint's layer 61.
struct MtpWeights {
  In<float, 1> embedding_norm;  // [dim]           enorm.weight
  In<float, 1> hidden_norm;     // [dim]           hnorm.weight
  Matrix proj;                  // [dim, 2 * dim]  eh_proj.weight
  In<float, 1> norm;            // [dim]           shared_head.norm.weight
  Matrix head;                  // [vocab, dim]    shared_head.head.weight: the model's own head
};

struct ModelWeights {
  Matrix embed;  // [vocab, dim]  embed.weight
  std::vector<LayerWeights> layers;
  In<float, 1> norm;   // [dim]         norm.weight
  Matrix head;         // [vocab, dim]  head.weight
  DraftWeights draft;  // no stages unless the config has them
};

}  // namespace dsv41
