"""Attention of transformers' models with edits, in plain PyTorch: the oracle of the microscope. It shares no code with it."""

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

STATE = {"scale": None, "mode": None, "mask": None, "weights": {}, "keep": False}


def visible(n, causal, mask):
    """Which pairs: True where query i sees key j."""
    i, j = torch.arange(n)[:, None], torch.arange(n)[None, :]
    own = (j <= i) if causal else torch.ones(n, n, dtype=torch.bool)
    if mask is None:
        return own
    kind, *numbers = mask
    if kind == "full":
        return torch.ones(n, n, dtype=torch.bool)
    if kind == "causal":
        return j <= i
    if kind == "window":
        left, right = numbers
        return (j >= i - left) & (j <= i + right)
    raise ValueError(mask)


def surgery(module, query, key, value, attention_mask, scaling=None, dropout=0.0, softcap=None, **_):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query @ key.transpose(2, 3) * (scaling if STATE["scale"] is None else STATE["scale"])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    n = scores.shape[-1]
    if STATE["mask"] is not None:
        seen = visible(n, True, STATE["mask"])
    elif attention_mask is not None:
        seen = attention_mask[0, 0, :, :n] > -1 if attention_mask.dtype != torch.bool else attention_mask[0, 0, :, :n]
    else:
        seen = visible(n, bool(getattr(module, "is_causal", False)), None)
    seen = seen.clone()
    if STATE["mode"] == "hide":
        seen[1:, 0] = False
    if STATE["mode"] == "uniform":
        scores = torch.zeros_like(scores)
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    weights = torch.nan_to_num(weights)
    if STATE["keep"]:
        layer = len(STATE["weights"])
        STATE["weights"][layer] = weights[0]
    return (weights @ value).transpose(1, 2).contiguous(), weights


AttentionInterface.register("surgery", surgery)
AttentionMaskInterface.register("surgery", eager_mask)


def edited(model, ids, scale=None, mode=None, mask=None, zero=None, keep=False, parts=None):
    """The model's output with an edit; `zero` is (module before whose input a head is cut, head, head_dim)."""
    STATE.update(scale=scale, mode=mode, mask=mask, weights={}, keep=keep)
    hook = None
    if zero is not None:
        module, head, dim = zero

        def cut(_, args):
            x = args[0].clone()
            x[..., head * dim : (head + 1) * dim] = 0
            return (x, *args[1:])

        hook = module.register_forward_pre_hook(cut)
    try:
        with torch.no_grad():
            out = model(torch.tensor([ids]))
    finally:
        if hook:
            hook.remove()
        STATE.update(scale=None, mode=None, mask=None, keep=False)
    return out


def loss(logits, ids):
    return torch.nn.functional.cross_entropy(logits[0, :-1].double(), torch.tensor(ids[1:])).item()
