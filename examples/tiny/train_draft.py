# SPDX-License-Identifier: MIT
"""Trains the draft stages on the frozen, quantised backbone and writes their float weights.

    python train_draft.py WORK_DIR MODEL_DIR OUT.pt [--minutes 12] [--seed 1] [--init DRAFT.pt] [--own MINUTES] [--oracle FOLDER]

MODEL_DIR is an exported folder (see export.py); its draft stages are ignored. Each step runs the backbone over text, picks
anchors anywhere in it, drafts a block behind each from the taps before it, and pulls the draft's distribution at each depth k
towards the target's own at that place, weighted exp(-(k-1)/block). The previous token of the Markov head is the text's. The
confidence head learns the overlap sum(min(p, q)) of the two distributions, which is the chance that a sampled draft is accepted.
"""
import argparse
import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

from model import Model
from train import HERE, optimizers, schedule


def block_losses(model, logits, taps, ids, at):
    """Per depth: cross-entropy to the target's distribution, overlap, agreement of the two argmaxes; and the confidence loss."""
    g = model.c["dspark_block_size"]
    base, hidden = model.draft(taps, ids, at)
    place = at[..., None] + torch.arange(g)                            # row k sits here and predicts the next token
    pick = lambda a: a.gather(1, place.flatten(1)).view(-1, g)
    e, bias = model.markov(pick(ids))
    logq = torch.log_softmax(base + bias, -1)
    B, T, V = logits.shape
    p = torch.softmax(logits.reshape(B * T, V)[(place + T * torch.arange(B)[:, None, None]).flatten()], -1).view(-1, g, V)
    cross = -(p * logq).sum(-1)
    with torch.no_grad():
        overlap = torch.minimum(p, logq.exp()).sum(-1)
        agree = (p.argmax(-1) == logq.argmax(-1)).float()
    z = model.confidence(hidden.detach(), e.detach())
    return cross, overlap, agree, F.binary_cross_entropy_with_logits(z, overlap)


@torch.no_grad()
def own_text(model, train, rng, batch=128, prompt=48, new=144):
    """Greedy continuations [batch, prompt + new] of random pieces of the text, written by speculative decoding with the drafts so far."""
    g, total = model.c["dspark_block_size"], prompt + new
    starts = rng.integers(0, len(train) - prompt, batch)
    seq = torch.zeros(batch, total + g + 1, dtype=torch.int64)
    seq[:, :prompt] = torch.from_numpy(np.stack([train[i:i + prompt] for i in starts]).astype(np.int64))
    known = torch.full((batch,), prompt)                               # tokens that are final; drafts follow them
    while int(known.min()) < total:
        width = min(total, int(known.max())) + g
        logits, taps = model(seq[:, :width])
        best = logits.argmax(-1)                                       # best[t] should stand at t + 1
        for b in range(batch):
            k = int(known[b])
            while k < min(total, int(known[b]) + g) and seq[b, k] == best[b, k - 1]:
                k += 1
            if k < total:
                seq[b, k] = best[b, k - 1]
                k += 1
            known[b] = k
        drafts = model.draft_greedy(taps, seq[:, :width], (known - 1).clamp(max=width - 1)[:, None])[0]
        for b in range(batch):
            k = int(known[b])
            if k < total:
                seq[b, k:k + g] = drafts[b]
    return seq[:, :total]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("model", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--minutes", type=float, default=12)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rate", type=float, default=4e-3)
    p.add_argument("--batch", type=int, default=6)
    p.add_argument("--anchors", type=int, default=48)
    p.add_argument("--init", type=pathlib.Path, help="go on from these draft weights, say those of an earlier backbone")
    p.add_argument("--own", type=float, default=0., metavar="MINUTES",
                   help="first let the model write greedily for so long, with the --init drafts, then train on that text half of the time")
    p.add_argument("--oracle", default=HERE / "../../tests/golden")
    a = p.parse_args()
    sys.path.insert(0, str(a.oracle))
    import dsv41_oracle as oracle
    torch.manual_seed(a.seed)
    torch.set_num_threads(2)
    rng = np.random.default_rng(a.seed)
    c, weights, token_map, _ = oracle.load(a.model)
    model = Model(c, token_map, a.seed)
    fresh = {n: model[n].detach().clone() for n in model.kind if n.startswith("mtp.")}
    model.load_released(weights)                                       # the backbone as quantised
    if a.init:
        fresh = torch.load(a.init)["weights"]
    for n, w in fresh.items():
        model[n].data.copy_(w)
    model.eval()                                                       # no dropout
    model.fast, model.exact = True, False
    names = list(fresh)
    optim = optimizers(model, names, a.rate)
    rates = [[group["lr"] for group in o.param_groups] for o in optim]
    for n in model.kind:
        model[n].requires_grad_(n in fresh and not n.endswith("gate.bias"))
    train, length, g = np.load(a.work / "train.npy"), 256, c["dspark_block_size"]
    weight = torch.exp(-torch.arange(g) / g)
    written, start = [], time.time()
    while time.time() - start < 60 * a.own:
        written.append(own_text(model, train, rng))
        print(f"{sum(x.numel() for x in written)} tokens of own text, {(time.time() - start) / 60:.1f} min", flush=True)
        torch.save(written, a.out.with_suffix(".own.pt"))
    written = torch.cat(written) if written else None
    start, fraction, step, mean = time.time(), 0., 0, None
    while fraction < 1:
        fraction = (time.time() - start) / 60 / a.minutes
        if written is not None and step % 2:
            ids, first = written[torch.from_numpy(rng.choice(len(written), a.batch, False))], 32
        else:
            at = rng.integers(0, len(train) - length, a.batch)
            ids, first = torch.from_numpy(np.stack([train[i:i + length] for i in at]).astype(np.int64)), 1
        model.quantised = set()
        with torch.no_grad():
            logits, taps = model(ids)
        anchors = torch.from_numpy(np.stack([rng.choice(ids.shape[1] - g - first, a.anchors, False) + first for _ in ids]))
        model.quantised = {"fp4", "fp8"}
        cross, overlap, agree, confidence = block_losses(model, logits, taps, ids, anchors)
        ((cross.mean(0) * weight).sum() / weight.sum() + .2 * confidence).backward()
        factor = schedule(fraction)
        for o, base in zip(optim, rates):
            for group, lr in zip(o.param_groups, base):
                group["lr"] = lr * factor
            o.step()
        with torch.no_grad():
            for prefix, load in model.loads.items():
                if prefix.startswith("mtp."):
                    model[prefix + "gate.bias"].add_(torch.sign(load.float().mean() - load), alpha=3e-3 * factor)
        for n in names:
            model[n].grad = None
        now = torch.stack([cross.mean(0), overlap.mean(0), agree.mean(0)]).detach()
        mean = now if mean is None else .9 * mean + .1 * now
        step += 1
        if step % 20 == 0 or fraction >= 1:
            row = lambda v: " ".join(f"{x:.3f}" for x in v)
            print(f"step {step} {fraction * a.minutes:.1f} min; by depth: loss {row(mean[0])}, overlap {row(mean[1])}, "
                  f"same argmax {row(mean[2])}; confidence {confidence.item():.3f}", flush=True)
        if step % 100 == 0 or fraction >= 1:
            torch.save({"weights": {n: model[n].detach() for n in names}}, a.out)
    print(f"{step} steps of {a.batch} sequences of {length} tokens, {a.anchors} anchors each, {(time.time() - start) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
