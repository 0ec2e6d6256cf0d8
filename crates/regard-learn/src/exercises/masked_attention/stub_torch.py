import torch


def masked_attention(q, k, v, mask, lengths):
    """q [b, n, d], k [b, m, d], v [b, m, dv], mask [n, m] (true = visible), lengths [b] -> out [b, n, dv], weights [b, n, m]"""
    raise NotImplementedError
