# SPDX-License-Identifier: MIT
"""Writes a random checkpoint of mid.json in the released layout: config.json and model.safetensors (0.9 GB, some ten seconds).

    python make_mid.py OUT [--experts N]      # N: routed experts a layer, for a smaller one

Matrices are random codes, not quantised random floats: each code is drawn as often as the quantised normal distribution has it, and the
scales make their size what golden/random_checkpoint.py gives a tensor of that name; small tensors are drawn there. No code is NaN. No
layer of the config hashes tokens, so there is no tokenizer. Needs numpy and ml_dtypes (golden/requirements.txt).
"""
import argparse
import json
import pathlib
import statistics
import sys

import ml_dtypes
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
import dsv41_oracle as oracle  # noqa: E402
import random_checkpoint  # noqa: E402

CODE_SIZE = {"fp8": 64, "fp4": 1.5}             # of the codes' values: as large as lets almost none clip, at 448 and 6


class Codes:
    """Codes of a normal distribution of standard deviation 1 (bf16) or CODE_SIZE, by inverse distribution function."""

    def __init__(self):
        normal = statistics.NormalDist()
        fine = np.array([normal.inv_cdf((i + .5) / 65536) for i in range(65536)], np.float32)
        coarse = np.array([normal.inv_cdf((i + .5) / 256) for i in range(256)], np.float32)
        self.normal = fine
        self.fp8 = np.clip(fine * CODE_SIZE["fp8"], -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        nibble = np.clip(coarse * CODE_SIZE["fp4"], -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
        self.fp4 = (nibble[:, None] << 4 | nibble[None]).reshape(-1)

    def matrix(self, name, kind, shape, size, rng):
        """[(name, safetensors dtype, array)] of a matrix of standard deviation `size`; to a factor of two where it has scales."""
        rows, cols = shape
        if kind == "bf16":
            table = (self.normal * np.float32(size)).astype(ml_dtypes.bfloat16).view(np.uint16)
            return [(name, "BF16", table[self.draw(rows, cols, rng)])]
        codes = getattr(self, kind)[self.draw(rows, cols // 2 if kind == "fp4" else cols, rng)]
        blocks = (-(-rows // 32) if kind == "fp8" else rows, -(-cols // 32))
        scales = 127 + round(np.log2(size / CODE_SIZE[kind])) - rng.integers(0, 2, blocks)
        return [(name, {"fp8": "F8_E4M3", "fp4": "I8"}[kind], codes),
                (name.removesuffix("weight") + "scale", "F8_E8M0", scales.astype(np.uint8))]

    @staticmethod
    def draw(rows, cols, rng):
        return np.frombuffer(rng.bytes(2 * rows * cols), np.uint16).reshape(rows, cols)


def stored(c, rng):
    """(name, safetensors dtype, array) of every tensor."""
    codes = Codes()
    for name, kind, shape in random_checkpoint.tensors(c):
        if len(shape) == 1 or kind == "f32":
            yield from random_checkpoint.store(name, kind, random_checkpoint.draw(name, shape, rng))
        else:
            size = float(random_checkpoint.draw(name, (8, shape[1]), rng).std())
            yield from codes.matrix(name, kind, shape, size, rng)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--experts", type=int)
    args = parser.parse_args()
    config = json.loads((HERE / "mid.json").read_text())
    if args.experts is not None:
        config["n_routed_experts"] = args.experts
    args.out.mkdir(parents=True, exist_ok=True)
    tensors = stored(config, np.random.Generator(np.random.SFC64(1)))
    oracle.write_safetensors(args.out / "model.safetensors", {name: (dtype, array) for name, dtype, array in tensors})
    root = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "text_config": config}
    (args.out / "config.json").write_text(json.dumps(root, indent=2) + "\n")


if __name__ == "__main__":
    main()
