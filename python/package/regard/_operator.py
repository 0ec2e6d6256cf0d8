"""Attention as operators of PyTorch, ``torch.ops.regard``: with rules for autograd, ``torch.func`` and ``torch.compile``.

``attention_forward`` returns the result and the softmax state of its rows; ``attention_backward`` returns the gradients. Every option is an
argument of its own, so that graphs can hold it; a :class:`regard.Mask` is held by a number.
"""

from __future__ import annotations

import operator
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from ._autograd import _array, _is_transformed, _per_head, _tensor
from ._regard import (
    Mask,
    _backward,
    _backward_varlen,
    _chosen_num_threads,
    _forward_saved,
    _forward_saved_varlen,
    attention,
    attention_varlen,
    weights,
)

__all__ = ["attend", "weights_of"]

_BOOL = (bool, np.bool_)

#: Tensors of a call, in the order of the operators' arguments. Those before ``cu_seqlens_q`` have gradients.
TENSORS = ("query", "key", "value", "mask", "bias", "sink", "alibi", "relative", "scale", "cu_seqlens_q", "cu_seqlens_k", "q_offset", "kv_lens", "seed")
DIFFERENTIABLE = TENSORS.index("cu_seqlens_q")
_OPTIONS = "int described, str causal, int[]? window, float? softcap, int? top_k, float? factor, bool standard_slopes, float dropout_p"
_COUNT = len(_OPTIONS.split(", "))
_REST = ", ".join(f"Tensor? {name}" for name in TENSORS[3:])

LIBRARY = torch.library.Library("regard", "DEF")
LIBRARY.define(f"attention_forward(Tensor query, Tensor key, Tensor value, {_REST}, {_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)")
LIBRARY.define(
    f"attention_backward(Tensor d_out, Tensor out, Tensor exact, Tensor row_max, Tensor row_sum, bool[] needed, Tensor query, Tensor key, "
    f"Tensor value, {_REST}, {_OPTIONS}) -> ({', '.join(['Tensor'] * DIFFERENTIABLE)})"
)

FIRST_ONLY = (
    "regard.torch has first derivatives only, and a second derivative was requested (create_graph=True, then backward through the "
    "gradient); compute this part with torch.nn.functional.scaled_dot_product_attention under "
    "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
)
NO_FORWARD_MODE = (
    "regard.torch has no forward-mode derivatives (jvp); compute this part with torch.nn.functional.scaled_dot_product_attention under "
    "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
)

# ------------------------------------------------------------------ masks by number

_masks: weakref.WeakValueDictionary[int, Mask] = weakref.WeakValueDictionary()
#: Masks of compiled graphs, which hold the number only.
_compiled: list[Mask] = []


@torch._dynamo.assume_constant_result
def _number(mask: Mask) -> int:
    """The number of a mask, which is valid while the mask lives."""
    _masks[id(mask)] = mask
    if torch.compiler.is_compiling():
        _compiled.append(mask)
    return id(mask)


# ------------------------------------------------------------------ calls of the library


def attend(query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any]) -> Tensor:
    """Tensors of four axes, or of three with ``cu_seqlens_q`` and ``cu_seqlens_k``; ``given`` has the options that are present."""
    compiling = torch.compiler.is_compiling()
    if not compiling and not _is_transformed():
        tensors = (query, key, value, *(x for x in given.values() if isinstance(x, Tensor)))
        if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
            arrays, keywords = _keywords(*_arguments(query, key, value, given, lambda x: x))
            return _tensor((attention if len(arrays) == 3 else attention_varlen)(*arrays, **keywords))
    tensors, options = _arguments(query, key, value, given, _copied)
    if compiling:
        return torch.ops.regard.attention_forward(*tensors, *options)[0]
    if forward_ad._current_level >= 0 and any(_has_tangent(x) for x in tensors):
        raise NotImplementedError(NO_FORWARD_MODE)
    return _Attention.apply(*tensors, *options)[0]


def weights_of(query: Tensor, key: Tensor, given: dict[str, Any]) -> Tensor:
    """The weights of a call of :func:`attend` on four axes; differentiable where the call is."""
    given = {name: x for name, x in given.items() if x is not None}
    needed = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, *given.values()) if isinstance(x, Tensor))
    if needed or "dropout_p" in given or torch.compiler.is_compiling() or _is_transformed():
        # Attention to the rows of the identity: the gradient, and the weights that dropout drops, are those of the call.
        identity = torch.eye(key.shape[2], dtype=query.dtype).expand(*key.shape[:3], key.shape[2])
        return attend(query, key, identity, given)
    arrays, keywords = _keywords(*_arguments(query, key, key, given, lambda x: x))
    return _tensor(weights(*arrays[:2], **keywords))


def _has_tangent(x: Tensor | None) -> bool:
    return x is not None and forward_ad.unpack_dual(x).tangent is not None


def _copied(x: Tensor) -> Tensor:
    """A copy of options that are not differentiable: the caller may change them before the backward pass."""
    return x.detach().clone()


def _arguments(query: Tensor, key: Tensor, value: Tensor, given: dict[str, Any], copied: Any) -> tuple[Any, Any]:
    """The options as the operators take them: tensors, and the rest."""
    mask, scale, alibi, causal = (given.get(name) for name in ("mask", "scale", "alibi", "causal"))
    window, softcap, top_k = (given.get(name) for name in ("window", "softcap", "top_k"))
    described = mask if isinstance(mask, Mask) else None
    if isinstance(scale, _BOOL):
        scale = None if scale else 1.0
    tensors: dict[str, Any] = {"query": query, "key": key, "value": value}
    for name in TENSORS[3:]:
        x = given.get(name)
        if x is None or x is described or isinstance(x, _BOOL) or name == "scale" and not isinstance(x, Tensor):
            tensors[name] = None
        elif not isinstance(x, Tensor):
            tensors[name] = torch.tensor(x, dtype=torch.float64 if name in ("sink", "alibi") else None)
        else:
            tensors[name] = x if name in TENSORS[:DIFFERENTIABLE] else copied(x)
    options = (
        0 if described is None else _number(described),
        causal if isinstance(causal, str) else "top_left" if causal else "",
        None if window is None else [-1 if n is None else operator.index(n) for n in window],
        None if softcap is None else float(softcap),
        None if top_k is None else operator.index(top_k),
        None if scale is None or isinstance(scale, Tensor) else float(scale),
        bool(isinstance(alibi, _BOOL) and alibi),
        float(given.get("dropout_p") or 0.0),
    )
    return tuple(tensors[name] for name in TENSORS), options


def _keywords(tensors: tuple[Tensor | None, ...], options: tuple[Any, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Arrays, and keywords of the compiled functions."""
    query, key, value, mask, bias, sink, alibi, relative, scale, ends_q, ends_k, q_offset, kv_lens, seed = tensors
    described, causal, window, softcap, top_k, factor, standard_slopes, dropout_p = options
    keywords: dict[str, Any] = {"threads": _chosen_num_threads() or torch.get_num_threads(), "softcap": softcap, "top_k": top_k, "scale": factor}
    if described:
        keywords["mask"] = _masks[described]
    if causal:
        keywords["causal"] = causal
    if window is not None:
        keywords["window"] = window
    if standard_slopes:
        keywords["alibi"] = True
    if mask is not None:
        keywords["mask"] = _array(mask)
    if bias is not None:
        keywords["bias"] = _array(bias)
    for name, x in (("sink", sink), ("alibi", alibi)):
        if x is not None:
            keywords[name] = x.detach().double().numpy()
    if relative is not None:
        keywords["relative"] = relative.detach().float().numpy()
    if scale is not None:
        keywords["scale"] = scale.detach().item()
    for name, x in (("q_offset", q_offset), ("kv_lens", kv_lens)):
        if x is not None:
            keywords[name] = x.item() if x.dim() == 0 else x.numpy()
    if dropout_p:
        keywords["dropout_p"] = dropout_p
        if seed is not None:
            # Seeds from 2**63 on are negative in int64.
            keywords["seed"] = seed.item() % 2**64
    ends = [] if ends_q is None else [ends_q.numpy(), ends_k.numpy()]
    return [_array(query), _array(key), _array(value), *ends], keywords


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    arrays, keywords = _keywords(arguments[: len(TENSORS)], arguments[len(TENSORS) :])
    out, exact, row_max, row_sum = (_forward_saved if len(arrays) == 3 else _forward_saved_varlen)(*arrays, **keywords)
    return _tensor(out), torch.empty(0) if exact is None else torch.from_numpy(exact), torch.from_numpy(row_max), torch.from_numpy(row_sum)


def _gradients(d_out: Tensor, out: Tensor, exact: Tensor, row_max: Tensor, row_sum: Tensor, needed: list[bool], *arguments: Any) -> tuple[Tensor, ...]:
    tensors = arguments[: len(TENSORS)]
    arrays, keywords = _keywords(tensors, arguments[len(TENSORS) :])
    saved = (_array(out), exact.numpy() if exact.numel() else None, row_max.numpy(), row_sum.numpy())
    keywords["mask_gradient"], keywords["scale_gradient"] = any(needed[i] for i in (3, 4, 6, 7)), needed[8]
    run = _backward if len(arrays) == 3 else _backward_varlen
    found = run(*arrays[:3], _array(d_out), saved, *arrays[3:], **keywords)
    made = (
        lambda: _tensor(found.dq),
        lambda: _tensor(found.dk),
        lambda: _tensor(found.dv),
        lambda: _tensor(found.d_mask),
        lambda: _tensor(found.d_bias),
        lambda: _per_head(found.d_sink, tensors[5]),
        lambda: _per_head(found.d_alibi, tensors[6]),
        lambda: torch.from_numpy(found.d_relative).to(tensors[7].dtype),
        lambda: torch.full_like(tensors[8], found.d_scale, requires_grad=False),
    )
    return tuple(make() if wanted else torch.empty(0) for make, wanted in zip(made, needed))


LIBRARY.impl("attention_forward", _forward, "CPU")
LIBRARY.impl("attention_backward", _gradients, "CPU")

# ------------------------------------------------------------------ shapes, for torch.compile


@torch.library.register_fake("regard::attention_forward", lib=LIBRARY)
def _fake_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, value = arguments[0], arguments[2]
    wide = query.dtype if query.dtype in (torch.float32, torch.float64) else torch.float32
    out = query.new_empty((*query.shape[:-1], value.shape[-1]))
    rows = (query.shape[1], query.shape[0]) if query.dim() == 3 else query.shape[:-1]
    exact = query.new_empty(0, dtype=torch.float32) if wide is query.dtype else query.new_empty(out.shape, dtype=wide)
    return out, exact, query.new_empty(rows, dtype=wide), query.new_empty(rows, dtype=wide)


@torch.library.register_fake("regard::attention_backward", lib=LIBRARY)
def _fake_gradients(d_out: Tensor, out: Tensor, exact: Tensor, row_max: Tensor, row_sum: Tensor, needed: list[bool], *arguments: Any) -> tuple[Tensor, ...]:
    like = lambda x: x.new_empty(x.shape)
    return tuple(like(x) if wanted else d_out.new_empty(0, dtype=torch.float32) for x, wanted in zip(arguments, needed))


# ------------------------------------------------------------------ derivatives


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """The state for the backward pass."""
    ctx.save_for_backward(*output, *inputs[: len(TENSORS)])
    ctx.options = inputs[len(TENSORS) :]
    # The number is valid while the mask lives.
    ctx.described = _masks.get(ctx.options[0])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _derive(ctx: Any, d_out: Tensor | None, gradients: Any) -> tuple[Tensor | None, ...]:
    """The gradients by all arguments of the forward pass."""
    nothing = (None,) * (len(TENSORS) + _COUNT)
    if d_out is None:
        return nothing
    needed = list(ctx.needs_input_grad[:DIFFERENTIABLE])
    # Once: checkpointing frees a tensor when it is read.
    saved = ctx.saved_tensors
    found = gradients(d_out, *saved[:4], needed, *saved[4:], *ctx.options)
    return (*(x if wanted else None for x, wanted in zip(found, needed)), *nothing[DIFFERENTIABLE:])


def _refuse(ctx: Any, *_: Any) -> None:
    raise RuntimeError(FIRST_ONLY)


torch.library.register_autograd(
    "regard::attention_forward", lambda ctx, d_out, *_: _derive(ctx, d_out, torch.ops.regard.attention_backward), setup_context=_keep, lib=LIBRARY
)
torch.library.register_autograd("regard::attention_backward", _refuse, lib=LIBRARY)


def _is_plain(x: Tensor) -> bool:
    """Whether the dispatcher has nothing to do: no transform, no dispatch mode, no batch of gradients."""
    special = torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack()
    return not special and not torch._C._functorch.is_legacy_batchedtensor(x)


# torch.func needs functions with a separate setup_context, which the rules above do not have.
class _Attention(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return (_forward if _is_plain(arguments[0]) else torch.ops.regard.attention_forward)(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _keep(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, *_: Any) -> Any:
        plain = d_out is None or not torch.is_grad_enabled() and _is_plain(d_out)
        return _derive(ctx, d_out, _gradients if plain else _Gradients.apply)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(NO_FORWARD_MODE)


class _Gradients(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.regard.attention_backward(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(FIRST_ONLY)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(NO_FORWARD_MODE)

# ------------------------------------------------------------------ torch.func.vmap


def _examples(info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    """The arguments of each example; lists have no examples."""
    for i in range(info.batch_size):
        yield [x.select(dim, i) if isinstance(dim, int) else x for x, dim in zip(arguments, in_dims)]


def _mapped(run: Any) -> Any:
    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        results = [run(*example) for example in _examples(info, in_dims, arguments)]
        stacked = tuple(torch.stack(each) for each in zip(*results))
        return stacked, (0,) * len(stacked)

    return rule


torch.library.register_vmap("regard::attention_forward", _mapped(torch.ops.regard.attention_forward), lib=LIBRARY)
torch.library.register_vmap("regard::attention_backward", _mapped(torch.ops.regard.attention_backward), lib=LIBRARY)
