import numpy as np


def masked_attention(q, k, v, mask, lengths):
    b, n, d = q.shape
    m, dv = k.shape[1], v.shape[2]
    out = np.zeros((b, n, dv))
    weights = np.zeros((b, n, m))
    for a in range(b):
        for i in range(n):
            visible = mask[i] & (np.arange(m) < lengths[a])
            if not visible.any():
                continue
            scores = k[a][visible] @ q[a, i] / np.sqrt(d)
            e = np.exp(scores - scores.max())
            weights[a, i, visible] = e / e.sum()
            out[a, i] = weights[a, i, visible] @ v[a][visible]
    return out, weights
