import torch


def attention(q, k, v, scale):
    """q [n, d], k [m, d], v [m, dv] -> out [n, dv], weights [n, m]"""
    raise NotImplementedError
