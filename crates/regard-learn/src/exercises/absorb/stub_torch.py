import torch


def absorb(row_max, row_sum, acc, scores, v):
    """row_max [n], row_sum [n], acc [n, dv], scores [n, t], v [t, dv] -> newer row_max, row_sum, acc"""
    raise NotImplementedError
