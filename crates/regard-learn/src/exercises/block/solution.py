import numpy as np


def norm(x, gain):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(1e-5)) * gain


def attention(x, w_q, w_k, w_v, w_o, heads):
    t, e = x.shape
    d = e // heads

    def split(z):
        return z.reshape(t, heads, d).transpose(1, 0, 2)

    q, k, v = split(x @ w_q), split(x @ w_k), split(x @ w_v)
    scores = q @ k.transpose(0, 2, 1) / np.float32(np.sqrt(d))
    scores = np.where(np.tri(t, dtype=bool), scores, -np.inf)
    a = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights = a / a.sum(axis=2, keepdims=True)
    return (weights @ v).transpose(1, 0, 2).reshape(t, e) @ w_o


def block(tokens, embed, w_q, w_k, w_v, w_o, w_in, w_out, gain_1, gain_2, gain_3, heads):
    x = embed[tokens]
    x = x + attention(norm(x, gain_1), w_q, w_k, w_v, w_o, heads)
    x = x + np.maximum(0, norm(x, gain_2) @ w_in) @ w_out
    return norm(x, gain_3) @ embed.T
