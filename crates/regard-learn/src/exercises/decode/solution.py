import numpy as np


def turn(x, first, base):
    rows, d = x.shape
    half = d // 2
    positions = first + np.arange(rows)
    angle = positions[:, None] / base ** (2 * np.arange(half) / d)
    a, b = x[:, :half], x[:, half:]
    return np.hstack([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)])


def decode(q, k, v, past_k, past_v, base):
    t, d = q.shape
    p = len(past_k)
    q = turn(q, p, base)
    k = turn(k, p, base)
    keys = np.vstack([past_k, k])
    values = np.vstack([past_v, v])
    scores = q @ keys.T / np.sqrt(d)
    visible = np.arange(p + t)[None, :] <= p + np.arange(t)[:, None]
    scores = np.where(visible, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = e / e.sum(axis=1, keepdims=True)
    return weights @ values, keys, values
