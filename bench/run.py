"""Times regard against PyTorch, in turns in one process per thread count, and prints the ratios.

    python bench/run.py [--threads 1 2] [--rounds 9] [--only REGEX] [--peers ort ort-mha openvino flex]

Writes results/latest.json and results/table.md beside this file.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import numpy as np

from contenders import PEERS, Unable, regard_call, torch_call
from workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results"
# Largest error allowed against float64, relative to the largest value of the row.
ALLOWED = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}


def check_training(work, call):
    """Result and gradients of the first batch entry and the last group of heads are those of float64."""
    import torch

    got = [x.detach() for x in call()]
    head, group = work.heads_kv - 1, work.heads_q // work.heads_kv
    mine, theirs = slice(head * group, (head + 1) * group), slice(head, head + 1)
    pick = lambda x, heads: torch.from_numpy(np.ascontiguousarray(x[:1, heads])).double()
    leaves = [pick(x, heads).requires_grad_() for x, heads in zip(work.inputs(), (mine, theirs, theirs))]
    cuts = [mine, mine, theirs, theirs, mine]
    if work.mask == "bias":
        leaves.append(pick(work.bias(), mine).requires_grad_())
    q, k, v = leaves[:3]
    with torch.enable_grad():
        scores = q @ k.mT * work.head_dim**-0.5 + (leaves[3] if work.mask == "bias" else 0.0)
        if work.mask == "causal":
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        if work.mask == "window":
            scores = scores.masked_fill(~torch.from_numpy(work.dense_mask()), -torch.inf)
        out = torch.softmax(scores, -1) @ v
        exact = [out, *torch.autograd.grad(out, leaves, pick(work.out_gradient(), mine))]
    worst = max(
        ((mine[:1, cut].double() - right).abs().max() / right.abs().max()).item() for mine, cut, right in zip(got, cuts, exact)
    )
    if not worst <= ALLOWED[work.dtype]:
        raise AssertionError(f"{work.name}: error {worst:.1e} against float64; not timed")
    return worst


def check(work, call):
    """The sampled rows of our result are right; raises otherwise. Returns the largest error."""
    if work.kind == "training":
        # What is dropped is not PyTorch's choice: there is nothing to compare a single draw with.
        return 0.0 if work.dropout else check_training(work, call)
    result = call()
    out = np.asarray(result.out if work.kind == "statistics" else result)
    values = work.inputs()[2].astype(np.float64)
    worst = 0.0
    for (b, h, i), weights in work.sampled_rows():
        expected = weights @ values[b, h * work.heads_kv // work.heads_q]
        error = np.abs(out[b, h, i].astype(np.float64) - expected).max() / np.abs(expected).max()
        if work.kind == "statistics":
            entropy = -(weights * np.log(weights)).sum()
            error = max(error, abs(result.entropy[b, h, i] - entropy) / entropy)
            error = max(error, abs(result.max_weight[b, h, i] - weights.max()))
        worst = max(worst, float(error))
    if not worst <= ALLOWED[work.dtype]:
        raise AssertionError(f"{work.name}: error {worst:.1e} against float64; not timed")
    return worst


def seconds_per_call(call, least):
    calls, start = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= least:
            return elapsed / calls


def in_turns(calls, rounds, least):
    """{name: [seconds per call, one per round]}; in every round each call has one turn."""
    for call in calls.values():
        call()
    once = {name: seconds_per_call(call, 0.0) for name, call in calls.items()}
    rounds = max(3, min(rounds, int(30 / sum(once.values()))))
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds_per_call(call, least))
    return times


def read_bandwidth(threads):
    """GB/s of summing 1 GiB of float32."""
    import torch

    torch.set_num_threads(threads)
    data = torch.ones(1 << 28)
    best = min(seconds_per_call(data.sum, 0.0) for _ in range(6))
    return data.numel() * data.element_size() / best / 1e9


def measure(work, threads, rounds, least, peers):
    ours = regard_call(work, threads)
    error = check(work, ours)
    calls = {"torch": torch_call(work, threads), "regard": ours}
    for name in peers:
        try:
            calls[name] = PEERS[name](work, threads)
            calls[name]()
        except Unable:
            calls.pop(name, None)
        except Exception as failure:
            calls.pop(name, None)
            print(f"{name} on {work.name}: {failure!r:.200}", file=sys.stderr)
    times = in_turns(calls, rounds, least)
    best = {name: min(values) for name, values in times.items()}
    entry = dict(workload=work.name, kind=work.kind, threads=threads, error=error, rounds=len(times["regard"]))
    entry["milliseconds"] = {name: 1e3 * value for name, value in best.items()}
    entry["ratio"] = best["torch"] / best["regard"]
    entry["median_ratio"] = statistics.median(t / r for t, r in zip(times["torch"], times["regard"]))
    if work.kind == "decode":
        entry["gigabytes_per_second"] = work.key_value_bytes() / best["regard"] / 1e9
    return entry


def worker(options):
    threads = options.threads[0]
    print(json.dumps(dict(threads=threads, bandwidth=read_bandwidth(threads))), flush=True)
    failures = 0
    for work in selected(options.only):
        try:
            entry = measure(work, threads, options.rounds, options.seconds, options.peers)
        except Exception as failure:
            failures += 1
            print(f"{work.name}, {threads} threads: {failure!r}", file=sys.stderr, flush=True)
            continue
        print(f"{work.name}, {threads} threads: {entry['ratio']:.2f}x", file=sys.stderr, flush=True)
        print(json.dumps(entry), flush=True)
    return min(failures, 1)


def selected(only):
    return [work for work in WORKLOADS if re.search(only, work.name)]


def machine():
    try:
        info = Path("/proc/cpuinfo").read_text()
        cpu = re.search(r"model name\s*:\s*(.*)", info).group(1)
    except (OSError, AttributeError):
        cpu = platform.processor() or platform.machine()
    versions = {}
    for name in ("regard", "torch", "numpy", "onnxruntime", "openvino"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return dict(
        cpu=cpu, cores=os.cpu_count(), system=platform.platform(), python=platform.python_version(),
        versions=versions, simd=simd_level(), date=time.strftime("%Y-%m-%d"),
    )


def simd_level():
    import regard

    return regard.simd_level()


def table(report, peers):
    about = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [f"{about['cpu']}, {about['cores']} cores, SIMD level {about['simd']}; {versions}; {about['date']}."]
    for threads, bandwidth in report["bandwidth"].items():
        lines.append(f"Reading memory with {threads} thread(s): {bandwidth:.1f} GB/s.")
    head = ["workload", "threads", "PyTorch ms", "regard ms", "ratio", "median ratio", "K and V read", *peers, "best of these / regard"]
    lines += ["", "| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    order = {work.name: place for place, work in enumerate(WORKLOADS)}
    for entry in sorted(report["results"], key=lambda e: (order[e["workload"]], e["threads"])):
        times, speed = entry["milliseconds"], entry.get("gigabytes_per_second")
        share = "" if speed is None else f"{speed:.1f} GB/s ({100 * speed / report['bandwidth'][str(entry['threads'])]:.0f}%)"
        cells = [
            entry["workload"], str(entry["threads"]), f"{times['torch']:.3f}", f"{times['regard']:.3f}",
            f"{entry['ratio']:.2f}x", f"{entry['median_ratio']:.2f}x", share,
        ]
        cells += [f"{times[name]:.3f} ms" if name in times else "" for name in peers]
        others = [times[name] for name in peers if name in times]
        cells.append(f"{min(others) / times['regard']:.2f}x" if others else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each library (fewer for slow calls, at least 3)")
    parser.add_argument("--seconds", type=float, default=0.08, help="least length of a turn")
    parser.add_argument("--only", default="", metavar="REGEX", help="workloads whose name matches")
    parser.add_argument("--peers", nargs="+", default=["ort", "ort-mha", "openvino"], choices=["none", *sorted(PEERS)], help="further libraries, or none")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.peers = [name for name in options.peers if name != "none"]
    if options.worker:
        return worker(options)
    if not selected(options.only):
        parser.error(f"no workload matches {options.only!r}: " + "; ".join(work.name for work in WORKLOADS))
    report, failed = dict(machine=machine(), bandwidth={}, results=[]), False
    for threads in options.threads:
        settings = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")}
        arguments = ["--worker", "--threads", threads, "--rounds", options.rounds, "--seconds", options.seconds]
        arguments += ["--only", options.only, "--peers", *(options.peers or ["none"])]
        command = [sys.executable, __file__, *map(str, arguments)]
        process = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True)
        failed |= process.returncode != 0
        for line in filter(lambda text: text.startswith("{"), process.stdout.splitlines()):
            entry = json.loads(line)
            if "bandwidth" in entry:
                report["bandwidth"][str(threads)] = entry["bandwidth"]
            else:
                report["results"].append(entry)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps(report, indent=1) + "\n")
    text = table(report, options.peers)
    (RESULTS / "table.md").write_text(text)
    print(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
