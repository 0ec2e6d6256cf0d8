import numpy as np


def backward_tile(q, k, v, d_out, out, row_max, row_sum, keep, p):
    """q [n, d], k [t, d], v [t, dv], d_out, out [n, dv], row_max, row_sum [n], keep [n, t] -> dq [n, d], dk [t, d], dv [t, dv]"""
    raise NotImplementedError
