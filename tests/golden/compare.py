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
import math
import os
import pathlib
import struct
import sys

import numpy as np

STORED = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "BOOL": np.bool_}
KINDS = {"f": "F32 or F64", "i": "I32 or I64", "b": "BOOL"}
BESIDE = ("prompt.", "schedule.", "limits.", "noise.", "judge.")       # all else is compared
CODES = ("window_kv", "entries", "index_keys", "index_q")
DECISIONS = ("expert_ids", "chosen", "candidates", "engram_rows")
GROUPS = (".entries", ".index_keys")                                   # a row for each group
SCORES = (".index_scores", ".candidates", ".chosen")                   # a column for each entry or block


class Malformed(ValueError):
    """A file that is no safetensors file of the kinds above."""


def pairs(items):
    out = dict(items)
    if len(out) < len(items):
        raise Malformed("a name stands twice in the header")
    return out


def natural(values, count=None):
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values) and count in (None, len(values))


def parse(data):
    """{name: array}; everything that the header claims is checked first."""
    size = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else math.inf
    if size > len(data) - 8:
        raise Malformed("the header is longer than the file")
    try:
        header = json.loads(data[8:8 + size], object_pairs_hook=pairs)
    except Malformed:
        raise
    except (ValueError, RecursionError):
        raise Malformed("the header is no JSON") from None
    if not isinstance(header, dict):
        raise Malformed("the header is no JSON object")
    payload, at, out = data[8 + size:], 0, {}
    header.pop("__metadata__", None)
    for name, t in header.items():
        if not (isinstance(t, dict) and isinstance(t.get("dtype"), str) and natural(t.get("shape")) and natural(t.get("data_offsets"), 2)):
            raise Malformed(f"{name}: an entry needs dtype, shape and two data_offsets")
        if t["dtype"] not in STORED:
            raise Malformed(f"{name} is {t['dtype']}, expected one of {' '.join(STORED)}")
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        (first, end), kind = t["data_offsets"], np.dtype(STORED[t["dtype"]])
        if first != at or end - first != math.prod(t["shape"]) * kind.itemsize or end > len(payload):
            raise Malformed(f"{name}: bytes {first} to {end} do not follow those before, fit the shape {t['shape']} or lie in the file")
        if t["dtype"] == "BOOL" and max(payload[first:end], default=0) > 1:
            raise Malformed(f"{name} is BOOL and holds a byte that is neither 0 nor 1")
        out[name], at = np.frombuffer(payload[first:end], kind).reshape(t["shape"]), end
    if at != len(payload):
        raise Malformed(f"{len(payload) - at} bytes lie behind the last tensor")
    return out


def read(path):
    try:
        return parse(pathlib.Path(path).read_bytes())
    except Malformed as e:
        raise Malformed(f"{path}: {e}") from None


@dataclasses.dataclass
class Seam:
    name: str
    error: float = 0.0                 # relative norm; of decisions: rows that are wrong
    tolerance: float = 0.0
    near_ties: int = 0                 # rows that decide otherwise, legitimately
    rows: int = 0                      # compared
    excluded: int = 0                  # behind a near-tie, not compared
    fault: str = ""


class Behind:
    """What lies behind near-ties that went the other way, as far as the walk has come. docs/conformance.md states the rules."""

    def __init__(self, expected):
        def schedule(name):
            return [int(v) for v in expected["schedule." + name]]
        self.ratios, self.kv_source, self.index_source = schedule("ratios"), schedule("kv_source"), schedule("index_source")
        self.window, (self.candidate_source, self.block) = schedule("window")[0], schedule("candidates")
        self.rows = np.zeros(len(expected["prompt.tokens"]), bool)     # of the streams
        self.candidates = np.zeros_like(self.rows)                     # rows that published other blocks
        self.open_group = False                                        # a row of a group that the prompt does not complete
        self.window_kv, self.entries, self.keys = {}, {}, {}           # by layer; [T], [G], [G]
        self.queries = {}                                              # by layer: rows of index scores [T]
        self.read, self.moved = {}, {}                                 # by layer: expected selection [T, G]; rows that chose others [T]

    def enter(self, layer):
        self.window_kv[layer] = self.rows.copy()
        if self.kv_source[layer] == layer:
            whole = len(self.rows) // self.ratios[layer] * self.ratios[layer]
            groups = self.rows[:whole].reshape(-1, self.ratios[layer]).any(1)
            self.entries[layer], self.keys[layer] = groups, groups.copy()
            self.open_group |= bool(self.rows[whole:].any())
        if self.index_source[layer] == layer:
            limited = 0 <= self.candidate_source < layer
            self.queries[layer] = self.rows | self.candidates if limited else self.rows.copy()

    def attend(self, layer):
        """A row's attention reads its window and its selection."""
        near = self.window_kv[layer]
        out = self.rows | np.array([near[max(0, r - self.window + 1):r + 1].any() for r in range(len(near))])
        if self.kv_source[layer] >= 0:
            index = self.index_source[layer]
            out |= self.moved[index] | (self.read[index] & self.entries[self.kv_source[layer]]).any(1)
        self.rows = out

    def of(self, layer, name):
        """[rows of the seam]: those that are not compared. Table rows hang on the tokens alone."""
        if name.endswith("engram_rows"):
            return np.zeros_like(self.rows)
        if name.endswith(GROUPS):
            return (self.entries if name.endswith("entries") else self.keys)[layer]
        return self.queries[layer] if name.endswith(SCORES) else self.rows

    def columns(self, layer, name):
        """[T, columns] of index scores, candidates, selections: those that hang on an index key behind a near-tie."""
        keys, tokens = self.keys[self.kv_source[layer]], np.arange(len(self.rows))
        seen = np.arange(len(keys)) < ((tokens + 1) // self.ratios[layer])[:, None]
        out = seen & keys
        if name.endswith(".candidates"):
            out = np.pad(out, ((0, 0), (0, -len(keys) % self.block))).reshape(len(tokens), -1, self.block).any(2)
        return out

    def near(self, layer, name, near, other):
        """Behind the seam: near, rows with a near-tie; other, flags that are not as expected, whatever the reason."""
        last = name.rpartition(".")[2]
        held = {"window_kv": self.window_kv, "entries": self.entries, "index_keys": self.keys, "index_q": self.queries}.get(last)
        if held is not None:
            held[layer] |= near
        elif last == "expert_ids":
            self.rows = self.rows | near
        elif last == "candidates":
            self.candidates |= other.any(1)

    @property
    def continuation(self):
        """Whether what a later token may read lies behind a near-tie. A window row does only where the last row, which reads it too, does."""
        return bool(self.open_group or any(a.any() for a in (*self.entries.values(), *self.keys.values())))


class Comparison:
    """Walks the seams in forward order."""

    def __init__(self, expected, actual, partial=False):
        self.expected, self.actual, self.seams = expected, actual, []
        self.limits = {k: float(v[0]) for k, v in ((k[7:], v) for k, v in expected.items() if k.startswith("limits."))}
        self.behind = Behind(expected)
        names = [n for n in expected if not n.startswith(BESIDE)]
        layer = -1
        for name in names:
            if name.startswith("layers.") and int(name.split(".")[1]) != layer:
                layer = int(name.split(".")[1])
                self.behind.enter(layer)
            if name.endswith(".attn_out"):
                self.behind.attend(layer)
            if name.endswith(".chosen"):
                self.behind.read[layer], self.behind.moved[layer] = expected[name], np.zeros(len(expected[name]), bool)
            if name in actual or not partial:
                self.seams.append(self.compare(name, layer))
        if not self.seams:
            self.seams.append(Seam("all", fault="no seam of this case is given"))
        self.seams += [Seam(n, fault="is no seam of this case") for n in actual if n not in names]

    @property
    def faults(self):
        return [s for s in self.seams if s.fault]

    @property
    def excluded(self):
        return sum(s.excluded for s in self.seams) / max(1, sum(s.rows + s.excluded for s in self.seams))

    @staticmethod
    def form(got, want):
        if got.dtype.kind != want.dtype.kind:
            return f"is {got.dtype}, expected {KINDS[want.dtype.kind]}"
        if got.shape != want.shape:
            return f"has shape {list(got.shape)}, expected {list(want.shape)}"
        return "holds NaN" if np.isnan(got).any() else ""

    def compare(self, name, layer):
        seam, want = Seam(name), self.expected[name]
        if name not in self.actual:
            seam.fault = "is missing"
            return seam
        got = self.actual[name]
        seam.fault = self.form(got, want)
        if seam.fault:
            return seam
        if name == "greedy":
            return self.greedy(seam, got)
        judge = self.expected.get("judge." + name)
        if judge is not None:
            judge = judge.reshape(len(want), -1)
        got, want = (a.reshape(len(want), math.prod(want.shape[1:])).astype(np.float64) for a in (got, want))
        behind = self.behind.of(layer, name).copy()
        columns = self.behind.columns(layer, name) if name.endswith(SCORES) else np.zeros(want.shape, bool)
        near = np.zeros(len(want), bool)
        if name.endswith(DECISIONS):
            self.decide(seam, got, want, judge, behind, near, columns)
        else:
            if name.endswith(CODES) and judge is not None:
                near = self.codes(got, want, judge) & ~behind
            self.values(seam, got, want, behind, near, columns)
            if name == "logits" and not seam.fault:
                self.argmax(seam, got, judge, ~behind)
        seam.near_ties += int(near.sum())
        seam.rows, seam.excluded = int((~behind).sum()), int(behind.sum())
        self.behind.near(layer, name, near, got != want)
        if name.endswith(".chosen"):
            self.behind.moved[layer] = (got != want).any(1)
        most = self.limits["excluded"]
        if not seam.fault and seam.excluded > most * len(want):
            seam.fault = f"has {seam.excluded} of {len(want)} rows behind near-ties, at most {most:.0%} may be"
        return seam

    def decide(self, seam, got, want, judge, behind, near, columns):
        """Marks in `near` the rows that chose otherwise by a near-tie, in `behind` those that did because of a column behind one."""
        wrong = []
        for r in np.nonzero(~behind & (got != want).any(1))[0]:
            way = "wrong" if judge is None else self.decision(seam.name, got[r], want[r], judge[r], columns[r])
            if way == "wrong":
                wrong.append(r)
            else:
                (behind if way == "behind" else near)[r] = True
        seam.error = len(wrong)
        if wrong:
            seam.fault = f"decides wrongly at {len(wrong)} rows, first {wrong[0]}"

    def values(self, seam, got, want, behind, near, columns):
        behind |= columns.any(1) & (columns | ~np.isfinite(want)).all(1)
        kept = ~columns & ~(behind | near)[:, None]
        seam.error = self.distance(got[kept], want[kept])
        seam.tolerance = self.limits["logits" if seam.name == "logits" else "module"]
        if not seam.error <= seam.tolerance:
            seam.fault = f"is off by {seam.error:.1e}, at most {seam.tolerance:.0e} may be"

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

    def decision(self, name, got, want, scores, columns):
        if name.endswith("expert_ids"):
            ids = got.astype(np.int64)
            if len(set(ids)) < len(ids) or ids.min() < 0 or ids.max() >= len(scores):
                return "wrong"
            return self.near(np.abs(scores[ids] - scores[want.astype(np.int64)]).max(), scores)
        return self.selected(got != 0, want != 0, scores, columns & np.isfinite(scores))

    def selected(self, got, want, scores, free):
        """The best that was left out against the worst that was taken. free: their score is not known, so either is right."""
        if got.sum() != want.sum() or (got & (scores == -np.inf)).any():
            return "wrong"
        left, taken = np.nonzero(~got & ~free)[0], np.nonzero(got & ~free)[0]
        if not left.size or not taken.size:
            return "behind"
        best, worst = scores[left].max(), scores[taken].min()
        if best > worst:
            return self.near(best - worst, scores)
        tie_rule = best < worst or taken[scores[taken] == worst].max() < left[scores[left] == best].min()
        return "behind" if free.any() and tie_rule else "wrong"

    def codes(self, got, want, before):
        """Rows with a code that was rounded the other way and is as near to what was rounded. One that moves its row by no more than `module`
        needs no excuse."""
        size = np.abs(before).max(1, keepdims=True)
        moved = np.linalg.norm(got - want, axis=1) > self.limits["module"] * np.linalg.norm(want, axis=1)
        legitimate = np.abs(np.abs(got - before) - np.abs(want - before)) <= self.limits["decision"] * size
        same = np.abs(got - want) <= self.limits["module"] * size
        return moved & (legitimate | same).all(1)

    def argmax(self, seam, got, scores, rows):
        """A token chosen otherwise touches nothing in this prompt."""
        for r in np.nonzero(rows)[0]:
            a, b = int(np.argmax(got[r])), int(np.argmax(scores[r]))
            if a == b:
                continue
            if self.near(scores[r][b] - scores[r][a], scores[r]) == "wrong":
                seam.fault = f"has its largest value elsewhere at row {r}"
                return
            seam.near_ties += 1

    def greedy(self, seam, got):
        want, judge = self.expected["greedy"], self.expected["judge.greedy"]
        other = np.nonzero(got != want)[0]
        seam.rows = len(want)
        if not other.size:
            return seam
        first = int(other[0])
        token = int(got[first])
        if 0 <= token < judge.shape[1] and self.near(judge[first][want[first]] - judge[first][token], judge[first]) == "near":
            seam.near_ties, seam.rows = 1, first + 1                   # from here on the two continue different texts
        elif self.behind.rows[-1] or (first > 0 and self.behind.continuation):
            seam.rows = first
        else:
            seam.error, seam.fault = 1, f"differs at token {first}: {token}, expected {want[first]}"
        seam.excluded = len(want) - seam.rows
        return seam


def report(path, c, every):
    """Lines: faults in forward order, for the first is the cause."""
    floats = [s for s in c.seams if s.tolerance and s.name != "logits"]
    worst = max(floats, key=lambda s: s.error, default=Seam("-"))
    logits = next((f"{s.error:.1e} in {s.rows} of {s.rows + s.excluded} rows" for s in c.seams if s.name == "logits"), "not given")
    lines = [f"{path}: {len(c.seams)} seams, worst module {worst.error:.1e} ({worst.name}), logits {logits}, "
             f"{sum(s.near_ties for s in c.seams)} near-ties, {c.excluded:.0%} of the rows behind them; {'FAILED' if c.faults else 'conforms'}"]
    if every:
        lines += [f"  {s.name}: {s.error:.1e}, {s.rows} rows, {s.excluded} excluded, {s.near_ties} near-ties" for s in c.seams]
    return lines + [f"  {s.name} {s.fault}" for s in c.faults[:10]]


def show(lines):
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:                    # whoever read has seen enough; the exit status still tells
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
            show(report(path, c, a.all))
            failed |= bool(c.faults)
    except KeyError as e:
        print(f"cannot compare: {a.case} has no {e.args[0]}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as e:
        print(f"cannot compare: {e}", file=sys.stderr)
        return 2
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
