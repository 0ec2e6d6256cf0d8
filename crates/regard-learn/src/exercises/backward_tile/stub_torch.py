import torch


class AttentionTile(torch.autograd.Function):
    """What one tile of keys adds to the output; the judge differentiates AttentionTile.apply(..) and adds dq over tiles."""

    @staticmethod
    def forward(ctx, q, k, v, out, row_max, row_sum, keep, p):
        """q [n, d], k [t, d], v [t, dv], out [n, dv] of all tiles, row_max, row_sum [n], keep [n, t] -> this tile's part of out [n, dv]"""
        raise NotImplementedError

    @staticmethod
    def backward(ctx, d_out):
        """d_out [n, dv] -> dq [n, d], dk [t, d], dv [t, dv], and None for each of the others"""
        raise NotImplementedError
