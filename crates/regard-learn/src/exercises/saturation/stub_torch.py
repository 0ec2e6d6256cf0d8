import torch


def saturation(q, k, scale):
    """q [t, n, d], k [t, m, d] -> table [3, 3]: (entropy, largest weight, slack) x (mean, standard error, median)"""
    raise NotImplementedError
