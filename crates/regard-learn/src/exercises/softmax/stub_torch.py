import torch


def softmax(x):
    """x [n, m] -> weights [n, m]; each row sums to 1"""
    raise NotImplementedError
