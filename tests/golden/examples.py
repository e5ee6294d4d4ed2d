# SPDX-License-Identifier: MIT
"""What examples 03, 04 and 05 must print, worked out without the library: numpy for routes and matrices, the oracle and `tokenizers` for rows.

    python examples.py make    # writes examples/03_experts_touched.txt, 04_sinkhorn.txt and 05_spelling.txt

Needs numpy, ml_dtypes, sympy, tokenizers.
"""
import json
import pathlib
import sys

import numpy as np

import dsv41_oracle as oracle

HERE = pathlib.Path(__file__).parent
DEMO = HERE / "../../examples/tiny"
TOKENS, SEED = 4096, 3
ROUTERS = (("released", 384, 6, 40, 5120, 2304), ("demo", 16, 3, 6, 192, 96))
TEXTS = ("And the LORD God said", "And the Lord God said", "and the lord god said", "AND THE LORD GOD SAID", "And the LORD  God said",
         "cafe", "Caf\u00e9")


def philox4x32(counter, key):
    """Ten rounds over arrays of counters (Salmon et al., 2011)."""
    c = [np.asarray(x, np.uint64) for x in counter]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    k = [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> half) ^ c[1] ^ np.uint64(k[0]), b & low, (a >> half) ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def routes(experts, topk):
    at = np.arange(TOKENS * experts, dtype=np.uint64)
    words = philox4x32((at, 0 * at, 0 * at, 0 * at), SEED)
    uniform = ((words[0] | words[1] << np.uint64(32)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    logits = uniform.astype(np.float32).reshape(TOKENS, experts).astype(np.float64)
    scores = np.sqrt(np.log1p(np.exp(logits))).astype(np.float32)
    return np.argsort(-scores, axis=1, kind="stable")[:, :topk]


def experts_touched():
    for name, experts, topk, layers, dim, ff in ROUTERS:
        ids, expert_bytes = routes(experts, topk), 3 * dim * ff * 17 / 32
        yield f"{name}: {topk} of {experts} experts, {expert_bytes / 1e6:.3f} MB each, {layers} layers"
        yield "batch  expected  routed    MB a step  MB a token"
        for batch in (2**i for i in range(10)):
            routed = np.mean([len(set(group)) for group in ids.reshape(-1, batch * topk).tolist()])
            expected = experts * (1 - (1 - topk / experts) ** batch)
            step = expected * expert_bytes * layers / 1e6
            yield f"{batch:5d}  {expected:8.1f}  {routed:6.1f}  {step:11.3f}  {step / batch:10.3f}"


def sinkhorn():
    at = 16 + np.arange(80 * 16, dtype=np.uint64)
    words = philox4x32((at, 0 * at, 0 * at, 0 * at), 1)
    uniform = ((words[0] | words[1] << np.uint64(32)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    logits = (2 * uniform - 1).astype(np.float32).reshape(80, 4, 4) + np.eye(4, dtype=np.float32)
    combs = logits.astype(np.float64)
    for title in ("unconstrained", "Sinkhorn"):
        if title == "Sinkhorn":
            combs = np.exp(combs)
            combs = combs / combs.sum(2, keepdims=True) + 1e-6
            combs /= combs.sum(1, keepdims=True) + 1e-6
            for _ in range(19):
                combs /= combs.sum(2, keepdims=True) + 1e-6
                combs /= combs.sum(1, keepdims=True) + 1e-6
        yield title
        yield "seams        gain  sums off by   mean (2.5)"
        product = np.eye(4)
        for seam in range(1, 81):
            product = product @ combs[seam - 1]
            if seam % 10 == 0:
                sums = np.concatenate([product.sum(0), product.sum(1)])
                gain, mean = max(np.linalg.norm(product, 1), np.linalg.norm(product, np.inf)), (np.arange(1, 5) @ product).mean()
                yield f"{seam:5d}  {gain:10.5g}  {np.abs(sums - 1).max():11.0e}  {mean:11.5g}"


def spelling():
    from tokenizers import Tokenizer, normalizers as n
    config = json.loads((DEMO / "config.json").read_text())["text_config"]
    tok = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    token_map = oracle.compressed_token_map(DEMO / "tokenizer.json", config["vocab_size"])
    normal = n.Sequence([n.NFKC(), n.NFD(), n.StripAccents(), n.Lowercase(), n.Strip()])
    for text in TEXTS:
        ids = np.array(tok.encode(text).ids)
        rows = oracle.engram_rows(config, token_map, ids, np.zeros(len(ids), bool))[config["engram_layer_ids"][0]][-1]
        yield f'"{text}", normal form "{" ".join(normal.normalize_str(text).split())}"'
        for title, values in (("tokens    ", ids), ("compressed", token_map[ids]), ("rows      ", rows)):
            yield "  " + " ".join([title, *map(str, values)])


def make():
    (HERE / "examples").mkdir(exist_ok=True)
    for name, lines in (("03_experts_touched", experts_touched()), ("04_sinkhorn", sinkhorn()), ("05_spelling", spelling())):
        (HERE / "examples" / (name + ".txt")).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["make"]:
    make()
