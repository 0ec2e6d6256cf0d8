import torch

TOLERANCE = 1e-3


def differ(a, b):
    return (a - b).abs().max() > TOLERANCE


def diagnose(model, vocab, max_len, heads):
    tokens = [(3 * i + 1) % vocab for i in range(max_len)]
    logits, weights = model(tokens)
    again, _ = model(tokens)
    if differ(logits, again):
        return "dropout_on"

    row, column = torch.arange(max_len)[:, None], torch.arange(max_len)[None, :]
    if (weights[:, row == column - 1] > TOLERANCE).any():
        return "future_leak"
    if (weights[:, row == column] < TOLERANCE).all():
        return "self_blind"
    if (weights[:, column <= row - 4] < TOLERANCE).all():
        return "short_memory"
    if differ(weights.sum(axis=2), 1):
        return "mask_after_softmax" if differ(weights.sum(axis=1), 1) else "wrong_axis"
    if not differ(weights, weights[:1]):
        return "tied_heads"

    # Another last token must not change earlier rows.
    changed = tokens[:-1] + [(tokens[-1] + 1) % vocab]
    if differ(model(changed)[0][:-1], logits[:-1]):
        return "hidden_leak"
    # Two early tokens trade places: the last row must notice.
    traded = [tokens[1], tokens[0]] + tokens[2:]
    if not differ(model(traded)[0][-1], logits[-1]):
        return "no_positions"
    return "healthy"
