import torch


def similarity(q, k):
    """q [n, d], k [m, d] -> dots [n, m], cosines [n, m]"""
    raise NotImplementedError
