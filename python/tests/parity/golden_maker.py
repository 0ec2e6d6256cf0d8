"""Writes the golden vectors: inputs, options, and what PyTorch answers.

    python golden_maker.py --npz DIR --json FILE

`out` comes from PyTorch's math backend in float64 on the dense mask that the options mean (with a
softcap, which that backend lacks, from its softmax); `lse` from torch.logsumexp; `dq`, `dk`, `dv` and, for
a float mask, `dmask` are what its autograd makes of `dout`. The JSON file holds the float32 cases for tests
without Python, forward only; in it null stands for -inf.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# name: (q shape, k shape, value_dim, dtype, options, mask kind and shape)
CASES = {
    "full": ((1, 2, 5, 8), (1, 2, 7, 8), 8, "float32", {}, None),
    "full_float64": ((1, 2, 5, 8), (1, 2, 7, 8), 8, "float64", {}, None),
    "odd_sizes": ((1, 1, 13, 19), (1, 1, 35, 19), 5, "float32", {}, None),
    "grouped_heads": ((1, 4, 6, 8), (1, 2, 9, 8), 8, "float32", {}, None),
    "one_key_head": ((2, 3, 4, 8), (2, 1, 6, 8), 4, "float32", {"causal": "top_left"}, None),
    "causal_square": ((1, 2, 20, 16), (1, 2, 20, 16), 16, "float32", {"causal": "top_left"}, None),
    "causal_bottom_right_wide": ((1, 1, 4, 8), (1, 1, 11, 8), 8, "float32", {"causal": "bottom_right"}, None),
    "causal_bottom_right_tall": ((1, 1, 9, 8), (1, 1, 4, 8), 8, "float32", {"causal": "bottom_right"}, None),
    "window": ((1, 1, 24, 8), (1, 1, 24, 8), 8, "float32", {"window": [3, 2]}, None),
    "window_causal": ((1, 1, 24, 8), (1, 1, 24, 8), 8, "float32", {"causal": "top_left", "window": [5, None]}, None),
    "offset": ((2, 1, 5, 8), (2, 1, 16, 8), 8, "float32", {"causal": "top_left", "q_offset": [3, 9]}, None),
    "lengths": ((2, 2, 6, 8), (2, 2, 12, 8), 8, "float32", {"kv_lens": [12, 0]}, None),
    "lengths_bottom_right": ((2, 1, 3, 8), (2, 1, 10, 8), 8, "float32", {"causal": "bottom_right", "kv_lens": [10, 4]}, None),
    "bool_mask": ((2, 2, 7, 8), (2, 2, 9, 8), 8, "float32", {}, ("bool", (2, 1, 7, 9))),
    "float_mask": ((1, 2, 7, 8), (1, 2, 9, 8), 8, "float32", {}, ("float", (1, 2, 7, 9))),
    "float_mask_float64": ((1, 2, 7, 8), (1, 2, 9, 8), 8, "float64", {}, ("float", (1, 1, 7, 9))),
    "softcap": ((1, 2, 6, 8), (1, 2, 9, 8), 8, "float32", {"softcap": 1.5, "scale": 1.0}, None),
    "softcap_float_mask": ((1, 2, 6, 8), (1, 2, 9, 8), 8, "float32", {"softcap": 0.5}, ("float", (1, 1, 6, 9))),
    "negative_scale": ((1, 1, 6, 8), (1, 1, 9, 8), 8, "float32", {"scale": -0.75}, None),
    "huge_scores_float64": ((1, 1, 6, 8), (1, 1, 9, 8), 8, "float64", {"scale": 1e5}, None),
    "decode": ((1, 4, 1, 16), (1, 2, 70, 16), 16, "float32", {}, None),
    "everything": (
        (2, 4, 18, 12), (2, 2, 40, 12), 10, "float32",
        {"causal": "top_left", "window": [14, 1], "q_offset": [4, 22], "kv_lens": [20, 40], "softcap": 4.0, "scale": 0.5},
        ("bool", (2, 1, 18, 40)),
    ),
}


def dense_visibility(options, batch, seq_q, seq_kv):
    keys = torch.arange(seq_kv)
    lens = torch.tensor(options.get("kv_lens", [seq_kv] * batch))
    causal = options.get("causal")
    offset = options.get("q_offset", (lens - seq_q).tolist() if causal == "bottom_right" else [0] * batch)
    place = torch.tensor(offset)[:, None] + torch.arange(seq_q)
    relative = keys - place[..., None]
    seen = (keys < lens[:, None])[:, None].expand(batch, seq_q, seq_kv)
    if causal:
        seen = seen & (relative <= 0)
    left, right = options.get("window", [None, None])
    if left is not None:
        seen = seen & (relative >= -left)
    if right is not None:
        seen = seen & (relative <= right)
    return seen[:, None]


def answer(q, k, v, options, mask):
    """(out, lse) in float64, differentiable."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scale = options.get("scale", q.shape[-1] ** -0.5)
    seen = dense_visibility(options, q.shape[0], q.shape[2], k.shape[2])
    added = torch.zeros(()).double().where(seen, -torch.inf)
    if mask is not None:
        added = added + (torch.zeros(()).double().where(mask, -torch.inf) if mask.dtype == torch.bool else mask)
    scores = q @ k.mT * scale
    softcap = options.get("softcap")
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores + added
    lse = torch.logsumexp(scores.detach(), dim=-1)
    if softcap is not None:
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0) @ v, lse
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, added.expand_as(scores), scale=scale), lse


def make(name, answers=None):
    """Options and arrays of a case; `answers` is the type of out and lse, that of the case where it is not given."""
    q_shape, k_shape, value_dim, dtype, options, mask_spec = CASES[name]
    index = sorted(CASES).index(name)
    rng = np.random.default_rng(index)
    draw = lambda shape: rng.standard_normal(shape).astype(dtype)
    case = dict(q=draw(q_shape), k=draw(k_shape), v=draw((*k_shape[:3], value_dim)))
    if mask_spec:
        kind, shape = mask_spec
        hidden = rng.random(shape) < 0.35
        hidden[..., 2, :] = True
        case["mask"] = ~hidden if kind == "bool" else np.where(hidden, -np.inf, draw(shape)).astype(dtype)
    wide = lambda x: torch.from_numpy(x if x.dtype == bool else x.astype(np.float64)).requires_grad_(x.dtype != bool)
    tensors = {key: wide(value) for key, value in case.items()}
    out, lse = answer(tensors["q"], tensors["k"], tensors["v"], options, tensors.get("mask"))
    assert torch.isfinite(out).all(), name
    case["dout"] = np.random.default_rng(1000 + index).standard_normal(out.shape).astype(dtype)
    leaves = {key: x for key, x in tensors.items() if x.requires_grad}
    gradients = torch.autograd.grad(out, list(leaves.values()), torch.from_numpy(case["dout"].astype(np.float64)))
    assert all(torch.isfinite(x).all() for x in gradients), name
    case["out"], case["lse"] = out.detach().numpy().astype(answers or dtype), lse.numpy().astype(answers or dtype)
    return options, case | {f"d{key}": x.numpy().astype(dtype) for key, x in zip(leaves, gradients)}


def plain(array):
    """Shortest decimals that give back the same number; 0/1 for booleans; null for -inf."""
    if array.dtype == bool:
        return [int(x) for x in array.ravel()]
    return [None if np.isneginf(x) else float(str(x)) for x in array.ravel()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--npz", type=Path, required=True, help="folder for one .npz per case")
    parser.add_argument("--json", type=Path, help="file for the float32 cases")
    arguments = parser.parse_args()
    arguments.npz.mkdir(parents=True, exist_ok=True)
    for old in arguments.npz.glob("*.npz"):
        old.unlink()
    lines = []
    for name in CASES:
        options, case = make(name)
        np.savez_compressed(arguments.npz / f"{name}.npz", options=json.dumps(options), **case)
        if case["q"].dtype == np.float32:
            kind = None if "mask" not in case else "bool" if case["mask"].dtype == bool else "float"
            entry = dict(name=name, options=options, mask_kind=kind)
            forward = ("q", "k", "v", "mask", "out", "lse")
            entry["shapes"] = {key: list(case[key].shape) for key in forward if key in case}
            # Every digit of the answers: what is compared in float64 must not end at the eighth.
            case |= {key: x for key, x in make(name, np.float64)[1].items() if key in ("out", "lse")}
            entry |= {key: plain(case[key]) if key in case else None for key in forward}
            lines.append(json.dumps(entry, separators=(",", ":")))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        about = f"PyTorch {torch.__version__.split('+')[0]}, math backend in float64; null is -inf; arrays are row-major"
        arguments.json.write_text(f'{{"about":{json.dumps(about)},"cases":[\n' + ",\n".join(lines) + "\n]}\n")
    print(f"{len(CASES)} golden cases written")


if __name__ == "__main__":
    main()
