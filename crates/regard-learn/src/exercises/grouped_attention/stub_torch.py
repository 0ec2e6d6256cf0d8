import torch


def grouped_attention(q, k, v):
    """q [h, n, d], k [hk, m, d], v [hk, m, dv] -> out [h, n, dv]; h/hk neighbouring query heads share a key/value head"""
    raise NotImplementedError
