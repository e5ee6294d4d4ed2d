// SPDX-License-Identifier: MIT
//
// The released DeepSeek-V4.1-Flash as plain data, for what needs its numbers and no file: sizes, plans, tests. Equal to what
// runtime/config_file.hpp reads from the released config.json. Source: checkpoint.md 1.
#pragma once

#include <vector>

#include "dsv41/core/config.hpp"

namespace dsv41 {

/// The released config. Valid, as every config that is read from a file.
inline ModelConfig v41_flash() {
  ModelConfig c;
  c.vocab = 129280;
  c.dim = 5120;
  c.layers = 40;
  c.max_positions = 1048576;
  c.norm_eps = 1e-20;
  c.bos = 0;
  c.eos = 1;
  c.pad = 2;
  c.image_token = 129264;

  c.heads = 64;
  c.head_dim = 512;
  c.rope_dim = 64;
  c.q_rank = 1280;
  c.o_rank = 1024;
  c.o_groups = 8;
  c.window = 128;
  c.rope_theta = 10000;
  c.compress_theta = 160000;
  c.yarn.factor = 16;
  c.yarn.beta_fast = 32;
  c.yarn.beta_slow = 1;
  c.yarn.original_positions = 65536;

  c.ratios.assign(2, 0);
  c.ratios.insert(c.ratios.end(), 18, 2);
  c.ratios.insert(c.ratios.end(), 20, 1);
  c.kv_sources = {2, 8, 14, 20};
  c.index_sources = {2, 8, 14, 20, 24, 28, 32, 36};
  c.candidate_source = 20;

  c.index_heads = 32;
  c.index_dim = 128;
  c.index_topk = 512;
  c.candidate_blocks = 2048;
  c.candidate_block = 8;

  c.ff = 2304;
  c.experts = 384;
  c.shared_experts = 1;
  c.topk = 6;
  c.score = ScoreFunction::sqrt_softplus;
  c.norm_topk = true;
  c.route_scale = 1.5;
  c.gate_temp = 1;
  c.swiglu_limit = 10;

  c.hc = 4;
  c.hc_iters = 20;
  c.hc_eps = 1e-6;

  c.engram.layers = {1, 14};
  c.engram.rows = {384006168, 384016682};
  c.engram.max_ngram = 4;
  c.engram.vocab = 16000000;
  c.engram.heads = 8;
  c.engram.dim = 256;
  c.engram.pad = 2;
  c.engram.compressed_vocab = 99092;

  c.draft.stages = 3;
  c.draft.block = 5;
  c.draft.noise_token = 128799;
  c.draft.tap_layers = {37, 38, 39};
  c.draft.markov_rank = 256;
  c.draft.experts = 128;
  c.draft.topk = 3;

  c.vision.layers = 32;
  c.vision.dim = 1024;
  c.vision.ff = 2816;
  c.vision.patch = 14;
  c.vision.downsample = 3;
  return c;
}

}  // namespace dsv41
