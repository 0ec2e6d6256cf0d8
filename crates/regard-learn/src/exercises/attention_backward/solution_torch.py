import torch


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, mask):
        scale = q.shape[1] ** -0.5
        scores = (q @ k.T * scale).masked_fill(~mask, -torch.inf)
        top = scores.amax(dim=1, keepdim=True)
        e = torch.exp(scores - torch.where(top == -torch.inf, 0, top))
        total = e.sum(dim=1, keepdim=True)
        weights = e / torch.where(total == 0, 1, total)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, weights = ctx.saved_tensors
        scale = q.shape[1] ** -0.5
        dv = weights.T @ d_out
        d_weights = d_out @ v.T
        delta = (weights * d_weights).sum(dim=1, keepdim=True)
        d_scores = weights * (d_weights - delta)
        dq = d_scores @ k * scale
        dk = d_scores.T @ q * scale
        return dq, dk, dv, None
