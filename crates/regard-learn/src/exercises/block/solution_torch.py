import torch


def norm(x, gain):
    return x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-5) * gain


def attention(x, w_q, w_k, w_v, w_o, heads):
    t, e = x.shape
    d = e // heads

    def split(z):
        return z.reshape(t, heads, d).transpose(0, 1)

    q, k, v = split(x @ w_q), split(x @ w_k), split(x @ w_v)
    hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
    weights = torch.softmax((q @ k.mT / d**0.5).masked_fill(hidden, -torch.inf), dim=2)
    return (weights @ v).transpose(0, 1).reshape(t, e) @ w_o


def block(tokens, embed, w_q, w_k, w_v, w_o, w_in, w_out, gain_1, gain_2, gain_3, heads):
    x = embed[tokens]
    x = x + attention(norm(x, gain_1), w_q, w_k, w_v, w_o, heads)
    x = x + torch.relu(norm(x, gain_2) @ w_in) @ w_out
    return norm(x, gain_3) @ embed.T
