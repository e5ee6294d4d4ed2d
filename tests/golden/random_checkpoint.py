# SPDX-License-Identifier: MIT
"""Random checkpoints in the released layout: every text tensor with its released storage, and a toy tokenizer for configs with Engram
layers. make_golden.py computes what they must give; examples/tiny stores its trained weights through `tensors` and `store`.
"""
import json
import pathlib

import ml_dtypes
import numpy as np

import dsv41_oracle as oracle


def tensors(c):
    """(name, kind, shape) of every text tensor; kind is the released storage: fp8, fp4, bf16, f32, table."""
    d, n, e = c["hidden_size"], c["hc_mult"], c["n_routed_experts"]
    H, D, q, o, g = c["num_attention_heads"], c["head_dim"], c["q_lora_rank"], c["o_lora_rank"], c["o_groups"]
    inter, v = c["moe_intermediate_size"], c["vocab_size"]

    def block(p, experts):
        for s in ("hc_attn", "hc_ffn"):
            yield from ((f"{p}{s}_fn", "f32", ((2 + n) * n, n * d)), (f"{p}{s}_base", "f32", ((2 + n) * n,)), (f"{p}{s}_scale", "f32", (3,)))
        yield from ((p + "attn_norm.weight", "bf16", (d,)), (p + "ffn_norm.weight", "bf16", (d,)))
        a = p + "attn."
        yield from ((a + "wq_a.weight", "fp8", (q, d)), (a + "q_norm.weight", "bf16", (q,)), (a + "wq_b.weight", "fp8", (H * D, q)),
                    (a + "wkv.weight", "fp8", (D, d)), (a + "kv_norm.weight", "bf16", (D,)), (a + "wo_a.weight", "fp8", (g * o, H * D // g)),
                    (a + "wo_b.weight", "fp8", (d, g * o)), (a + "attn_sink", "f32", (H,)))
        f = p + "ffn."
        yield from ((f + "gate.weight", "bf16", (experts, d)), (f + "gate.bias", "f32", (experts,)), (f + "gate.bias_vl", "f32", (experts,)))
        shared = oracle.shared_experts(c)
        for x in [f"experts.{i}." for i in range(experts)] + ["shared_experts."] * (shared > 0):
            kind, width = ("fp4", inter) if x[0] == "e" else ("fp8", shared * inter)
            yield from ((f + x + "w1.weight", kind, (width, d)), (f + x + "w2.weight", kind, (d, width)), (f + x + "w3.weight", kind, (width, d)))

    yield from (("embed.weight", "bf16", (v, d)), ("head.weight", "bf16", (v, d)), ("norm.weight", "bf16", (d,)))
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        yield from block(p, e)
        if i in c["kv_source_layer_ids"]:
            m = p + "attn.compressor."
            yield (m + "wkv.weight", "bf16", (D, d))
            if c["compress_ratios"][i] > 1:
                yield (m + "wgate.weight", "bf16", (D, d))
            yield from ((m + "norm.weight", "bf16", (D,)), (p + "attn.indexer.wk.weight", "bf16", (c["index_head_dim"], D)),
                        (p + "attn.indexer.k_norm.weight", "bf16", (c["index_head_dim"],)))
        if i in c["index_source_layer_ids"]:
            yield from ((p + "attn.indexer.wq_b.weight", "fp8", (c["index_n_heads"] * c["index_head_dim"], q)),
                        (p + "attn.indexer.weights_proj.weight", "bf16", (c["index_n_heads"], d)))
        if i in c.get("engram_layer_ids", []):
            rows = c["engram_num_embeddings"][c["engram_layer_ids"].index(i)]
            columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"] * c["engram_head_dim"]
            yield from ((p + "engram.embed.weight", "table", (rows, c["engram_head_dim"])), (p + "engram.wkv.weight", "fp8", ((n + 1) * d, columns)),
                        (p + "engram.q_weight", "bf16", (n, d)), (p + "engram.k_weight", "bf16", (n, d)))
    stages = c.get("num_nextn_predict_layers", 0)
    for s in range(stages):
        yield from block(f"mtp.{s}.", c["dspark_n_routed_experts"])
    if stages:
        last, rank = f"mtp.{stages - 1}.", c["dspark_markov_rank"]
        yield from (("mtp.0.main_proj.weight", "fp8", (d, d * len(c["dspark_target_layer_ids"]))), ("mtp.0.main_norm.weight", "bf16", (d,)),
                    (last + "norm.weight", "bf16", (d,)), (last + "markov_head.embed.weight", "bf16", (v, rank)),
                    (last + "markov_head.head.weight", "bf16", (v, rank)), (last + "confidence_head.proj.weight", "bf16", (1, d + rank)))


def draw(name, shape, rng):
    x = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("norm.weight") or name.endswith(("q_weight", "k_weight")):
        return 1 + .2 * x
    if name.endswith("_scale"):
        return 1 + .3 * x
    if name.endswith("_base"):
        return .7 * x
    if name.endswith("_fn"):
        return x * (1.5 / np.sqrt(shape[1]))
    if name.endswith("attn_sink"):
        return x
    if "gate.bias" in name:
        return .15 * x
    if name.endswith(("embed.weight", "head.weight")):
        return x if "head" not in name else x / np.sqrt(shape[1])
    if name.endswith("wgate.weight"):
        return 2 * x / np.sqrt(shape[1])
    return x * np.float32((2.5 if ".w1." in name or ".w3." in name else 1.2) / np.sqrt(shape[1]))


def scale_byte(amax, top):
    s = oracle.pow2ceil(np.maximum(amax, np.float32(2.0**-100)) * np.float32(1 / top))
    return s, (np.log2(s).astype(np.int32) + 127).astype(np.uint8)


def store(name, kind, x):
    """[(name, safetensors dtype, array)]"""
    base = name.removesuffix(".weight")
    if kind == "f32":
        return [(name, "F32", x.astype(np.float32))]
    if kind == "bf16":
        return [(name, "BF16", x.astype(ml_dtypes.bfloat16))]
    r, c = x.shape
    padded = np.pad(x, ((0, -r % 32), (0, -c % 32)))
    if kind == "fp8":
        tiles = padded.reshape(padded.shape[0] // 32, 32, -1, 32)
        s, byte = scale_byte(np.abs(tiles).max((1, 3)), 448)
        q = (tiles / s[:, None, :, None]).reshape(padded.shape)[:r, :c].astype(ml_dtypes.float8_e4m3fn)
        return [(name, "F8_E4M3", q), (base + ".scale", "F8_E8M0", byte)]
    rows = np.pad(x, ((0, 0), (0, -c % 32))).reshape(r, -1, 32)
    s, byte = scale_byte(np.abs(rows).max(2), 448 if kind == "table" else 6)
    if kind == "table":
        return [(name, "F8_E4M3", (rows / s[..., None]).reshape(r, -1)[:, :c].astype(ml_dtypes.float8_e4m3fn)), (base + ".scale", "F8_E8M0", byte)]
    codes = (rows / s[..., None]).reshape(r, -1)[:, :c].astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    return [(name, "I8", codes[:, ::2] | codes[:, 1::2] << 4), (base + ".scale", "F8_E8M0", byte)]


def tokenizer(vocab_size):
    """A byte-level BPE of the released structure (three splits, ByteLevel), with a few merges and special tokens last."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    text = ["The quick brown fox, the QUICK brown fox; THE fox  and\tthe dog.\n", "naïve café Café CAFE\u0301 straße 1234567 12\n", "你好，世界 そして\n"] * 50
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
        pre_tokenizers.Split(Regex(r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    special = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(text, trainer)
    tok.add_tokens([AddedToken("<think>", special=False, normalized=False)] * (tok.get_vocab_size() < vocab_size))
    return tok


def write(out, config, seed, length, how="released", edit=None):
    """Writes config.json, model.safetensors and, with Engram layers, tokenizer.json; returns `length` token ids [T].

    how: the storage, released, bf16 or f32. edit(weights, ids): changes the drawn float32 weights {name: array} and the ids in place."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    config = dict(config)
    if config.get("engram_layer_ids"):
        tok = tokenizer(config["vocab_size"])
        tok.save(str(out / "tokenizer.json"))
        config["vocab_size"] = tok.get_vocab_size()
        config["engram_compressed_vocab_size"] = int(oracle.compressed_token_map(out / "tokenizer.json", config["vocab_size"]).max()) + 1
        config["engram_num_embeddings"] = [sum(map(sum, layer)) for layer in oracle.engram_primes(config)]
    rng = np.random.Generator(np.random.Philox(seed))
    drawn = {name: draw(name, shape, rng) for name, _, shape in tensors(config)}
    ids = rng.integers(0, config["vocab_size"], length)
    ids[length // 2:] = ids[:length - length // 2]            # repeats, so that n-grams and the index find something
    if edit:
        edit(drawn, ids)
    stored = {}
    for name, kind, _ in tensors(config):
        kind = {"released": kind, "bf16": "f32" if kind == "f32" else "bf16", "f32": "f32"}[how]
        stored.update({n: (t, a) for n, t, a in store(name, kind, drawn[name])})
    oracle.write_safetensors(out / "model.safetensors", stored)
    (out / "config.json").write_text(json.dumps({"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "text_config": config}, indent=2) + "\n")
    return ids
