import numpy as np


def row_mean(x, shift):
    """x [n, m] -> means [n]"""
    raise NotImplementedError
