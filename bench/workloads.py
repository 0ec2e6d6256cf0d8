"""What is timed: shapes, masks, inputs, and exact rows to check a result before it is timed."""

from dataclasses import dataclass

import numpy as np

WINDOW = 128


@dataclass(frozen=True)
class Workload:
    name: str
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    head_dim: int
    mask: str = "full"  # full, causal, random, padding, window, bias
    kind: str = "forward"  # forward, decode, statistics, training (forward and backward)
    dtype: str = "float32"
    dropout: float = 0.0
    against: str = "default"  # PyTorch's choice of path, or its math path

    def inputs(self):
        """q, k, v in float32, already rounded to the workload's type."""
        rng = np.random.default_rng(7)
        sizes = ((self.heads_q, self.seq_q), (self.heads_kv, self.seq_kv), (self.heads_kv, self.seq_kv))
        arrays = [rng.standard_normal((self.batch, h, n, self.head_dim), dtype=np.float32) for h, n in sizes]
        return [x.astype(self.numpy_dtype()).astype(np.float32) for x in arrays]

    def numpy_dtype(self):
        if self.dtype == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.dtype)

    def dense_mask(self):
        """What PyTorch is handed; None when a flag says it."""
        if self.mask == "random":
            return np.random.default_rng(8).random((1, 1, self.seq_q, self.seq_kv)) < 0.5
        if self.mask == "padding":
            return (np.arange(self.seq_kv) < 3 * self.seq_kv // 4).reshape(1, 1, 1, -1)
        if self.mask == "window":
            behind = np.arange(self.seq_q, dtype=np.int32)[:, None] - np.arange(self.seq_kv, dtype=np.int32)
            return ((behind >= 0) & (behind < WINDOW))[None, None]
        return None

    def bias(self):
        """A number for every pair of a head, added to the scores, whose gradient is wanted too."""
        return np.random.default_rng(9).standard_normal((1, self.heads_q, self.seq_q, self.seq_kv), dtype=np.float32)

    def out_gradient(self):
        gradient = np.random.default_rng(10).standard_normal((self.batch, self.heads_q, self.seq_q, self.head_dim), dtype=np.float32)
        return gradient.astype(self.numpy_dtype()).astype(np.float32)

    def regard_keywords(self):
        if self.mask == "causal":
            return {"causal": True}
        if self.mask == "window":
            return {"window": (WINDOW - 1, 0)}
        return {} if self.mask == "full" else {"mask": self.dense_mask()}

    def sampled_rows(self):
        """((b, h, i), weights in float64 over all keys) for a few rows."""
        q, k, _ = self.inputs()
        mask = self.dense_mask()
        rows = {(0, 0, 0), (self.batch - 1, self.heads_q - 1, self.seq_q - 1), (0, self.heads_q // 2, self.seq_q // 3)}
        for b, h, i in sorted(rows):
            keys = k[b, h * self.heads_kv // self.heads_q].astype(np.float64)
            scores = keys @ q[b, h, i].astype(np.float64) / np.sqrt(self.head_dim)
            if self.mask == "causal":
                scores[i + 1 :] = -np.inf
            if mask is not None:
                scores[~mask[0, 0, min(i, mask.shape[2] - 1)]] = -np.inf
            weights = np.exp(scores - scores.max())
            yield (b, h, i), weights / weights.sum()

    def key_value_bytes(self):
        return 2 * self.batch * self.heads_kv * self.seq_kv * self.head_dim * self.numpy_dtype().itemsize


def square(batch, heads, seq, dim, mask="full", **more):
    kind = more.get("kind", "forward")
    name = " ".join([f"{kind} {batch}x{heads}x{seq}x{dim} {mask}", *([more["dtype"]] if "dtype" in more else [])])
    return Workload(name, batch, heads, heads, seq, seq, dim, mask, **more)


SHAPES = [
    (1, 8, 1024, 64), (1, 8, 4096, 64), (1, 8, 4096, 128), (1, 1, 16384, 64),
    (1, 12, 512, 64), (8, 12, 128, 64), (32, 12, 64, 64), (1, 1, 8, 16),
]

def training(batch, heads, seq, dim, mask="full", **more):
    named = [mask, *(["dropout"] if more.get("dropout") else []), *(["over PyTorch's math path"] if "against" in more else []), *([more["dtype"]] if "dtype" in more else [])]
    name = f"training {batch}x{heads}x{seq}x{dim} {' '.join(named)}"
    return Workload(name, batch, heads, heads, seq, seq, dim, mask, kind="training", **more)


TRAINING = [
    *(training(*shape, mask) for shape in ((1, 8, 1024, 64), (1, 8, 4096, 64), (8, 12, 128, 64)) for mask in ("full", "causal")),
    *(training(8, 12, 128, 64, mask, against="math") for mask in ("full", "causal")),
    training(1, 8, 1024, 64, dropout=0.1),
    training(1, 8, 4096, 64, "window"),
    training(1, 8, 1024, 64, "bias"),
    Workload("training grouped 32/8 heads 1024x128 causal", 1, 32, 8, 1024, 1024, 128, "causal", kind="training"),
]

SIXTEEN_BITS = [
    *(
        made(*shape, mask, dtype=dtype)
        for dtype in ("bfloat16", "float16")
        for made in (square, training)
        for shape in ((1, 8, 1024, 64), (1, 8, 4096, 64), (8, 12, 128, 64), (1, 12, 512, 64))
        for mask in ("full", "causal")
    ),
    *(
        Workload(f"{kind} grouped 32/8 heads 1024x128 {mask} {dtype}", 1, 32, 8, 1024, 1024, 128, mask, kind=kind, dtype=dtype)
        for dtype in ("bfloat16", "float16")
        for kind in ("forward", "training")
        for mask in ("full", "causal")
    ),
]

WORKLOADS = [
    *(square(*shape, mask) for shape in SHAPES for mask in ("full", "causal")),
    Workload("cross 256 over 4096", 1, 8, 8, 256, 4096, 64),
    Workload("grouped 32/8 heads 1024x128 causal", 1, 32, 8, 1024, 1024, 128, "causal"),
    Workload("one key head, 16 queries 1024x128 causal", 1, 16, 1, 1024, 1024, 128, "causal"),
    square(1, 8, 2048, 64, "random"),
    square(1, 8, 2048, 64, "padding"),
    square(1, 8, 4096, 64, "window"),
    square(1, 2, 16384, 64, "window"),
    *(
        Workload(f"decode 32/{heads} heads, 32768 keys, {dtype}", 1, 32, heads, 1, 32768, 128, kind="decode", dtype=dtype)
        for heads in (8, 32)
        for dtype in ("float32", "bfloat16", "float16")
    ),
    square(1, 8, 1024, 64, kind="statistics"),
    square(1, 8, 4096, 64, kind="statistics"),
    *TRAINING,
    *SIXTEEN_BITS,
]
