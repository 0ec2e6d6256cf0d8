import numpy as np


def attention(q, k, v, scale):
    scores = q @ k.T * np.float32(scale)
    e = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = e / e.sum(axis=1, keepdims=True)
    return weights @ v, weights
