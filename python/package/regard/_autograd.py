"""Helpers of :mod:`regard.torch`: memory that PyTorch and NumPy share, and the state of autograd."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

_BFLOAT16 = torch.bfloat16
_OPERANDS = ("mask", "sink", "alibi", "relative", "scale")


def _tensors_of(operands, options):
    """The operands that are tensors; the others become options, copied."""
    tensors = []
    for name, given in zip(_OPERANDS, operands):
        tensors.append(given if isinstance(given, Tensor) else None)
        if given is not None and tensors[-1] is None:
            options[name] = _copied(given)
    return tuple(tensors)


def _keywords(operands):
    """The tensors beside query, key and value, as keywords."""
    mask, sink, alibi, relative, scale = operands
    keywords = {}
    if mask is not None:
        keywords["mask"] = _array(mask)
    if sink is not None:
        keywords["sink"] = sink.detach().double().numpy()
    if alibi is not None:
        keywords["alibi"] = alibi.detach().double().numpy()
    if relative is not None:
        keywords["relative"] = relative.detach().float().numpy()
    if scale is not None:
        keywords["scale"] = scale.detach().item()
    return keywords


def _per_head(gradient, tensor):
    """The gradient of one element per head, or of one element for all heads."""
    gradient = torch.from_numpy(gradient)
    if tensor.dim() == 0:
        gradient = gradient.sum()
    return gradient.to(tensor.dtype)


def _array(tensor):
    """A NumPy view of a tensor's memory."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is _BFLOAT16:
        return tensor.view(torch.uint16).numpy().view(_bfloat16())
    return tensor.resolve_neg().numpy() if tensor.is_neg() else tensor.numpy()


def _tensor(array):
    """A tensor over an array's memory."""
    if array.dtype.kind != "f":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _copied(given):
    """A copy, so that later changes do not reach the backward pass."""
    if isinstance(given, Tensor):
        return given.detach().cpu().numpy().copy()
    return np.array(given) if isinstance(given, (list, np.ndarray)) else given


def _autocast(*tensors):
    """The arguments as PyTorch casts them for this operator under autocast."""
    dtype = torch.get_autocast_dtype("cpu")
    eligible = (torch.float32, torch.float16, torch.bfloat16)
    return [x.to(dtype) if isinstance(x, Tensor) and x.dtype in eligible else x for x in tensors]


def _bfloat16():
    try:
        from ml_dtypes import bfloat16
    except ImportError as missing:
        raise TypeError("bfloat16 tensors need the package ml_dtypes: pip install ml_dtypes") from missing
    return bfloat16


def _is_transformed():
    """Whether forward-mode derivatives or torch.func transforms are active."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
