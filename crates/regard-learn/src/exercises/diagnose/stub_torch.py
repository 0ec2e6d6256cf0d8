import torch


def diagnose(model, vocab, max_len, heads):
    """model(tokens) -> logits [n, vocab], weights [heads, n, n]; returns the name of the defect, or "healthy" """
    raise NotImplementedError
