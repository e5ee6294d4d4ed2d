# SPDX-License-Identifier: MIT
"""A differentiable PyTorch DeepSeek-V4.1 for training small checkpoints; test_model.py proves it equal to the numpy oracle.

Library of train.py, train_draft.py, export.py and measure.py; no command line of its own.

Quantisers pass gradients straight through. `quantised` names the weight kinds that the forward pass rounds to their stored form.
`fast` computes products in bfloat16 (training only). Images are left out: every token is text.
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from quantisers import (WEIGHT_ROUNDING, StraightThrough, cache, entry_rounding, index_rounding, row_rounding,
                        window_rounding)


# ---------------------------------------------------------------------------------------------------- mixture of experts
class Dispatch(torch.autograd.Function):
    """Token rows in expert order. Each token appears exactly k times, so the gradient is a gather and a sum, not a scatter."""

    @staticmethod
    def forward(ctx, x, order, inverse, k):
        ctx.save_for_backward(inverse)
        ctx.k = k
        return x.index_select(0, order // k)

    @staticmethod
    def backward(ctx, g):
        inverse, = ctx.saved_tensors
        return g.index_select(0, inverse).unflatten(0, (-1, ctx.k)).sum(1), None, None, None


class Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, order, inverse, k):
        ctx.save_for_backward(order)
        ctx.k = k
        return y.index_select(0, inverse).unflatten(0, (-1, k)).sum(1)

    @staticmethod
    def backward(ctx, g):
        order, = ctx.saved_tensors
        return g.index_select(0, order // ctx.k), None, None, None


class GroupedLinear(torch.autograd.Function):
    """Rows sorted by expert, one product per expert; writes in place of collecting, so no full-size zero gradients arise."""

    @staticmethod
    def forward(ctx, x, w, counts):
        ctx.save_for_backward(x, w)
        ctx.counts = counts
        out, a = x.new_empty(len(x), w.shape[1]), 0
        for e, n in enumerate(counts):
            if n:
                torch.mm(x[a:a + n], w[e].T, out=out[a:a + n])
            a += n
        return out

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.contiguous()
        gx, gw, a = torch.empty_like(x), torch.empty_like(w), 0
        for e, n in enumerate(ctx.counts):
            if n:
                torch.mm(g[a:a + n], w[e], out=gx[a:a + n])
                torch.mm(g[a:a + n].T, x[a:a + n], out=gw[e])
            else:
                gw[e].zero_()
            a += n
        return gx, gw, None


# ---------------------------------------------------------------------------------------------------------------- tables
def rope_frequencies(c, ratio):
    dim, base = c["qk_rope_head_dim"], c["compress_rope_theta"] if ratio else c["rope_theta"]
    i = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    plain = np.float32(1) / np.power(float(base), i.astype(np.float64)).astype(np.float32)
    yarn = c.get("rope_scaling") or {}
    if not ratio or yarn.get("rope_type", yarn.get("type")) != "yarn":
        return plain
    turn = lambda r: dim * math.log(yarn["original_max_position_embeddings"] / (r * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(turn(yarn["beta_fast"])), 0), min(math.ceil(turn(yarn["beta_slow"])), dim - 1)
    high += .001 * (high == low)
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / (high - low), 0, 1).astype(np.float32)
    return plain / np.float32(yarn["factor"]) * ramp + plain * (1 - ramp)


def engram_primes(c):
    """[layer][n-gram][head]"""
    is_prime = lambda n: n > 1 and all(n % k for k in range(2, math.isqrt(n) + 1))
    seen, layers = set(), []
    for _ in c["engram_layer_ids"]:
        layers.append([])
        for _ in range(c["engram_max_ngram_size"] - 1):
            p, row = c["engram_vocab_size"] - 1, []
            for _ in range(c["engram_n_heads"]):
                p += 1
                while not is_prime(p) or p in seen:
                    p += 1
                seen.add(p)
                row.append(p)
            layers[-1].append(row)
    return layers


def engram_rows(c, token_map, ids):
    """{layer: int64 [B, T, columns]} for ids [B, T] from position 0."""
    depth, size = c["engram_max_ngram_size"], c["engram_compressed_vocab_size"]
    bound = max(1, (2**63 - 1) // size // 2)
    look = [token_map[ids]]
    for back in range(1, depth):
        look.append(np.concatenate([np.full((len(ids), min(back, ids.shape[1])), token_map[c["engram_pad_token_id"]]),
                                    look[0][:, :-back]], 1)[:, :ids.shape[1]])
    out = {}
    for layer, primes in zip(c["engram_layer_ids"], engram_primes(c)):
        m = np.random.default_rng(10007 * layer).integers(0, bound, size=depth, dtype=np.int64) * 2 + 1
        rolling, columns, offset = look[0] * m[0], [], 0
        for n in range(1, depth):
            rolling = rolling ^ (look[n] * m[n])
            for p in primes[n - 1]:
                columns.append(rolling % p + offset)
                offset += p
        out[layer] = np.stack(columns, -1)
    return out


def parameters(c):
    """(name, kind, shape) of every tensor, routed experts stacked and w1 above w3 in one `w13`."""
    d, n, H, D = c["hidden_size"], c["hc_mult"], c["num_attention_heads"], c["head_dim"]
    q, o, g, v, inter = c["q_lora_rank"], c["o_lora_rank"], c["o_groups"], c["vocab_size"], c["moe_intermediate_size"]

    def block(p, experts):
        for s in ("hc_attn", "hc_ffn"):
            yield from ((f"{p}{s}_fn", "f32", ((2 + n) * n, n * d)), (f"{p}{s}_base", "f32", ((2 + n) * n,)),
                        (f"{p}{s}_scale", "f32", (3,)))
        yield from ((p + "attn_norm.weight", "bf16", (d,)), (p + "ffn_norm.weight", "bf16", (d,)))
        a, f = p + "attn.", p + "ffn."
        yield from ((a + "wq_a.weight", "fp8", (q, d)), (a + "q_norm.weight", "bf16", (q,)), (a + "wq_b.weight", "fp8", (H * D, q)),
                    (a + "wkv.weight", "fp8", (D, d)), (a + "kv_norm.weight", "bf16", (D,)),
                    (a + "wo_a.weight", "fp8", (g * o, H * D // g)), (a + "wo_b.weight", "fp8", (d, g * o)),
                    (a + "attn_sink", "f32", (H,)))
        yield from ((f + "gate.weight", "bf16", (experts, d)), (f + "gate.bias", "f32", (experts,)),
                    (f + "experts.w13.weight", "fp4", (experts, 2 * inter, d)), (f + "experts.w2.weight", "fp4", (experts, d, inter)),
                    (f + "shared_experts.w13.weight", "fp8", (2 * inter, d)), (f + "shared_experts.w2.weight", "fp8", (d, inter)))

    yield from (("embed.weight", "bf16", (v, d)), ("head.weight", "bf16", (v, d)), ("norm.weight", "bf16", (d,)))
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        yield from block(p, c["n_routed_experts"])
        if i in c["kv_source_layer_ids"]:
            yield (p + "attn.compressor.wkv.weight", "bf16", (D, d))
            if c["compress_ratios"][i] > 1:
                yield (p + "attn.compressor.wgate.weight", "bf16", (D, d))
            yield from ((p + "attn.compressor.norm.weight", "bf16", (D,)), (p + "attn.indexer.wk.weight", "bf16", (c["index_head_dim"], D)),
                        (p + "attn.indexer.k_norm.weight", "bf16", (c["index_head_dim"],)))
        if i in c["index_source_layer_ids"]:
            yield from ((p + "attn.indexer.wq_b.weight", "fp8", (c["index_n_heads"] * c["index_head_dim"], q)),
                        (p + "attn.indexer.weights_proj.weight", "bf16", (c["index_n_heads"], d)))
        if i in c["engram_layer_ids"]:
            at = c["engram_layer_ids"].index(i)
            columns = (c["engram_max_ngram_size"] - 1) * c["engram_n_heads"] * c["engram_head_dim"]
            yield from ((p + "engram.embed.weight", "table", (c["engram_num_embeddings"][at], c["engram_head_dim"])),
                        (p + "engram.wkv.weight", "fp8", ((n + 1) * d, columns)),
                        (p + "engram.q_weight", "bf16", (n, d)), (p + "engram.k_weight", "bf16", (n, d)))
    stages = c.get("num_nextn_predict_layers", 0)
    for s in range(stages):
        yield from block(f"mtp.{s}.", c["dspark_n_routed_experts"])
    if stages:
        last, rank = f"mtp.{stages - 1}.", c["dspark_markov_rank"]
        yield from (("mtp.0.main_proj.weight", "fp8", (d, d * len(c["dspark_target_layer_ids"]))), ("mtp.0.main_norm.weight", "bf16", (d,)),
                    (last + "norm.weight", "bf16", (d,)), (last + "markov_head.embed.weight", "bf16", (v, rank)),
                    (last + "markov_head.head.weight", "bf16", (v, rank)), (last + "confidence_head.proj.weight", "bf16", (1, d + rank)))


def initial(name, shape, c, rng):
    n, d = c["hc_mult"], c["hidden_size"]
    x = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
    if "norm" in name or name.endswith(("q_weight", "k_weight")):
        return torch.ones(shape)
    if name.endswith("_scale"):
        return torch.full(shape, .1)
    if name.endswith("_base"):                  # each site reads a soft mean, writes to all streams, and mixes them little
        x[:n] = .3 * x[:n] - math.log(n - 1) if n > 1 else 4.
        x[n:2 * n] *= .5
        x[2 * n:] = (4 * torch.eye(n)).flatten()
        return x
    if name.endswith(("gate.bias", "attn_sink")):
        return torch.zeros(shape)
    if name == "embed.weight":
        return .5 * x
    if name.endswith("engram.embed.weight"):
        return .1 * x
    if name.endswith("markov_head.embed.weight"):
        return .3 * x
    if "head" in name and not name.endswith("_fn"):
        return .02 * x if name == "head.weight" else 0 * x
    quiet = name.endswith(("w2.weight", "wo_b.weight"))
    return x * ((.3 if quiet else 1) / math.sqrt(shape[-1]))


# ----------------------------------------------------------------------------------------------------------------- model
class Model(nn.Module):
    def __init__(self, config, token_map, seed=0):
        super().__init__()
        self.c, self.token_map = config, token_map
        self.kind = {name: kind for name, kind, _ in parameters(config)}
        rng = np.random.default_rng(seed)
        for name, _, shape in parameters(config):
            self.register_parameter(name.replace(".", "__"), nn.Parameter(initial(name, shape, config, rng)))
        for name in self.kind:
            if name.endswith("gate.bias"):
                self[name].requires_grad_(False)                       # moved by the load balance only
        candidate = config.get("candidate_source_layer_id")
        self.candidate_source = (config["kv_source_layer_ids"] or [-1])[-1] if candidate is None else candidate
        self.quantised, self.fast, self.exact = set(), False, True
        self.engram_dropout = self.dropout = 0.                        # of table rows; of what a sublayer adds to the streams
        self.index_training = True                                     # whether this call also computes the indexer's loss
        self.loads = {}                                                # router loads of the last call, by prefix

    def __getitem__(self, name):
        return self._parameters[name.replace(".", "__")]

    def w(self, name):
        w, kind = self[name], self.kind[name]
        return StraightThrough.apply(w, WEIGHT_ROUNDING[kind]) if kind in self.quantised else w

    def half(self, x):
        return x.bfloat16() if self.fast else x

    def product(self, x, w):
        return F.linear(x.bfloat16(), w.bfloat16()).float() if self.fast else F.linear(x, w)

    def linear(self, x, name):
        return self.product(x, self.w(name + ".weight"))

    def norm(self, x, name):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.c["rms_norm_eps"]) * self.w(name + ".weight")

    def tables(self, positions, ratio):
        """cos and sin, [positions, R/2], of the single float32 product the model defines."""
        angle = np.asarray(positions, np.float32)[:, None] * rope_frequencies(self.c, ratio)
        return torch.from_numpy(np.cos(angle)), torch.from_numpy(np.sin(angle))

    @staticmethod
    def rotate(x, cos, sin, inverse=False):
        """x [..., D] with cos and sin broadcast against [..., R/2]."""
        rest, tail = x.split([x.shape[-1] - 2 * cos.shape[-1], 2 * cos.shape[-1]], -1)
        even, odd = tail.unflatten(-1, (-1, 2)).unbind(-1)
        if inverse:
            sin = -sin
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
        return torch.cat([rest, turned], -1)

    # --- residual streams; h is [N, n, d], coefficients are kept with N last so that their small sums run over outer axes
    def mixes(self, h, prefix):
        c, n = self.c, self.c["hc_mult"]
        fn, base, scale = (self.w(f"{prefix}_{k}") for k in ("fn", "base", "scale"))
        z = h.flatten(1)
        m = (F.linear(z, fn) * torch.rsqrt((z * z).mean(-1, keepdim=True) + c["rms_norm_eps"])).T.contiguous()
        eps = c["hc_eps"]
        pre = torch.sigmoid(m[:n] * scale[0] + base[:n, None]) + eps
        post = 2 * torch.sigmoid(m[n:2 * n] * scale[1] + base[n:2 * n, None])
        comb = torch.softmax((m[2 * n:] * scale[2] + base[2 * n:, None]).unflatten(0, (n, n)), 1) + eps
        comb = comb / (comb.sum(0, keepdim=True) + eps)
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(1, keepdim=True) + eps)
            comb = comb / (comb.sum(0, keepdim=True) + eps)
        return pre.T.contiguous(), post.T.contiguous(), comb.permute(2, 1, 0).contiguous()      # comb transposed: [N, to, from]

    @staticmethod
    def collapse(h, pre):
        return torch.bmm(pre[:, None], h)[:, 0]

    @staticmethod
    def expand(y, h, post, comb):
        return torch.bmm(torch.cat([comb, post[..., None]], -1), torch.cat([h, y[:, None]], 1))

    # --- attention
    def queries_and_kv(self, x, prefix, cos, sin):
        """x [.., rows, d]; cos and sin broadcast against [.., rows, R/2]"""
        c = self.c
        qr = self.norm(self.linear(x, prefix + "wq_a"), prefix + "q_norm")
        q = self.linear(qr, prefix + "wq_b").unflatten(-1, (c["num_attention_heads"], c["head_dim"]))
        kv = self.norm(self.linear(x, prefix + "wkv"), prefix + "kv_norm")
        return qr, self.rotate(q, cos[..., None, :], sin[..., None, :]), cache(self.rotate(kv, cos, sin), window_rounding, 32)

    def output(self, o, prefix, cos, sin):
        """o [.., rows, H, D] -> [.., rows, d]"""
        groups = self.c["o_groups"]
        o = self.rotate(o, cos[..., None, :], sin[..., None, :], inverse=True).flatten(-2).unflatten(-1, (groups, -1))
        wo_a = self.w(prefix + "wo_a.weight").unflatten(0, (groups, -1))
        low = torch.cat([self.product(o[..., g, :], wo_a[g]) for g in range(groups)], -1)
        return self.linear(low, prefix + "wo_b")

    def window_logits(self, q, kv):
        """q [B,T,H,D], kv [B,T,D], T a multiple of the window W -> logits [B,T,H,2W] and the keys they belong to [B,T/W,2W,D]."""
        W, (B, T, H, D) = self.c["sliding_window"], q.shape
        kv = kv.view(B, T // W, W, D)
        keys = torch.cat([F.pad(kv, (0, 0, 0, 0, 1, 0))[:, :-1], kv], 2)
        logits = self.half(q.view(B, T // W, W * H, D)) @ self.half(keys).transpose(-1, -2)
        i, j = torch.arange(T)[:, None], torch.arange(2 * W)[None]
        key_position = i // W * W + j - W
        visible = (key_position >= 0) & (key_position <= i) & (i - key_position < W)
        logits = logits.float().view(B, T, H, 2 * W) * D ** -.5
        return logits.masked_fill(~visible[:, None], -math.inf), keys

    def select(self, scores, k):
        """bool like scores: the k largest finite scores, the lower index first among equals."""
        k = min(k, scores.shape[-1])
        if self.exact:
            top = torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :k]
        else:
            top = torch.topk(scores, k, -1, sorted=False).indices
        return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, top, True) & (scores > -math.inf)

    def index(self, x, qr, layer, shared, cos, sin):
        """Scores of every visible entry. Inputs are detached: only the indexer's own loss trains it."""
        c, prefix, r = self.c, f"layers.{layer}.attn.indexer.", self.c["compress_ratios"][layer]
        heads, dim, (B, T, _) = c["index_n_heads"], c["index_head_dim"], x.shape
        q = self.linear(qr.detach(), prefix + "wq_b").unflatten(-1, (heads, dim))
        q = cache(self.rotate(q, cos[:, None], sin[:, None]), index_rounding, 32)
        w = self.linear(x.detach(), prefix + "weights_proj") * (heads * dim) ** -.5
        s = (self.half(q.flatten(1, 2)) @ self.half(shared["index_keys"]).transpose(1, 2)).float().view(B, T, heads, -1)
        scores = (torch.relu(s) * w[..., None]).sum(2)
        seen = (torch.arange(T) + 1) // r
        return scores.masked_fill(torch.arange(scores.shape[-1]) >= seen[:, None], -math.inf), seen

    @torch.no_grad()
    def choose(self, scores, seen, layer, shared):
        c, size = self.c, self.c["candidate_block_size"]
        if layer == self.candidate_source:
            G = scores.shape[-1]
            block = F.pad(scores, (0, -G % size), value=-math.inf).unflatten(-1, (-1, size)).amax(-1)
            newest = torch.nn.functional.one_hot(((seen - 1).clamp(min=0) // size), block.shape[-1]).bool() & (seen > 0)[:, None]
            keep = self.select(block.masked_fill(newest, math.inf), c["candidate_topk_blocks"])
            shared["candidates"] = keep.repeat_interleave(size, -1)[..., :G]
        elif 0 <= self.candidate_source < layer and "candidates" in shared:
            scores = scores.masked_fill(~shared["candidates"], -math.inf)
        shared["reach"] = scores > -math.inf
        shared["chosen"] = self.select(scores, c["index_topk"]) if self.sparse else shared["reach"]

    def attention(self, x, layer, shared, trace):
        """x [B,T,d], T a multiple of the window."""
        c, prefix, r = self.c, f"layers.{layer}.attn.", self.c["compress_ratios"][layer]
        (B, T, _), H, D = x.shape, c["num_attention_heads"], c["head_dim"]
        cos, sin = self.tables(np.arange(T), r)
        qr, q, kv = self.queries_and_kv(x, prefix, cos, sin)
        near, near_keys = self.window_logits(q, kv)
        parts, scores = [near], None
        if r:
            if layer in c["kv_source_layer_ids"]:
                m, G = prefix + "compressor.", T // r
                latent = self.linear(x, m + "wkv")
                if r > 1:
                    gate = self.linear(x, m + "wgate")
                    latent, gate = (a[:, :G * r].unflatten(1, (G, r)) for a in (latent, gate))
                    latent = (latent * torch.softmax(gate, 2)).sum(2)
                latent = self.norm(latent, m + "norm")
                e_cos, e_sin = self.tables(np.arange(G) * r, r)
                shared["entries"] = cache(self.rotate(latent, e_cos, e_sin), entry_rounding, 16)
                k = self.norm(self.linear(latent.detach(), prefix + "indexer.wk"), prefix + "indexer.k_norm")
                shared["index_keys"] = cache(self.rotate(k, e_cos, e_sin), index_rounding, 32)
            if layer in c["index_source_layer_ids"]:
                with torch.set_grad_enabled(self.training and self.index_training and torch.is_grad_enabled()):
                    scores, seen = self.index(x, qr, layer, shared, cos, sin)
                self.choose(scores, seen, layer, shared)
                if trace is not None:
                    trace[prefix + "chosen"] = shared["chosen"]
            far = (self.half(q.flatten(1, 2)) @ self.half(shared["entries"]).transpose(1, 2)).float().view(B, T, H, -1) * D ** -.5
            if scores is not None and self.training and self.index_training:
                self.index_loss = self.index_loss + self.divergence(scores, near.detach(), far.detach(), prefix, shared["reach"])
            parts.append(far.masked_fill(~shared["chosen"][:, :, None], -math.inf))
        sink = self.w(prefix + "attn_sink")[:, None].expand(B, T, H, 1)
        p = self.half(torch.softmax(torch.cat(parts + [sink], -1), -1))
        W = c["sliding_window"]
        o = (p[..., :2 * W].reshape(B, T // W, W * H, 2 * W) @ self.half(near_keys)).float().view(B, T, H, D)
        if r:
            o = o + (p[..., 2 * W:-1].reshape(B, T * H, -1) @ self.half(shared["entries"])).float().view(B, T, H, D)
        return self.output(o, prefix, cos, sin)

    def divergence(self, scores, near, far, prefix, reach):
        """KL from the attention's own distribution over all entries within reach (head mean) to softmax(scores)."""
        with torch.no_grad():
            W2 = near.shape[-1]
            sink = self.w(prefix + "attn_sink")[:, None].expand(*near.shape[:-1], 1)
            p = torch.softmax(torch.cat([near, far.masked_fill(~reach[:, :, None], -math.inf), sink], -1), -1)[..., W2:-1].sum(2)
            p = p / (p.sum(-1, keepdim=True) + 1e-9)
            some = reach.any(-1)
        logq = torch.log_softmax(scores.masked_fill(~reach, -1e9), -1)
        kl = (p * (torch.log(p + 1e-9) - logq)).sum(-1)
        return kl[some].mean()

    # --- mixture of experts
    def moe(self, x, prefix, top, trace=None):
        c = self.c
        s = F.linear(x, self.w(prefix + "gate.weight")) / c.get("gate_temp", 1.)
        f = c["scoring_func"]
        s = F.softplus(s).sqrt() if f == "sqrtsoftplus" else s.sigmoid() if f == "sigmoid" else s.softmax(-1)
        biased = s.detach() + self[prefix + "gate.bias"]
        if self.exact:
            ids = torch.sort(biased, dim=-1, descending=True, stable=True).indices[:, :top]
        else:
            ids = torch.topk(biased, top, -1, sorted=False).indices
        weights = s.gather(1, ids)
        if c["norm_topk_prob"] and top > 1:
            weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
        weights = weights * c["routed_scaling_factor"]
        if trace is not None:
            trace[prefix + "expert_ids"] = ids
        flat = ids.flatten()
        load = torch.bincount(flat, minlength=s.shape[1])
        self.loads[prefix] = load
        order = torch.argsort(flat, stable=True)
        inverse = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
        counts = load.tolist()
        u = Dispatch.apply(self.half(x), order, inverse, top)
        h = self.gated(GroupedLinear.apply(u, self.half(self.w(prefix + "experts.w13.weight")), counts).float())
        h = h * weights.flatten().index_select(0, order)[:, None]
        y = GroupedLinear.apply(self.half(h), self.half(self.w(prefix + "experts.w2.weight")), counts).float()
        y = Combine.apply(y, order, inverse, top)
        return y + self.linear(self.gated(self.linear(x, prefix + "shared_experts.w13")), prefix + "shared_experts.w2")

    def gated(self, h):
        gate, up = h.chunk(2, -1)
        limit = self.c["swiglu_limit"]
        if limit > 0:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return F.silu(gate) * up

    # --- Engram
    def engram(self, h, layer, rows):
        """h [N,n,d], rows [N,columns]"""
        prefix, (N, n, d), eps = f"layers.{layer}.engram.", h.shape, self.c["rms_norm_eps"]
        e = F.embedding(rows, self[prefix + "embed.weight"])
        if "table" in self.quantised:
            e = StraightThrough.apply(e, row_rounding)
        if self.training and self.engram_dropout:
            e = e * (torch.rand(*e.shape[:-1], 1) >= self.engram_dropout)
        kv = self.linear(e.flatten(1), prefix + "wkv")
        key, value = kv[:, :n * d].unflatten(1, (n, d)), kv[:, n * d:]
        qk = self.w(prefix + "q_weight") * self.w(prefix + "k_weight")
        rstd = lambda a: torch.rsqrt((a * a).mean(-1) + eps)
        dot = (h * qk * key).sum(-1) * (rstd(h) * rstd(key)) * d ** -.5
        size = dot.abs().clamp(min=1e-6).sqrt()
        gate = torch.sigmoid(torch.copysign(size, dot.detach()))
        return torch.baddbmm(h, gate[..., None], value[:, None])

    # --- one block, whole model
    def block(self, h, pre, prefix, attention, top, trace=None):
        a_pre, post, comb = self.mixes(h, prefix + "hc_attn")
        y = attention(self.norm(self.collapse(h, pre), prefix + "attn_norm"))
        h = self.expand(F.dropout(y, self.dropout, self.training), h, post, comb)
        f_pre, post, comb = self.mixes(h, prefix + "hc_ffn")
        y = self.moe(self.norm(self.collapse(h, a_pre), prefix + "ffn_norm"), prefix + "ffn.", top, trace)
        return self.expand(F.dropout(y, self.dropout, self.training), h, post, comb), f_pre

    def start(self, ids):
        h = F.embedding(ids, self.w("embed.weight"))[:, None].repeat(1, self.c["hc_mult"], 1)
        pre = torch.zeros(len(ids), self.c["hc_mult"])
        pre[:, 0] = 1
        return h, pre

    def forward(self, ids, rows=None, trace=None, sparse=True, head=True):
        """ids int64 [B,T] from position 0; rows: engram_rows of them, if at hand. Returns (logits [B,T,V], taps [B,T,targets*d]);
        without `head` the final normalised hiddens in place of the logits."""
        c, W, (B, length) = self.c, self.c["sliding_window"], ids.shape
        ids = F.pad(ids, (0, -length % W), value=2)                   # later tokens change no earlier one
        T = ids.shape[1]
        if rows is None or T != length:
            rows = engram_rows(c, self.token_map, ids.numpy()) if c.get("engram_layer_ids") else {}
        shared, taps, self.index_loss, self.sparse = {}, [], 0., sparse
        h, pre = self.start(ids.flatten())
        for layer in range(c["num_hidden_layers"]):
            if layer in rows:
                h = self.engram(h, layer, torch.as_tensor(rows[layer]).flatten(0, 1))
            if layer in (c.get("dspark_target_layer_ids") or []):
                taps.append(h.mean(1))
            attend = lambda u: self.attention(u.view(B, T, -1), layer, shared, trace).flatten(0, 1)
            h, pre = self.block(h, pre, f"layers.{layer}.", attend, c["num_experts_per_tok"], trace)
        x = self.norm(self.collapse(h, pre), "norm").view(B, T, -1)[:, :length]
        taps = torch.cat(taps, -1).view(B, T, -1)[:, :length] if taps else None
        return self.product(x, self.w("head.weight")) if head else x, taps

    # --- DSpark
    def draft(self, taps, ids, at):
        """Drafts for the anchors ids[b, at[b,a]] (at int64 [B,A], 0 < at), from the taps [B,T,..] of the positions before them.

        Returns base logits [B*A, g, V] and pre-norm hiddens [B*A, g, d]; see markov and confidence for the heads."""
        c, (B, A) = self.c, at.shape
        W, g, H, D = c["sliding_window"], c["dspark_block_size"], c["num_attention_heads"], c["head_dim"]
        stages, M, T = c["num_nextn_predict_layers"], B * A, taps.shape[1]
        main = self.norm(self.linear(taps, "mtp.0.main_proj"), "mtp.0.main_norm")
        where = at[..., None] - W + torch.arange(W)                    # [B,A,W] context positions
        dead = (where < 0).view(M, 1, 1, W)
        where = where.clamp(min=0)
        flat = (where + T * torch.arange(B)[:, None, None]).flatten()
        t_cos, t_sin = self.tables(np.arange(T + g), 0)
        place = at.flatten()[:, None] + torch.arange(g)                # [M,g]
        cos, sin = t_cos[place], t_sin[place]
        anchor = ids.gather(1, at).flatten()
        first = torch.full((M, g), c["dspark_noise_token_id"])
        first[:, 0] = anchor
        h, pre = self.start(first.flatten())
        for s in range(stages):
            prefix = f"mtp.{s}."
            context = self.norm(self.linear(main, prefix + "attn.wkv"), prefix + "attn.kv_norm")
            context = cache(self.rotate(context, t_cos[:T], t_sin[:T]), window_rounding, 32)
            context = context.flatten(0, 1).index_select(0, flat).view(M, W, D)

            def attend(u):
                a = prefix + "attn."
                _, q, kv = self.queries_and_kv(u.view(M, g, -1), a, cos, sin)
                keys = torch.cat([context, kv], 1)
                logits = torch.bmm(q.flatten(1, 2), keys.transpose(1, 2)).view(M, g, H, W + g) * D ** -.5
                logits = torch.cat([logits[..., :W].masked_fill(dead, -math.inf), logits[..., W:]], -1)
                sink = self.w(a + "attn_sink")[:, None].expand(M, g, H, 1)
                p = torch.softmax(torch.cat([logits, sink], -1), -1)[..., :-1]
                o = torch.bmm(p.reshape(M, g * H, -1), keys).view(M, g, H, D)
                return self.output(o, a, cos, sin).flatten(0, 1)
            h, pre = self.block(h, pre, prefix, attend, c["dspark_num_experts_per_tok"])
        hidden = self.collapse(h, pre)
        base = self.product(self.norm(hidden, f"mtp.{stages - 1}.norm"), self.w("head.weight"))
        return base.view(M, g, -1), hidden.view(M, g, -1)

    def markov(self, previous):
        """Embeddings [.., rank] and logit bias [.., V] of the token before."""
        last = f"mtp.{self.c['num_nextn_predict_layers'] - 1}.markov_head."
        e = F.embedding(previous, self.w(last + "embed.weight"))
        return e, self.product(e, self.w(last + "head.weight"))

    def confidence(self, hidden, e):
        name = f"mtp.{self.c['num_nextn_predict_layers'] - 1}.confidence_head.proj.weight"
        return F.linear(torch.cat([hidden, e], -1), self.w(name))[..., 0]

    @torch.no_grad()
    def draft_greedy(self, taps, ids, at):
        """Token ids [M,g], confidence logits [M,g] and biased logits [M,g,V] of greedy drafts."""
        base, hidden = self.draft(taps, ids, at)
        previous, tokens, z, logits = ids.gather(1, at).flatten(), [], [], []
        for k in range(base.shape[1]):
            e, bias = self.markov(previous)
            logits.append(base[:, k] + bias)
            z.append(self.confidence(hidden[:, k], e))
            previous = logits[-1].argmax(-1)
            tokens.append(previous)
        return torch.stack(tokens, 1), torch.stack(z, 1), torch.stack(logits, 1)

    # --- released names
    def released(self):
        """{released name: (kind, float32 tensor)}; bias_vl is the text bias, since nothing here has seen an image."""
        out = {}
        for name, kind in self.kind.items():
            w = self[name].detach()
            if ".experts." in name:
                for e in range(len(w)):
                    one = name.replace(".experts.", f".experts.{e}.")
                    halves = w[e].chunk(2) if "w13" in name else [w[e]]
                    for label, part in zip(("w1", "w3") if "w13" in name else ("w2",), halves):
                        out[one.replace("w13", label)] = (kind, part)
            elif "w13" in name:
                for label, part in zip(("w1", "w3"), w.chunk(2)):
                    out[name.replace("w13", label)] = (kind, part)
            else:
                out[name] = (kind, w)
                if name.endswith("gate.bias"):
                    out[name + "_vl"] = (kind, w)
        return out

    @torch.no_grad()
    def load_released(self, weights):
        """The inverse, from {released name: float32 array}."""
        for name in self.kind:
            p = self[name]
            get = lambda n: torch.from_numpy(np.array(weights[n], np.float32))
            pair = lambda n: torch.cat([get(n.replace("w13", "w1")), get(n.replace("w13", "w3"))]) if "w13" in n else get(n)
            if ".experts." in name:
                p.copy_(torch.stack([pair(name.replace(".experts.", f".experts.{e}.")) for e in range(len(p))]))
            else:
                p.copy_(pair(name))
