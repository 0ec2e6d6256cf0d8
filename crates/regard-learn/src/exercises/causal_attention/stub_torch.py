import torch


def causal_attention(q, k, v, offset):
    """q [n, d], k [m, d], v [m, dv]; query i sees key j iff j <= i + offset -> out [n, dv], weights [n, m]"""
    raise NotImplementedError
