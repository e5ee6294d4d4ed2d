# SPDX-License-Identifier: MIT
"""Figures of an exported model: held-out bits per byte, tokens per speculative round, and what general compressors need.

    python measure.py WORK_DIR [MODEL_DIR] [--oracle FOLDER] [--prompts 32] [--tokens 64]

Bits per byte. heldout.txt is encoded without BOS into one token sequence, which is fed from position 0 with full context; longer
than max_position_embeddings, it is cut into windows of that many tokens that each start anew. bits = sum of -log2 p over all
tokens but the first of each window; divided by the bytes of the file. The first window is also computed by the numpy oracle.

Tokens per round. Prompts are equidistant pieces of the held-out text; the continuation is greedy. A round drafts a block from
the anchor, accepts the longest prefix that equals the target's own greedy tokens, and emits those and one more.
"""
import argparse
import bz2
import lzma
import math
import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from model import Model
from train import HERE


def bits(logits, ids):
    return F.cross_entropy(logits[:-1].double(), ids[1:], reduction="sum").item() / math.log(2)


@torch.no_grad()
def bits_per_byte(model, reference, ids, size):
    window = model.c["max_position_embeddings"]
    total, first = 0., None
    for at in range(0, len(ids), window):
        x = torch.from_numpy(ids[at:at + window])
        logits = model(x[None])[0][0]
        total += bits(logits, x)
        if first is None:
            first = total
    if reference is not None:
        x = ids[:window]
        logits, _ = reference.forward(x)
        theirs = bits(torch.from_numpy(logits), torch.from_numpy(x))
        print(f"first window: model.py {first:.2f} bits, oracle {theirs:.2f} bits")
    print(f"held-out: {total:.0f} bits, {size} bytes, {len(ids)} tokens, windows of {window}: {total / size:.4f} bits per byte, "
          f"{total / (len(ids) - math.ceil(len(ids) / window)):.3f} bits a token")


@torch.no_grad()
def rounds(model, reference, ids, prompts, tokens):
    g, n = model.c["dspark_block_size"], 64
    starts = [i * (len(ids) - n) // prompts for i in range(prompts)]
    seq = torch.stack([torch.from_numpy(ids[s:s + n]) for s in starts])
    for _ in range(tokens + g + 1):
        seq = torch.cat([seq, model(seq)[0][:, -1].argmax(-1)[:, None]], 1)
    taps = model(seq)[1]
    places = torch.arange(n, n + tokens)
    drafts, z, _ = model.draft_greedy(taps, seq, places.expand(prompts, -1))
    drafts = drafts.view(prompts, tokens, g).numpy()
    text, emitted, count, accepted = seq.numpy(), 0, 0, np.zeros(g + 1, int)
    for i in range(prompts):
        at = n
        while at < n + tokens:
            same = drafts[i, at - n] == text[i, at + 1:at + 1 + g]
            k = g if same.all() else int(np.argmin(same))
            accepted[k] += 1
            emitted, count, at = emitted + k + 1, count + 1, at + k + 1
    if reference is not None:                                          # the first anchors of one prompt, through the oracle
        for at in range(n, n + 3):
            _, trace = reference.forward(text[0, :at])
            got = reference.draft(trace["taps"], int(text[0, at]))["tokens"]
            assert np.array_equal(got, drafts[0, at - n]), (got, drafts[0, at - n])
    print(f"speculative: {emitted} tokens in {count} rounds, {emitted / count:.3f} a round; rounds by accepted drafts "
          f"{accepted.tolist()}; {prompts} prompts of {n} tokens, {tokens} new ones each, block {g}")
    return text[:, n:n + tokens], text[:, :n]


def compressors(work):
    heldout, train = ((work / f"{k}.txt").read_bytes() for k in ("heldout", "train"))
    pack = {"xz -9": lambda b: lzma.compress(b, preset=9), "bzip2 -9": lambda b: bz2.compress(b, 9)}
    for name, f in pack.items():
        alone = 8 * len(f(heldout)) / len(heldout)
        primed = 8 * (len(f(train + heldout)) - len(f(train))) / len(heldout)
        print(f"{name}: {alone:.3f} bits per byte alone, {primed:.3f} behind the training text")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("model", type=pathlib.Path, nargs="?", default=HERE)
    p.add_argument("--oracle", default=HERE / "../../tests/golden")
    p.add_argument("--prompts", type=int, default=32)
    p.add_argument("--tokens", type=int, default=64)
    a = p.parse_args()
    sys.path.insert(0, str(a.oracle))
    import dsv41_oracle as oracle
    torch.set_num_threads(2)
    start = time.time()
    config, weights, token_map, _ = oracle.load(a.model)
    model, reference = Model(config, token_map).eval(), oracle.Model(config, weights, token_map)
    model.load_released(weights)
    tok = Tokenizer.from_file(str(a.model / "tokenizer.json"))
    text = (a.model / "heldout.txt").read_bytes()
    ids = np.array(tok.encode(text.decode(), add_special_tokens=False).ids, np.int64)
    bits_per_byte(model, reference, ids, len(text))
    new, old = rounds(model, reference, ids, a.prompts, a.tokens)
    for i in (0, a.prompts // 2):
        print(f"  ...{tok.decode(old[i].tolist())[-80:]!r} -> {tok.decode(new[i].tolist())!r}")
    compressors(a.work)
    print(f"{time.time() - start:.0f} seconds")


if __name__ == "__main__":
    main()
