import numpy as np


def attention_backward(q, k, v, d_out, mask):
    scale = np.float32(1 / np.sqrt(q.shape[1]))
    scores = np.where(mask, q @ k.T * scale, -np.inf)
    top = scores.max(axis=1, keepdims=True)
    e = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = e.sum(axis=1, keepdims=True)
    weights = e / np.where(total == 0, 1, total)

    dv = weights.T @ d_out
    d_weights = d_out @ v.T
    delta = (weights * d_weights).sum(axis=1, keepdims=True)
    d_scores = weights * (d_weights - delta)
    dq = d_scores @ k * scale
    dk = d_scores.T @ q * scale
    return dq, dk, dv
