# SPDX-License-Identifier: MIT
"""Trains the backbone of the demo checkpoint and writes a float checkpoint.

    python train.py WORK_DIR OUT.pt [--minutes 55] [--steps 4000] [--seed 1] [--oracle FOLDER]
                    [--resume PREVIOUS.pt --from 0.6] [--dropout .08] [--engram-dropout .15]

WORK_DIR comes from prepare.py. The schedule runs over --steps or --minutes, whichever passes sooner, so that the learning rate
always reaches its end. Prints the validation loss as it goes, at last the time and the kind of machine.
"""
import argparse
import json
import math
import os
import pathlib
import platform
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

from model import Model, engram_primes, engram_rows

HERE = pathlib.Path(__file__).resolve().parent


def architecture(work, oracle_folder):
    """config.json's text part with the numbers that follow from the tokenizer, and the token map."""
    sys.path.insert(0, str(oracle_folder))
    import dsv41_oracle as oracle
    c = json.loads((HERE / "config.json").read_text())["text_config"]
    token_map = oracle.compressed_token_map(work / "tokenizer.json", c["vocab_size"])
    assert len(token_map) == c["vocab_size"]
    c["engram_compressed_vocab_size"] = int(token_map.max()) + 1
    c["engram_num_embeddings"] = [sum(map(sum, layer)) for layer in engram_primes(c)]
    return c, token_map


class Muon(torch.optim.Optimizer):
    """Momentum whose update of each matrix (or stack of matrices) is brought near to orthogonal by Newton-Schulz steps."""

    def __init__(self, params, lr, momentum=.95, weight_decay=.1):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                m = self.state[p].setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(m, group["momentum"]).bfloat16()
                tall = x.shape[-2] > x.shape[-1]
                x = (x.mT if tall else x).contiguous()
                x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
                for _ in range(5):
                    a = x @ x.mT
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
                x = x.mT if tall else x
                # .2 sqrt(larger side) gives every entry of the update the size of an Adam step
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(x, alpha=-group["lr"] * .2 * max(p.shape[-2:])**.5)


def optimizers(model, names, lr):
    """Muon for hidden matrices; Adam for embeddings, heads, tables, and everything small."""
    muon, adam, streams = [], [], []
    for name in names:
        p = model[name]
        if not p.requires_grad:
            continue
        if ".hc_" in name:
            streams.append(p)
        elif model.kind[name] in ("fp8", "fp4") or name.endswith(("compressor.wkv.weight", "wgate.weight")):
            muon.append(p)
        else:
            adam.append(p)
    return [Muon(muon, lr), torch.optim.AdamW([{"params": adam, "lr": lr}, {"params": streams, "lr": lr / 4}],
                                               betas=(.9, .95), eps=1e-10, weight_decay=.01, fused=True)]


class HeadLoss(torch.autograd.Function):
    """Mean cross-entropy of F.linear(x, w) against targets, a few rows at a time so that the logits stay in cache."""

    @staticmethod
    def forward(ctx, x, w, targets, rows=512):
        x, w = x.bfloat16(), w.bfloat16()
        total, gx, gw = 0., torch.empty_like(x), torch.zeros(w.shape)
        for at in range(0, len(x), rows):
            part, want = x[at:at + rows], targets[at:at + rows, None]
            logits = F.linear(part, w).float()
            logits -= torch.logsumexp(logits, -1, keepdim=True)
            total -= logits.gather(1, want).sum()
            g = logits.exp_().scatter_add_(1, want, torch.full(want.shape, -1.)).bfloat16()
            gx[at:at + rows] = g @ w
            gw += g.T @ part
        ctx.save_for_backward(gx.float() / len(x), gw / len(x))
        return total / len(x)

    @staticmethod
    def backward(ctx, g):
        gx, gw = ctx.saved_tensors
        return g * gx, g * gw, None, None


@torch.no_grad()
def evaluate(model, ids, length):
    """Mean loss in nats a token over windows of `length`, each starting anew."""
    model.eval()
    total = count = 0
    for at in range(0, len(ids) - 1, length):
        x = torch.from_numpy(ids[at:at + length].astype(np.int64))[None]
        if x.shape[1] < 2:
            continue
        logits, _ = model(x)
        total += F.cross_entropy(logits[0, :-1].float(), x[0, 1:], reduction="sum").item()
        count += x.shape[1] - 1
    model.train()
    return total / count


def schedule(fraction, warm=.02, decay=.35):
    """Rate factor at this fraction of the training: warm-up, flat, then linear to 2 %."""
    return min(1, fraction / warm + .01, max(.02, (1 - fraction) / decay))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--minutes", type=float, default=55)
    p.add_argument("--steps", type=int, default=4000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--rate", type=float, default=4e-3)
    p.add_argument("--tokens", type=int, default=4096, help="tokens a step")
    p.add_argument("--resume", type=pathlib.Path, help="weights to go on from")
    p.add_argument("--from", type=float, default=0., dest="first", help="with --resume: the fraction of the schedule to begin at")
    p.add_argument("--dropout", type=float, default=.08, help="of what sublayers add to the streams")
    p.add_argument("--engram-dropout", type=float, default=.15, help="of Engram rows")
    p.add_argument("--oracle", default=HERE / "../../tests/golden")
    a = p.parse_args()
    torch.manual_seed(a.seed)
    torch.set_num_threads(2)
    rng = np.random.default_rng(a.seed)
    c, token_map = architecture(a.work, a.oracle)
    train, validation = (np.load(a.work / f"{k}.npy") for k in ("train", "validation"))
    model = Model(c, token_map, a.seed).train()
    model.fast, model.exact, model.engram_dropout, model.dropout = True, False, a.engram_dropout, a.dropout
    if a.resume:
        for name, w in torch.load(a.resume)["weights"].items():
            model[name].data.copy_(w)
    names = [n for n in model.kind if not n.startswith("mtp.")]
    optim = optimizers(model, names, a.rate)
    rates = [[g["lr"] for g in o.param_groups] for o in optim]
    print(f"{sum(model[n].numel() for n in names) / 1e6:.2f}M parameters", flush=True)
    start, fraction, running, step, seen, saved = time.time(), 0., None, 0, 0, time.time()
    while fraction < 1:
        minutes = (time.time() - start) / 60
        fraction = a.first + (1 - a.first) * max(step / a.steps, minutes / a.minutes)
        # Indices are learned densely at first, then the selection acts; contexts grow towards the end.
        length = 512 if fraction > .85 else 384 if fraction > .5 else 256
        model.quantised = {"fp4", "fp8", "table"} if fraction > .3 else set()
        batch = max(1, (a.tokens if fraction > .3 else a.tokens // 2) // length)
        at = rng.integers(0, len(train) - length - 1, batch)
        x = np.stack([train[i:i + length + 1] for i in at]).astype(np.int64)
        ids = torch.from_numpy(x)
        rows = engram_rows(c, token_map, x[:, :-1])
        model.index_training = step % 3 == 0
        hidden, _ = model(ids[:, :-1], rows, sparse=fraction > .08, head=False)
        loss = HeadLoss.apply(hidden.flatten(0, 1), model.w("head.weight"), ids[:, 1:].flatten())
        (loss + .1 * model.index_loss).backward()
        index = model.index_loss.item() if model.index_training else index
        factor = schedule(fraction) * min(1, (step + 1) / 20)           # fresh optimizer states, resumed or not
        for o, base in zip(optim, rates):
            for group, lr in zip(o.param_groups, base):
                group["lr"] = lr * factor
            o.step()
        for n in names:
            model[n].grad = None
        with torch.no_grad():
            for prefix, load in model.loads.items():
                model[prefix + "gate.bias"].add_(torch.sign(load.float().mean() - load), alpha=3e-3 * factor)
        running = loss.item() if running is None else .95 * running + .05 * loss.item()
        if not math.isfinite(running):
            raise SystemExit("the loss is not finite")
        step, seen = step + 1, seen + ids[:, 1:].numel()
        if step in (5, 20) or step % 50 == 0:
            spread = max(float(load.max() / load.float().mean()) for load in model.loads.values())
            speed = seen / (time.time() - start)
            print(f"step {step} {minutes:.1f} min {fraction:.3f} loss {running:.3f} index {index:.3f} "
                  f"load {spread:.2f} {speed:.0f} tokens/s", flush=True)
        if step % 200 == 0 or fraction >= 1:
            kept, model.quantised = model.quantised, {"fp4", "fp8", "table", "bf16"}
            part = validation if fraction >= 1 else validation[:8192]
            print("  validation " + " ".join(f"{n}: {evaluate(model, part, n):.4f}" for n in (256, 2048)), flush=True)
            model.quantised = kept
        if time.time() - saved > 240 or fraction >= 1:
            torch.save({"config": c, "weights": {n: model[n].detach() for n in names}, "step": step}, a.out)
            saved = time.time()
    print(f"{step} steps, {seen / 1e6:.2f}M tokens in {(time.time() - start) / 60:.1f} minutes "
          f"on {os.cpu_count()} cores, {platform.machine()}, seed {a.seed}")


if __name__ == "__main__":
    main()
