# SPDX-License-Identifier: MIT
"""DeepSeek-V4.1 forward pass in numpy, classes `exact` and `deployed`: slow, direct, one formula a line.

Reads a model folder in the released layout (config.json, model.safetensors or shards with an index, tokenizer.json when there
are Engram layers) and computes logits, every inner value, and DSpark drafts. It follows ../spec/architecture.md and dspark.md
and is independent of any other implementation; README.md says what it was checked against. Needs numpy, ml_dtypes and,
for the Engram token map only, tokenizers.

    python dsv41_oracle.py MODEL_DIR 1,2,3,4          # argmax and top logits per position
"""
import json
import math
import pathlib
import struct
import sys

import ml_dtypes
import numpy as np

STORED = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I8": np.uint8, "F8_E4M3": ml_dtypes.float8_e4m3fn,
          "F8_E8M0": np.uint8, "I64": np.int64, "I32": np.int32, "F64": np.float64, "BOOL": np.bool_}
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


# ---------------------------------------------------------------------------------------------------------------- files
def read_safetensors(path):
    """{name: (dtype string, numpy array as stored)}"""
    data = np.memmap(path, np.uint8, "r")
    size = struct.unpack("<Q", data[:8].tobytes())[0]
    header = json.loads(data[8:8 + size].tobytes())
    out = {}
    for name, t in header.items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        out[name] = (t["dtype"], np.frombuffer(data[8 + size + a:8 + size + b].tobytes(), STORED[t["dtype"]]).reshape(t["shape"]))
    return out


def write_safetensors(path, tensors):
    """tensors: {name: (dtype string, array)}; header compact, padded with spaces to a multiple of 8, as in the release."""
    header, offset, blobs = {}, 0, []
    for name, (dtype, array) in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def e8m0(byte):
    return np.ldexp(np.float32(1), byte.astype(np.int32) - 127)


def dequantise(name, stored):
    """float32 values of a stored tensor; FP4 rows carry one scale per 32, FP8 linears one per 32x32 tile, Engram rows one per 32."""
    dtype, w = stored[name]
    scale = stored.get(name.removesuffix(".weight") + ".scale") if name.endswith(".weight") else None
    if dtype == "I8":
        codes = np.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1)
        return E2M1[codes] * np.repeat(e8m0(scale[1]), 32, 1)[:, :codes.shape[1]]
    values = w.astype(np.float32)
    if dtype == "F8_E4M3" and scale is not None:
        s = np.repeat(e8m0(scale[1]), 32, 1)[:, :w.shape[1]]
        if not name.endswith("engram.embed.weight"):
            s = np.repeat(s, 32, 0)[:w.shape[0]]
        values = values * s
    return values


def load(folder):
    """(text config dict, {name: float32 array}, token map or None, {name: stored dtype}): the arguments of Model"""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    files = sorted(folder.glob("model*.safetensors"))
    stored = {}
    for f in files:
        stored.update(read_safetensors(f))
    weights = {n: dequantise(n, stored) for n in stored if not n.endswith(".scale")}
    token_map = None
    if config.get("engram_layer_ids"):
        token_map = compressed_token_map(folder / "tokenizer.json", config["vocab_size"])
    return config, weights, token_map, {n: stored[n][0] for n in weights}


def compressed_token_map(tokenizer_json, vocab_size):
    """Token id -> compressed id (checkpoint.md 4.2); ids without a token keep an entry of their own key, their empty text."""
    from tokenizers import Regex, Tokenizer, normalizers as n
    tok = Tokenizer.from_file(str(tokenizer_json))
    normal = n.Sequence([n.NFKC(), n.NFD(), n.StripAccents(), n.Lowercase(), n.Replace(Regex(r"[ \t\r\n]+"), " "),
                         n.Replace(Regex(r"^ $"), "\ue000"), n.Strip(), n.Replace("\ue000", " ")])
    seen, table = {}, []
    for i in range(min(vocab_size, tok.get_vocab_size(with_added_tokens=True))):
        text = tok.decode([i], skip_special_tokens=False)
        key = tok.id_to_token(i) if "\ufffd" in text else (normal.normalize_str(text) or text)
        table.append(seen.setdefault(key, len(seen)))
    return np.array(table, np.int64)


# ---------------------------------------------------------------------------------------------------- block quantisers (6)
def pow2ceil(t):
    bits = t.astype(np.float32).view(np.int32)
    return np.ldexp(np.float32(1), ((bits >> 23) & 255) - 127 + ((bits & 0x7FFFFF) != 0))


def e4m3(x):
    return x.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def e2m1(x):
    return x.astype(np.float32).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)


def blocks(x, size):
    return x.astype(np.float32).reshape(*x.shape[:-1], x.shape[-1] // size, size)


near_ties = []          # per quantiser call, how close a value of each row came to changing its code (see nearness)


def nearness(v, mantissa_bits, lowest_exponent):
    """Smallest distance of a row of v to a rounding boundary, in units of its block's rms, over the values whose last digit matters."""
    rms = np.sqrt(np.mean(v * v, -1, keepdims=True)) + np.float32(1e-30)
    ulp = np.exp2(np.maximum(np.floor(np.log2(np.abs(v) + np.float32(1e-30))), lowest_exponent) - mantissa_bits)
    distance = np.abs(np.abs(v) / ulp % 1 - np.float32(.5)) * ulp / rms
    near_ties.append(np.where(ulp > np.float32(.005) * rms, distance, 1).min(tuple(range(1, v.ndim)), initial=1))


def nearness_of_power(t):
    fraction = np.log2(t)
    near_ties.append(np.abs(fraction - np.round(fraction)).min(tuple(range(1, t.ndim)), initial=1))


def bf16(x):
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(x.dtype)


def quantise_input(x):
    """What FP8 and FP4 linears do to their input in class `deployed`: E4M3 per 32 with a power-of-two scale."""
    pad = -x.shape[-1] % 32
    b = blocks(np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, pad)]), 32)
    s = pow2ceil(np.maximum(np.abs(b).max(-1, keepdims=True), np.float32(1e-4)) * np.float32(1 / 448))
    return (e4m3(np.clip(b / s, -448, 448)) * s).reshape(*x.shape[:-1], -1)[..., :x.shape[-1]].astype(x.dtype)


def quantise_window(x):
    if x.shape[-1] % 32:
        return x
    b = blocks(x, 32)
    t = np.maximum(np.abs(b).max(-1, keepdims=True), np.float32(1e-4)) * np.float32(1 / 448)
    s = pow2ceil(t)
    nearness_of_power(t)
    nearness(b / s, 3, -6)
    return (e4m3(np.clip(b / s, -448, 448)) * s).reshape(x.shape)


def quantise_entry(x):
    if x.shape[-1] % 16:
        return x
    b = blocks(x, 16)
    t = np.maximum(np.abs(b).max(-1, keepdims=True), np.float32(6 * 2.0**-9)) / np.float32(6)
    s = e4m3(np.minimum(t, 448))
    nearness(t, 3, -6)
    nearness(b / s, 1, 0)
    return (e2m1(np.clip(b / s, -6, 6)) * s).reshape(x.shape)


def quantise_index(x):
    if x.shape[-1] % 32:
        return x
    b = blocks(x, 32)
    t = np.maximum(np.abs(b).max(-1, keepdims=True), np.float32(6 * 2.0**-126)) * np.float32(1 / 6)
    s = pow2ceil(t)
    nearness_of_power(t)
    nearness(b / s, 1, 0)
    return (e2m1(np.clip(b / s, -6, 6)) * s).reshape(x.shape)


# -------------------------------------------------------------------------------------------------------- small formulas
def rmsnorm(x, w, eps):
    return w * (x / np.sqrt(np.mean(x * x, -1, keepdims=True, dtype=x.dtype) + x.dtype.type(eps)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rope_frequencies(config, ratio):
    """float32 [R/2]; plain base for ratio 0, YaRN over compress_rope_theta otherwise."""
    dim = config["qk_rope_head_dim"]
    base = config["compress_rope_theta"] if ratio else config["rope_theta"]
    i = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    plain = np.float32(1) / np.power(float(base), i.astype(np.float64)).astype(np.float32)   # float32 power, correctly rounded
    yarn = config.get("rope_scaling") or {}
    if not ratio or yarn.get("rope_type", yarn.get("type")) != "yarn":
        return plain
    turn = lambda r: dim * math.log(yarn["original_max_position_embeddings"] / (r * 2 * math.pi)) / (2 * math.log(base))
    low = max(math.floor(turn(yarn.get("beta_fast", 32))), 0)
    high = min(math.ceil(turn(yarn.get("beta_slow", 1))), dim - 1)
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / ((high if high != low else low + .001) - low), 0, 1).astype(np.float32)
    return plain / np.float32(yarn["factor"]) * ramp + plain * (1 - ramp)


def rotate(x, positions, freq, inverse=False):
    """Trailing R channels as complex pairs (2i, 2i+1); the angle is one float32 product. x: [T, .., D], positions: [T]"""
    angle = positions.astype(np.float32)[:, None] * freq
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    if inverse:
        sin = -sin
    while cos.ndim < x.ndim:
        cos, sin = cos[:, None], sin[:, None]
    out = x.copy()
    n = 2 * freq.size
    even, odd = x[..., -n::2], x[..., -n + 1::2]
    out[..., -n::2], out[..., -n + 1::2] = even * cos - odd * sin, even * sin + odd * cos
    return out


def shared_experts(config):
    """Number of shared experts: they are stored as one expert of that many times the width."""
    return config.get("n_shared_experts", 1)


def largest(scores, k):
    """Indices of the k largest: larger first, then lower index; -inf never."""
    order = np.argsort(-scores, kind="stable")[:k]
    return order[scores[order] > -np.inf]


def margin(scores, k):
    """Distance between the last one chosen and the first one left out; inf when nothing is left out."""
    best = np.sort(scores[scores > -np.inf])[::-1]
    return best[k - 1] - best[k] if best.size > k else np.inf


# ---------------------------------------------------------------------------------------------------------------- Engram
def engram_primes(config):
    """[layer][n-gram][head]"""
    from sympy import isprime
    seen, layers = set(), []
    for _ in config["engram_layer_ids"]:
        layers.append([])
        for _ in range(config["engram_max_ngram_size"] - 1):
            p, row = config["engram_vocab_size"] - 1, []
            for _ in range(config["engram_n_heads"]):
                p += 1
                while not isprime(p) or p in seen:
                    p += 1
                seen.add(p)
                row.append(p)
            layers[-1].append(row)
    return layers


def engram_rows(config, token_map, ids, dead):
    """{layer: int64 [T, columns]}; dead: bool [T], image-span tokens."""
    size = config["engram_compressed_vocab_size"]
    bound = max(1, (2**63 - 1) // size // 2)
    pad = token_map[config.get("engram_pad_token_id", config.get("engram_pad_id", 2))]
    depth = config["engram_max_ngram_size"]
    compressed = token_map[ids]
    look = np.full((len(ids), depth), pad, np.int64)
    for t in range(len(ids)):
        for back in range(depth):
            if t < back or dead[t - back]:
                break
            look[t, back] = compressed[t - back]
    out = {}
    for layer, primes in zip(config["engram_layer_ids"], engram_primes(config)):
        m = np.random.default_rng(10007 * layer).integers(0, bound, size=depth, dtype=np.int64) * 2 + 1
        products, rolling, columns = look * m, look[:, 0] * m[0], []
        for i in range(1, depth):
            rolling = rolling ^ products[:, i]
            columns += [rolling % p for p in primes[i - 1]]
        offsets = np.cumsum([0] + [p for row in primes for p in row])[:-1]
        out[layer] = np.stack(columns, 1) + offsets
    return out


# ----------------------------------------------------------------------------------------------------------------- model
class Model:
    def __init__(self, config, weights, token_map=None, kinds=None, dtype=np.float32, deployed=False):
        """kinds (stored dtypes) matter to class `deployed` only: it rounds activations to bfloat16 and quantises the inputs of FP8 and FP4 linears."""
        self.c, self.token_map, self.kinds, self.dtype, self.deployed = config, token_map, kinds, dtype, deployed
        self.round = bf16 if deployed else lambda x: x
        self.w = {n: a.astype(dtype) for n, a in weights.items()}
        c = config
        self.layers = c["num_hidden_layers"]
        self.ratios = c["compress_ratios"]
        self.kv_sources = c["kv_source_layer_ids"]
        self.index_sources = c["index_source_layer_ids"]
        candidate = c.get("candidate_source_layer_id")
        self.candidate_source = (self.kv_sources[-1] if self.kv_sources else -1) if candidate is None else candidate
        self.eps = c["rms_norm_eps"]

    def linear(self, x, name):
        if self.deployed and self.kinds[name + ".weight"] in ("F8_E4M3", "I8"):
            x = quantise_input(x)
        return self.round(x @ self.w[name + ".weight"].T)

    def norm(self, x, name):
        return self.round(rmsnorm(x, self.w[name + ".weight"], self.eps))

    # --- residual streams (2)
    def mixes(self, h, prefix):
        c, n = self.c, self.c["hc_mult"]
        fn, base, scale = (self.w[f"{prefix}_{k}"] for k in ("fn", "base", "scale"))
        z = h.reshape(len(h), -1)
        m = (z @ fn.T) / np.sqrt(np.mean(z * z, -1, keepdims=True) + self.dtype(self.eps))
        eps = self.dtype(c["hc_eps"])
        pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + eps
        post = 2 * sigmoid(m[:, n:2 * n] * scale[1] + base[n:2 * n])
        comb = softmax((m[:, 2 * n:] * scale[2] + base[2 * n:]).reshape(-1, n, n), 2) + eps
        comb = comb / (comb.sum(1, keepdims=True) + eps)
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdims=True) + eps)
            comb = comb / (comb.sum(1, keepdims=True) + eps)
        return pre, post, comb

    def collapse(self, h, pre):
        return self.round((pre[..., None] * h).sum(1))

    def expand(self, y, h, post, comb):
        return self.round(post[..., None] * y[:, None] + np.einsum("tjk,tjd->tkd", comb, h))

    def rope(self, x, positions, freq, inverse=False):
        return self.round(rotate(x, positions, freq, inverse))

    # --- attention (3, 4)
    def queries_and_kv(self, x, positions, prefix, freq):
        c = self.c
        qr = self.norm(self.linear(x, prefix + "wq_a"), prefix + "q_norm")
        q = self.linear(qr, prefix + "wq_b").reshape(len(x), c["num_attention_heads"], c["head_dim"])
        kv = self.norm(self.linear(x, prefix + "wkv"), prefix + "kv_norm")
        return qr, self.rope(q, positions, freq), self.rope(kv, positions, freq)

    def quantised(self, quantise, x, name, trace):
        """Keeps both sides of a quantiser, for a code is a decision, judged by what was rounded; and how near each row came to another."""
        near_ties.clear()
        trace[name], trace[name + "_before"] = quantise(x).astype(self.dtype), x
        trace[name + "_nearness"] = np.min(near_ties or [np.ones(len(x))], 0)
        return trace[name]

    def attend(self, q, keys, visible, slots, prefix, positions, freq):
        """q [T,H,D], keys [S,D], visible bool [T,S], slots int [T,S] -> [T,d]

        Slots are the places of the keys in the row that a query reads: every 64 of them share a running maximum, against which
        class `deployed` rounds the probabilities. The sink joins the denominator only, and not the maximum."""
        c = self.c
        logits = np.einsum("thd,sd->ths", q, keys) * self.dtype(c["head_dim"] ** -0.5)
        block = np.where(visible, slots // 64, -1)
        sink = self.w[prefix + "attn_sink"][None, :, None]
        top, total, o = np.full((*logits.shape[:2], 1), -1e30, self.dtype), self.dtype(0), self.dtype(0)
        for b in range(block.max() + 1):
            part = np.where((block == b)[:, None], logits, -np.inf)
            new = np.maximum(top, part.max(-1, keepdims=True))
            shrink, p = np.exp(top - new), np.exp(part - new)
            total = total * shrink + p.sum(-1, keepdims=True)
            o = o * shrink + np.einsum("ths,sd->thd", self.round(p), keys)
            top = new
        o = self.rope(self.round(o / (total + np.exp(sink - top))), positions, freq, inverse=True)
        groups = c["o_groups"]
        o = o.reshape(len(o), groups, -1)
        wo_a = self.w[prefix + "wo_a.weight"].reshape(groups, -1, o.shape[-1])          # never an FP8 product: no input quantisation
        return self.linear(self.round(np.einsum("tgi,goi->tgo", o, wo_a)).reshape(len(o), -1), prefix + "wo_b")

    def compress(self, x, layer):
        """Unrotated latents of the complete groups, and the position of each group's first token."""
        prefix, r = f"layers.{layer}.attn.compressor.", self.ratios[layer]
        groups = len(x) // r
        if r == 1:
            kv = self.linear(x, prefix + "wkv")
        else:                                                                           # pooling is float32 in both classes
            kv, gate = ((x @ self.w[prefix + n].T)[:groups * r].reshape(groups, r, self.c["head_dim"]) for n in ("wkv.weight", "wgate.weight"))
            kv = self.round((kv * softmax(gate, 1)).sum(1))
        return self.norm(kv, prefix + "norm"), np.arange(groups) * r

    def index(self, x, qr, positions, layer, keys, freq, shared, trace):
        c, prefix, r = self.c, f"layers.{layer}.attn.indexer.", self.ratios[layer]
        heads, dim = c["index_n_heads"], c["index_head_dim"]
        attn = f"layers.{layer}.attn."
        q = self.rope(self.linear(qr, prefix + "wq_b").reshape(len(x), heads, dim), positions, freq)
        q = self.quantised(quantise_index, q, attn + "index_q", trace)
        w = self.round(self.linear(x, prefix + "weights_proj") * self.dtype((heads * dim) ** -0.5))
        s = np.maximum(self.round(np.einsum("thd,gd->thg", q, keys)), 0)
        scores = self.round(self.round(s * w[..., None]).sum(1))
        seen = (positions + 1) // r
        scores = np.where(np.arange(scores.shape[1]) < seen[:, None], scores, -np.inf)
        trace[attn + "index_scores"] = scores
        size = c["candidate_block_size"]
        if layer == self.candidate_source:
            padded = np.pad(scores, ((0, 0), (0, -scores.shape[1] % size)), constant_values=-np.inf)
            block = padded.reshape(len(x), padded.shape[1] // size, size).max(2)
            keep, gap = np.zeros_like(block, bool), np.zeros(len(x))
            for t in range(len(x)):
                b = block[t]
                if seen[t]:
                    b[(seen[t] - 1) // size] = np.inf
                keep[t, largest(b, c["candidate_topk_blocks"])] = True
                gap[t] = margin(b, c["candidate_topk_blocks"])
            trace[attn + "block_scores"], trace[attn + "candidates"], trace[attn + "candidate_margin"] = block, keep, gap
            shared["candidates"] = np.repeat(keep, size, 1)[:, :scores.shape[1]]
        elif 0 <= self.candidate_source < layer and "candidates" in shared:
            scores = np.where(shared["candidates"], scores, -np.inf)
        trace[attn + "limited_scores"] = scores
        chosen, gap = np.zeros(scores.shape, bool), np.zeros(len(x))
        for t in range(len(x)):
            chosen[t, largest(scores[t], c["index_topk"])] = True
            gap[t] = margin(scores[t], c["index_topk"])
        trace[attn + "index_margin"] = gap
        shared["chosen"] = chosen

    def attention(self, x, layer, positions, shared, trace):
        c, prefix, r = self.c, f"layers.{layer}.attn.", self.ratios[layer]
        freq = rope_frequencies(c, r)
        qr, q, kv = self.queries_and_kv(x, positions, prefix, freq)
        trace[prefix + "q"] = q
        kv = self.quantised(quantise_window, kv, prefix + "window_kv", trace)
        back = positions[:, None] - positions[None]
        window = c["sliding_window"]
        visible = (back >= 0) & (back < window)
        slots = positions[None] - np.maximum(positions[:, None] - window + 1, 0)         # oldest first
        if r:
            if layer in self.kv_sources:
                latent, starts = self.compress(x, layer)
                shared["entries"] = self.quantised(quantise_entry, self.rope(latent, starts, freq), prefix + "entries", trace)
                k = self.norm(self.linear(latent, prefix + "indexer.wk"), prefix + "indexer.k_norm")
                shared["index_keys"] = self.quantised(quantise_index, self.rope(k, starts, freq), prefix + "index_keys", trace)
            if layer in self.index_sources:
                self.index(x, qr, positions, layer, shared["index_keys"], freq, shared, trace)
                trace[prefix + "chosen"] = shared["chosen"]
            kv = np.concatenate([kv, shared["entries"]])
            visible = np.concatenate([visible, shared["chosen"]], 1)
            slots = np.concatenate([slots, window + np.cumsum(shared["chosen"], 1) - 1], 1)
        return self.attend(q, kv, visible, slots, prefix, positions, freq)

    # --- mixture of experts (5)
    def route(self, x, prefix, top, image, trace):
        c = self.c
        s = (x @ self.w[prefix + "gate.weight"].T) / self.dtype(c.get("gate_temp", 1.0))
        f = c["scoring_func"]
        s = np.sqrt(np.logaddexp(0, s)) if f == "sqrtsoftplus" else sigmoid(s) if f == "sigmoid" else softmax(s, 1)
        bias = self.w[prefix + "gate.bias"]
        bias = np.where(image[:, None], self.w.get(prefix + "gate.bias_vl", bias), bias)
        trace[prefix + "expert_scores"], trace[prefix + "expert_biased"] = s, s + bias
        ids = np.stack([np.argsort(-row, kind="stable")[:top] for row in s + bias])
        weights = np.take_along_axis(s, ids, 1)
        if c["norm_topk_prob"] and top > 1:
            weights = weights / (weights.sum(1, keepdims=True) + self.dtype(1e-20))
        trace[prefix + "expert_margin"] = np.array([margin(row, top) for row in s + bias])
        return ids, weights * self.dtype(c["routed_scaling_factor"])

    def expert(self, x, prefix, weight=None):
        limit = self.c["swiglu_limit"]
        gate, up = self.linear(x, prefix + "w1"), self.linear(x, prefix + "w3")
        if limit > 0:
            gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
        y = gate * sigmoid(gate) * up
        return self.linear(self.round(y if weight is None else weight[:, None] * y), prefix + "w2")

    def moe(self, x, prefix, top, image, trace):
        ids, weights = self.route(x, prefix, top, image, trace)
        trace[prefix + "expert_ids"], trace[prefix + "expert_weights"] = ids, weights
        y = np.zeros_like(x)
        for e in np.unique(ids):                                                        # ascending expert id, float32 sum
            rows, slots = np.nonzero(ids == e)
            y[rows] += self.expert(x[rows], f"{prefix}experts.{e}.", weights[rows, slots])
        return self.round(y + self.expert(x, prefix + "shared_experts.") if shared_experts(self.c) else y)

    # --- Engram (7)
    def engram(self, h, layer, rows, dead):
        prefix, c = f"layers.{layer}.engram.", self.c
        n, d = c["hc_mult"], c["hidden_size"]
        kv = self.linear(self.w[prefix + "embed.weight"][rows].reshape(len(h), -1), prefix + "wkv")
        key, value = kv[:, :n * d].reshape(-1, n, d), kv[:, n * d:]
        qk = self.w[prefix + "q_weight"] * self.w[prefix + "k_weight"]
        rstd = lambda a: 1 / np.sqrt(np.mean(a * a, -1) + self.dtype(self.eps))
        dot = (h * qk * key).sum(-1) * (rstd(h) * rstd(key)) * self.dtype(d ** -0.5)
        gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(dot), self.dtype(1e-6))), dot))
        gate = np.where(dead[:, None], 0, gate)
        return self.round(h + gate[..., None] * value[:, None]), gate

    # --- one block, whole model
    def sublayer(self, h, pre, prefix, name, run, trace):
        """One seam and what is behind it; name: attn or ffn. Returns the streams, and this seam's pre for the next one."""
        next_pre, post, comb = self.mixes(h, f"{prefix}hc_{name}")
        collapsed = self.collapse(h, pre)
        u = self.norm(collapsed, f"{prefix}{name}_norm")
        y = run(u)
        for key, value in (("collapsed", collapsed), ("in", u), ("pre", next_pre), ("post", post), ("mix", comb), ("out", y)):
            trace[f"{prefix}{name}_{key}"] = value
        return self.expand(y, h, post, comb), next_pre

    def block(self, h, pre, prefix, attention, top, image, trace):
        h, pre = self.sublayer(h, pre, prefix, "attn", attention, trace)
        trace[prefix + "attn_streams"] = h
        h, pre = self.sublayer(h, pre, prefix, "ffn", lambda u: self.moe(u, prefix + "ffn.", top, image, trace), trace)
        trace[prefix + "streams"] = h
        return h, pre

    def start(self, ids):
        h = np.repeat(self.w["embed.weight"][ids][:, None], self.c["hc_mult"], 1)
        pre = np.zeros((len(ids), self.c["hc_mult"]), self.dtype)
        pre[:, 0] = 1
        return h, pre

    def forward(self, ids, image=None):
        """ids: [T] from position 0. Returns (logits [T,V], trace). image: bool [T], tokens of an image span."""
        c = self.c
        ids = np.asarray(ids)
        positions = np.arange(len(ids))
        image = np.zeros(len(ids), bool) if image is None else np.asarray(image, bool)
        trace, shared, taps = {}, {}, []
        rows = engram_rows(c, self.token_map, ids, image) if c.get("engram_layer_ids") else {}
        h, pre = self.start(ids)
        trace["embeddings"] = h[:, 0]
        for layer in range(self.layers):
            prefix = f"layers.{layer}."
            if layer in rows:
                h, gate = self.engram(h, layer, rows[layer], image)
                trace[prefix + "engram_rows"], trace[prefix + "engram_gate"], trace[prefix + "engram_streams"] = rows[layer], gate, h
            if layer in (c.get("dspark_target_layer_ids") or []):
                taps.append(self.round(h.mean(1)))
                trace[prefix + "tap"] = taps[-1]
            h, pre = self.block(h, pre, prefix, lambda u: self.attention(u, layer, positions, shared, trace),
                                c["num_experts_per_tok"], image, trace)
        x = self.norm(self.collapse(h, pre), "norm")
        trace["head_in"] = x
        trace["taps"] = np.concatenate(taps, 1) if taps else np.zeros((len(ids), 0), self.dtype)
        return x @ self.w["head.weight"].T, trace

    # --- DSpark (dspark.md 3, 4), greedy
    def draft(self, taps, anchor):
        """taps [P, targets*d] of positions 0..P-1; anchor sits at P. Returns dict: base [g,V], logits [g,V], tokens [g], z [g]."""
        c, w = self.c, self.w
        stages, block = c["num_nextn_predict_layers"], c["dspark_block_size"]
        position, first = len(taps), max(0, len(taps) - c["sliding_window"])
        context = np.arange(first, position)
        main = self.norm(self.linear(taps[first:], "mtp.0.main_proj"), "mtp.0.main_norm")
        positions = position + np.arange(block)
        freq = rope_frequencies(c, 0)
        none, trace = np.zeros(block, bool), {}
        h, pre = self.start(np.array([anchor] + [c["dspark_noise_token_id"]] * (block - 1)))
        for s in range(stages):
            prefix = f"mtp.{s}."
            kv_context = self.norm(self.linear(main, prefix + "attn.wkv"), prefix + "attn.kv_norm")
            kv_context = quantise_window(self.rope(kv_context, context, freq)).astype(self.dtype)

            def attention(u):
                _, q, kv = self.queries_and_kv(u, positions, prefix + "attn.", freq)
                keys = np.concatenate([kv_context, quantise_window(kv).astype(self.dtype)])
                slots = np.concatenate([context % c["sliding_window"], len(context) + np.arange(block)])     # the ring, then the block
                every = np.ones((block, len(keys)), bool)
                return self.attend(q, keys, every, np.broadcast_to(slots, every.shape), prefix + "attn.", positions, freq)
            h, pre = self.block(h, pre, prefix, attention, c["dspark_num_experts_per_tok"], none, trace)
        last = f"mtp.{stages - 1}."
        hidden = self.collapse(h, pre)
        base = self.norm(hidden, last + "norm") @ w["head.weight"].T
        previous, logits, tokens, z = anchor, [], [], []
        for k in range(block):
            e = w[last + "markov_head.embed.weight"][previous]
            logits.append(base[k] + w[last + "markov_head.head.weight"] @ e)
            z.append(float(w[last + "confidence_head.proj.weight"][0] @ np.concatenate([hidden[k], e])))
            previous = int(np.argmax(logits[-1]))
            tokens.append(previous)
        return {"base": base, "logits": np.stack(logits), "tokens": np.array(tokens), "z": np.array(z, self.dtype)}


if __name__ == "__main__":
    model = Model(*load(sys.argv[1]))
    ids = [int(t) for t in sys.argv[2].split(",")]
    logits, _ = model.forward(ids)
    for t, row in enumerate(logits):
        top = np.argsort(-row)[:5]
        print(t, ids[t], "->", " ".join(f"{i}:{row[i]:.5f}" for i in top))
