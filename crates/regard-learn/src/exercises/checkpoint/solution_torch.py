import json

import torch


def load(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    header.pop("__metadata__", None)

    def tensor(one):
        start, end = one["data_offsets"]
        return torch.frombuffer(data[start:end], dtype=torch.float16).reshape(one["shape"]).float()

    return {name: tensor(one) for name, one in header.items()}


def norm(x, gain):
    return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-5) * gain


def turned(x):
    t, d = x.shape[1:]
    speeds = 10000.0 ** -(torch.arange(d // 2, dtype=torch.float64) * 2 / d)
    angles = (torch.arange(t)[:, None] * speeds).float()
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], dim=2)


def checkpoint(path, x, heads, layer):
    tensors = load(path)
    name = f"blocks.{layer}.attention"
    w_qkv, w_out = tensors[f"{name}.qkv.weight"], tensors[f"{name}.out.weight"]
    t, e = x.shape
    d = e // heads
    y = norm(x, tensors[f"{name}.norm.gain"])
    q, k, v = (part.reshape(t, heads, d).transpose(0, 1) for part in (y @ w_qkv).chunk(3, dim=1))
    q, k = turned(q), turned(k)
    hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
    weights = torch.softmax((q @ k.mT / d**0.5).masked_fill(hidden, -torch.inf), dim=2)
    return x + (weights @ v).transpose(0, 1).reshape(t, e) @ w_out
