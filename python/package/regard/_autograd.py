"""What :mod:`regard.torch` is made of: attention as a function that autograd knows, and memory that PyTorch and NumPy share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from ._regard import _backward, _backward_varlen, _forward_saved, _forward_saved_varlen, attention, attention_varlen

_BFLOAT16 = torch.bfloat16
_NO_OPERANDS = (None, None, None, None, None)


def _attend(query, key, value, operands, options, ends=None):
    """Tensors of four axes, and a mask of up to four; or packed ones of three, with the ends of the sequences."""
    wanted = query.requires_grad or key.requires_grad or value.requires_grad
    wanted = wanted or operands is not _NO_OPERANDS and any(x is not None and x.requires_grad for x in operands)
    if wanted and torch.is_grad_enabled() or _is_transformed():
        return _Attention.apply(ends, options, query, key, value, *operands)
    if operands is not _NO_OPERANDS:
        options |= _keywords(operands)
    arrays = (_array(query), _array(key), _array(value))
    return _tensor(attention(*arrays, **options) if ends is None else attention_varlen(*arrays, *ends, **options))


class _Attention(Function):
    @staticmethod
    def forward(ctx, ends, options, query, key, value, *operands):
        keywords = options | _keywords(operands)
        arrays = (_array(query), _array(key), _array(value))
        if ends is None:
            out, exact, row_max, row_sum = _forward_saved(*arrays, **keywords)
        else:
            out, exact, row_max, row_sum = _forward_saved_varlen(*arrays, *ends, **keywords)
        out = _tensor(out)
        exact = None if exact is None else torch.from_numpy(exact)
        rows = torch.from_numpy(row_max), torch.from_numpy(row_sum)
        ctx.save_for_backward(query, key, value, *operands, out, exact, *rows)
        ctx.ends, ctx.options = ends, options
        return out

    @staticmethod
    def backward(ctx, d_out):
        tensors = ctx.saved_tensors
        several = torch._C._are_functorch_transforms_active() or torch._C._functorch.is_legacy_batchedtensor(d_out)
        compute = _gradients_of_several if several else _gradients
        gradients = compute(ctx.ends, ctx.options, ctx.needs_input_grad, d_out, tensors)
        if torch.is_grad_enabled():
            gradients = _Once.apply(d_out, *tensors[:8], *gradients)[9:]
        return None, None, *gradients


def _gradients(ends, options, needed, d_out, tensors):
    """Those that are needed, of query, key, value and the operands."""
    query, key, value, mask, sink, alibi, relative, scale, out, exact, row_max, row_sum = tensors
    saved = (_array(out), None if exact is None else exact.numpy(), row_max.numpy(), row_sum.numpy())
    keywords = options | _keywords((mask, sink, alibi, relative, scale))
    keywords["mask_gradient"], keywords["scale_gradient"] = needed[5] or needed[7] or needed[8], needed[9]
    arrays = (_array(query), _array(key), _array(value), _array(d_out), saved)
    found = _backward(*arrays, **keywords) if ends is None else _backward_varlen(*arrays, *ends, **keywords)
    return (
        _tensor(found.dq) if needed[2] else None,
        _tensor(found.dk) if needed[3] else None,
        _tensor(found.dv) if needed[4] else None,
        _tensor(found.d_mask) if needed[5] else None,
        _per_head(found.d_sink, sink) if needed[6] else None,
        _per_head(found.d_alibi, alibi) if needed[7] else None,
        torch.from_numpy(found.d_relative).to(relative.dtype) if needed[8] else None,
        torch.full_like(scale, found.d_scale, requires_grad=False) if needed[9] else None,
    )


# Several d_out at once, which batched gradients and vectorised Jacobians hand in as one tensor that is not to be looked into: PyTorch takes it apart
# for its own operators, so this is one. Tensors that are not needed are empty; what else belongs to the call waits under a number.
_LIBRARY = torch.library.Library("regard", "DEF")
_LIBRARY.define(f"gradients(Tensor d_out, int call) -> ({', '.join(['Tensor'] * 8)})")
_waiting: dict[int, Any] = {}


def _gradients_of_one(d_out, call):
    return tuple(torch.empty(0) if x is None else x for x in _gradients(*_waiting[call](d_out)))


def _gradients_one_by_one(info, in_dims, d_out, call):
    each = [torch.ops.regard.gradients(d_out.select(in_dims[0], i), call) for i in range(info.batch_size)]
    return tuple(torch.stack(of) for of in zip(*each)), (0,) * 8


_LIBRARY.impl("gradients", _gradients_of_one, "CPU")
torch.library.register_vmap("regard::gradients", _gradients_one_by_one, lib=_LIBRARY)


def _gradients_of_several(ends, options, needed, d_out, tensors):
    """As :func:`_gradients`, whatever wraps d_out."""
    call = lambda one: (ends, options, needed, one, tensors)
    _waiting[id(call)] = call
    try:
        with torch.no_grad():
            found = torch.ops.regard.gradients(d_out, id(call))
    finally:
        del _waiting[id(call)]
    return tuple(x if wanted else None for x, wanted in zip(found, needed[2:]))


_FIRST_ONLY = (
    "regard.torch has first derivatives only, and a second one was asked for (create_graph=True, then backward through the "
    "gradient); compute this part with torch.nn.functional.scaled_dot_product_attention under "
    "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
)


class _Once(Function):
    """Hands its arguments on. With create_graph=True the gradients hang on what they depend on by this, and say so when asked."""

    @staticmethod
    def forward(ctx, *arguments):
        return arguments

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(_FIRST_ONLY)


_OPERANDS = ("mask", "sink", "alibi", "relative", "scale")


def _tensors_of(operands, options):
    """Those that are tensors; the others become options, copied."""
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
    """One number per head, for a tensor that holds so many or a single one for all."""
    gradient = torch.from_numpy(gradient)
    if tensor.dim() == 0:
        gradient = gradient.sum()
    return gradient.to(tensor.dtype)


def _array(tensor):
    """The same memory, to NumPy."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype is _BFLOAT16:
        return tensor.view(torch.uint16).numpy().view(_bfloat16())
    return tensor.resolve_neg().numpy() if tensor.is_neg() else tensor.numpy()


def _tensor(array):
    """The same memory, to PyTorch."""
    if array.dtype.kind != "f":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _copied(given):
    """Numbers as they are now: nobody changes them between the two passes."""
    if isinstance(given, Tensor):
        return given.detach().cpu().numpy().copy()
    return np.array(given) if isinstance(given, (list, np.ndarray)) else given


def _autocast(*tensors):
    """What PyTorch does to this operator's arguments in a region of mixed precision."""
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
    """Forward-mode derivatives or function transforms are at work: they must not be lost without a word."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
