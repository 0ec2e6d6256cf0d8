import numpy as np


def attention_backward(q, k, v, d_out, mask):
    """q [n, d], k [m, d], v [m, dv], d_out [n, dv], mask [n, m] (true = visible) -> dq, dk, dv"""
    raise NotImplementedError
