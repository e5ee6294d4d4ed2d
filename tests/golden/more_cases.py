# SPDX-License-Identifier: MIT
"""Write the golden cases 15 and up: shapes that the first fourteen lack. Each takes the base config below, its own changes, and the
first seed that make_case accepts.

    python more_cases.py            # into the folder of this file
    python more_cases.py OUT 17     # only case 17
"""
import json
import pathlib
import sys

import numpy as np

import make_case

HERE = pathlib.Path(__file__).parent
BASE = json.loads((HERE / "02-window-only" / "config.json").read_text())["text_config"]

# name: (changes, tokens, storage, image tokens). The README table says what each adds.
CASES = {
    "15-three-streams-ratio-3": (dict(moe_intermediate_size=32, hc_mult=3, hc_sinkhorn_iters=1, num_hidden_layers=5, compress_ratios=[3, 3, 0, 1, 1], kv_source_layer_ids=[0, 3],
                                      index_source_layer_ids=[0, 1, 3, 4], num_attention_heads=3, o_groups=3, index_n_heads=11, candidate_source_layer_id=3,
                                      candidate_block_size=3, candidate_topk_blocks=2, index_topk=5), 35, "released", None),
    "16-no-shared-expert": (dict(n_shared_experts=0, num_hidden_layers=3, compress_ratios=[0, 1, 1], kv_source_layer_ids=[1], index_source_layer_ids=[1],
                                 n_routed_experts=5, num_experts_per_tok=3, moe_intermediate_size=64), 30, "released", None),
    "17-two-shared-experts": (dict(n_shared_experts=2, num_hidden_layers=3, compress_ratios=[2, 0, 2], kv_source_layer_ids=[0], index_source_layer_ids=[0, 2],
                                   n_routed_experts=1, num_experts_per_tok=1, moe_intermediate_size=32), 33, "released", None),
    "18-window-of-one": (dict(moe_intermediate_size=32, sliding_window=1, num_hidden_layers=4, compress_ratios=[1, 0, 8, 8], kv_source_layer_ids=[0, 2], index_source_layer_ids=[0, 2, 3],
                              index_topk=3), 37, "released", None),
    "19-engram-bigrams": (dict(hc_mult=1, num_hidden_layers=2, compress_ratios=[1, 1], kv_source_layer_ids=[0], index_source_layer_ids=[0], vocab_size=320,
                               engram_layer_ids=[0, 1], engram_max_ngram_size=2, engram_n_heads=5, engram_head_dim=48, engram_vocab_size=101), 36, "released", None),
    "20-engram-six-grams-image": (dict(moe_intermediate_size=32, hc_mult=2, num_hidden_layers=3, compress_ratios=[0, 2, 2], kv_source_layer_ids=[1], index_source_layer_ids=[1],
                                       vocab_size=320, engram_layer_ids=[2], engram_max_ngram_size=6, engram_n_heads=1, engram_head_dim=32,
                                       candidate_source_layer_id=1), 40, "released", range(9, 14)),
    "21-one-token": (dict(num_hidden_layers=2, compress_ratios=[2, 1], kv_source_layer_ids=[0, 1], index_source_layer_ids=[0, 1]), 1, "released", None),
    "22-dense-heads": (dict(hidden_size=48, moe_intermediate_size=32, n_routed_experts=4, num_attention_heads=5, head_dim=32, qk_rope_head_dim=32, o_groups=1, o_lora_rank=24, q_lora_rank=20, hc_mult=5,
                            num_hidden_layers=3, compress_ratios=[0, 4, 1], kv_source_layer_ids=[1, 2], index_source_layer_ids=[1, 2], index_head_dim=64,
                            index_n_heads=1, index_topk=64, scoring_func="softmax", norm_topk_prob=True, gate_temp=0.5, rope_scaling=None,
                            rms_norm_eps=1e-6), 30, "f32", None),
}


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for name, (changes, length, how, image) in CASES.items():
        if len(sys.argv) > 2 and not name.startswith(sys.argv[2]):
            continue
        config = {**BASE, **changes}
        marked = None if image is None else np.isin(np.arange(length), list(image))
        for seed in range(1000):
            steady, error = make_case.make(out / name, config, seed, length, how, image=marked)
            if steady:
                print(f"{name}: seed {seed}, float32 against float64 {error:.1e}", flush=True)
                break
        else:
            raise SystemExit(f"{name}: no steady seed")


if __name__ == "__main__":
    main()
