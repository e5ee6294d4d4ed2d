# SPDX-License-Identifier: MIT
"""The conformance kit: random checkpoints and what they must give at every seam. docs/conformance.md says how to use it.

    python make_golden.py [--out DIR] [CASE ...]      # all cases, or those whose names start so; DIR: ../../build/kit. Only a run
                                                      # that made them all leaves DIR/complete, without which the tests take it for no kit
    python make_golden.py --from FOLDER --out DIR     # seams.safetensors for a checkpoint folder with expected.safetensors (its tokens)
    python make_golden.py --search CASE               # the first seed that is clear of near-ties, continuation included
    python make_golden.py --short --out . CASE        # the folder in the form of the committed ones: expected.safetensors

A case of the kit is a folder: config.json, model.safetensors, tokenizer.json (Engram), covers.txt, seams.safetensors. Its values are those
of the float64 oracle, rounded to float32 where they are values and kept where they judge a decision; the float32 oracle runs beside
it, and its distance is stated as noise. Needs numpy, ml_dtypes, sympy, tokenizers.
"""
import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import struct
import tempfile

import numpy as np

import dsv41_oracle as oracle
import random_checkpoint
from cases import CASES, HANDED

HERE = pathlib.Path(__file__).parent
BASE = json.loads((HERE / "02-window-only" / "config.json").read_text())["text_config"]

# The rules of comparison, in every file. module, logits: relative norm. decision: how far apart, relative to the largest score of the
# row, two scores may lie for the other choice to be legitimate: two values, each right to `module`. excluded: the share of the rows of
# any one seam that may lie behind such choices and go uncompared.
LIMITS = {"module": 1e-5, "logits": 1e-4, "decision": 2e-5, "excluded": .5}
GREEDY = 24                                     # tokens of the continuation, fewer where one hangs on little:
GREEDY_MARGIN = 1e-3                            # one code in it that rounds the other way moves logits by so much
TIED_HEADS = 1e-6                               # two head rows that are equal to last bits lead each other by less
CLEAR_MARGIN, CLEAR_CODE = 2e-5, 4e-6           # of scores; of values to a rounding boundary, in units of the block's rms

# Every seam in forward order. What is missing in a layer is left out.
LAYER = ("engram_rows", "engram_gate", "engram_streams", "tap", "attn_collapsed", "attn_in", "attn_pre", "attn_post", "attn_mix",
         "attn.q", "attn.window_kv", "attn.entries", "attn.index_keys", "attn.index_q", "attn.index_scores", "attn.candidates", "attn.chosen",
         "attn_out", "attn_streams", "ffn_collapsed", "ffn_in", "ffn_pre", "ffn_post", "ffn_mix", "ffn.expert_scores", "ffn.expert_ids",
         "ffn.expert_weights", "ffn_out", "streams")
# What judges a decision, and what a code was rounded from.
JUDGE = {"expert_ids": "expert_biased", "chosen": "limited_scores", "candidates": "block_scores"}
CODES = ("window_kv", "entries", "index_keys", "index_q")
SHORT = ("attn_mix", "attn_in", "attn_out", "ffn_in", "ffn_out", ".streams", "window_kv", "entries", "index_keys", "index_scores", "chosen",
         "expert_ids", "expert_weights", "_margin", "engram_rows", "engram_gate", "taps")


class OtherOrder(oracle.Model):
    """Products summed 32 at a time, as a right implementation may."""

    def linear(self, x, name):
        if self.deployed and self.kinds[name + ".weight"] in ("F8_E4M3", "I8"):
            x = oracle.quantise_input(x)
        w = self.w[name + ".weight"]
        return self.round(sum(x[..., k:k + 32] @ w[:, k:k + 32].T for k in range(0, w.shape[1], 32)))


@dataclasses.dataclass
class Loaded:
    """A checkpoint folder and a prompt, and the oracle in its kinds."""
    config: dict
    weights: dict
    token_map: np.ndarray
    kinds: dict
    ids: np.ndarray
    image: np.ndarray = None

    @staticmethod
    def of(folder, ids, image=None):
        return Loaded(*oracle.load(folder), np.asarray(ids), image)

    def run(self, dtype, ids=None, kind=oracle.Model, deployed=False):
        ids = self.ids if ids is None else ids
        image = None if self.image is None else np.pad(self.image, (0, len(ids) - len(self.image)))
        return kind(self.config, self.weights, self.token_map, self.kinds, dtype, deployed).forward(ids, image)


def same_decisions(a, b):
    exact = ("expert_ids", "chosen", "engram_rows")
    return all(np.array_equal(a[k], b[k]) for k in a if k.endswith(exact)) and all(np.allclose(a[k], b[k], rtol=1e-4, atol=3e-5) for k in a if k.endswith(CODES))


def distance(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(b)
    return float(np.linalg.norm(a[finite] - b[finite]) / max(np.linalg.norm(b[finite]), 1e-300))


def kind_of(a):
    return "I64" if a.dtype.kind == "i" else "BOOL" if a.dtype.kind == "b" else "F32"


def typed(a):
    kind = kind_of(a)
    return kind, a.astype(oracle.STORED[kind])


def clear_rows(trace, config, codes=True):
    """[T]: whether nothing at a token hangs on a last bit: no choice except by an exact tie, no order of experts and, with `codes`, no code."""
    out = np.ones(len(trace["embeddings"]), bool)
    for name, x in trace.items():
        if name.endswith("_margin"):
            out &= (x == 0) | (x >= CLEAR_MARGIN)
        elif name.endswith("expert_biased"):
            best = -np.sort(-x, 1)[:, :config["num_experts_per_tok"]]
            out &= ~((best[:, :-1] > best[:, 1:]) & (best[:, :-1] < best[:, 1:] + CLEAR_MARGIN)).any(1)
        elif name.endswith("_nearness") and codes:
            ratio = config["compress_ratios"][int(name.split(".")[1])] if name.endswith(("entries_nearness", "index_keys_nearness")) else 1
            out[(np.nonzero(x < CLEAR_CODE)[0] + 1) * ratio - 1] = False
    return out


def greedy(model, ties):
    """(tokens [G], the float64 logits they were chosen by [G, V]): the continuation, cut before a token that hangs on little, by its own logits or
    by a decision at the token before. Whether it does is asked of float64, whose answer is the same everywhere. ties: a token may hang on
    which of two equal heads is taken."""
    ids, rows = list(model.ids), []
    for _ in range(GREEDY):
        logits, trace = model.run(np.float64, np.array(ids))
        rows.append(logits[-1])
        ids.append(int(np.argmax(rows[-1])))
    rows = np.stack(rows)
    size = np.abs(rows).max(1)
    lead, of_two = (np.array([oracle.margin(row, k) for row in rows]) / size for k in (1, 2))
    steady = lead > GREEDY_MARGIN
    if ties:                                                                         # two heads that are equal, or nearly
        steady |= (lead < TIED_HEADS) & (of_two > GREEDY_MARGIN)
    steady[1:] &= clear_rows(trace, model.config, codes=False)[len(model.ids):]      # the prompt's own near-ties the comparison sees
    count = GREEDY if steady.all() else int(np.argmin(steady))
    return np.array(ids[-GREEDY:][:count], np.int64), rows[:count]


def seams(config, logits, trace):
    """{name: array} of every seam of a run, in forward order."""
    out = {"embeddings": trace["embeddings"]}
    for layer, seam in itertools.product(range(config["num_hidden_layers"]), LAYER):
        name = f"layers.{layer}.{seam}"
        if name in trace:                       # of index scores, those that a layer behind candidates computes
            out[name] = trace[name.replace("index_scores", "limited_scores")]
    return {**out, "head_in": trace["head_in"], "logits": logits}


def schedule(c):
    """Who reads what. *_source: the layer whose entries, whose selection a layer reads, -1 for none; candidates: source (-1 for none), block."""
    ratios = c["compress_ratios"][:c["num_hidden_layers"]]

    def source(of):
        return [max((s for s in c[of] if s <= layer), default=-1) if ratio else -1 for layer, ratio in enumerate(ratios)]
    candidates = c.get("candidate_source_layer_id")
    if candidates is None:
        candidates = max(c["kv_source_layer_ids"], default=-1)
    return {"ratios": ratios, "kv_source": source("kv_source_layer_ids"), "index_source": source("index_source_layer_ids"),
            "window": [c["sliding_window"]], "candidates": [candidates, c["candidate_block_size"]]}


def kit_file(model, ties=False):
    """{name: (safetensors dtype, array)} of a whole seams.safetensors."""
    (narrow, single), (logits, wide) = model.run(np.float32), model.run(np.float64)
    others = seams(model.config, narrow, single)
    out = {"prompt.tokens": ("I64", model.ids.astype(np.int64))}
    if model.image is not None:
        out["prompt.image"] = ("BOOL", np.asarray(model.image, bool))
    out.update({"schedule." + k: ("I64", np.array(v, np.int64)) for k, v in schedule(model.config).items()})
    out.update({"limits." + k: ("F64", np.array([v])) for k, v in LIMITS.items()})

    for name, value in seams(model.config, logits, wide).items():
        other, (place, _, last) = others[name], name.rpartition(".")
        out[name] = typed(value)
        noise = distance(other, value) if kind_of(value) == "F32" else float(np.sum(value != other))
        out["noise." + name] = ("F64", np.array([noise]))
        judge = logits if name == "logits" else wide[f"{place}.{JUDGE[last]}"] if last in JUDGE else None
        if last in CODES and not np.array_equal(value, wide[name + "_before"]):
            judge = wide[name + "_before"]
        if judge is not None:
            out["judge." + name] = ("F64", judge.astype(np.float64))
    tokens, rows = greedy(model, ties)
    out["greedy"], out["judge.greedy"] = ("I64", tokens), ("F64", rows)
    return out


def clear(model):
    (_, single), (_, wide) = model.run(np.float32), model.run(np.float64)
    return bool(clear_rows(wide, model.config).all()) and same_decisions(single, wide)


def checkpoint(out, case, seed):
    ids = random_checkpoint.write(out, {**BASE, **case.changes}, seed, case.length, case.how, case.edit)
    return Loaded.of(out, ids, np.isin(np.arange(case.length), list(case.image)) if len(case.image) else None)


def write_short(out, model, released):
    """expected.safetensors of the committed folders: float32 values and, with released storage, class `deployed`, whose logits are kept
    only where three summation orders agree to 1e-3 (bfloat16 rounding flips decisions easily)."""
    logits, trace = model.run(np.float32)
    expected = {"tokens": ("I64", model.ids.astype(np.int64)), "logits": ("F32", logits)}
    if model.image is not None:
        expected["image"] = ("BOOL", model.image)
    expected.update({"trace." + k: typed(a) for k, a in trace.items() if k.endswith(SHORT)})
    if released:
        orders = [(oracle.Model, np.float32), (oracle.Model, np.float64), (OtherOrder, np.float32)]
        runs = [model.run(t, kind=kind, deployed=True) for kind, t in orders]
        narrow, inner = runs[0]
        expected.update({"deployed." + k: ("F32", a) for k, a in inner.items() if k.endswith(("attn_in", "attn_out", "ffn_in", "ffn_out"))})
        if all(np.linalg.norm(narrow - r[0]) < 1e-3 * np.linalg.norm(narrow) for r in runs):
            expected["deployed.logits"] = ("F32", narrow)
    oracle.write_safetensors(out / "expected.safetensors", expected)


def write_seams(out, model, ties=False):
    values = kit_file(model, ties)
    out.mkdir(parents=True, exist_ok=True)
    oracle.write_safetensors(out / "seams.safetensors", values)
    noise = max(float(v[1][0]) for k, v in values.items() if k.startswith("noise.") and values[k[6:]][0] == "F32")
    flips = sum(int(v[1][0]) for k, v in values.items() if k.startswith("noise.") and values[k[6:]][0] != "F32")
    return f"{out.name}: {len(model.ids)} tokens and {values['greedy'][1].size} greedy ones, noise {noise:.1e}" + (f", {flips} values of decisions differ" if flips else "")


def from_folder(folder, out):
    """The seams of a checkpoint whose expected.safetensors holds the prompt."""
    stored = oracle.read_safetensors(folder / "expected.safetensors")
    if "tokens" not in stored:
        raise ValueError(f"{folder / 'expected.safetensors'} has no tokens")
    return write_seams(out, Loaded.of(folder, stored["tokens"][1], stored["image"][1] if "image" in stored else None))


def make(name, out, short):
    folder = out / name
    if name in HANDED:
        if short:
            raise SystemExit(f"{name} was handed to this project and stays as it is")
        folder.mkdir(parents=True, exist_ok=True)
        for file in ("config.json", "model.safetensors", "tokenizer.json"):
            if (HERE / name / file).exists():
                shutil.copyfile(HERE / name / file, folder / file)
        (folder / "covers.txt").write_text(HANDED[name] + "\n")
        return from_folder(HERE / name, folder)
    case = CASES[name]
    model = checkpoint(folder, case, case.seed)
    if short:
        write_short(folder, model, case.how == "released")
        return f"{name}: short form"
    (folder / "covers.txt").write_text(case.covers + "\n")
    return write_seams(folder, model, case.ties)


def search(name):
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(10000):
            model = checkpoint(folder, case, seed)
            if clear(model) and len(greedy(model, False)[0]) == GREEDY:
                return seed
    raise SystemExit(f"{name}: no clear seed")


def chosen(words, every):
    """The cases whose names start with one of these words; all without any."""
    for word in words:
        if not any(n.startswith(word) for n in every):
            raise SystemExit(f"no case {word}; there are: {' '.join(every)}")
    return [n for n in every if not words or n.startswith(tuple(words))]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cases", nargs="*", metavar="CASE")
    p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--from", dest="folder", type=pathlib.Path)
    p.add_argument("--search", action="store_true")
    p.add_argument("--short", action="store_true")
    a = p.parse_args()
    if a.folder and (a.out is None or a.cases or a.search or a.short):
        p.error("--from takes --out DIR and nothing else")
    every = sorted([*HANDED, *CASES])
    names, out = chosen(a.cases, every), a.out or HERE / "../../build/kit"
    try:
        if a.folder:
            print(from_folder(a.folder, out))
        elif a.search:
            for name in names:
                print(f"{name}: seed {search(name)}", flush=True)
        else:
            make_all(names, out, a.short, names == every)
    except KeyError as e:
        raise SystemExit(f"make_golden.py: {a.folder or out} has no {e.args[0]}") from None
    except (OSError, ValueError, struct.error) as e:
        raise SystemExit(f"make_golden.py: {e}") from None


def make_all(names, out, short, whole):
    out.mkdir(parents=True, exist_ok=True)
    if not short:
        (out / "complete").unlink(missing_ok=True)          # a kit cut short is no kit
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        for line in pool.map(make, names, itertools.repeat(out), itertools.repeat(short)):
            print(line, flush=True)
    if whole and not short:
        (out / "complete").write_text("".join(f"{n}\n" for n in names))


if __name__ == "__main__":
    main()
