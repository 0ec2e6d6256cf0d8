"""Writes the golden gradients of transformer parts and whole models: what PyTorch's autograd answers in float64.

    python nn_golden_maker.py FILE

Inputs and parameters are not stored: both sides make them by `numbers`. `float32_error` is the largest error of
PyTorch's own float32 gradients, the measure of what float32 can do.
"""

import json
import math
import sys

import torch
import torch.nn.functional as F

WIDTH, HEADS, VOCAB, CONTEXT, HIDDEN, LAYERS = 8, 4, 7, 6, 12, 2


def numbers(count, seed, dtype=torch.float64):
    return torch.tensor([math.sin(seed + 0.7 * i + 0.013 * i * i) for i in range(count)], dtype=torch.float64).to(dtype)


class Parameters:
    """Named tensors in order, their values by `numbers` over the flat index; gains are around one."""

    def __init__(self, dtype):
        self.dtype, self.tensors, self.count, self.prefix = dtype, {}, 0, []

    def add(self, name, *shape):
        size = math.prod(shape)
        index = range(self.count, self.count + size)
        values = [0.3 * math.sin(0.5 + 0.7 * i + 0.013 * i * i) + (1.0 if name == "gain" else 0.0) for i in index]
        self.count += size
        tensor = torch.tensor(values, dtype=torch.float64).to(self.dtype).reshape(shape).requires_grad_()
        self.tensors[".".join([*self.prefix, name])] = tensor
        return tensor

    def within(self, name):
        parent = self

        class Scope:
            def __enter__(self):
                parent.prefix.append(name)

            def __exit__(self, *_):
                parent.prefix.pop()

        return Scope()


class Linear:
    def __init__(self, p, name, inputs, outputs, bias):
        with p.within(name):
            self.weight = p.add("weight", inputs, outputs)
            self.bias = p.add("bias", outputs) if bias else None

    def __call__(self, x):
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


class Norm:
    def __init__(self, p, name, kind, width):
        self.kind, self.width = kind, width
        with p.within(name):
            self.gain = p.add("gain", width)
            self.shift = p.add("shift", width) if kind == "layer" else None

    def __call__(self, x):
        if self.kind == "layer":
            return F.layer_norm(x, (self.width,), self.gain, self.shift, eps=1e-5)
        return F.rms_norm(x, (self.width,), self.gain, eps=1e-5)


class Mlp:
    def __init__(self, p, kind, width, hidden):
        self.kind, gelu = kind, kind == "gelu"
        self.up = Linear(p, "up" if gelu else "gate_up", width, hidden if gelu else 2 * hidden, gelu)
        self.down = Linear(p, "down", hidden, width, gelu)

    def __call__(self, x):
        h = self.up(x)
        if self.kind == "gelu":
            return self.down(F.gelu(h))
        gate, up = h.chunk(2, -1)
        return self.down(F.silu(gate) * up)


def turn(x, base):
    """Rotary positions, halves paired; x is [batch, heads, seq, dim]."""
    dim = x.shape[-1]
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] / base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Attention:
    def __init__(self, p, config, cross=False):
        self.heads, self.kv_heads = HEADS, config.get("kv_heads", HEADS)
        self.dim, self.config, self.cross = WIDTH // HEADS, config, cross
        q, kv, bias = self.heads * self.dim, self.kv_heads * self.dim, config.get("attention_bias", False)
        if cross:
            self.q, self.kv = Linear(p, "q", WIDTH, q, bias), Linear(p, "kv", WIDTH, 2 * kv, bias)
        else:
            self.qkv = Linear(p, "qkv", WIDTH, q + 2 * kv, bias)
        self.out = Linear(p, "out", q, WIDTH, bias)

    def __call__(self, x, visible, memory=None):
        b, n, _ = x.shape
        q_width, kv_width = self.heads * self.dim, self.kv_heads * self.dim
        if self.cross:
            q, (k, v) = self.q(x), self.kv(memory).chunk(2, -1)
        else:
            q, k, v = self.qkv(x).split([q_width, kv_width, kv_width], -1)
        q = q.view(b, n, self.heads, self.dim).transpose(1, 2)
        k, v = (t.reshape(b, -1, self.kv_heads, self.dim).transpose(1, 2) for t in (k, v))
        positions = self.config.get("positions", "learned")
        if isinstance(positions, dict) and not self.cross:
            q, k = turn(q, positions["rotary"]), turn(k, positions["rotary"])
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        scores = q @ k.mT
        if self.config.get("scale", "inv_sqrt_dim") == "inv_sqrt_dim":
            scores = scores / math.sqrt(self.dim)
        if positions == "alibi" and not self.cross:
            slopes = torch.tensor([2.0 ** (-8 * (h + 1) / self.heads) for h in range(self.heads)], dtype=x.dtype)
            distance = (torch.arange(n)[:, None] - torch.arange(n)).abs().to(x.dtype)
            scores = scores - slopes[:, None, None] * distance
        scores = scores.masked_fill(~visible, float("-inf"))
        some = visible.any(-1, keepdim=True)
        weights = torch.where(some, torch.where(some, scores, 0.0).softmax(-1), 0.0)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, q_width))


class Stack:
    def __init__(self, p, config, cross):
        self.sublayers, self.post = [], config.get("norm_place", "pre") == "post"
        kind = config.get("norm", "layer")
        for block in range(LAYERS):
            with p.within(f"blocks.{block}.attention"):
                self.sublayers.append((Norm(p, "norm", kind, WIDTH), Attention(p, config), "self"))
            if cross:
                with p.within(f"blocks.{block}.cross"):
                    self.sublayers.append((Norm(p, "norm", kind, WIDTH), Attention(p, config, True), "cross"))
            with p.within(f"blocks.{block}.mlp"):
                self.sublayers.append((Norm(p, "norm", kind, WIDTH), Mlp(p, config.get("mlp", "gelu"), WIDTH, HIDDEN), "mlp"))
        self.last = None if self.post else Norm(p, "last_norm", kind, WIDTH)

    def __call__(self, x, visible, memory=None, memory_visible=None):
        for norm, branch, kind in self.sublayers:
            run = {"self": lambda x: branch(x, visible), "cross": lambda x: branch(x, memory_visible, memory), "mlp": branch}[kind]
            x = norm(x + run(x)) if self.post else x + run(norm(x))
        return x if self.last is None else self.last(x)


class Entry:
    def __init__(self, p, config):
        self.positions = config.get("positions", "learned")
        with p.within("tokens"):
            self.tokens = p.add("table", VOCAB, WIDTH)
        if self.positions == "learned":
            with p.within("positions"):
                self.table = p.add("table", CONTEXT, WIDTH)

    def __call__(self, ids):
        x, n = self.tokens[ids], ids.shape[1]
        if self.positions == "learned":
            return x + self.table[:n]
        if self.positions == "sinusoidal":
            even = torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH
            angles = torch.arange(n, dtype=torch.float64)[:, None] / 10000.0**even
            return x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(x.dtype)
        return x


MASKS = {
    "causal": lambda i, j: j <= i,
    "reverse": lambda i, j: j >= i,
    "strictly_future": lambda i, j: j > i,
    "everything": lambda i, j: j >= 0,
    "skip_next": lambda i, j: (j == i) | (j >= i + 2),
}


def visibility(mask, n):
    return MASKS[mask](torch.arange(n)[:, None], torch.arange(n)[None, :]).expand(n, n)


def exit_layer(p, config, entry):
    return (lambda x: x @ entry.tokens.T) if config.get("tied") else Linear(p, "head", WIDTH, VOCAB, True)


def tokens(count, seed):
    return [(i * i + 3 * i + seed) % VOCAB for i in range(count)]


def language_model(config, mask, dtype):
    p = Parameters(dtype)
    entry = Entry(p, config)
    stack = Stack(p, config, False)
    head = exit_layer(p, config, entry)
    ids = torch.tensor(tokens(3 * CONTEXT, 1)).view(3, CONTEXT)
    targets = torch.tensor(tokens(3 * CONTEXT, 4))
    targets[4] = targets[10] = -100
    logits = head(stack(entry(ids), visibility(mask, CONTEXT)))
    return p, F.cross_entropy(logits.flatten(0, 1), targets)


def encoder_decoder(config, _, dtype):
    p, lengths = Parameters(dtype), torch.tensor([5, 2, 4])
    with p.within("encoder"):
        read = (Entry(p, config), Stack(p, config, False))
    with p.within("decoder"):
        write = (Entry(p, config), Stack(p, config, True))
    head = exit_layer(p, config, write[0])
    source = torch.tensor(tokens(15, 2)).view(3, 5)
    written = torch.tensor(tokens(12, 3)).view(3, 4)
    targets = torch.tensor(tokens(12, 5))
    targets[7] = -100
    exists = (torch.arange(5) < lengths[:, None])[:, None, None, :]
    memory = read[1](read[0](source), exists)
    logits = head(write[1](write[0](written), visibility("causal", 4), memory, exists))
    return p, F.cross_entropy(logits.flatten(0, 1), targets)


ROTARY = {"positions": {"rotary": 100.0}}
MODELS = {
    "pre_layer_gelu_learned": (language_model, {}, "causal"),
    "post_layer_gelu_sinusoidal_bias": (language_model, {"norm_place": "post", "positions": "sinusoidal", "attention_bias": True}, "causal"),
    "pre_rms_swiglu_rotary_grouped_tied": (language_model, {"norm": "rms", "mlp": "swi_glu", "kv_heads": 2, "tied": True} | ROTARY, "causal"),
    "post_rms_swiglu_alibi_one_key_head": (language_model, {"norm": "rms", "norm_place": "post", "mlp": "swi_glu", "kv_heads": 1, "positions": "alibi"}, "everything"),
    "reverse_mask": (language_model, {}, "reverse"),
    "strictly_future_mask": (language_model, {"positions": "none"}, "strictly_future"),
    "skip_next_mask_unscaled": (language_model, {"scale": "off"}, "skip_next"),
    "encoder_decoder_pre": (encoder_decoder, {}, None),
    "encoder_decoder_post_rotary_grouped": (encoder_decoder, {"norm_place": "post", "kv_heads": 2, "attention_bias": True} | ROTARY, None),
}


def scaled_attention(p, x):
    q, k, v = Linear(p, "q", WIDTH, 4, True), Linear(p, "k", WIDTH, 4, True), Linear(p, "v", WIDTH, 3, True)
    n = x.shape[1]
    scores = (q(x) @ k(x).mT / 2.0).masked_fill(~visibility("causal", n), float("-inf"))
    return scores.softmax(-1) @ v(x)


PARTS = {
    "linear": lambda p, x, m: Linear(p, "part", WIDTH, 5, True)(x),
    "layer_norm": lambda p, x, m: Norm(p, "part", "layer", WIDTH)(x),
    "rms_norm": lambda p, x, m: Norm(p, "part", "rms", WIDTH)(x),
    "gelu_mlp": lambda p, x, m: Mlp(p, "gelu", WIDTH, HIDDEN)(x),
    "swiglu_mlp": lambda p, x, m: Mlp(p, "swi_glu", WIDTH, HIDDEN)(x),
    "self_attention": lambda p, x, m: Attention(p, {"attention_bias": True, "kv_heads": 2} | ROTARY)(x, visibility("causal", 6)),
    "cross_attention": lambda p, x, m: Attention(p, {}, True)(x, (torch.arange(5) < torch.tensor([3, 5])[:, None])[:, None, None, :], m),
    "scaled_attention": lambda p, x, m: scaled_attention(p, x),
}


def run_part(build, dtype):
    p = Parameters(dtype)
    x = numbers(2 * 6 * WIDTH, 0.1, dtype).view(2, 6, WIDTH).requires_grad_()
    memory = numbers(2 * 5 * WIDTH, 0.2, dtype).view(2, 5, WIDTH).requires_grad_()
    y = build(p, x, memory)
    y.backward(numbers(y.numel(), 0.3, dtype).view_as(y))
    flat = lambda t: torch.zeros(0, dtype=dtype) if t is None else t.flatten()
    gradients = torch.cat([t.grad.flatten() for t in p.tensors.values()])
    return {"y": flat(y.detach()), "dx": flat(x.grad), "d_memory": flat(memory.grad), "gradients": gradients}


def listed(tensor):
    return [float(f"{x:.13g}") for x in tensor.double().flatten().tolist()]


def worst(a, b):
    return max(((x.double() - y.double()).abs().max().item() if x.numel() else 0.0) for x, y in zip(a, b))


def main(path):
    golden = {"models": [], "parts": []}
    for name, (build, config, mask) in MODELS.items():
        answers = {}
        for dtype in (torch.float64, torch.float32):
            p, loss = build(config, mask, dtype)
            loss.backward()
            answers[dtype] = (p, loss)
        (p, loss), (p32, _) = answers[torch.float64], answers[torch.float32]
        grads = [t.grad for t in p.tensors.values()]
        shape = {"vocab": VOCAB, "context": CONTEXT, "width": WIDTH, "heads": HEADS, "layers": LAYERS, "hidden": HIDDEN}
        golden["models"].append({
            "name": name, "kind": build.__name__, "config": shape | config, "mask": mask or "causal", "loss": loss.item(),
            "tensors": [[n, list(t.shape)] for n, t in p.tensors.items()],
            "gradients": listed(torch.cat([g.flatten() for g in grads])),
            "float32_error": worst(grads, [t.grad for t in p32.tensors.values()]),
        })
    for name, build in PARTS.items():
        wide, narrow = (run_part(build, dtype) for dtype in (torch.float64, torch.float32))
        golden["parts"].append({"name": name, **{k: listed(v) for k, v in wide.items()}, "float32_error": worst(wide.values(), narrow.values())})
    with open(path, "w") as file:
        lines = lambda rows: ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        file.write('{"models":[\n' + lines(golden["models"]) + '\n],"parts":[\n' + lines(golden["parts"]) + "\n]}\n")


if __name__ == "__main__":
    main(sys.argv[1])
