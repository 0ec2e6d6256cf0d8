import numpy as np


def multi_head(x, y, w_q, w_k, w_v, w_o, heads):
    n, e = x.shape
    d = e // heads

    def split(z):
        return z.reshape(len(z), heads, d).transpose(1, 0, 2)

    q, k, v = split(x @ w_q), split(y @ w_k), split(y @ w_v)
    scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(d))
    a = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights = a / a.sum(axis=2, keepdims=True)
    mixed = weights @ v
    joined = mixed.transpose(1, 0, 2).reshape(n, e)
    return joined @ w_o, weights
