import torch


def causal_attention(q, k, v, offset):
    n, m, d = len(q), len(k), q.shape[1]
    visible = torch.arange(m)[None, :] <= torch.arange(n)[:, None] + offset
    scores = (q @ k.T / d**0.5).masked_fill(~visible, -torch.inf)
    top = scores.amax(dim=1, keepdim=True)
    top = torch.where(top == -torch.inf, 0, top)
    e = torch.exp(scores - top)
    total = e.sum(dim=1, keepdim=True)
    weights = e / torch.where(total == 0, 1, total)
    return weights @ v, weights
