import torch


def saturation(q, k, scale):
    t = len(q)
    w = torch.softmax(q @ k.mT * scale, dim=2)
    entropy = -(w * torch.log(torch.where(w > 0, w, 1))).sum(dim=2)
    largest = w.amax(dim=2)
    slack = 1 - w.square().sum(dim=2)
    table = []
    for measure in (entropy, largest, slack):
        means = measure.mean(dim=1)
        error = means.std(correction=1) / t**0.5
        # torch.median takes the lower of two middle values; the quantile averages them.
        table.append(torch.stack([means.mean(), error, measure.flatten().quantile(0.5)]))
    return torch.stack(table)
