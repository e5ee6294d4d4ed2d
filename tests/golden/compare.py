# SPDX-License-Identifier: MIT
"""Another engine's values against a case of the conformance kit. docs/conformance.md states the rules.

    python compare.py CASE_FOLDER ACTUAL.safetensors [ACTUAL.safetensors ...] [--partial] [--all]

ACTUAL holds tensors named as in seams.safetensors (F32 or F64; I32 or I64; BOOL). Several files are one engine's values of the same prompt
cut in several ways; each is compared. --partial: what is missing is not a fault. --all: prints every seam, not only the worst.
Exit status: 0 conforms, 1 does not, 2 cannot tell. Needs numpy alone.
"""
import argparse
import dataclasses
import json
import pathlib
import struct
import sys

import numpy as np

STORED = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_, "U8": np.uint8}
BESIDE = ("prompt.", "schedule.", "limits.", "noise.", "judge.")       # all else is compared
CODES = ("window_kv", "entries", "index_keys", "index_q")


def read(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        if t["dtype"] not in STORED:
            raise ValueError(f"{path}: {name} is {t['dtype']}, expected one of {' '.join(STORED)}")
        a, b = t["data_offsets"]
        out[name] = np.frombuffer(data[8 + size + a:8 + size + b], STORED[t["dtype"]]).reshape(t["shape"])
    return out


@dataclasses.dataclass
class Seam:
    name: str
    error: float = 0.0                 # relative norm; of decisions: rows that are wrong
    tolerance: float = 0.0
    near_ties: int = 0                 # rows that decide otherwise, legitimately
    rows: int = 0                      # compared
    excluded: int = 0                  # behind a near-tie, not compared
    fault: str = ""


class Comparison:
    """Walks the seams in forward order. `clean`: tokens below it lie behind no near-tie that went the other way."""

    def __init__(self, expected, actual, partial=False):
        self.expected, self.actual, self.seams = expected, actual, []
        self.limits = {k: float(v[0]) for k, v in ((k[7:], v) for k, v in expected.items() if k.startswith("limits."))}
        self.tokens = self.clean = len(expected["prompt.tokens"])
        names = [n for n in expected if not n.startswith(BESIDE)]
        for name in names:
            if name in actual or not partial:
                self.seams.append(self.compare(name))
        self.seams += [Seam(n, fault="is no seam of this case") for n in actual if n not in names]
        compared, excluded = sum(s.rows for s in self.seams), sum(s.excluded for s in self.seams)
        self.excluded = excluded / max(1, compared + excluded)
        if self.excluded > self.limits["excluded"]:
            self.seams.append(Seam("all", fault=f"{self.excluded:.0%} of the rows lie behind near-ties, at most {self.limits['excluded']:.0%} may"))

    @property
    def faults(self):
        return [s for s in self.seams if s.fault]

    def group(self, name):
        """Tokens a row stands for: entries and index keys have a row a group."""
        return int(self.expected["schedule.ratios"][int(name.split(".")[1])]) if name.endswith((".entries", ".index_keys")) else 1

    def compare(self, name):
        seam, want = Seam(name), self.expected[name]
        if name not in self.actual:
            seam.fault = "is missing"
            return seam
        got = self.actual[name]
        if name == "greedy":
            return self.greedy(seam, got)
        if got.shape != want.shape:
            seam.fault = f"has shape {list(got.shape)}, expected {list(want.shape)}"
        elif np.isnan(got.astype(np.float64)).any():
            seam.fault = "holds NaN"
        if seam.fault:
            return seam
        group = self.group(name)
        seam.rows = min(len(want), self.clean // group)
        seam.excluded = len(want) - seam.rows
        got, want = (a[:seam.rows].reshape(seam.rows, int(np.prod(want.shape[1:]))).astype(np.float64) for a in (got, want))
        judge = self.expected.get("judge." + name)
        if judge is not None:
            judge = judge[:seam.rows].reshape(seam.rows, -1)
        if name.endswith(("expert_ids", "chosen", "candidates", "engram_rows")):
            ways = [self.decision(name, got[r], want[r], None if judge is None else judge[r]) for r in range(seam.rows)]
            wrong = [r for r, way in enumerate(ways) if way == "wrong"]
            near = np.array([way == "near" for way in ways], bool)
            seam.error = len(wrong)
            if wrong:
                seam.fault = f"decides wrongly at {len(wrong)} rows, first {wrong[0]}"
        else:
            near = np.zeros(seam.rows, bool)
            if name.endswith(CODES) and judge is not None:
                near = self.codes(got, want, judge)
            seam.error = self.distance(got[~near], want[~near])
            seam.tolerance = self.limits["logits" if name == "logits" else "module"]
            if not seam.error <= seam.tolerance:
                seam.fault = f"is off by {seam.error:.1e}, at most {seam.tolerance:.0e} may be"
            elif name == "logits":
                self.argmax(seam, got, want, judge)
                return seam                    # a token chosen otherwise touches nothing in this prompt
        seam.near_ties = int(near.sum())
        if near.any():
            self.clean = min(self.clean, (int(np.argmax(near)) + 1) * group - 1)
        return seam

    @staticmethod
    def distance(got, want):
        finite = np.isfinite(want)
        if not np.array_equal(got[~finite], want[~finite]) or not np.isfinite(got[finite]).all():
            return np.inf
        off, norm = np.linalg.norm(got[finite] - want[finite]), np.linalg.norm(want[finite])
        return 0.0 if off == 0 else float(off / norm) if norm > 0 else np.inf

    def margin(self, scores):
        finite = np.abs(scores[np.isfinite(scores)])
        return self.limits["decision"] * (finite.max() if finite.size else 0)

    def near(self, apart, scores):
        """Scores that lie exactly together are no near-tie: the tie rule decides."""
        return "near" if 0 < apart <= self.margin(scores) else "wrong"

    def decision(self, name, got, want, scores):
        if np.array_equal(got, want):
            return "equal"
        if scores is None:
            return "wrong"
        if name.endswith("expert_ids"):
            ids = got.astype(np.int64)
            if len(set(ids)) < len(ids) or ids.min() < 0 or ids.max() >= len(scores):
                return "wrong"
            return self.near(np.abs(scores[ids] - scores[want.astype(np.int64)]).max(), scores)
        got, want = got != 0, want != 0
        if got.sum() != want.sum() or not np.isfinite(scores[got & ~want]).all():
            return "wrong"
        return self.near(scores[want & ~got].max() - scores[got & ~want].min(), scores)

    def codes(self, got, want, before):
        """Rows with a code that was rounded the other way and is as near to what was rounded. One that moves its row by no more than `module`
        needs no excuse."""
        size = np.abs(before).max(1, keepdims=True)
        moved = np.linalg.norm(got - want, axis=1) > self.limits["module"] * np.linalg.norm(want, axis=1)
        legitimate = np.abs(np.abs(got - before) - np.abs(want - before)) <= self.limits["decision"] * size
        same = np.abs(got - want) <= self.limits["module"] * size
        return moved & (legitimate | same).all(1)

    def argmax(self, seam, got, want, scores):
        for r in range(seam.rows):
            a, b = int(np.argmax(got[r])), int(np.argmax(scores[r]))
            if a == b:
                continue
            if self.near(scores[r][b] - scores[r][a], scores[r]) == "wrong":
                seam.fault = f"has its largest value elsewhere at row {r}"
                return
            seam.near_ties += 1

    def greedy(self, seam, got):
        want, judge = self.expected["greedy"], self.expected["judge.greedy"]
        if got.shape != want.shape:
            seam.fault = f"has shape {list(got.shape)}, expected {list(want.shape)}"
        elif self.clean < self.tokens and not np.array_equal(got, want):
            seam.excluded = len(want)
        else:
            seam.rows = len(want)
            other = np.nonzero(got != want)[0]
            if other.size:
                first = int(other[0])
                token = int(got[first])
                if not 0 <= token < judge.shape[1] or self.near(judge[first][want[first]] - judge[first][token], judge[first]) == "wrong":
                    seam.error, seam.fault = 1, f"differs at token {first}: {token}, expected {want[first]}"
                else:                          # from here on the two continue different texts
                    seam.near_ties, seam.rows, seam.excluded = 1, first + 1, len(want) - first - 1
        return seam


def report(path, c, every):
    floats = [s for s in c.seams if s.tolerance and s.name != "logits"]
    worst = max(floats, key=lambda s: s.error, default=Seam("-"))
    print(f"{path}: {len(c.seams)} seams, worst module {worst.error:.1e} ({worst.name}), "
          f"logits {next((format(s.error, '.1e') for s in c.seams if s.name == 'logits'), 'not given')}, "
          f"{sum(s.near_ties for s in c.seams)} near-ties, {c.excluded:.0%} of the rows behind them; {'FAILED' if c.faults else 'conforms'}")
    for s in c.seams if every else []:
        print(f"  {s.name}: {s.error:.1e}, {s.rows} rows, {s.excluded} excluded, {s.near_ties} near-ties")
    for s in c.faults[:10]:                    # in forward order: the first is the cause
        print(f"  {s.name} {s.fault}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("case", type=pathlib.Path)
    p.add_argument("actual", type=pathlib.Path, nargs="+")
    p.add_argument("--partial", action="store_true")
    p.add_argument("--all", action="store_true")
    a = p.parse_args()
    failed = False
    try:
        expected = read(a.case / "seams.safetensors" if a.case.is_dir() else a.case)
        for path in a.actual:
            c = Comparison(expected, read(path), a.partial)
            report(path, c, a.all)
            failed |= bool(c.faults)
    except (OSError, ValueError, KeyError, struct.error) as e:
        print(f"cannot compare: {e}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
