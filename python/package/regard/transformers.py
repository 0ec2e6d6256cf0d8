"""Attention for Hugging Face models: ``attn_implementation="regard"``.

>>> import regard.transformers
>>> regard.transformers.register()
>>> from transformers import LlamaConfig, LlamaModel
>>> config = LlamaConfig(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
>>> model = LlamaModel._from_config(config, attn_implementation="regard")
>>> import torch
>>> model(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
torch.Size([1, 3, 8])
>>> regard.transformers.report(model)
             layer           class computed_by  calls why
layers.0.self_attn  LlamaAttention      regard      1    

A model that is loaded already takes ``model.set_attn_implementation("regard")``. Masks are described instead of stored where transformers' own functions make
them (causal, sliding windows, packed sequences, padding), so that windows cost their own pairs only and memory is linear. ``output_attentions=True`` gives
the weights.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import warnings
from typing import Any, Callable

try:
    import torch
    from torch import Tensor
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
except ImportError as missing:
    raise ImportError(f"regard.transformers needs PyTorch and transformers 4.53 or later ({missing}): pip install torch transformers") from missing

from . import torch as _torch
from ._regard import Mask
from ._report import noted, table
from ._results import Table

__all__ = ["register", "report"]

_NAME = "regard"


def register(name: str = _NAME) -> None:
    """Make ``attn_implementation="regard"`` available to every model of transformers in this process."""
    AttentionInterface.register(name, _attention)
    # Earlier versions describe positions in another way.
    known = "q_length" in inspect.signature(masking_utils.sdpa_mask).parameters
    AttentionMaskInterface.register(name, _mask if known else masking_utils.sdpa_mask)


def report(model: torch.nn.Module) -> Table:
    """Which implementation computes each attention layer of a model: a :class:`regard.Table` with a row per layer.

    ``computed_by`` is ``regard`` or the implementation that computes the layer instead, and ``why`` is the reason. Both are those of the calls so far
    (``calls``), with a row for each combination; for a layer without any call yet, they are what its configuration says.
    """
    return table(model, _expected)


# ------------------------------------------------------------------ the report


def _uses_interface(kind: type) -> bool:
    """Whether a class looks its attention function up by the name in its configuration."""
    code = getattr(kind.forward, "__wrapped__", kind.forward).__code__
    return any(word in code.co_names for word in ("ALL_ATTENTION_FUNCTIONS", "get_interface"))


def _expected(module: torch.nn.Module) -> tuple[str, str]:
    """Who computes a layer, and why not regard, by its configuration."""
    kind = type(module)
    if not _uses_interface(kind):
        return "its own code", f"{kind.__name__} does not use transformers' attention interface"
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if _registered(name) is _attention:
        return "regard", ""
    return str(name), f'the model has attn_implementation="{name}"; call model.set_attn_implementation("regard")'


def _registered(name: str | None) -> Any:
    return AttentionInterface._global_mapping.get(name)


# ------------------------------------------------------------------ masks


class _DescribedMask(Tensor):
    """A bool mask ``[batch, 1, queries, keys]`` as a rule. Operators other than regard's attention get the mask itself, made when they do."""

    rule: Mask
    q_offset: int
    make: Callable[[], Tensor]

    @staticmethod
    def of(rule: Mask, q_offset: int, shape: tuple[int, ...], make: Callable[[], Tensor]) -> _DescribedMask:
        described = Tensor._make_subclass(_DescribedMask, torch.zeros((), dtype=torch.bool).expand(shape))
        described.rule, described.q_offset, described.make = rule, q_offset, functools.cache(make)
        return described

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), keywords: Any = None) -> Any:
        if function in _OF_ITS_OWN:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **(keywords or {}))
        return function(*_made(args), **_made(keywords or {}))


#: What holds of the description as of the mask: nothing that reads elements.
_OF_ITS_OWN = frozenset((
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "is_cpu", "requires_grad", "is_nested")),
    Tensor.dim, Tensor.size, Tensor.numel,
))


def _made(x: Any) -> Any:
    """Arguments with masks in place of descriptions."""
    if isinstance(x, _DescribedMask):
        return x.make()
    if isinstance(x, (tuple, list)):
        return type(x)(_made(y) for y in x)
    return {name: _made(y) for name, y in x.items()} if isinstance(x, dict) else x


def _rule(function: Any, aligned: bool) -> Mask | None:
    """The mask that one of transformers' mask functions describes; None of any other function. Documents need aligned queries and keys."""
    if getattr(function, "__module__", None) != masking_utils.__name__:
        return None
    name = function.__qualname__
    inside = dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__ or ())))
    if name == "causal_mask_function":
        return Mask.causal()
    if name == "bidirectional_mask_function":
        return Mask.everything()
    if name == "sliding_window_overlay.<locals>.inner_mask":
        return Mask.window(operator.index(inside["sliding_window"]) - 1, None)
    if name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
        width = operator.index(inside["sliding_window"])
        return Mask.window(width, width)
    if name == "packed_sequence_mask_function.<locals>.inner_mask" and aligned:
        return Mask.documents(inside["packed_sequence_mask"].numpy())
    joined = {"and_masks.<locals>.and_mask": operator.and_, "or_masks.<locals>.or_mask": operator.or_}.get(name)
    if joined is None:
        return None
    parts = [_rule(part, aligned) for part in inside["mask_functions"]]
    return None if not parts or any(part is None for part in parts) else functools.reduce(joined, parts)


def _mask(
    batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0, kv_offset: int = 0, mask_function: Any = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None, device: Any = "cpu", **options: Any,
) -> Tensor | None:
    """transformers' mask of the scores: a description where regard has one, else a bool tensor, or None where ``is_causal`` says all."""
    options.update(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function)
    options.update(attention_mask=attention_mask, device=device)
    if torch.compiler.is_compiling() or torch.device(device).type != "cpu":
        return masking_utils.sdpa_mask(**options)
    begin = int(q_offset)
    rule = _rule(mask_function, begin == kv_offset == 0 and q_length == kv_length)
    if rule is None:
        return masking_utils.sdpa_mask(**options)
    if attention_mask is not None:
        seen = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)[:, kv_offset : kv_offset + kv_length].to(torch.bool)
        if not seen.all():
            rule = rule & Mask.dense(seen[:, None, None].numpy())
    whole = functools.partial(masking_utils.sdpa_mask, **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return _DescribedMask.of(rule, begin - kv_offset, (batch_size, 1, q_length, kv_length), whole)


# ------------------------------------------------------------------ attention


def _attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, position_bias: Tensor | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, cache: Any = None, **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """transformers' attention function. The mask includes a sliding window."""
    seen, described = attention_mask, isinstance(attention_mask, _DescribedMask)
    reason = "a paged cache" if cache is not None else _torch._reason_against_call(query, key, value, None if described else seen, dropout)
    if reason is not None:
        options = dict(dropout=dropout, scaling=scaling, is_causal=is_causal, position_bias=position_bias, softcap=softcap, s_aux=s_aux, cache=cache)
        return _left(module, reason, (query, key, value, seen.make() if described else seen), {**options, **others})
    noted(module, "regard", "")
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    options: dict[str, Any] = dict(scale=scaling, softcap=softcap, sink=s_aux, bias=position_bias, enable_gqa=True)
    options["is_causal"] = bool(causal) and seen is None and query.shape[2] > 1
    if described:
        options.update(attn_mask=seen.rule, q_offset=seen.q_offset)
    else:
        options["attn_mask"] = seen
    if dropout:
        options.update(dropout_p=dropout)
    out = _torch.scaled_dot_product_attention(query, key, value, return_weights=_wanted(module, others), **options)
    out, weights = out if isinstance(out, tuple) else (out, None)
    return out.transpose(1, 2).contiguous(), weights


def _wanted(module: torch.nn.Module, others: dict[str, Any]) -> bool:
    """Whether the weights are asked for: as an argument, or by the hooks that collect them."""
    if others.get("output_attentions"):
        return True
    collected = _collector.get() if _collector is not None else None
    return any("attentions" in name for name in collected or ())


try:
    from transformers.utils.output_capturing import _active_collector as _collector
except ImportError:
    _collector = None


def _left(module: torch.nn.Module, reason: str, tensors: tuple[Any, ...], options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """A call that regard does not compute: by PyTorch's function, or by the model's own one where PyTorch has no such option."""
    unknown = [name for name in ("softcap", "s_aux") if options.get(name) is not None]
    own = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None) if unknown else None
    noted(module, "eager" if own else "sdpa", reason)
    _warn_once(type(module).__name__, reason, "the model's eager attention" if own else "PyTorch's scaled_dot_product_attention")
    if own is None:
        return sdpa_attention_forward(module, *tensors, **options)
    query, key, value, mask = tensors
    if mask is None and query.shape[2] > 1 and (getattr(module, "is_causal", True) if options["is_causal"] is None else options["is_causal"]):
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()[None, None]
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(~mask, torch.finfo(query.dtype).min)
    return own(module, query, key, value, mask, **{name: x for name, x in options.items() if name not in ("cache", "is_causal")})


@functools.cache
def _warn_once(kind: str, reason: str, other: str) -> None:
    warnings.warn(f"regard does not compute {kind} for {reason}: {other} does; regard.transformers.report(model) lists the layers", stacklevel=4)
