import json

import numpy as np


def load(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = file.read()
    header.pop("__metadata__", None)

    def tensor(one):
        start, end = one["data_offsets"]
        return np.frombuffer(data[start:end], "<f2").reshape(one["shape"]).astype(np.float32)

    return {name: tensor(one) for name, one in header.items()}


def norm(x, gain):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-5)) * gain


def turned(x):
    t, d = x.shape[1:]
    speeds = 10000.0 ** -(np.arange(d // 2) * 2 / d)
    angles = (np.arange(t)[:, None] * speeds).astype(np.float32)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], axis=2)


def checkpoint(path, x, heads, layer):
    tensors = load(path)
    name = f"blocks.{layer}.attention"
    w_qkv, w_out = tensors[f"{name}.qkv.weight"], tensors[f"{name}.out.weight"]
    t, e = x.shape
    d = e // heads
    y = norm(x, tensors[f"{name}.norm.gain"])
    q, k, v = (part.reshape(t, heads, d).transpose(1, 0, 2) for part in np.split(y @ w_qkv, 3, axis=1))
    q, k = turned(q), turned(k)
    scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(d))
    scores = np.where(np.tri(t, dtype=bool), scores, -np.inf)
    a = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights = a / a.sum(axis=2, keepdims=True)
    return x + (weights @ v).transpose(1, 0, 2).reshape(t, e) @ w_out
