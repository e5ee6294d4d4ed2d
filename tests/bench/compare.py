# SPDX-License-Identifier: MIT
"""Our benchmarks beside other libraries, interleaved in one run: each round runs ours, then theirs, then the next group of lines.

    python compare.py --ours BUILD/tests --model FOLDER [--peers DIR] [--torch PYTHON] [--rounds 3] [--threads 2] [--groups LIST]
                      [--markdown FILE] [--raw FILE]

--ours     where bench_ops and bench_model are
--model    a folder of make_mid.py
--peers    where ggml_moe_bench and blas_bench are (either may be missing): programs that print a JSON line a case with the keys bench,
           type, layout, n, k, tokens, threads, ns, weight_bytes, flop; they take --threads, and ggml's --only, --tokens and --types
--torch    a Python with torch, numpy and ml_dtypes, which runs torch_model.py
--groups   which of matvec, matmul, experts, decode, prefill, batch, context, ops

A line of the table: the median over rounds of our time (each round's own is a median of calls), the other's, the ratio as the median of the
rounds' ratios with the smallest and the largest, our share of the bound, and how far our rounds lie apart. The bound of a number of threads
is the best that any program of the run measured: bytes over read bandwidth or float32 operations over the peak of multiply-adds, whichever
takes longer. "busy": processors that other work took while a line's programs ran, at most; with more than a few hundredths the figures
say little. The experts of ours are whole SwiGLU experts of three matrices, those of ggml one product: ratios are of operations a second.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
MATRICES = "(2304x5120|5120x2304)"
ALL_GROUPS = ("matvec", "matmul", "experts", "decode", "prefill", "batch", "context", "ops")


def busy_seconds():
    """Of all processors since the system started."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    except (OSError, ValueError):
        return 0.
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


def run(command):
    """The JSON lines of a program, each with the processors that other work took meanwhile."""
    before, own, start = busy_seconds(), own_seconds(), time.monotonic()
    env = {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")}  # they may pick slow kernels
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"compare.py: {' '.join(map(str, command))}: ended with {done.returncode}")
    other = (busy_seconds() - before - own_seconds() + own) / (time.monotonic() - start)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        line["busy"] = max(other, 0.)
    return lines


def programs(args, group):
    """Commands of a group, ours first."""
    t = args.threads
    ops = lambda pattern: [args.ours / "bench_ops", "--jsonl", "--threads", t, f"--benchmark_filter={pattern}", "--benchmark_min_time=0.5"]
    model = lambda *lines: [args.ours / "bench_model", args.model, *lines, "--threads", t, "--jsonl"]
    ggml_bench = [args.peers / "ggml_moe_bench", "--types", "mxfp4", "--threads", t] if has(args, "ggml_moe_bench") else []
    ggml = lambda *options: [[*ggml_bench, *options]] if ggml_bench else []
    torch = lambda line: [[args.torch, HERE / "torch_model.py", args.model, "--line", line, "--threads", t, "--dtype", dtype]
                          for dtype in ("float32", "bfloat16")] if args.torch else []
    blas = [[args.peers / "blas_bench", "--threads", t]] if has(args, "blas_bench") else []
    return {
        "matvec": lambda: [ops(f"linear/fp4/{MATRICES}/T:(1|4|16)/"), *ggml("--only", "mul_mat", "--tokens", "1,4,16")],
        "matmul": lambda: [ops(f"linear/fp4/{MATRICES}/T:512/"), *ggml("--only", "mul_mat", "--tokens", "512"), *blas],
        "experts": lambda: [ops("swiglu_experts"), *ggml("--only", "mul_mat_id")],
        "decode": lambda: [model("decode:1"), *torch("decode")],
        "prefill": lambda: [model("prefill:512"), *torch("prefill")],
        "batch": lambda: [model("decode:1", "decode:4", "decode:16")],
        "context": lambda: [model("context:1024", f"context:{args.long}")],
        "ops": lambda: [ops("linear/(fp8|bf16)|mhc_seam|sparse_attention|index_select|engram_gather")],
    }[group]()


def has(args, program):
    return args.peers is not None and (args.peers / program).exists()


def key(line):
    return tuple(line[k] for k in ("bench", "type", "layout", "n", "k", "tokens"))


def name(k):
    bench, kind, layout, n, columns, tokens = k
    if bench.endswith(("_decode", "_context")):
        return f"{bench} {kind}, batch {tokens}, {layout}"
    if bench.endswith("_prefill"):
        return f"{bench} {kind}, {tokens} tokens"
    return f"{bench} {kind} {layout} {n}x{columns} T={tokens}"


def is_peer(ours, other):
    """Whether one line is to be compared with the other."""
    a, b = ours[0], other[0]
    if b.startswith("torch"):
        return a.removeprefix("dsv41_") == b.removeprefix("torch_") and ours[5] == other[5]
    pairs = {"dsv41_linear": ("ggml_mul_mat", "openblas_sgemm"), "dsv41_swiglu_experts": ("ggml_mul_mat_id",)}
    return b in pairs.get(a, ()) and ours[3:] == other[3:]


def best_bounds(rounds):
    out = {}
    for line in (x for lines in rounds for x in lines if x["bench"] == "bound"):
        out[line["name"]] = max(out.get(line["name"], 0), line["value"])
    return out


def table(rounds):
    """Markdown of a group's rounds: lists of lines, all programs of a round in one."""
    bounds = best_bounds(rounds)
    cases = {}
    for lines in rounds:
        for line in lines:
            if "ns" in line:
                cases.setdefault(key(line), []).append(line)
    rows = []
    for mine in (k for k in cases if k[0].startswith("dsv41_")):
        xs = cases[mine]
        ns = [x["ns"] for x in xs]
        least = [max(x["weight_bytes"] / bounds["read_bw"], x["flop"] / bounds["fma_f32"]) for x in xs]
        share = statistics.median(a / b for a, b in zip(least, ns))
        spread = f"{min(ns) / statistics.median(ns) - 1:+.0%}, {max(ns) / statistics.median(ns) - 1:+.0%}"
        start = f"| {name(mine)} | {statistics.median(ns) / 1e6:.4g}"
        peers = [k for k in cases if is_peer(mine, k)]
        for k in peers:
            pairs = list(zip(xs, cases[k]))
            work = [a["flop"] / b["flop"] if "flop" in b else 1 for a, b in pairs]
            ratios = [w * b["ns"] / a["ns"] for w, (a, b) in zip(work, pairs)]
            theirs = statistics.median(y["ns"] for y in cases[k]) / 1e6
            rows.append(f"{start} | {name(k)} | {theirs:.4g} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
                        f"| {share:.0%} | {spread} | {max(x['busy'] for pair in pairs for x in pair):.2f} |")
        if not peers:
            rows.append(f"{start} | | | | {share:.0%} | {spread} | {max(x['busy'] for x in xs):.2f} |")
    return rows


def about(args, bounds):
    cpu = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.processor())
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
    changed = subprocess.run(["git", "-C", HERE, "status", "--porcelain"], stdout=subprocess.PIPE, text=True).stdout.strip()
    return [f"{cpu}, {os.cpu_count()} processors; {args.threads} threads; {datetime.date.today()}; commit {commit or 'unknown'}"
            f"{' with changes' if changed else ''}; {args.rounds} rounds.",
            "Bounds: " + ", ".join(f"{k} {v:.4g}" for k, v in sorted(bounds.items())) + " (GB/s, GFLOP/s, GOP/s)."]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--torch", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--long", type=int, default=131000, help="tokens of the long context")
    parser.add_argument("--groups", default=",".join(ALL_GROUPS))
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--raw", type=pathlib.Path, help="where to write every line, as JSON")
    args = parser.parse_args()
    groups = args.groups.split(",")
    if unknown := set(groups) - set(ALL_GROUPS):
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(ALL_GROUPS)}")
    results = {group: [] for group in groups}
    for i in range(args.rounds):
        for group in groups:
            print(f"round {i + 1} of {args.rounds}: {group}", file=sys.stderr)
            results[group].append([line for command in programs(args, group) for line in run(command)])
    every = [lines for rounds in results.values() for lines in rounds]
    if args.raw:
        args.raw.write_text("".join(json.dumps(line) + "\n" for lines in every for line in lines))
    bounds = [line for lines in every for line in lines if line["bench"] == "bound"]
    text = about(args, best_bounds(every)) + [""]
    text += ["| line | ms | beside | ms | times faster (least to most) | share of the bound | spread | busy |",
             "|---|--:|---|--:|--:|--:|--:|--:|"]
    for group in groups:
        text += table([lines + bounds for lines in results[group]])
    print("\n".join(text))
    if args.markdown:
        args.markdown.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
