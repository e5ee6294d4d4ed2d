# SPDX-License-Identifier: MIT
"""Quantises a float checkpoint and writes the released layout beside this script (or into --out).

    python export.py WORK_DIR BACKBONE.pt [DRAFT.pt] [--out FOLDER] [--oracle FOLDER]

Writes config.json, model.safetensors, tokenizer.json and heldout.txt. Without DRAFT.pt the draft stages are random.
"""
import argparse
import json
import pathlib
import shutil
import sys

import numpy as np
import torch

from model import Model
from train import HERE, architecture

ENGRAM_ORDER = ["embed.weight", "embed.scale", "q_weight", "k_weight", "wkv.weight", "wkv.scale"]
CLASSES = ["F32", "BF16", "F8_E8M0", "F8_E4M3", "I8"]


def order(item):
    """The release sorts by element type, then by name, and keeps each Engram module together behind everything else."""
    name, (dtype, _) = item
    if ".engram." in name:
        layer, part = name.split(".engram.")
        return 1, layer, ENGRAM_ORDER.index(part)
    return 0, CLASSES.index(dtype), name.encode()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("work", type=pathlib.Path)
    p.add_argument("backbone", type=pathlib.Path)
    p.add_argument("draft", type=pathlib.Path, nargs="?")
    p.add_argument("--out", type=pathlib.Path, default=HERE)
    p.add_argument("--oracle", default=HERE / "../../tests/golden")
    a = p.parse_args()
    c, token_map = architecture(a.work, a.oracle)
    sys.path.insert(0, str(a.oracle))
    import dsv41_oracle as oracle
    import random_checkpoint
    model = Model(c, token_map)
    for path in filter(None, (a.backbone, a.draft)):
        for name, w in torch.load(path)["weights"].items():
            model[name].data.copy_(w)
    released, stored = model.released(), {}
    expected = {name: shape for name, _, shape in random_checkpoint.tensors(c)}
    assert expected == {n: tuple(w.shape) for n, (_, w) in released.items()}
    for name, (kind, w) in released.items():
        stored.update({n: (t, x) for n, t, x in random_checkpoint.store(name, kind, w.numpy())})
    a.out.mkdir(parents=True, exist_ok=True)
    oracle.write_safetensors(a.out / "model.safetensors", dict(sorted(stored.items(), key=order)))
    config = json.loads((HERE / "config.json").read_text())
    config["text_config"] = c
    (a.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name in ("tokenizer.json", "heldout.txt"):
        shutil.copyfile(a.work / name, a.out / name)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "heldout.txt"):
        print(f"{name}: {(a.out / name).stat().st_size} bytes")
    # What was written is what the rounding in model.py says
    _, weights, _, _ = oracle.load(a.out)
    from quantisers import WEIGHT_ROUNDING
    for name, (kind, w) in released.items():
        assert np.array_equal(weights[name], WEIGHT_ROUNDING.get(kind, lambda x: x)(w).numpy()), name


if __name__ == "__main__":
    main()
