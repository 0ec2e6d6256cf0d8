import torch


def turn(x, first, base):
    rows, d = x.shape
    half = d // 2
    positions = first + torch.arange(rows, dtype=torch.float64)
    angle = positions[:, None] / base ** (2 * torch.arange(half, dtype=torch.float64) / d)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[:, :half], x[:, half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=1)


def decode(q, k, v, past_k, past_v, base):
    t, d = q.shape
    p = len(past_k)
    q, k = turn(q, p, base), turn(k, p, base)
    keys = torch.cat([past_k, k])
    values = torch.cat([past_v, v])
    visible = torch.arange(p + t)[None, :] <= p + torch.arange(t)[:, None]
    scores = (q @ keys.T / d**0.5).masked_fill(~visible, -torch.inf)
    return torch.softmax(scores, dim=1) @ values, keys, values
