import numpy as np


def grouped_attention(q, k, v):
    h, n, d = q.shape
    hk = len(k)
    group = h // hk
    out = []
    for i in range(h):
        head = i // group
        scores = q[i] @ k[head].T / np.float32(np.sqrt(d))
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        out.append(e / e.sum(axis=1, keepdims=True) @ v[head])
    return np.stack(out)
