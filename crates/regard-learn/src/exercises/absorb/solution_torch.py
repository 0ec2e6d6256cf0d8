import torch


def absorb(row_max, row_sum, acc, scores, v):
    new_max = torch.maximum(row_max, scores.amax(dim=1))
    # A row that has seen nothing subtracts 0: exp(-inf) is 0.
    shift = torch.where(new_max == -torch.inf, 0, new_max)
    alpha = torch.exp(row_max - shift)
    p = torch.exp(scores - shift[:, None])
    return new_max, row_sum * alpha + p.sum(dim=1), acc * alpha[:, None] + p @ v
