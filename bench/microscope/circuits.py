"""Effects of the edges of a circuit by `regard circuit` against TransformerLens, on stories15M.

    python bench/microscope/circuits.py stories15M/model.bin
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import regard
import torch

CLEAN = "Lily has a red ball. Tom has a blue car. Lily likes to play with her"
CORRUPT = "Lily has a red car. Tom has a blue ball. Lily likes to play with her"
#: Edges that are patched exactly.
EXACT = 64


def of_regard(path, words):
    """Rows of the table of edges, and the CPU seconds of the command."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "regard", "circuit", str(path), "--clean", CLEAN, "--corrupt", CORRUPT, *words]
        command += ["--steps", "0", "--random", "0", "--json", "--out", f"{folder}/out"]
        out = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True).stdout
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(out)[0]["rows"], end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


class Edges:
    """The same by hooks of TransformerLens: what each reader reads is a hook of its own."""

    def __init__(self, model, clean, corrupt, pair):
        self.model, self.clean, self.pair = model, torch.tensor([clean]), pair
        for setting in ("use_attn_result", "use_split_qkv_input", "use_hook_mlp_in"):
            model.cfg.__dict__[setting] = True
        model.setup()
        with torch.no_grad():
            (_, mine), (_, theirs) = model.run_with_cache(self.clean), model.run_with_cache(torch.tensor([corrupt]))
        self.change = {name: self.written(theirs, name) - self.written(mine, name) for name in self.writers()}
        with torch.no_grad():
            self.margin = self.measured(model(self.clean))

    def writers(self):
        heads, layers = range(self.model.cfg.n_heads), range(self.model.cfg.n_layers)
        return ["embedding", *(name for i in layers for name in (*(f"L{i}.H{h}" for h in heads), f"L{i}.mlp"))]

    @staticmethod
    def written(cache, name):
        if name == "embedding":
            return cache["blocks.0.hook_resid_pre"]
        layer, part = name[1:].split(".")
        return cache[f"blocks.{layer}.hook_mlp_out"] if part == "mlp" else cache[f"blocks.{layer}.attn.hook_result"][:, :, int(part[1:])]

    def hook(self, reader):
        """The hook of what a reader reads, and the place of its head."""
        if reader == "output":
            return f"blocks.{self.model.cfg.n_layers - 1}.hook_resid_post", ...
        layer, part, *operand = reader[1:].split(".")
        if part == "mlp":
            return f"blocks.{layer}.hook_mlp_in", ...
        return f"blocks.{layer}.hook_{operand[0]}_input", (slice(None), slice(None), int(part.lstrip("HKV")))

    def measured(self, logits):
        return logits[0, -1, self.pair[0]] - logits[0, -1, self.pair[1]]

    def attribution(self, edges):
        """The gradient at what each reader reads times the change of each writer."""
        kept = {}

        def keep(x, hook):
            x.retain_grad()
            kept[hook.name] = x

        names = {self.hook(reader)[0] for _, reader in edges}
        logits = self.model.run_with_hooks(self.clean, fwd_hooks=[(name, keep) for name in names])
        self.measured(logits).backward()
        found = []
        for writer, reader in edges:
            name, place = self.hook(reader)
            found.append(float((kept[name].grad[place] * self.change[writer]).sum()))
        return np.array(found)

    @torch.no_grad()
    def exact(self, edge):
        writer, (name, place) = edge[0], self.hook(edge[1])

        def put(x, hook):
            x = x.clone()
            x[place] += self.change[writer]
            return x

        return float(self.measured(self.model.run_with_hooks(self.clean, fwd_hooks=[(name, put)])) - self.margin)


def compare(path, hf):
    """The largest differences of attributions and of exact effects over the largest of each, and CPU seconds of both."""
    from patching import Lens

    model = regard.load(path)
    clean, corrupt = model.tokens(CLEAN), model.tokens(CORRUPT)
    best = lambda ids: int(model.run(ids).logits[-1].argmax())
    pair = best(clean), best(corrupt)
    # Once without and once with exact effects: what these cost is the difference.
    _, attributed = of_regard(path, ["--exact", "0"])
    rows, whole = of_regard(path, ["--exact", str(EXACT)])
    edges = [(row["from"], row["to"]) for row in rows]
    begin = time.process_time()
    lens = Edges(Lens(hf).model, clean, corrupt, pair)
    made = lens.attribution(edges)
    middle = time.process_time()
    exact = np.array([lens.exact(edge) for edge in edges[:EXACT]])
    end = time.process_time()
    relative = lambda ours, theirs: float(np.abs(np.array(ours) - theirs).max() / np.abs(theirs).max())
    differences = relative([row["attribution"] for row in rows], made), relative([row["exact"] for row in rows[:EXACT]], exact)
    return len(edges), differences, (attributed, middle - begin), (whole - attributed, end - middle)


if __name__ == "__main__":
    from compare import stories_of

    hf = stories_of(Path(sys.argv[1]))
    count, differences, attribution, exact = compare(Path(sys.argv[1]), hf)
    print(f"{count} edges, attribution: relative difference {differences[0]:.1e}; CPU s: regard (with loading) {attribution[0]:.2f}, TransformerLens {attribution[1]:.2f}")
    print(f"{EXACT} edges, exact: relative difference {differences[1]:.1e}; CPU s: regard {exact[0]:.2f}, TransformerLens {exact[1]:.2f}")
