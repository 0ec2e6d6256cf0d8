"""What several ranks cost beside one process: CPU seconds, waiting, bytes, memory, and the seconds that the plan says.

    cargo build --release -p regard-cli --features mpi
    python bench/cluster/costs.py --regard target/release/regard [--tokens 32768] [--heads 8] [--dim 64] [--ranks 2 3 4] [--rounds 3] [--window N]

Each round runs `regard attend` by one process and by every number of ranks, one thread each, on the same files (causal, f32), so that a slow moment of the machine
meets all of them. CPU seconds are those of all ranks together, best round over best round. Waiting is the part of a rank's time in which its arithmetic had no keys, the mean over
ranks in the round with least. On a machine with fewer cores than ranks, waiting and seconds are those of ranks that share cores. Bytes and memory are set beside the plan's.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]


def tables(command, folder):
    """The rows of each table that a command shows."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "RAYON_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return {table["name"]: table["rows"] for table in json.loads(done.stdout)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--regard", type=Path, required=True, help="the program, built with MPI")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=int, help="the number of keys before the query")
    parser.add_argument("--mpirun", nargs="*", default=[], help="further words for mpirun, such as the way to other hosts")
    args = parser.parse_args()
    program = str(args.regard.resolve())
    with tempfile.TemporaryDirectory() as folder:
        numbers = np.random.default_rng(0)
        for name in "qkv":
            x = np.lib.format.open_memmap(f"{folder}/{name}.npy", "w+", np.float32, (1, args.heads, args.tokens, args.dim))
            for head in x[0]:
                head[:] = numbers.standard_normal(head.shape, np.float32)
        words = ["attend", "q.npy", "k.npy", "v.npy", "--causal", "--json", "--overwrite", "--head-groups", "1"]
        words += ["--window", str(args.window)] if args.window else []
        alone, ranks = [], {count: [] for count in args.ranks}
        for _ in range(args.rounds):
            alone.append(tables([program, *words, "--out", "alone.npy"], folder)["ranks"][0])
            for count, runs in ranks.items():
                runs.append(tables([*MPIRUN, *args.mpirun, "-n", str(count), program, *words, "--out", "ranks.npy"], folder)["ranks"])
                with open(f"{folder}/alone.npy", "rb") as a, open(f"{folder}/ranks.npy", "rb") as b:
                    while (one := a.read(1 << 24)) or b.peek(1):
                        assert one == b.read(1 << 24), f"{count} ranks have other bytes than one process"
        one = min(run["cpu_seconds"] for run in alone)
        print(f"{args.tokens} tokens, {args.heads} heads of {args.dim}, causal" + (f", window {args.window}" if args.window else ""))
        print(f"one process: {one:.2f} CPU seconds, {min(run['seconds'] for run in alone):.2f} s, peak {alone[0]['peak_memory_bytes'] / 1e6:.0f} MB")
        for count, runs in ranks.items():
            together = min(sum(rank["cpu_seconds"] for rank in run) for run in runs)
            waiting = min(sum(rank["waited_seconds"] / rank["seconds"] for rank in run) / count for run in runs)
            seconds = min(max(rank["seconds"] for rank in run) for run in runs)
            peak = max(rank["peak_memory_bytes"] for run in runs for rank in run)
            received = max(rank["received_bytes"] for rank in runs[0])
            check = tables([*MPIRUN, *args.mpirun, "-n", str(count), program, "cluster", "check", "--dim", str(args.dim), "--json"], folder)
            rate, network = min(rank["gflops"] for rank in check["check"]), check["network"][0]
            plan = [program, "cluster", "plan", "--json", "--tokens", str(args.tokens), "--heads", str(args.heads), "--dim", str(args.dim)]
            plan += ["--ranks", str(count), "--head-groups", "1", "--rate", str(rate), "--net", str(network["gigabytes_per_second"])]
            plan = tables([*plan, "--latency", str(network["latency_us"])], folder)["plan"][0]
            print(
                f"{count} ranks: {together:.2f} CPU seconds ({together / one:.3f} of one), waiting {waiting:.1%}, {seconds:.2f} s (plan {plan['seconds']:.2f}, "
                f"{plan['seconds'] / seconds:.2f}), received {received / 1e6:.2f} MB (plan {plan['received_gb'] * 1e3:.2f}), "
                f"peak {peak / 1e6:.0f} MB (plan {plan['memory_gb'] * 1e3:.0f}, {peak / plan['memory_gb'] / 1e9:.2f})"
            )


if __name__ == "__main__":
    main()
