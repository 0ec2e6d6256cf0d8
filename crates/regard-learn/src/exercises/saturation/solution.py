import numpy as np


def saturation(q, k, scale):
    t = len(q)
    scores = q @ k.transpose(0, 2, 1) * np.float32(scale)
    e = np.exp(scores - scores.max(axis=2, keepdims=True))
    w = e / e.sum(axis=2, keepdims=True)
    entropy = -(w * np.log(np.where(w > 0, w, 1))).sum(axis=2)
    largest = w.max(axis=2)
    slack = 1 - (w * w).sum(axis=2)
    table = []
    for measure in (entropy, largest, slack):
        means = measure.mean(axis=1)
        error = means.std(ddof=1) / np.sqrt(t)
        table.append([means.mean(), error, np.median(measure)])
    return np.array(table)
