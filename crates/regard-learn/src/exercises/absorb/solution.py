import numpy as np


def absorb(row_max, row_sum, acc, scores, v):
    new_max = np.maximum(row_max, scores.max(axis=1))
    # A row that has seen nothing subtracts 0: exp(-inf) is 0.
    shift = np.where(new_max == -np.inf, 0, new_max)
    alpha = np.exp(row_max - shift)
    p = np.exp(scores - shift[:, None])
    new_sum = row_sum * alpha + p.sum(axis=1)
    new_acc = acc * alpha[:, None] + p @ v
    return new_max, new_sum, new_acc
