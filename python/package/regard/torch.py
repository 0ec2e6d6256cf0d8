"""Attention for PyTorch on the CPU: differentiable, with PyTorch's signature, on PyTorch's memory.

>>> import torch, regard.torch
>>> q, k, v = (torch.ones(1, 8, 128, 64, requires_grad=True) for _ in range(3))
>>> out = regard.torch.scaled_dot_product_attention(q, k, v, is_causal=True, window=(31, 0))
>>> out.sum().backward()
>>> v.grad.shape
torch.Size([1, 8, 128, 64])

A model that calls PyTorch's own function is not changed at all:

>>> block = torch.nn.TransformerEncoderLayer(64, 8, batch_first=True)
>>> with regard.torch.use() as calls:
...     block(torch.ones(2, 10, 64)).sum().backward()
>>> calls.computed
1

Threads: as many as ``torch.set_num_threads`` has set, unless ``regard.set_num_threads`` was called. Results do not depend on it.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import threading
import types
import warnings
import weakref
from contextlib import ContextDecorator
from importlib.util import find_spec
from typing import Any, Sequence

try:
    import torch
    from torch import Tensor
except ImportError as missing:
    raise ImportError(f"regard.torch needs PyTorch ({missing}): pip install torch") from missing

from ._autograd import _array, _autocast, _is_transformed
from ._context import Partition, _Loose, context_parallel_attention
from ._operator import attend, weights_of
from ._regard import Mask
from ._regard import statistics as _statistics
from ._report import _count, caller, table
from ._results import Statistics, Table

__all__ = ["Partition", "ScaledAttention", "context_parallel_attention", "scaled_dot_product_attention", "statistics", "use", "varlen_attention"]

_DTYPES = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_STRIDED = torch.strided
_pytorch = torch._C._nn.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | Mask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool | str = False,
    scale: Tensor | float | None = None,
    enable_gqa: bool = False,
    *,
    window: Sequence[int | None] | None = None,
    softcap: float | None = None,
    sink: Tensor | Sequence[float] | float | None = None,
    alibi: Tensor | Sequence[float] | bool | None = None,
    relative: Tensor | None = None,
    top_k: int | None = None,
    q_offset: Any = None,
    kv_lens: Any = None,
    bias: Tensor | None = None,
    seed: int | None = None,
    return_weights: bool = False,
) -> Any:
    """``torch.nn.functional.scaled_dot_product_attention``, computed by regard, with more options and with all gradients.

    ``query`` is ``[..., heads, seq_q, head_dim]``, ``key`` and ``value`` are ``[..., heads, seq_kv, dim]``, on the CPU, of float32,
    float64, float16 or bfloat16; leading dimensions are broadcast. Tensors are read where they lie, with any strides. Nested tensors
    (``layout=torch.jagged``, ``[batch, heads, ragged, dim]``) are computed without padding, as by :func:`varlen_attention`. The first
    eight arguments mean what they mean in PyTorch:

    * ``attn_mask``: bool (True: attend) or float (added to the scores), broadcast. A float mask that requires a gradient gets one, in
      its own shape. Or a :class:`regard.Mask`.
    * ``dropout_p``: the seed is drawn from PyTorch's generator, so that ``torch.manual_seed`` makes it repeatable, unless ``seed``
      gives one. Which weights are dropped is not what PyTorch would drop.
    * ``is_causal``: also ``'bottom_right'``, the last query at the last key; goes together with a mask.
    * ``scale``: also a tensor of one element, which may require a gradient.
    * ``enable_gqa``: fewer heads of key and value than of query.

    ``window``, ``softcap``, ``sink``, ``alibi``, ``relative``, ``top_k``, ``q_offset`` and ``kv_lens`` are those of
    :func:`regard.attention`; sinks, slopes and tables that are tensors may require gradients. Arrays and lists are copied: changing them
    before the backward pass does not change it.

    ``bias`` is added to the scores, beside a bool mask or a :class:`regard.Mask`; it may require a gradient. ``return_weights=True`` returns the result and
    the weights, ``[..., heads, seq_q, seq_kv]``: after dropout, and differentiable. :func:`statistics` needs linear memory only.

    A row without any visible key is zero, and so are its gradients. There is no second derivative.

    >>> import torch, regard.torch
    >>> q, k, v = (torch.randn(2, 4, 10, 16, dtype=torch.float64, requires_grad=True) for _ in range(3))
    >>> mine = regard.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> torch.allclose(mine, theirs)
    True
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    if attn_mask is not None and type(attn_mask) not in _PLAIN:
        attn_mask, is_causal = _unwrapped(attn_mask, is_causal)
    options = dict(mask=attn_mask, causal=is_causal, scale=scale, window=window, softcap=softcap, sink=sink, alibi=alibi)
    options.update(relative=relative, top_k=top_k, q_offset=q_offset, kv_lens=kv_lens, bias=bias, **_dropout(dropout_p, seed))
    if query.is_nested:
        if return_weights:
            raise ValueError("return_weights=True: nested tensors have no common shape of weights; give each sequence alone")
        return _nested(query, key, value, options)
    described = isinstance(attn_mask, Mask)
    if not (query.is_cpu and key.is_cpu and value.is_cpu and (attn_mask is None or described or attn_mask.is_cpu)):
        raise ValueError(_not_on_the_cpu(query=query, key=key, value=value, attn_mask=None if described else attn_mask))
    shape = None
    if not _fit(query, key, value, enable_gqa):
        query, key, value, mask, shape = _as_four_axes(query, key, value, None if described else attn_mask, enable_gqa)
        if not described:
            options["mask"] = mask
    out = attend(query, key, value, options)
    results = (out, weights_of(query, key, options)) if return_weights else (out,)
    if shape is not None:
        results = tuple(x.reshape(shape + x.shape[-2:]) for x in results)
    return results if return_weights else results[0]


def statistics(query: Tensor, key: Tensor, value: Tensor | None = None, attn_mask: Tensor | Mask | None = None, is_causal: bool | str = False, **options: Any) -> Statistics:
    """What each row attends to, in linear memory: :func:`regard.statistics` of tensors, whose options it takes; arrays of NumPy, without gradients."""
    arrays = [None if x is None else _array(x) for x in (query, key, value)]
    options = {name: _array(x) if isinstance(x, Tensor) else x for name, x in options.items()}
    mask = _array(attn_mask) if isinstance(attn_mask, Tensor) else attn_mask
    return _statistics(*arrays, mask=mask, causal=is_causal, **options)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    mask: Mask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool | str = False,
    scale: Tensor | float | None = None,
    sink: Tensor | Sequence[float] | float | None = None,
    alibi: Tensor | Sequence[float] | bool | None = None,
    relative: Tensor | None = None,
    window: Sequence[int | None] | None = None,
    softcap: float | None = None,
    top_k: int | None = None,
    q_offset: Any = None,
    kv_lens: Any = None,
    seed: int | None = None,
) -> Tensor:
    """Attention for packed sequences of different lengths, without padding; differentiable.

    ``query`` is ``[tokens, heads, head_dim]``, ``key`` and ``value`` are ``[tokens, heads_kv, dim]``; sequence ``i`` has the queries
    ``cu_seqlens_q[i]`` to ``cu_seqlens_q[i + 1]`` and the keys ``cu_seqlens_k[i]`` to ``cu_seqlens_k[i + 1]``. The other arguments are those
    of :func:`scaled_dot_product_attention` (``window``, ``softcap``, ``top_k``, ``q_offset``, ``kv_lens`` among them), for each sequence.

    >>> import torch, regard.torch
    >>> x = torch.randn(8, 2, 16, requires_grad=True)                         # sequences of 3 and 5 tokens
    >>> ends = torch.tensor([0, 3, 8])
    >>> out = regard.torch.varlen_attention(x, x, x, ends, ends, is_causal=True)
    >>> out.sum().backward()
    >>> second = x[None, 3:].transpose(1, 2)
    >>> theirs = torch.nn.functional.scaled_dot_product_attention(second, second, second, is_causal=True)
    >>> torch.allclose(out[3:], theirs[0].transpose(0, 1), atol=1e-6)
    True
    """
    if not (query.is_cpu and key.is_cpu and value.is_cpu):
        raise ValueError(_not_on_the_cpu(query=query, key=key, value=value))
    options = dict(mask=mask, causal=is_causal, scale=scale, window=window, softcap=softcap, sink=sink, alibi=alibi)
    options.update(relative=relative, top_k=top_k, q_offset=q_offset, kv_lens=kv_lens, **_dropout(dropout_p, seed))
    return attend(query, key, value, options | {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k})


class ScaledAttention(torch.nn.Module):
    """One head with projections of queries, keys and values, and no projection of the output: ``softmax(Q K^T * n_embd ** -0.5) V`` of ``[batch, tokens, n_embd]``.

    ``scale=False`` leaves the factor out. Further arguments of a call are those of :func:`scaled_dot_product_attention`.

    >>> import torch, regard.torch
    >>> layer = regard.torch.ScaledAttention(64)
    >>> layer(torch.randn(2, 10, 64), is_causal=True).shape
    torch.Size([2, 10, 64])
    """

    def __init__(self, n_embd: int, *, scale: bool | float = True) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(n_embd, n_embd, bias=False) for _ in range(3))
        self.scale = scale

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        return scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), **{"scale": self.scale, **options})


def _nested(query, key, value, options):
    """Of nested tensors, ``[batch, heads, ragged, dim]``: what they hold, packed as ``[token, head, dim]``."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not x.is_nested or x.layout is not torch.jagged or x.dim() != 4 or x._ragged_idx != 2 or x.lengths() is not None:
            text = "a nested tensor of layout torch.jagged and shape [batch, heads, ragged, dim], without holes, as the others are"
            raise ValueError(f"{name} must be {text}; keep [batch, ragged, heads, dim] and transpose(1, 2)")
    if isinstance(options["mask"], Tensor):
        raise ValueError("attn_mask is a tensor, but nested tensors have no common shape of scores; give a regard.Mask, is_causal or window")
    packed = [x.transpose(1, 2) for x in (query, key, value)]
    ends = {name: x.offsets() for name, x in zip(("cu_seqlens_q", "cu_seqlens_k"), packed)}
    out = attend(*(x.values() for x in packed), options | ends)
    return torch.nested.nested_tensor_from_jagged(out, packed[0].offsets()).transpose(1, 2)


def _fit(query, key, value, enable_gqa):
    """Whether the shapes agree without broadcasting."""
    if not query.dim() == key.dim() == value.dim() == 4:
        return False
    (batch, heads, _, _), of_key, of_value = query.shape, key.shape, value.shape
    return batch == of_key[0] == of_value[0] and of_key[1] == of_value[1] and (heads == of_key[1] or enable_gqa)


def _dropout(dropout_p, seed):
    """Without a seed, one that is drawn from PyTorch's generator; a seed is an integer of 64 bits."""
    if not dropout_p:
        return {}
    if seed is None:
        seed = torch.randint(2**63 - 1, (), dtype=torch.int64)
    elif not isinstance(seed, Tensor):
        seed = operator.index(seed)
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed is {seed}; it must be from 0 to 2**64 - 1")
        seed = torch.tensor(seed - 2**64 if seed >= 2**63 else seed)
    return {"dropout_p": dropout_p, "seed": seed}


def _unwrapped(mask, is_causal):
    """PyTorch's object for the alignment of a causal mask, as ``is_causal``; other masks as they are."""
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if isinstance(mask, CausalBias):
        return None, "bottom_right" if mask.variant == CausalVariant.LOWER_RIGHT else True
    return mask, is_causal


def _not_on_the_cpu(**tensors):
    name, device = next((n, x.device) for n, x in tensors.items() if x is not None and not x.is_cpu)
    return f"{name} is on {device}; regard computes on the CPU: move it there with .cpu() (regard.torch.use() leaves other devices to PyTorch)"


def _as_four_axes(query, key, value, mask, enable_gqa):
    """Broadcast as PyTorch does, leading axes joined to one; and the leading shape of the result."""
    dims = max(query.dim(), key.dim(), value.dim())
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 2:
            raise ValueError(f"{name} has shape {list(x.shape)}; it needs at least the axes [seq, dim]")
    heads = [x.shape[-3] if x.dim() > 2 else 1 for x in (query, key, value)]
    try:
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        if enable_gqa:
            if heads[1] != heads[2]:
                key, value = (x.repeat_interleave(heads[0] // n, -3) for x, n in ((key, heads[1]), (value, heads[2])))
                heads = [heads[0]] * 3
        elif heads[1] != 1 or heads[2] != 1:
            heads = [*torch.broadcast_shapes(*((n,) for n in heads))] * 3
    except (RuntimeError, ZeroDivisionError):
        shapes = f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}"
        more = "" if enable_gqa else "; for fewer heads of key and value than of query, pass enable_gqa=True"
        raise ValueError(f"{shapes} differ in their leading axes and cannot be broadcast{more}") from None
    query, key, value = (_joined(x, batch, n) for x, n in zip((query, key, value), heads))
    if mask is not None and len(batch) > 1 and mask.dim() > 3:
        mask = _joined(mask, batch, mask.shape[-3])
    return query, key, value, mask, (*batch, heads[0])[len(batch) + 3 - dims :]


def _joined(tensor, batch, heads):
    tensor = tensor.expand(*batch, heads, *tensor.shape[-2:])
    return tensor.unsqueeze(0) if not batch else tensor.flatten(0, len(batch) - 1)


# ------------------------------------------------------------------ use()


def _reason_against_call(query, key, value, attn_mask, dropout_p):
    """Why regard does not compute a call; None if it does."""
    dtype = query.dtype
    for x in (query, key, value):
        if type(x) not in _PLAIN or not x.is_cpu or x.dtype is not dtype or x.layout is not _STRIDED or x.is_nested or x.dim() < 2:
            return _reason_against_tensor(x)
    if dtype not in _DTYPES:
        return "these dtypes"
    if dtype is torch.bfloat16 and not _has_ml_dtypes:
        return "bfloat16 without the package ml_dtypes"
    if attn_mask is not None:
        if type(attn_mask) not in _PLAIN or not attn_mask.is_cpu:
            return "this mask"
        if attn_mask.dtype is not torch.bool and attn_mask.dtype not in _DTYPES:
            return "this mask"
    if not 0.0 <= dropout_p < 1.0:
        return "this dropout_p"
    return None


def _reason_against(query, key, value, attn_mask, dropout_p, is_causal):
    """Why a call of PyTorch's function is left to PyTorch; None if regard computes it."""
    reason = _reason_against_call(query, key, value, attn_mask, dropout_p)
    if reason is not None:
        return reason
    if attn_mask is not None and is_causal:
        return "this mask"
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "a compiled or traced graph"
    if _is_transformed():
        return "torch.func or forward-mode derivatives"
    if torch._C._len_torch_dispatch_stack():
        return "a dispatch mode, which sees PyTorch's operators only"
    if not torch._C._get_flash_sdp_enabled():
        return "torch.nn.attention.sdpa_kernel without FLASH_ATTENTION"
    return None


def _reason_against_tensor(x):
    if type(x) not in _PLAIN:
        return f"a {type(x).__name__}"
    if not x.is_cpu:
        return f"a tensor on {x.device.type}"
    if x.layout is not _STRIDED or x.is_nested or x.dim() < 2:
        return "a nested, sparse or flat tensor"
    return "these dtypes"


def _in_place_of_pytorch(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    blocks = _counting
    counting = [calls for calls, _ in blocks]
    shared = _shared_by(blocks) if any(calls.context_parallel is not None for calls in counting) else None
    tensors = (query, key, value, attn_mask)
    if torch.is_autocast_enabled("cpu"):
        tensors = _autocast(*tensors)
    reason = _reason_against(*tensors, dropout_p, is_causal) if counting else "no use()"
    if isinstance(scale, bool):
        # A number to PyTorch, a switch to regard.
        scale = float(scale)
    if shared is not None:
        out = _by_all_ranks(shared, reason, *tensors, dropout_p, is_causal, scale, enable_gqa)
        _note(counting, "regard", "")
        return out
    if reason is None:
        try:
            out = scaled_dot_product_attention(*tensors, dropout_p, is_causal, scale, enable_gqa)
        except (ValueError, TypeError) as refused:
            # RuntimeError, as PyTorch raises. Not left to PyTorch, which reads beyond the end of values that are fewer than the keys.
            raise RuntimeError(str(refused)) from refused
        _note(counting, "regard", "")
        return out
    _note(counting, "PyTorch", reason)
    return _pytorch(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _note(counting, by, reason):
    """Count a call in every open block, for the module that made it."""
    module = None if torch.compiler.is_compiling() else caller()
    for calls in counting:
        if reason:
            calls.left[reason] = calls.left.get(reason, 0) + 1
        else:
            calls.computed += 1
        if module is not None:
            _count(calls._modules, module, by, reason)


def _shared_by(blocks):
    """The partition of this thread's innermost block that has one."""
    mine = [calls for calls, thread in blocks if thread == threading.get_ident()]
    if not mine:
        text = "another thread has use(context_parallel=...) open, and so every attention is of shared tokens"
        raise RuntimeError(f"{text}; open a block in this thread: use() for attention of its own, use(context_parallel=...) with a group of its own")
    return next((calls.context_parallel for calls in reversed(mine) if calls.context_parallel is not None), None)


def _by_all_ranks(partition, reason, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    """A call of a model that has the tokens of one rank. Never left to PyTorch, which would attend to this rank's tokens only."""
    if attn_mask is not None:
        text = "a mask of this rank's tokens, which hides nothing of the others': give the model no padding"
        raise RuntimeError(f"attention of shared tokens got {text} (Hugging Face: attention_mask=torch.ones_like(input_ids), where positions have gaps)")
    if reason is not None:
        raise RuntimeError(f"attention of shared tokens cannot be computed for {reason}")
    if not _fit(query, key, value, enable_gqa):
        shapes = f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)}"
        raise RuntimeError(f"{shapes} must be [batch, heads, tokens, dim], with the same heads or enable_gqa=True")
    # Models say "not causal" of a single row, which looks at all keys anyway; others have more.
    causal = _Loose(is_causal) if query.shape[2] <= 1 else is_causal
    try:
        return context_parallel_attention(query, key, value, partition=partition, dropout_p=dropout_p, is_causal=causal, scale=scale)
    except (ValueError, TypeError) as refused:
        raise RuntimeError(str(refused)) from refused


_NAME = "scaled_dot_product_attention"
_has_ml_dtypes = find_spec("ml_dtypes") is not None
_lock = threading.Lock()
#: Open blocks, with their threads.
_counting: tuple[tuple[use, int], ...] = ()
_replaced: list[Any] = []
_fast_path = True


class use(ContextDecorator):
    """Replace PyTorch's attention by regard's within a ``with`` block or a decorated function.

    Calls of ``torch.nn.functional.scaled_dot_product_attention`` are then computed by regard, forward and backward: Hugging
    Face models with ``attn_implementation="sdpa"``, ``nn.TransformerEncoderLayer``, ``nn.MultiheadAttention`` (with
    ``need_weights=False``; its fast path for inference, which does not call that function, is disabled in the block).

    PyTorch still computes what regard does not do: other devices, nested tensors, tensor subclasses, other dtypes than the four
    floats (bfloat16 needs the package ml_dtypes), a mask together with ``is_causal`` and whatever else is an error there, ``torch.func``
    transforms, graphs of ``torch.compile`` and ``torch.jit.script``, calls under a dispatch mode such as ``FlopCounterMode``, and calls
    under ``torch.nn.attention.sdpa_kernel`` with a list that has no ``FLASH_ATTENTION`` (second derivatives need ``SDPBackend.MATH``).

    The object that ``with`` returns counts calls: ``computed`` by regard; ``left`` has the number left to PyTorch for each reason. A block
    that ends without any computed call gives one warning.

    A function that was taken out of PyTorch before, ``sdpa = F.scaled_dot_product_attention`` in a class or a closure, stays PyTorch's: such calls
    are not counted at all. (A module's global of that name, ``from torch.nn.functional import scaled_dot_product_attention``, is found and
    replaced.) Generators and coroutines that are decorated have regard while they run, not between.

    With ``context_parallel``, a :class:`Partition`, each process of ``torch.distributed`` runs the model on its own tokens, and attention is that of
    all of them, as by :func:`context_parallel_attention`: ``model(part.shard(ids, 1), position_ids=part.positions()[None])``. Nothing is left to PyTorch then: what cannot
    be computed so (masks, other devices) is an error, and so is a call of another thread that has no block of its own.

    Blocks may be nested. The replacement holds for the whole process, other threads included. The backward pass
    may come after the block: gradients of calls computed by regard are computed by regard.

    >>> import torch, regard.torch
    >>> from torch.nn import functional as F
    >>> x = torch.randn(1, 2, 5, 8)
    >>> with regard.torch.use() as calls:
    ...     out = F.scaled_dot_product_attention(x, x, x)
    ...     other = F.scaled_dot_product_attention(x.to("meta"), x.to("meta"), x.to("meta"))
    >>> calls
    use: 1 call computed by regard, 1 left to PyTorch (a tensor on meta: 1)
    >>> @regard.torch.use()
    ... def step(model, batch): ...
    """

    def __init__(self, *, context_parallel: Partition | None = None) -> None:
        if context_parallel is not None and not isinstance(context_parallel, Partition):
            raise TypeError(f"context_parallel is a {type(context_parallel).__name__}; it must be a regard.torch.Partition")
        self.context_parallel = context_parallel
        self.computed = 0
        self._warned = False
        self.left: dict[str, int] = {}
        self._modules: Any = weakref.WeakKeyDictionary()

    def report(self, model: torch.nn.Module) -> Table:
        """Which attention layers of a model regard computed in this block: a :class:`regard.Table` with ``layer``, ``class``, ``computed_by``, ``calls``
        and ``why`` (the reason where regard does not)."""
        return table(model, _not_called, self._modules)

    def __call__(self, function: Any) -> Any:
        """Decorate a function; of a generator or coroutine, every step of it."""
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            return functools.wraps(function)(lambda *args, **keywords: _stepwise(self, function(*args, **keywords)))
        if inspect.isasyncgenfunction(function):
            raise TypeError(f"{function.__name__} is an asynchronous generator; use a with block inside of it")
        return super().__call__(function)

    def __enter__(self) -> use:
        self._open()
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        self._close()
        if kind is None:
            self._warn_if_unused()

    def _warn_if_unused(self) -> None:
        if self.computed or self._warned:
            return
        self._warned = True
        why = "; ".join(f"{reason}: {count} left to PyTorch" for reason, count in self.left.items())
        text = why or "torch.nn.functional.scaled_dot_product_attention was not called, or every call was an error"
        warnings.warn(f"regard.torch.use() computed no call: {text}", stacklevel=3)

    def _open(self) -> None:
        global _counting
        with _lock:
            if not _counting:
                _put_in_place()
            _counting = (*_counting, (self, threading.get_ident()))

    def _close(self) -> None:
        global _counting
        with _lock:
            mine = [at for at, (calls, thread) in enumerate(_counting) if calls is self and thread == threading.get_ident()]
            at = mine[-1] if mine else next(at for at, (calls, _) in enumerate(_counting) if calls is self)
            _counting = _counting[:at] + _counting[at + 1 :]
            if not _counting:
                _put_back()

    def __repr__(self) -> str:
        ours = f"{self.computed} call{'' if self.computed == 1 else 's'} computed by regard"
        why = ", ".join(f"{reason}: {count}" for reason, count in self.left.items())
        return f"use: {ours}, {sum(self.left.values())} left to PyTorch" + (f" ({why})" if why else "")


def _not_called(module):
    """Of a layer without any call in a block."""
    name = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if name not in (None, "sdpa"):
        return str(name), f'attn_implementation="{name}" does not call scaled_dot_product_attention; use "sdpa" or regard.transformers'
    return "its own code", "scaled_dot_product_attention was not called by this layer"


@types.coroutine
def _stepwise(block, steps):
    """A generator or a coroutine whose steps run in the block; code between the steps runs outside of it."""
    send, value = steps.send, None
    while True:
        block._open()
        try:
            given = send(value)
        except StopIteration as end:
            block._warn_if_unused()
            return end.value
        finally:
            block._close()
        try:
            send, value = steps.send, (yield given)
        except GeneratorExit:
            block._open()
            try:
                steps.close()
            finally:
                block._close()
            raise
        except BaseException as raised:
            send, value = steps.throw, raised


def _put_in_place():
    """Replace the function in every module that has it under its name."""
    global _fast_path
    # torch.jit.script compiles a call of the replacement to PyTorch's operator.
    torch.jit._builtins._register_builtin(_in_place_of_pytorch, "aten::scaled_dot_product_attention")
    homes = [torch.nn.functional, torch._C._nn]
    found = [m for m in list(sys.modules.values()) if getattr(m, "__dict__", {}).get(_NAME) is _pytorch]
    for module in dict.fromkeys((*homes, *found)):
        setattr(module, _NAME, _in_place_of_pytorch)
        _replaced.append(module)
    _fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)


def _put_back():
    for module in _replaced:
        # Keep functions that other code has put there since.
        if module.__dict__.get(_NAME) is _in_place_of_pytorch:
            setattr(module, _NAME, _pytorch)
    _replaced.clear()
    torch.backends.mha.set_fastpath_enabled(_fast_path)
