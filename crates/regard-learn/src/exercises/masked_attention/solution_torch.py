import torch


def masked_attention(q, k, v, mask, lengths):
    b, n, d = q.shape
    m, dv = k.shape[1], v.shape[2]
    out = torch.zeros(b, n, dv)
    weights = torch.zeros(b, n, m)
    for a in range(b):
        for i in range(n):
            visible = mask[i] & (torch.arange(m) < lengths[a])
            if not visible.any():
                continue
            w = torch.softmax(k[a][visible] @ q[a, i] / d**0.5, dim=0)
            weights[a, i, visible] = w
            out[a, i] = w @ v[a][visible]
    return out, weights
