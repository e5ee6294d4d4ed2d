# SPDX-License-Identifier: MIT
"""The cases of the conformance kit. HANDED came with the project and stay as they are; CASES are made by make_golden.py: changes to the
config of 02-window-only, a length, and a seed that is clear of near-ties (`make_golden.py --search` finds one) unless the case is about them.
"""
import dataclasses
import typing

import numpy as np


@dataclasses.dataclass
class Case:
    covers: str
    seed: int
    length: int
    changes: dict
    how: str = "released"                       # storage
    image: typing.Sequence[int] = ()            # tokens of an image span
    edit: typing.Callable = None                # changes weights and ids in place
    ties: bool = False                          # made to hang on last bits


def exact_ties(weights, ids):
    """Equal gate rows with equal biases, equal head rows, and index keys that know the token but not its position."""
    for name, w in weights.items():
        if ".gate." in name:
            w[5], w[6], w[7] = w[2], w[1], w[1]
        if name.endswith("indexer.k_norm.weight"):
            w[-16:] = 0                         # the rotated channels
    weights["head.weight"][32:] = weights["head.weight"][:32]
    ids[:] = np.tile(ids[:6], len(ids))[:len(ids)]


def last_bits(w, seed):
    """About one unit in the last place, up or down."""
    way = np.where(np.random.default_rng(seed).random(w.shape) < .5, -np.inf, np.inf)
    return np.nextafter(w.astype(np.float32), way.astype(np.float32))


def near_tie_experts(weights, ids):
    """In the last layer expert 5 differs from 2 by last bits."""
    gate, bias = weights["layers.2.ffn.gate.weight"], weights["layers.2.ffn.gate.bias"]
    gate[5], bias[5] = last_bits(gate[2], 5), bias[2]


def near_tie_entries(weights, ids):
    """Index keys of a token at two positions differ by what a rotation leaves; 24 tokens without a repeat come first."""
    weights["layers.2.attn.indexer.k_norm.weight"][-16:] = 0
    ids[:24] = np.random.default_rng(1).permutation(64)[:24]
    ids[24:] = ids[8:8 + len(ids) - 24]


def near_tie_logits(weights, ids):
    head = weights["head.weight"]
    head[32:] = last_bits(head[:32], 3)


ENGRAM = dict(vocab_size=320, engram_max_ngram_size=3, engram_vocab_size=61, engram_n_heads=2, engram_head_dim=32)

HANDED = {
    "01-all-mechanisms": "window, ratio 2 and 1, Reindex, candidates, two Engram layers, 4 streams, FP4/FP8 storage",
    "02-window-only": "no compressed layers at all",
    "03-source-at-layer-0": "ratio 1 everywhere, Reindex, no candidates, bf16 storage",
    "04-ratio-4": "groups of four, Reindex before and after the candidate layer, incomplete last group",
    "05-one-stream": "n = 1, three layers",
    "06-two-streams-sigmoid": "n = 2, sigmoid scores, Engram at layer 0, 3-grams, 3 heads",
    "07-eight-streams-softmax": "n = 8, softmax scores, 3 Sinkhorn iterations, ratio 2 then window",
    "08-every-expert": "k = all experts, no renormalisation, no clamp, scale 1",
    "09-odd-sizes": "sizes that are no multiple of 32 or 16: unquantised window and keys, ragged tiles",
    "10-top-1-plain-rope": "k = 1, gate_temp 2, no YaRN, f32 storage",
    "11-image-span": "dead Engram tokens, gate 0, bias_vl",
    "12-long": "300 tokens, window 16, top-8 of 4 blocks of 8, unquantised caches",
    "13-deployed": "three layers, one Engram; steady in both numeric classes",
    "14-deployed-long": "two layers, window 48 + top-24: more than 64 slots a query",
}

CASES = {
    "15-three-streams-ratio-3": Case(
        "n = 3, one Sinkhorn iteration, three heads in three groups, groups of three, candidate blocks of three, window between", 26, 35,
        dict(moe_intermediate_size=32, hc_mult=3, hc_sinkhorn_iters=1, num_hidden_layers=5, compress_ratios=[3, 3, 0, 1, 1], kv_source_layer_ids=[0, 3],
             index_source_layer_ids=[0, 1, 3, 4], num_attention_heads=3, o_groups=3, index_n_heads=11, candidate_source_layer_id=3,
             candidate_block_size=3, candidate_topk_blocks=2, index_topk=5)),
    "16-no-shared-expert": Case(
        "no shared expert, five experts, k = 3", 0, 30,
        dict(n_shared_experts=0, num_hidden_layers=3, compress_ratios=[0, 1, 1], kv_source_layer_ids=[1], index_source_layer_ids=[1],
             n_routed_experts=5, num_experts_per_tok=3, moe_intermediate_size=64)),
    "17-two-shared-experts": Case(
        "two shared experts stored as one of twice the width, one routed expert, Reindex behind a window layer", 9, 33,
        dict(n_shared_experts=2, num_hidden_layers=3, compress_ratios=[2, 0, 2], kv_source_layer_ids=[0], index_source_layer_ids=[0, 2],
             n_routed_experts=1, num_experts_per_tok=1, moe_intermediate_size=32)),
    "18-window-of-one": Case(
        "a query sees itself and its selection; ratio 1 before ratio 8, five tokens in the open group at the end", 44, 37,
        dict(moe_intermediate_size=32, sliding_window=1, num_hidden_layers=4, compress_ratios=[1, 0, 8, 8], kv_source_layer_ids=[0, 2],
             index_source_layer_ids=[0, 2, 3], index_topk=3)),
    "19-engram-bigrams": Case(
        "n = 1 with Engram in both layers, bigrams only, five heads, rows of 48 (a short scale block)", 2, 36,
        dict(hc_mult=1, num_hidden_layers=2, compress_ratios=[1, 1], kv_source_layer_ids=[0], index_source_layer_ids=[0], vocab_size=320,
             engram_layer_ids=[0, 1], engram_max_ngram_size=2, engram_n_heads=5, engram_head_dim=48, engram_vocab_size=101)),
    "20-engram-six-grams-image": Case(
        "six-grams, one head, an image span inside the look-back, candidates at ratio 2", 4, 40,
        dict(moe_intermediate_size=32, hc_mult=2, num_hidden_layers=3, compress_ratios=[0, 2, 2], kv_source_layer_ids=[1], index_source_layer_ids=[1],
             vocab_size=320, engram_layer_ids=[2], engram_max_ngram_size=6, engram_n_heads=1, engram_head_dim=32, candidate_source_layer_id=1),
        image=range(9, 14)),
    "21-one-token": Case(
        "a prompt of one token: no ratio-2 group is complete, nothing to select", 0, 1,
        dict(num_hidden_layers=2, compress_ratios=[2, 1], kv_source_layer_ids=[0, 1], index_source_layer_ids=[0, 1])),
    "22-dense-heads": Case(
        "n = 5, rotation over the whole head, one output group, one index head, selection never full, softmax scores at gate_temp 0.5, "
        "eps 1e-6, f32 storage", 5, 30,
        dict(hidden_size=48, moe_intermediate_size=32, n_routed_experts=4, num_attention_heads=5, head_dim=32, qk_rope_head_dim=32, o_groups=1,
             o_lora_rank=24, q_lora_rank=20, hc_mult=5, num_hidden_layers=3, compress_ratios=[0, 4, 1], kv_source_layer_ids=[1, 2],
             index_source_layer_ids=[1, 2], index_head_dim=64, index_n_heads=1, index_topk=64, scoring_func="softmax", norm_topk_prob=True,
             gate_temp=0.5, rope_scaling=None, rms_norm_eps=1e-6), how="f32"),
    "23-exact-ties": Case(
        "equal gate rows, equal index keys, equal blocks, equal head rows: the tie rule decides everywhere", 0, 44,
        dict(moe_intermediate_size=32, num_hidden_layers=3, compress_ratios=[1, 1, 1], kv_source_layer_ids=[0], index_source_layer_ids=[0, 1, 2],
             num_experts_per_tok=3, candidate_source_layer_id=1, candidate_block_size=2, candidate_topk_blocks=5), edit=exact_ties, ties=True),
    "24-near-tie-experts": Case(
        "two experts a last bit apart in the last layer", 11, 40,
        dict(moe_intermediate_size=32, num_hidden_layers=3, compress_ratios=[0, 1, 1], kv_source_layer_ids=[1], index_source_layer_ids=[1],
             num_experts_per_tok=2), how="f32", edit=near_tie_experts, ties=True),
    "25-near-tie-entries": Case(
        "repeated tokens whose index keys are last bits apart; window of one, unquantised caches", 10, 48,
        dict(moe_intermediate_size=32, num_hidden_layers=3, compress_ratios=[0, 0, 1], kv_source_layer_ids=[2], index_source_layer_ids=[2],
             sliding_window=1, head_dim=40, index_head_dim=24, index_topk=5), how="f32", edit=near_tie_entries, ties=True),
    "26-near-tie-logits": Case(
        "each head row a last bit from another: the greedy token is a near-tie everywhere", 0, 30,
        dict(moe_intermediate_size=32, num_hidden_layers=2, compress_ratios=[0, 2], kv_source_layer_ids=[1], index_source_layer_ids=[1]),
        how="f32", edit=near_tie_logits, ties=True),
    "27-past-every-pool": Case(
        "64 tokens past the window, the top 4 and the 3 candidate blocks of 4; quantised caches, Engram", 1, 64,
        dict(moe_intermediate_size=32, num_hidden_layers=3, compress_ratios=[1, 1, 1], kv_source_layer_ids=[0], index_source_layer_ids=[0, 1, 2],
             head_dim=32, index_n_heads=2, candidate_source_layer_id=0, candidate_topk_blocks=3, candidate_block_size=4, engram_layer_ids=[1], **ENGRAM)),
    "28-eight-streams-image": Case(
        "n = 8 with Engram; image spans at the start and at the end of the prompt", 2, 30,
        dict(moe_intermediate_size=32, hc_mult=8, num_hidden_layers=3, compress_ratios=[0, 1, 1], kv_source_layer_ids=[1], index_source_layer_ids=[1],
             engram_layer_ids=[0, 2], **ENGRAM), image=(0, 1, 2, 27, 28, 29)),
    "29-every-expert-none-shared": Case(
        "k = all six experts, none shared, sigmoid, normalised, no clamp; one stream", 1, 26,
        dict(moe_intermediate_size=32, hc_mult=1, num_hidden_layers=2, compress_ratios=[0, 1], kv_source_layer_ids=[1], index_source_layer_ids=[1],
             n_shared_experts=0, n_routed_experts=6, num_experts_per_tok=6, scoring_func="sigmoid", swiglu_limit=0)),
    "30-one-source-last": Case(
        "one compressed source, in the last layer, groups of eight; candidates that nobody reads", 7, 45,
        dict(moe_intermediate_size=32, hc_mult=2, num_hidden_layers=3, compress_ratios=[0, 0, 8], kv_source_layer_ids=[2], index_source_layer_ids=[2],
             candidate_source_layer_id=2, candidate_block_size=2, candidate_topk_blocks=1, index_topk=2)),
    "31-released-schedule": Case(
        "the released schedule in small: window, sources at ratio 2 and 1, Reindex behind the candidates, two Engram layers; unquantised caches", 0, 60,
        dict(moe_intermediate_size=32, head_dim=40, index_head_dim=24, num_hidden_layers=9, compress_ratios=[0, 0, 2, 2, 2, 1, 1, 1, 1],
             kv_source_layer_ids=[2, 4, 5], index_source_layer_ids=[2, 4, 5, 7], candidate_source_layer_id=5, candidate_topk_blocks=4,
             candidate_block_size=4, index_topk=8, engram_layer_ids=[1, 4], **ENGRAM)),
}
