"""A training step of the benchmark's small and large language model in PyTorch, eager with SDPA.

    python train_step.py [small|large] [threads] [steps] [--compile]

Prints the same lines as the example `train_step` of regard-nn.
"""

import sys
import time

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


def main():
    compiled = "--compile" in sys.argv
    size, threads, steps = ([a for a in sys.argv[1:] if not a.startswith("-")] + ["small", "1", "20"][len(sys.argv) - 1 - compiled :])[:3]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    width, heads, layers, context, batch = (384, 6, 6, 256, 16) if size == "large" else (64, 4, 2, 64, 32)
    model = Model(width, heads, layers, context)
    step_model = torch.compile(model) if compiled else model
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.99))
    data = torch.randint(VOCAB, (100_000,))
    times = []
    for _ in range(int(steps)):
        start = time.perf_counter()
        at = torch.randint(len(data) - context - 1, (batch,))
        w = torch.stack([data[a : a + context + 1] for a in at])
        loss = F.cross_entropy(step_model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        loss.item()
        times.append(time.perf_counter() - start)
    times.sort()
    print(f"{threads} threads: best {times[0] * 1e3:.2f} ms, median {times[len(times) // 2] * 1e3:.2f} ms, {batch * context / times[0]:.0f} tokens/s")
    print(f"{min(write(model, context) for _ in range(3)) * 1e6:.1f} us per written token")


if __name__ == "__main__":
    main()
