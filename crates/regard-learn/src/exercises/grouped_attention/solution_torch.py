import torch


def grouped_attention(q, k, v):
    h, n, d = q.shape
    hk = len(k)
    q = q.reshape(hk, h // hk, n, d)
    weights = torch.softmax(q @ k.mT[:, None] / d**0.5, dim=-1)
    return (weights @ v[:, None]).reshape(h, n, -1)
