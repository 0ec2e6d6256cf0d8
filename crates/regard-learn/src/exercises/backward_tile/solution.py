import numpy as np


def backward_tile(q, k, v, d_out, out, row_max, row_sum, keep, p):
    scale = np.float32(1 / np.sqrt(q.shape[1]))
    weights = np.exp(q @ k.T * scale - row_max[:, None]) / row_sum[:, None]
    factor = keep * np.float32(1 / (1 - p))
    dropped = weights * factor

    dv = dropped.T @ d_out
    d_weights = d_out @ v.T * factor
    delta = (d_out * out).sum(axis=1, keepdims=True)
    d_scores = weights * (d_weights - delta)
    dq = d_scores @ k * scale
    dk = d_scores.T @ q * scale
    return dq, dk, dv
