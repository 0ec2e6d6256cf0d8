import torch


def attention(q, k, v, scale):
    weights = torch.softmax(q @ k.T * scale, dim=1)
    return weights @ v, weights
