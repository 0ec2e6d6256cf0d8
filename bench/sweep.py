"""The laboratory's sweep beside the same sweep in vectorised NumPy and PyTorch.

    python bench/sweep.py --ours PATH_OF_TIME_SWEEP [--threads 1 2] [--seeds 400]

For every d_k: draw Q, K, V and a cotangent of N = 8 rows in float64, attend (out = P V) without and with the scale, and reduce to the columns of
attention_sweep_results.csv: weights (maximum, entropy, sum of squares), scores (range, deviation), gradients on Q, K, V (norms), rows of dQ and of
the scores' gradient (root mean square, median, quantiles, shares). All seeds of a chunk are one array; gradients are by the closed form, not by autograd.
Each turn is a process of its own that sweeps three times; the turns alternate, and the best sweep of each program counts.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

N = 8
SWEEPS = 3  # of a turn: a machine that was idle works up to its speed in some tenths of a second
CHUNK = 1 << 19  # numbers per tensor and step: the fastest of 2^16 .. 2^22 for both on the machine where it was written


def numpy_sweep(d_ks, seeds):
    import numpy as np

    rng = np.random.default_rng(1)
    norms = []
    for d in d_ks:
        parts = {False: [], True: []}
        for begin in range(0, seeds, max(1, CHUNK // (N * d))):
            b = min(max(1, CHUNK // (N * d)), seeds - begin)
            q, k, v, r = (rng.standard_normal((b, N, d)) for _ in range(4))
            r *= d**-0.5
            dots, g = q @ k.swapaxes(-1, -2), r @ v.swapaxes(-1, -2)
            for scaled, c in ((False, 1.0), (True, d**-0.5)):
                s = dots * c
                p = np.exp(s - s.max(-1, keepdims=True))
                p /= p.sum(-1, keepdims=True)
                entropy = -(p * np.log(np.clip(p, 1e-300, None))).sum(-1).mean(-1)
                out = p @ v
                ds = p * (g - (r * out).sum(-1, keepdims=True))
                dq, dk, dv = c * (ds @ k), c * (ds.swapaxes(-1, -2) @ q), p.swapaxes(-1, -2) @ r
                norm = lambda x, axes: np.sqrt((x * x).sum(axes))
                parts[scaled].append((
                    p.max(-1).mean(-1), entropy, (p * p).sum(-1).mean(-1), s.min((-1, -2)), s.max((-1, -2)), (s * s).mean((-1, -2)),
                    norm(dq, (-1, -2)), norm(dk, (-1, -2)), norm(dv, (-1, -2)), norm(dq, -1).ravel(), norm(ds, -1).ravel(),
                ))  # fmt: skip
        for scaled in (False, True):
            columns = [np.concatenate(c) for c in zip(*parts[scaled])]
            means, dq_rows, ds_rows = [c.mean() for c in columns[:9]], columns[9], columns[10]
            top = np.sort(dq_rows**2)[::-1]
            row = [*means, np.sqrt((dq_rows**2).mean()), *np.quantile(dq_rows, (0.1, 0.5, 0.9)), np.sqrt((ds_rows**2).mean()), np.median(ds_rows)]
            row += [(dq_rows < 1e-8).mean(), (np.cumsum(top) < 0.9 * top.sum()).mean()]
            norms.append(float(row[6]))
    return norms


def torch_sweep(d_ks, seeds):
    import torch

    torch.manual_seed(1)
    norms = []
    for d in d_ks:
        parts = {False: [], True: []}
        for begin in range(0, seeds, max(1, CHUNK // (N * d))):
            b = min(max(1, CHUNK // (N * d)), seeds - begin)
            q, k, v, r = (torch.randn(b, N, d, dtype=torch.float64) for _ in range(4))
            r *= d**-0.5
            dots, g = q @ k.mT, r @ v.mT
            for scaled, c in ((False, 1.0), (True, d**-0.5)):
                s = dots * c
                p = torch.softmax(s, -1)
                entropy = -torch.xlogy(p, p).sum(-1).mean(-1)
                out = p @ v
                ds = p * (g - (r * out).sum(-1, keepdim=True))
                dq, dk, dv = c * (ds @ k), c * (ds.mT @ q), p.mT @ r
                norm = torch.linalg.vector_norm
                parts[scaled].append((
                    p.amax(-1).mean(-1), entropy, (p * p).sum(-1).mean(-1), s.amin((-1, -2)), s.amax((-1, -2)), (s * s).mean((-1, -2)),
                    norm(dq, dim=(-1, -2)), norm(dk, dim=(-1, -2)), norm(dv, dim=(-1, -2)), norm(dq, dim=-1).flatten(), norm(ds, dim=-1).flatten(),
                ))  # fmt: skip
        for scaled in (False, True):
            columns = [torch.cat(c) for c in zip(*parts[scaled])]
            means, dq_rows, ds_rows = [c.mean() for c in columns[:9]], columns[9], columns[10]
            top = (dq_rows**2).sort(descending=True).values
            row = [*means, (dq_rows**2).mean().sqrt(), torch.quantile(dq_rows, torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))]
            row += [(ds_rows**2).mean().sqrt(), ds_rows.median(), (dq_rows < 1e-8).double().mean(), (top.cumsum(0) < 0.9 * top.sum()).double().mean()]
            norms.append(float(row[6]))
    return norms


PEERS = {"numpy": numpy_sweep, "torch": torch_sweep}


def worker(name, threads, seeds, d_ks):
    if name == "torch":
        import torch

        torch.set_num_threads(threads)
    PEERS[name](d_ks[:1], 8)  # imports and first calls are not the sweep
    seconds = []
    for _ in range(SWEEPS):
        start = time.perf_counter()
        norms = PEERS[name](d_ks, seeds)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(dict(seconds=seconds, grad_norm_q=norms)))


def turn(command, threads):
    settings = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    done = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ours", help="the built example time_sweep of regard-lab")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seeds", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--d-k", type=int, nargs="+", default=[4, 16, 64, 256], help="the widths of `regard sweep`")
    parser.add_argument("--worker", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker, options.threads[0], options.seeds, options.d_k)
    if not options.ours:
        parser.error("--ours is the path of the program: cargo build --release -p regard-lab --example time_sweep")
    d_ks = [str(d) for d in options.d_k]
    lines = [f"The sweep over d_k = {', '.join(d_ks)}, {options.seeds} draws of 8 tokens, float64, seconds:", ""]
    lines += ["| threads | NumPy | PyTorch | regard | NumPy / regard | PyTorch / regard |", "|---:|---:|---:|---:|---:|---:|"]
    for threads in options.threads:
        best, norms = {}, {}
        for _ in range(options.rounds):
            for name in (*PEERS, "regard"):
                theirs = [sys.executable, __file__, "--worker", name, "--threads", str(threads), "--seeds", str(options.seeds), "--d-k", *d_ks]
                result = turn([options.ours, str(threads), str(options.seeds), str(SWEEPS), *d_ks] if name == "regard" else theirs, threads)
                best[name] = min([*result["seconds"], best.get(name, float("inf"))])
                norms[name] = result["grad_norm_q"]
        # The same experiment: scaled norms, whose spread is small, must agree.
        for name in PEERS:
            for ours, theirs in zip(norms["regard"][1::2], norms[name][1::2]):
                assert abs(ours / theirs - 1) < 0.1, f"{name} computes something else: {theirs} instead of {ours}"
        ratios = [f"{best[name] / best['regard']:.1f}x" for name in PEERS]
        lines.append("| " + " | ".join([str(threads), *(f"{best[name]:.3f}" for name in (*PEERS, "regard")), *ratios]) + " |")
    text = "\n".join(lines) + "\n"
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "sweep.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
