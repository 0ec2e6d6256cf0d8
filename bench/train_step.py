"""A training step and a written token: the benchmark's small and large language model beside the same models in PyTorch.

    python bench/train_step.py --ours PATH_OF_TRAIN_STEP [--threads 1 2] [--sizes small large] [--rounds 9]

Next-letter models of 65 letters, Adam, gradients clipped: small is 2 blocks of width 64, 4 heads, 64 tokens, batch 32; large is 6 blocks of width
384, 6 heads, 256 tokens, batch 16. PyTorch is eager with its fused attention and, where it works, compiled. The three programs run side by side and
take short turns, one of them working at a time: a turn is one step of the large model or twenty of the small one, then one written text (with a cache
of keys and values, one token at a time, eager), so a slow moment of the machine meets all of them. The ratio is over the better of PyTorch's two, best
step over best step; the median ratio is the median over the rounds of PyTorch's better turn over ours. The first round, which compiles, does not count.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 65


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, past=None):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            if past:
                k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
            past[:] = [k, v]
        a = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self, width, heads, layers, context):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)

    def forward(self, x, offset=0, pasts=None):
        h = self.tok(x) + self.pos(torch.arange(offset, offset + x.shape[1]))
        for i, block in enumerate(self.blocks):
            h = block(h, None if pasts is None else pasts[i])
        return self.head(self.norm(h))


@torch.inference_mode()
def write(model, context):
    token, pasts = torch.tensor([[1]]), [[] for _ in model.blocks]
    start = time.perf_counter()
    for i in range(context - 4):
        probabilities = model(token, i, pasts)[:, -1].softmax(-1)
        token = torch.multinomial(probabilities, 1)
    return (time.perf_counter() - start) / (context - 4)


SIZES = {"small": (64, 4, 2, 64, 32), "large": (384, 6, 6, 256, 16)}
STEPS = {"small": 20, "large": 1}  # of a turn


def worker(kind, size, threads):
    """A turn for every line of the input: a line of JSON."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    width, heads, layers, context, batch = SIZES[size]
    model = Model(width, heads, layers, context)
    step_model = torch.compile(model) if kind == "compiled" else model
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.99))
    data = torch.randint(VOCAB, (100_000,))
    for _ in sys.stdin:
        seconds = []
        for _ in range(STEPS[size]):
            start = time.perf_counter()
            at = torch.randint(len(data) - context - 1, (batch,))
            w = torch.stack([data[a : a + context + 1] for a in at])
            loss = F.cross_entropy(step_model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            loss.item()
            seconds.append(time.perf_counter() - start)
        token = write(model, context) if kind == "eager" else None
        print(json.dumps(dict(seconds=seconds, token_seconds=token, peak_megabytes=peak_megabytes())), flush=True)


def peak_megabytes():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


class Program:
    """A process that works when it is its turn."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def turn(self):
        """What a turn took; None if the program has ended."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return None
        line = self.process.stdout.readline()
        if not line:
            return None
        result = json.loads(line)
        return dict(step=min(result["seconds"]), token=result["token_seconds"], memory=result["peak_megabytes"])

    def stop(self):
        self.process.kill()
        self.process.wait()


def measure(ours, size, threads, rounds):
    """The turns of each program, round by round."""
    commands = {kind: [sys.executable, __file__, "--worker", kind, "--sizes", size, "--threads", str(threads)] for kind in ("eager", "compiled")}
    commands["regard"] = [ours, size, str(threads), str(STEPS[size]), "turns"]
    programs = {kind: Program(command) for kind, command in commands.items()}
    turns = {kind: [] for kind in programs}
    try:
        for _ in range(1 + rounds):
            for kind in list(turns):
                result = programs[kind].turn()
                if result is not None:
                    turns[kind].append(result)
                elif kind == "compiled":
                    del turns[kind]
                else:
                    sys.exit(f"error: {kind} failed")
    finally:
        for program in programs.values():
            program.stop()
    return {kind: results[1:] for kind, results in turns.items()}


def row(size, threads, turns):
    context, batch = SIZES[size][3:]
    best = {kind: {key: key_best(results, key) for key in results[0]} for kind, results in turns.items()}
    eager, compiled, ours = best["eager"], best.get("compiled"), best["regard"]
    theirs = min(p["step"] for p in (eager, compiled) if p)
    rounds = zip(*([turn["step"] for turn in results] for kind, results in turns.items() if kind != "regard"))
    ratios = [min(steps) / turn["step"] for steps, turn in zip(rounds, turns["regard"])]
    return [
        size,
        str(threads),
        f"{eager['step'] * 1e3:.1f}",
        f"{compiled['step'] * 1e3:.1f}" if compiled else "does not work",
        f"{ours['step'] * 1e3:.1f}",
        f"{theirs / ours['step']:.2f}x",
        f"{statistics.median(ratios):.2f}x",
        f"{batch * context / ours['step']:,.0f}",
        f"{eager['memory']:.0f} / {ours['memory']:.0f}",
        f"{eager['token'] * 1e6:.0f} / {ours['token'] * 1e6:.0f}",
        f"{eager['token'] / ours['token']:.1f}x",
    ]


def key_best(results, key):
    """The least of a column; of memory the last, which is the most; None where it was not measured."""
    values = [result[key] for result in results]
    return None if values[0] is None else values[-1] if key == "memory" else min(values)


HEADER = "model|threads|PyTorch eager, ms|compiled, ms|regard, ms|ratio|median ratio|tokens/s|peak MB, theirs / ours|written token, us, theirs / ours|ratio".split("|")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ours", help="the built example train_step of regard-nn")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--worker", choices=("eager", "compiled"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker, options.sizes[0], options.threads[0])
    if not options.ours:
        parser.error("--ours is the path of the program: cargo build --release -p regard-nn --example train_step")
    lines = ["| " + " | ".join(HEADER) + " |", "|---|" + "---:|" * (len(HEADER) - 1)]
    for size in options.sizes:
        for threads in options.threads:
            lines.append("| " + " | ".join(row(size, threads, measure(options.ours, size, threads, options.rounds))) + " |")
            print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "train_step.md").write_text(text)
    print("\n" + text)


if __name__ == "__main__":
    main()
