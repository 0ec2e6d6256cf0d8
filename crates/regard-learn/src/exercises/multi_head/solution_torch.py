import torch


def multi_head(x, y, w_q, w_k, w_v, w_o, heads):
    n, e = x.shape
    d = e // heads

    def split(z):
        return z.reshape(len(z), heads, d).transpose(0, 1)

    q, k, v = split(x @ w_q), split(y @ w_k), split(y @ w_v)
    weights = torch.softmax(q @ k.mT / d**0.5, dim=2)
    joined = (weights @ v).transpose(0, 1).reshape(n, e)
    return joined @ w_o, weights
