import torch


def softmax(x):
    top = x.amax(dim=1, keepdim=True)
    # A row of -inf only: any number will do, exp(-inf) is 0.
    top = torch.where(top == -torch.inf, 0, top)
    e = torch.exp(x - top)
    total = e.sum(dim=1, keepdim=True)
    return e / torch.where(total == 0, 1, total)
