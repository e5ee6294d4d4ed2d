# SPDX-License-Identifier: MIT
"""The PyTorch model of examples/tiny/model.py on a checkpoint folder, timed: what a good user gets on a CPU without kernels of their own.

    python torch_model.py FOLDER [--threads N] [--dtype float32|bfloat16] [--line decode|prefill ...] [--repeats N] [--check]

A JSON line each for a decoded token (behind 128 tokens) and for a prompt of 512 (all layers, logits of the last token).
Weights are dequantised once; with bfloat16 all that products use is kept in it. The prompt runs Model.forward; experts are grouped by token
there: one product for each expert that a token chose. Decoding is Decoder below: the same modules, one row, every cache kept as a tensor.
No gradients (inference_mode), eager mode. Cache rows are not rounded: that costs operations which only emulate a format.
--check, in place of times: decoded logits against the prompt's own, float32.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
import torch.nn.functional as F

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "golden"), str(ROOT / "examples" / "tiny")]
import dsv41_oracle as oracle  # noqa: E402
import model as tiny  # noqa: E402

HELD = 128                                      # tokens of the sequence that decodes
PRODUCT_KINDS = ("fp4", "fp8", "bf16")
UNROUNDED = ("gate.weight", "embed.weight")     # of them, what meets float32 outside of Model.product


def load(folder, dtype):
    c, weights, token_map, _ = oracle.load(folder)
    tiny.initial = lambda name, shape, config, rng: torch.empty(shape)        # load_released writes them all
    m = tiny.Model(c, token_map)
    m.load_released(weights)
    m.exact, m.fast = False, dtype == "bfloat16"
    m.eval().requires_grad_(False)
    if m.fast:
        for name, kind in m.kind.items():
            p = m[name]
            if kind in PRODUCT_KINDS and p.dim() > 1 and not name.endswith(UNROUNDED):
                p.data = p.data.bfloat16()
    return m


class Decoder:
    """One sequence with its caches. `positions`: room."""

    def __init__(self, m, positions):
        self.m, self.c, self.at = m, m.c, 0
        c, D = m.c, m.c["head_dim"]
        self.kv = [torch.zeros(positions, D) for _ in range(c["num_hidden_layers"])]
        ratio = {i: c["compress_ratios"][i] for i in c["kv_source_layer_ids"]}
        self.entries = {i: torch.zeros(positions // r + 1, D) for i, r in ratio.items()}
        self.keys = {i: torch.zeros(positions // r + 1, c["index_head_dim"]) for i, r in ratio.items()}
        self.open = {i: [] for i in ratio}
        self.tables = {r: m.tables(range(positions), r) for r in set(c["compress_ratios"][:c["num_hidden_layers"]])}

    def compress(self, x, layer, r):
        """Row [1,1,d] joins the open group of a source; a whole one becomes an entry and its index key."""
        m, prefix = self.m, f"layers.{layer}.attn."
        p = prefix + "compressor."
        self.open[layer].append((m.linear(x, p + "wkv")[0], m.linear(x, p + "wgate")[0] if r > 1 else None))
        if len(self.open[layer]) < r:
            return
        latent = torch.cat([a for a, _ in self.open[layer]])
        if r > 1:
            latent = (latent * torch.softmax(torch.cat([g for _, g in self.open[layer]]), 0)).sum(0, keepdim=True)
        self.open[layer].clear()
        at = self.at // r
        latent = m.norm(latent, p + "norm")
        cos, sin = (t[at * r:at * r + 1] for t in self.tables[r])
        self.entries[layer][at:at + 1] = m.rotate(latent, cos, sin)
        k = m.norm(m.linear(latent, prefix + "indexer.wk"), prefix + "indexer.k_norm")
        self.keys[layer][at:at + 1] = m.rotate(k, cos, sin)

    def select(self, x, qr, layer, keys, shared, cos, sin):
        """Ids of the entries to attend to."""
        m, c, prefix = self.m, self.c, f"layers.{layer}.attn.indexer."
        heads, dim, size = c["index_n_heads"], c["index_head_dim"], c["candidate_block_size"]
        q = m.rotate(m.linear(qr, prefix + "wq_b").view(heads, dim), cos, sin)
        w = m.linear(x, prefix + "weights_proj").flatten() * (heads * dim) ** -.5
        ids = None
        if layer > m.candidate_source >= 0 and "candidates" in shared:
            ids = shared["candidates"]
            keys = keys.index_select(0, ids)
        scores = w @ torch.relu(m.half(q) @ m.half(keys).T).float()
        if layer == m.candidate_source:
            block = F.pad(scores, (0, -len(scores) % size), value=-torch.inf).view(-1, size).amax(-1)
            block[-1] = torch.inf                                              # the newest entry's is always kept
            kept = torch.topk(block, min(c["candidate_topk_blocks"], len(block)), sorted=False).indices
            shared["candidates"] = (kept[:, None] * size + torch.arange(size)).flatten().sort().values
            shared["candidates"] = shared["candidates"][shared["candidates"] < len(scores)]
        best = torch.topk(scores, min(c["index_topk"], len(scores)), sorted=False).indices
        return best if ids is None else ids[best]

    def attention(self, x, layer, shared):
        """x [1,d]"""
        m, c, prefix, r = self.m, self.c, f"layers.{layer}.attn.", self.c["compress_ratios"][layer]
        H, D, W, x = c["num_attention_heads"], c["head_dim"], c["sliding_window"], x[None]
        cos, sin = (t[self.at:self.at + 1] for t in self.tables[r])
        qr, q, kv = m.queries_and_kv(x, prefix, cos, sin)
        self.kv[layer][self.at] = kv.flatten()
        rows = self.kv[layer][max(0, self.at - W + 1):self.at + 1]
        if r:
            if layer in c["kv_source_layer_ids"]:
                self.compress(x, layer, r)
                shared["source"] = layer
            count = (self.at + 1) // r
            if layer in c["index_source_layer_ids"] and count:
                shared["chosen"] = self.select(x, qr, layer, self.keys[shared["source"]][:count], shared, cos, sin)
            if count:
                rows = torch.cat([rows, self.entries[shared["source"]].index_select(0, shared["chosen"])])
        keys = m.half(rows)
        logits = (m.half(q.view(H, D)) @ keys.T).float() * D ** -.5
        p = torch.softmax(torch.cat([logits, m.w(prefix + "attn_sink")[:, None]], -1), -1)[:, :-1]
        return m.output((m.half(p) @ keys).float().view(1, 1, H, D), prefix, cos, sin)[0]

    def step(self, token):
        """Logits [V] behind one more token."""
        m, c, shared = self.m, self.c, {}
        h, pre = m.start(torch.tensor([token]))
        for layer in range(c["num_hidden_layers"]):
            h, pre = m.block(h, pre, f"layers.{layer}.", lambda u, i=layer: self.attention(u, i, shared), c["num_experts_per_tok"])
        self.at += 1
        return m.product(m.norm(m.collapse(h, pre), "norm"), m.w("head.weight"))[0]


def prompt(m, ids):
    """Logits [V] behind the last of ids [1,T]."""
    x, _ = m.forward(ids, head=False)
    return m.product(x[:, -1], m.w("head.weight"))[0]


def check(m, rng):
    count = m.c["sliding_window"] + m.c["index_topk"] // 4      # tokens leave the window, entries the choice
    ids = torch.randint(0, m.c["vocab_size"], (1, count), generator=rng)
    decoder = Decoder(m, count)
    decoded = [decoder.step(i) for i in ids[0].tolist()][-1]
    whole = prompt(m, ids)
    apart = float((decoded - whole).norm() / whole.norm())
    print(f"decoded logits differ from the prompt's by {apart:.2g} of their norm")
    return 0 if apart < 1e-4 else 1              # float32 sums in another order


def median_ns(repeats, run):
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    times.sort()
    return statistics.median(times), times[0], times[len(times) * 9 // 10]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--line", action="append", choices=("decode", "prefill"))
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check and args.dtype != "float32":
        parser.error("--check is for float32: bfloat16 products choose other experts")
    args.line = args.line or ["decode", "prefill"]
    torch.set_num_threads(args.threads)
    rng = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        m = load(args.folder, args.dtype)
        tiny.cache = lambda x, rounding, block: x
        if args.check:
            return check(m, rng)
        draw = lambda n: torch.randint(0, m.c["vocab_size"], (1, n), generator=rng)
        lines = []
        if "decode" in args.line:
            decoder = Decoder(m, HELD + args.repeats + 2)
            for _ in range(HELD):
                decoder.step(int(draw(1)))
            lines.append(("decode", 1, HELD, median_ns(args.repeats, lambda: decoder.step(int(draw(1))))))
        if "prefill" in args.line:
            lines.append(("prefill", 512, 0, median_ns(max(args.repeats // 8, 2), lambda: prompt(m, draw(512)))))
    for kind, tokens, context, (ns, low, high) in lines:
        print(json.dumps({"bench": "torch_" + kind, "type": args.dtype, "layout": f"context {context}", "n": m.c["num_hidden_layers"],
                          "k": m.c["hidden_size"], "tokens": tokens, "threads": args.threads, "ns": ns, "ns_min": low, "ns_p90": high}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
