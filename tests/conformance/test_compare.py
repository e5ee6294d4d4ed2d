# SPDX-License-Identifier: MIT
"""tests/golden/compare.py: what must fail does, what is legitimate passes; this library's values conform, and so do those of a numpy engine
that sums in another order.

    python test_compare.py KIT KIT_VALUES_PROGRAM WORK_DIR
"""
import pathlib
import subprocess
import sys

import numpy as np

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
sys.path.insert(0, str(GOLDEN))
sys.dont_write_bytecode = True
import compare  # noqa: E402
import dsv41_oracle as oracle  # noqa: E402
import make_golden  # noqa: E402

inf, nan = np.inf, np.nan
# Four tokens, one layer of ratio 2, three experts, a vocabulary of three: the case of test_seam_comparison.cpp.
SMALL = {
    "prompt.tokens": np.array([0, 1, 2, 0]), "schedule.ratios": np.array([2]),
    "limits.module": np.array([1e-5]), "limits.logits": np.array([1e-4]),
    "limits.decision": np.array([2e-5]), "limits.excluded": np.array([.6]),
    "layers.0.attn.entries": np.array([[1, 2], [3, 4]], np.float32),
    "judge.layers.0.attn.entries": np.array([[1.2, 2], [3, 3.50001]]),
    "layers.0.attn.chosen": np.array([[0, 0], [1, 0], [1, 0], [0, 1]], bool),
    "judge.layers.0.attn.chosen": np.array([[-inf, -inf], [1, -inf], [1, -inf], [1, 1.00001]]),
    "layers.0.ffn.expert_ids": np.array([[0, 1], [1, 2], [2, 0], [0, 1]]),
    "judge.layers.0.ffn.expert_ids": np.array([[3, 2, 1], [1, 3, 2], [2, 1, 3], [3, 2, 2]], float),
    "layers.0.ffn_out": np.array([[1], [2], [3], [4]], np.float32),
    "logits": np.array([[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 2, 2]], np.float32),
    "judge.logits": np.array([[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 2, 2]], float),
    "greedy": np.array([1, 2]), "judge.greedy": np.array([[0, 2, 2], [0, 1.99999, 2]]),
}
OTHER = [[0, 0], [1, 0], [1, 0], [1, 0]]           # the near-tie of the last row, the other way

# (what is given instead, what the first fault says; "": conforms)
VERDICTS = [
    ({}, ""),
    ({"layers.0.ffn_out": [[1], [2], [3], [4.00001]]}, ""),
    ({"layers.0.ffn_out": [[1], [2], [3], [4.001]]}, "layers.0.ffn_out is off"),
    ({"logits": [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 2.01, 2]]}, "logits is off"),
    ({"layers.0.ffn_out": None}, "layers.0.ffn_out is missing"),
    ({"layers.0.ffn_out": [[1], [2], [3], [nan]]}, "layers.0.ffn_out holds NaN"),
    ({"layers.0.ffn_out": [[1], [2], [3], [inf]]}, "layers.0.ffn_out is off"),
    ({"layers.0.ffn_out": [[1], [2], [3]]}, "layers.0.ffn_out has shape"),
    ({"layers.0.fnn_out": [[1]]}, "layers.0.fnn_out is no seam"),
    ({"layers.0.ffn.expert_ids": [[1, 0], [1, 2], [2, 0], [0, 1]]}, "layers.0.ffn.expert_ids decides wrongly"),
    ({"layers.0.ffn.expert_ids": [[0, 0], [1, 2], [2, 0], [0, 1]]}, "layers.0.ffn.expert_ids decides wrongly"),
    ({"layers.0.ffn.expert_ids": [[0, 7], [1, 2], [2, 0], [0, 1]]}, "layers.0.ffn.expert_ids decides wrongly"),
    ({"layers.0.ffn.expert_ids": [[0, 1], [1, 2], [2, 0], [0, 2]]}, "layers.0.ffn.expert_ids decides wrongly"),       # an exact tie
    ({"layers.0.attn.chosen": [[0, 0], [1, 0], [0, 1], [0, 1]]}, "layers.0.attn.chosen decides wrongly"),             # invisible
    ({"layers.0.attn.chosen": [[0, 0], [1, 0], [1, 0], [1, 1]]}, "layers.0.attn.chosen decides wrongly"),             # one more
    ({"logits": [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 2, 2.00001]]}, "logits has its largest value elsewhere"),       # an exact tie
    ({"greedy": [0, 2]}, "greedy differs at token 0"),
    ({"greedy": [2, 2]}, "greedy differs at token 0"),                                                                # an exact tie
    ({"greedy": [1, 1]}, ""),                                                                                         # a near-tie
    ({"greedy": [1, 0]}, "greedy differs at token 1"),
    ({"layers.0.attn.chosen": OTHER, "layers.0.ffn_out": [[1], [2], [3], [9]], "greedy": [0, 0]}, ""),
    ({"layers.0.attn.chosen": OTHER, "layers.0.ffn_out": [[1], [2], [9], [4]]}, "layers.0.ffn_out is off"),
    ({"layers.0.attn.entries": [[1, 2], [3, 3]], "layers.0.ffn_out": [[1], [2], [3], [9]]}, ""),
    ({"layers.0.attn.entries": [[2, 2], [3, 4]]}, "layers.0.attn.entries is off"),
    ({"limits.excluded": [.2], "layers.0.attn.chosen": OTHER, "greedy": [0, 0]}, "all "),
]


def verdicts():
    for instead, says in VERDICTS:
        expected = {**SMALL, **{k: np.array(v) for k, v in instead.items() if k.startswith("limits.")}}
        actual = {k: v for k, v in SMALL.items() if not k.startswith(compare.BESIDE)}
        actual |= {k: None if v is None else np.array(v) for k, v in instead.items() if not k.startswith("limits.")}
        c = compare.Comparison(expected, {k: v for k, v in actual.items() if v is not None})
        first = f"{c.faults[0].name} {c.faults[0].fault}" if c.faults else ""
        assert first.startswith(says) and bool(first) == bool(says), (instead, says, first)
    print(f"{len(VERDICTS)} verdicts as they should be")


def run(*files):
    return subprocess.run([sys.executable, GOLDEN / "compare.py", *files], capture_output=True, text=True)


def own_values(kit, program, work):
    """kit_values conforms in one call, in chunks and token by token; spoiled, it does not."""
    for case in ("01-all-mechanisms", "06-two-streams-sigmoid", "23-exact-ties", "24-near-tie-experts", "27-past-every-pool"):
        files = []
        for chunk in ("0", "3", "1"):
            files.append(work / f"values-{chunk}.safetensors")
            subprocess.run([program, kit / case, files[-1], "--chunk", chunk], check=True)
        done = run(kit / case, *files)
        print(done.stdout, end="")
        assert done.returncode == 0, done.stdout + done.stderr

    good = oracle.read_safetensors(files[0])

    def spoiled(name, change):
        kind, values = good[name]
        return {**good, name: (kind, change(values.copy()))}

    def nan_at(a):
        a.reshape(-1)[0] = nan
        return a

    spoils = {"layers.1.ffn_out": lambda a: a * np.float32(1.0001), "layers.0.ffn.expert_ids": lambda a: a[:, ::-1],
              "layers.0.attn.chosen": lambda a: ~a, "head_in": nan_at, "greedy": lambda a: a + 1}
    for name, change in spoils.items():
        path = work / "spoiled.safetensors"
        oracle.write_safetensors(path, spoiled(name, change))
        done = run(kit / case, path)
        assert done.returncode == 1 and f"\n  {name} " in done.stdout, (name, done.stdout)
    oracle.write_safetensors(path, {k: v for k, v in good.items() if k != "embeddings"})
    assert run(kit / case, path).returncode == 1 and run(kit / case, path, "--partial").returncode == 0
    assert run(kit / case, work / "none.safetensors").returncode == 2
    print(f"{len(spoils) + 2} spoiled files found out")


def other_engine(kit):
    """The float32 oracle summing 32 products at a time: right, and with other last bits."""
    for name in (kit / "complete").read_text().split():
        expected = compare.read(kit / name / "seams.safetensors")
        model = make_golden.Loaded.of(kit / name, expected["prompt.tokens"], expected.get("prompt.image"))
        actual = make_golden.seams(model.config, *model.run(np.float32, kind=make_golden.OtherOrder))
        c = compare.Comparison(expected, actual, partial=True)      # no continuation
        compare.report(name, c, False)
        assert not c.faults


if __name__ == "__main__":
    kit, program, work = map(pathlib.Path, sys.argv[1:])
    verdicts()
    own_values(kit, program, work)
    other_engine(kit)
