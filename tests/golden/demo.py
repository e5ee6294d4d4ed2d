# SPDX-License-Identifier: MIT
"""The demo checkpoint against the oracle: eight prompts, 64 greedy tokens each.

    python demo.py make                      # writes demo/expected.safetensors from the oracle alone
    python demo.py check ../../build/generate  # runs the program on the same prompts: every token, all logits

`make` takes the first eight passages of examples/tiny/heldout.txt whose run is steady: float32 and float64 decide alike and end within
1e-5, so that no expected value hangs on a last bit (a cache code that rounds the other way moves logits by 1e-3). It stores, per prompt
i, prompt.i and tokens.i (the greedy continuation) and logits.i of the last STORED positions. Needs numpy, ml_dtypes, sympy, tokenizers.
"""
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import dsv41_oracle as oracle
import make_golden

HERE = pathlib.Path(__file__).parent
DEMO = HERE / "../../examples/tiny"
PROMPTS, LENGTH, STEP, NEW, STORED = 8, 24, 3000, 64, 4
TOLERANCE = 1e-4                                    # as the goldens: relative, norm over all positions


def passages():
    from tokenizers import Tokenizer
    text, tok = (DEMO / "heldout.txt").read_text(), Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    for start in range(0, len(text), STEP):
        yield tok.encode(text[start:start + 400]).ids[:LENGTH]


def make():
    config, weights, token_map, _ = oracle.load(DEMO)
    single = oracle.Model(config, weights, token_map)
    double = oracle.Model(config, weights, token_map, dtype=np.float64)
    expected, kept = {}, 0
    for prompt in passages():
        ids = list(prompt)
        for _ in range(NEW):
            ids.append(int(np.argmax(single.forward(ids)[0][-1])))
        (logits, trace), (wide, wide_trace) = single.forward(ids), double.forward(ids)
        error = np.linalg.norm(logits - wide) / np.linalg.norm(wide)
        steady = make_golden.same_decisions(trace, wide_trace) and error < 1e-5
        print(f"{'kept' if steady else 'left'}: float32 against float64 {error:.1e}, prompt {prompt[:6]}...", flush=True)
        if not steady:
            continue
        expected |= {f"prompt.{kept}": ("I64", np.array(prompt)), f"tokens.{kept}": ("I64", np.array(ids[LENGTH:])),
                     f"logits.{kept}": ("F32", logits[-STORED:].astype(np.float32))}
        kept += 1
        if kept == PROMPTS:
            break
    else:
        raise SystemExit(f"only {kept} steady passages, {PROMPTS} wanted")
    (HERE / "demo").mkdir(exist_ok=True)
    oracle.write_safetensors(HERE / "demo" / "expected.safetensors", expected)


def check(program):
    expected = oracle.read_safetensors(HERE / "demo" / "expected.safetensors")
    model = oracle.Model(*oracle.load(DEMO)[:3])
    worst = 0.0
    for i in range(PROMPTS):
        prompt, tokens = expected[f"prompt.{i}"][1], expected[f"tokens.{i}"][1]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "logits.safetensors"
            text = subprocess.run([program, "--model", DEMO, "--tokens", ",".join(map(str, prompt)), "--max-tokens", str(NEW),
                                   "--temperature", "0", "--logits-out", out, "--quiet"], check=True, capture_output=True, text=True).stdout
            ours = oracle.read_safetensors(out)
        got = [int(t) for t in text.split(",")]
        want, _ = model.forward(np.concatenate([prompt, tokens]))
        error = float(np.linalg.norm(ours["logits"][1] - want) / np.linalg.norm(want))
        same = got == list(tokens) and np.array_equal(ours["logits"][1].argmax(1), want.argmax(1))
        print(f"prompt {i}: {len(got)} tokens {'equal' if same else 'DIFFER'}, logits of {len(want)} positions within {error:.1e}", flush=True)
        if not same or error > TOLERANCE:
            raise SystemExit(1)
        worst = max(worst, error)
    print(f"{PROMPTS} prompts: all tokens equal, logits within {worst:.1e}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make()
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        check(sys.argv[2])
    else:
        raise SystemExit(__doc__)
