import torch


def similarity(q, k):
    dots = q @ k.T
    q_length = q.square().sum(dim=1).sqrt()
    k_length = k.square().sum(dim=1).sqrt()
    # A length of 0 divides by 1: its dot products are 0 already.
    q_length = torch.where(q_length == 0, 1, q_length)
    k_length = torch.where(k_length == 0, 1, k_length)
    cosines = dots / q_length[:, None] / k_length[None, :]
    return dots, cosines
