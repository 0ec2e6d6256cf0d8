"""Trains a small language model twice, with PyTorch's attention and with regard's in its place, and compares loss and time.

    python bench/train_lm.py [--steps 200] [--threads 2] [--layers 4] [--dim 256] [--heads 8] [--length 256] [--batch 8]

Both start from the same weights and see the same batches; their steps take turns, so that a slow moment of the machine meets both.
The text is made here: sentences of a small grammar, in which the object repeats the subject's number and colour, so that
there is something for attention to find. The model never mentions regard.
"""

import argparse
import copy
import random
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import regard.torch

SUBJECTS = "cat dog bird fish fox horse mouse owl".split()
VERBS = "sees hears likes follows finds misses".split()
COLOURS = "red blue green black white grey".split()
NUMBERS = "one two three four five six".split()


def sentence(rng):
    number, colour = rng.choice(NUMBERS), rng.choice(COLOURS)
    middle = " and ".join(rng.choice(VERBS) for _ in range(rng.randint(1, 3)))
    return f"{number} {colour} {rng.choice(SUBJECTS)} {middle} {number} {colour} {rng.choice(SUBJECTS)}. "


def made_text(characters, seed=0):
    rng, parts, size = random.Random(seed), [], 0
    while size < characters:
        parts.append(sentence(rng))
        size += len(parts[-1])
    return "".join(parts)


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm and beside the residual stream."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_forward = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.forward_part = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.forward_part(self.before_forward(x))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, length, dim, heads, layers):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, ids):
        places = torch.arange(ids.shape[1])
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))


class Run:
    """A model in training: its losses and the seconds of each step."""

    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters(), 3e-4)
        self.losses, self.seconds = [], []

    def step(self, ids):
        start = time.perf_counter()
        logits = self.model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)


def milliseconds(run, skip):
    steps = sorted(1e3 * s for s in run.seconds[skip:])
    return f"median {statistics.median(steps):.1f} ms, best {steps[0]:.1f} ms"


def progress(done, steps, start):
    if sys.stderr.isatty():
        left = (time.perf_counter() - start) / done * (steps - done)
        print(f"\rstep {done}/{steps}, about {left:.0f} s left ", end="\n" if done == steps else "", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    if min(options.steps, options.threads, options.layers, options.heads, options.length, options.batch) < 1:
        parser.error("every number must be at least 1")
    if options.dim % options.heads:
        parser.error(f"--dim {options.dim} must be a multiple of --heads {options.heads}")

    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    text = made_text(200_000)
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(c) for c in text])
    model = LanguageModel(len(letters), options.length, options.dim, options.heads, options.layers)
    size = sum(p.numel() for p in model.parameters())
    print(f"{size / 1e6:.1f} million parameters, {options.batch} x {options.length} letters a step, {options.threads} thread(s)")

    theirs, ours, counts = Run(model), Run(copy.deepcopy(model)), regard.torch.use()
    start = time.perf_counter()
    for step in range(options.steps):
        first = torch.randint(len(ids) - options.length, (options.batch, 1))
        batch = ids[first + torch.arange(options.length + 1)]
        # Whoever begins has the colder caches: take turns.
        for run in (theirs, ours) if step % 2 else (ours, theirs):
            if run is ours:
                with counts:
                    run.step(batch)
            else:
                run.step(batch)
        progress(step + 1, options.steps, start)

    if counts.computed != options.layers * options.steps or counts.left:
        sys.exit(f"error: regard did not compute every attention: {counts}")
    skip = min(5, options.steps // 2)
    apart = max(abs(a - b) for a, b in zip(theirs.losses, ours.losses))
    ratio = statistics.median(a / b for a, b in zip(theirs.seconds[skip:], ours.seconds[skip:]))
    print(f"loss: from {theirs.losses[0]:.4f} to {theirs.losses[-1]:.4f} (PyTorch), {ours.losses[-1]:.4f} (regard)")
    print(f"largest difference of the loss curves: {apart:.1e}")
    print(f"time per step, PyTorch: {milliseconds(theirs, skip)}")
    print(f"time per step, regard:  {milliseconds(ours, skip)}")
    print(f"PyTorch / regard, median of the steps: {ratio:.2f}x; {counts}")


if __name__ == "__main__":
    main()
