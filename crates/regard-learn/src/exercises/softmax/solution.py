import numpy as np


def softmax(x):
    top = x.max(axis=1, keepdims=True)
    # A row of -inf only: any number will do, exp(-inf) is 0.
    top = np.where(top == -np.inf, 0, top)
    e = np.exp(x - top)
    total = e.sum(axis=1, keepdims=True)
    total = np.where(total == 0, 1, total)
    return e / total
