import numpy as np


def similarity(q, k):
    dots = q @ k.T
    q_length = np.sqrt((q * q).sum(axis=1))
    k_length = np.sqrt((k * k).sum(axis=1))
    # A length of 0 divides by 1: its dot products are 0 already.
    q_length = np.where(q_length == 0, 1, q_length)
    k_length = np.where(k_length == 0, 1, k_length)
    cosines = dots / q_length[:, None] / k_length[None, :]
    return dots, cosines
