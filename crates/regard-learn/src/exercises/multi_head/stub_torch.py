import torch


def multi_head(x, y, w_q, w_k, w_v, w_o, heads):
    """x [n, e], y [m, e], four matrices [e, e] -> out [n, e], weights [heads, n, m]"""
    raise NotImplementedError
