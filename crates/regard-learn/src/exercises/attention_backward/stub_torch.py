import torch


class Attention(torch.autograd.Function):
    """Masked attention with a backward pass of its own; the judge differentiates Attention.apply(q, k, v, mask)."""

    @staticmethod
    def forward(ctx, q, k, v, mask):
        """q [n, d], k [m, d], v [m, dv], mask [n, m] (true = visible) -> out [n, dv]; ctx.save_for_backward(..)"""
        raise NotImplementedError

    @staticmethod
    def backward(ctx, d_out):
        """d_out [n, dv] -> dq [n, d], dk [m, d], dv [m, dv], None for the mask"""
        raise NotImplementedError
