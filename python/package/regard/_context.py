"""What :mod:`regard.torch` has for sequences that several processes share: who has which tokens, and attention among them."""

from __future__ import annotations

import operator
import struct
import threading
import weakref
import zlib
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import numpy as np
import torch
import torch.distributed as distributed
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ._autograd import _array, _autocast, _copied, _is_transformed, _keywords, _per_head, _tensor, _tensors_of
from ._regard import Mask, _backward_shared, _chosen_num_threads, _forward_shared, _partition

_SEED = 1 << 62


class _Loose(int):
    """Causal or not, as the other ranks say: for those that have one row at the most."""


class Partition:
    """Which tokens of a sequence each process of a group has. A choice of speed, never of bits.

    :meth:`contiguous` gives each rank one range of tokens: for windows, and attention without a mask. :meth:`snake` deals out blocks, forwards and
    backwards in turn: for causal attention, whose later rows cost more. Without ``torch.distributed`` there is one rank, which has them all.

    >>> import torch, regard.torch
    >>> part = regard.torch.Partition.snake(1000)
    >>> part.rank, part.ranks, part.blocks
    (0, 1, ((0, 512, 0), (512, 1000, 0)))
    >>> x = torch.randn(2, 1000, 8)
    >>> torch.equal(part.join(part.shard(x, 1), 1), x)
    True
    """

    def __init__(self, seq: int, group: Any = None, block: int | None = None) -> None:
        self.seq, self.group, self.block = operator.index(seq), group, None if block is None else operator.index(block)
        for name, count in (("seq", self.seq), ("block", self.block)):
            if count is not None and not 0 <= count < 2**63:
                raise ValueError(f"{name} is {count}; it must be a number of tokens")
        there = distributed.is_available() and distributed.is_initialized()
        self.rank = distributed.get_rank(group) if there else 0
        self.ranks = distributed.get_world_size(group) if there else 1
        if self.rank < 0:
            raise ValueError("this process is not in the group of the partition")
        #: ``(start, stop, rank)`` of every block, in the order of tokens.
        self.blocks: tuple[tuple[int, int, int], ...] = tuple(_partition(self.seq, self.ranks, block))
        self._carrier = _Carrier(group, self.rank, self.ranks)

    @classmethod
    def contiguous(cls, seq: int, group: Any = None) -> Partition:
        """One range of tokens to each rank, cut at multiples of 256; the last ranks of a short sequence may have none."""
        return cls(seq, group)

    @classmethod
    def snake(cls, seq: int, group: Any = None, block: int = 512) -> Partition:
        """Blocks of ``block`` tokens, a multiple of 256, go round the ranks, forwards and backwards in turn."""
        return cls(seq, group, block)

    def positions(self) -> Tensor:
        """The positions of this rank's tokens in the sequence, ascending: what rotary embeddings and learned positions need (``position_ids``)."""
        mine = [torch.arange(start, stop) for start, stop, rank in self.blocks if rank == self.rank]
        return torch.cat(mine) if mine else torch.empty(0, dtype=torch.int64)

    def shard(self, x: Tensor, dim: int) -> Tensor:
        """This rank's tokens of a tensor that has them all along ``dim``; differentiable."""
        if x.shape[dim] != self.seq:
            raise ValueError(f"x has {x.shape[dim]} tokens along dim {dim} (shape {list(x.shape)}); the partition is of {self.seq}")
        return x.index_select(dim, self.positions().to(x.device))

    def join(self, x: Tensor, dim: int) -> Tensor:
        """The tensor of all tokens, on every rank, of each rank's own along ``dim``. All ranks of the group make this call."""

        def told():
            if x.requires_grad and torch.is_grad_enabled():
                raise RuntimeError("join is for results, and has no gradient: each rank takes the loss of its own tokens, or join x.detach()")
            own, (*shape,) = self._count(self.rank), x.shape
            if shape[dim] != own:
                raise ValueError(f"x of rank {self.rank} has {shape[dim]} tokens along dim {dim} (shape {shape}); the partition gives it {own}")
            shape[dim] = "_"
            return _Told("join", (f"x [{', '.join(map(str, shape))}] of {x.dtype}", self._words()))

        with _call(self, told):
            x = x.detach().movedim(dim, 0).contiguous()
            # Bytes, since not every carrier has every type of number.
            parts = self._carrier.tell_all(x.flatten().view(torch.uint8).numpy(), "its tokens")
        shapes = [(self._count(rank), *x.shape[1:]) for rank in range(self.ranks)]
        parts = [torch.from_numpy(part).view(x.dtype).view(shape) if part.size else x.new_empty(shape) for part, shape in zip(parts, shapes)]
        joined = x.new_empty(self.seq, *x.shape[1:])
        taken = [0] * self.ranks
        for start, stop, rank in self.blocks:
            joined[start:stop] = parts[rank][taken[rank] : taken[rank] + stop - start]
            taken[rank] += stop - start
        return joined.movedim(0, dim).contiguous()

    def _count(self, rank):
        return sum(stop - start for start, stop, owner in self.blocks if owner == rank)

    def _words(self):
        return f"{self.seq} tokens, {'contiguous' if self.block is None else f'snake of {self.block}'}"

    def __repr__(self) -> str:
        return f"Partition({self._words()}, rank {self.rank} of {self.ranks})"


class _Carrier:
    """Bytes by torch.distributed: their number first, which the receiver does not know."""

    #: Beyond all tags of messages.
    ALL = 2**31 - 1

    def __init__(self, group, rank, ranks):
        self.group, self.rank, self.ranks = group, rank, ranks
        self.under_way = []
        #: What went wrong here, of which the library tells no more than that a rank is gone.
        self.error = None

    def _post(self, way, other, x, tag):
        place = other if self.group is None else distributed.get_global_rank(self.group, other)
        return way(x, place, group=self.group, tag=tag)

    def send(self, to, tag, array):
        try:
            self.under_way = [(work, x, to) for work, x, to in self.under_way if not work.is_completed()]
            for x in (torch.tensor([array.size]), torch.from_numpy(array)):
                if x.numel():
                    self.under_way.append((self._post(distributed.isend, to, x, tag), x, to))
        except Exception as error:
            self.error = error
            raise _told(error, str(error)) from error

    def receive(self, of, tag):
        try:
            count = torch.empty(1, dtype=torch.int64)
            self._post(distributed.recv, of, count, tag)
            x = torch.empty(int(count), dtype=torch.uint8)
            if x.numel():
                self._post(distributed.recv, of, x, tag)
        except Exception as error:
            self.error = error
            raise _told(error, str(error)) from error
        return x.numpy()

    def tell_all(self, mine, what):
        """This rank's bytes to all others, and theirs to it: an array of each rank. ``what`` is what it needs them for."""
        others = [rank for rank in range(self.ranks) if rank != self.rank]
        found, other = {self.rank: mine}, None
        try:
            for other in others:
                self.send(other, self.ALL, mine)
            for other in others:
                found[other] = self.receive(other, self.ALL)
        except OSError as error:
            raise type(error)(f"rank {self.rank} needs rank {other} for {what}, which is gone or silent: {error}") from error
        self.settle()
        return [found[rank] for rank in range(self.ranks)]

    def settle(self):
        """All that was sent has been taken."""
        under_way, self.under_way = self.under_way, []
        for work, _, to in under_way:
            try:
                work.wait()
            except RuntimeError as error:
                text = f"rank {self.rank} has keys or sums for rank {to}, which does not take them: it is gone, or has stopped ({error})"
                raise _told(error, text) from error


def _told(error, text):
    return (TimeoutError if "imed out" in str(error) else ConnectionError)(text)


class _Common:
    """What all calls of a group have in common, whatever their partition."""

    def __init__(self):
        self.lock = threading.RLock()
        #: Why a call ended half way, with messages under way that another call would take for its own.
        self.failed = None


_groups: weakref.WeakKeyDictionary[Any, _Common] = weakref.WeakKeyDictionary()
_alone = _Common()


class _Told(NamedTuple):
    """What a rank tells the others before a call: what is to be the same, in words, and a seed."""

    call: str
    words: tuple[str, ...]
    seed: int = 0
    #: Causal or not; None as the others say.
    causal: bool | None = False


_FORM = struct.Struct("<?QIb1000s")


@contextmanager
def _call(partition: Partition, told: Callable[[], _Told]) -> Iterator[_Told]:
    """One call of a group at a time, of which all ranks mean the same: what the first token's rank told is given.

    A rank that refuses its part (``told`` raises) makes all others refuse theirs, so that no rank waits for it.
    """
    there = distributed.is_available() and distributed.is_initialized()
    ranks = distributed.get_world_size(partition.group) if there else 1
    if ranks != partition.ranks:
        raise ValueError(f"the partition was made for {partition.ranks} ranks, and the group has {ranks}; make it after init_process_group")
    common = _alone if ranks == 1 else _groups.setdefault(partition.group or distributed.group.WORLD, _Common())
    with common.lock:
        refused, mine = None, _Told("a refusal", ())
        try:
            if common.failed is not None:
                text = "messages of it may be under way: start the job again, or make a partition of a new group"
                raise RuntimeError(f"an earlier call of rank {partition.rank} ended half way ({common.failed}); {text}")
            mine = told()
        except Exception as error:
            refused = error
        try:
            all_told = _exchanged(partition, mine, refused)
        except BaseException as error:
            common.failed = f"{type(error).__name__}: {error}"
            raise refused or error
        if refused is not None:
            raise refused
        agreed = _agreed(partition, all_told)
        try:
            yield agreed
        except (ValueError, TypeError):
            # Options that the library refuses: on all ranks, before any keys are under way.
            raise
        except BaseException as error:
            common.failed = f"{type(error).__name__}: {error}" if ranks > 1 else None
            raise error from partition._carrier.error


def _exchanged(partition, mine, refused):
    """Of each rank whether it refuses, and what it told, its words as a checksum and as their beginning."""
    text = "; ".join((mine.call, *mine.words)) if refused is None else f"{type(refused).__name__}: {refused}"
    causal = -1 if mine.causal is None else bool(mine.causal)
    packed = _FORM.pack(refused is not None, mine.seed, zlib.crc32(text.encode()), causal, text.encode()[:1000])
    return [_FORM.unpack(x.tobytes()) for x in partition._carrier.tell_all(np.frombuffer(packed, np.uint8).copy(), f"a call ({mine.call})")]


def _agreed(partition, all_told):
    texts = [text.rstrip(b"\0").decode(errors="replace") for *_, text in all_told]
    for rank, (refused, *_) in enumerate(all_told):
        if refused:
            raise ValueError(f"rank {rank} refuses the call of all ranks: {texts[rank]}")
    first = partition.blocks[0][2] if partition.blocks else 0

    def differ(a, b):
        (_, _, checksum, causal, _), other = all_told[a], all_told[b]
        return checksum != other[2] or (causal != other[3] and -1 not in (causal, other[3]))

    # The first that is not as the first token's; on that one, the first token's.
    others = [first] if differ(partition.rank, first) else [rank for rank in range(partition.ranks) if differ(rank, first)]
    if others:
        mine, theirs = ([*texts[rank].split("; "), f"is_causal={all_told[rank][3] > 0}"] for rank in (partition.rank, others[0]))
        mine, theirs = ("; ".join(word for word in some if word not in rest) or "none of that" for some, rest in ((mine, theirs), (theirs, mine)))
        text = "all ranks make the same calls, with the same options, and of the same shapes but for their tokens"
        raise ValueError(f"rank {partition.rank} calls with {mine}, and rank {others[0]} with {theirs}; {text}")
    return _Told("", (), all_told[first][1], all_told[first][3] > 0)


def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    partition: Partition,
    attn_mask: Mask | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    window: Sequence[int | None] | None = None,
    softcap: float | None = None,
    sink: Tensor | Sequence[float] | float | None = None,
    alibi: Sequence[float] | bool | None = None,
    seed: int | None = None,
) -> Tensor:
    """Attention of a sequence whose tokens the processes of ``torch.distributed`` (gloo) share; differentiable.

    Each rank gives ``query``, ``key`` and ``value`` of its own tokens, ``[batch, heads, tokens, dim]`` as ``partition`` has them, and gets the results of its own rows:
    the bits of :func:`scaled_dot_product_attention` of the whole sequence in one process, forward and backward, for any number of ranks and any partition. There may be
    fewer heads of key and value than of query. All ranks make the same calls in the same order, with the same options; places (``is_causal``, ``window``, ``alibi``, a
    :class:`regard.Mask`, dropout) are those of the whole sequence.

    * ``dropout_p``: the seed is drawn by the rank that has the first token, unless ``seed`` gives one.
    * Gradients of weights that all ranks have are shares, one of each rank: add them up (``torch.distributed.all_reduce``). So is that of ``sink``, which one rank has whole.
    * One call of a group at a time: threads that call at once need a group each (``torch.distributed.new_group``). Ranks in errors are those of the group.
    * Refused: masks that are tensors, top-k, and gradients of the scale and of slopes; backward also a scale beyond 4.

    A rank that is gone raises ``ConnectionError`` on the others, one that is silent for longer than the group's timeout ``TimeoutError``, with the rank and the keys.

    >>> import torch, regard.torch
    >>> part = regard.torch.Partition.contiguous(600)
    >>> x = torch.randn(1, 2, 600, 16, requires_grad=True)
    >>> mine = part.shard(x, 2)
    >>> out = regard.torch.context_parallel_attention(mine, mine, mine, partition=part, is_causal=True)
    >>> whole = regard.torch.scaled_dot_product_attention(x, x, x, is_causal=True)
    >>> torch.equal(part.join(out.detach(), 2), whole)
    True
    """
    if not isinstance(partition, Partition):
        raise TypeError(f"partition is a {type(partition).__name__}; it must be a regard.torch.Partition")
    if torch.is_autocast_enabled("cpu"):
        query, key, value = _autocast(query, key, value)
    options: dict[str, Any] = {}

    def told():
        _check(partition, query, key, value)
        if attn_mask is not None and not isinstance(attn_mask, Mask):
            raise TypeError(f"attn_mask is a {type(attn_mask).__name__}; tokens that are shared need a regard.Mask, is_causal or window")
        for name, x in (("scale", scale), ("alibi", alibi)):
            if isinstance(x, Tensor) and x.requires_grad:
                raise ValueError(f"{name} requires a gradient, which attention of shared tokens does not have; give {name}.detach()")
        for name, given in (("mask", attn_mask), ("scale", scale), ("window", window), ("softcap", softcap), ("alibi", alibi)):
            if given is not None:
                options[name] = given.detach().item() if name == "scale" and isinstance(given, Tensor) else _copied(given)
        if dropout_p:
            options["dropout_p"] = dropout_p
        words = [f"{name} {_words_of(x, 2)}" for name, x in (("query", query), ("key", key), ("value", value))]
        words += [f"{name}={_words_of(x)}" for name, x in (*sorted(options.items()), ("sink", sink)) if x is not None]
        wanted = any(isinstance(x, Tensor) and x.requires_grad for x in (query, key, value, sink)) and torch.is_grad_enabled()
        words += [f"{'with' if wanted else 'without'} gradients", partition._words()]
        words += [] if not dropout_p else ["a seed that is drawn"] if seed is None else [f"seed={seed}"]
        number = int(torch.randint(_SEED, ())) if seed is None and dropout_p else int(seed or 0)
        if not 0 <= number < 2**64:
            raise ValueError(f"seed is {number}; it must be from 0 to 2**64 - 1")
        return _Told("attention", tuple(words), number, None if isinstance(is_causal, _Loose) else bool(is_causal))

    with _call(partition, told) as agreed:
        if agreed.causal:
            options["causal"] = True
        if dropout_p:
            options["seed"] = agreed.seed
        options["threads"] = _chosen_num_threads() or torch.get_num_threads()
        (_, sink, *_) = _tensors_of((None, sink, None, None, None), options)
        return _SharedAttention.apply(partition, options, query, key, value, sink)


def _words_of(x, tokens=None):
    """What is to be the same on all ranks: of tensors with an axis of tokens type and shape but for that, of numbers their bits too."""
    if not isinstance(x, (Tensor, np.ndarray)):
        return repr(x)
    shape = ["_" if axis == tokens else n for axis, n in enumerate(x.shape)]
    text = f"[{', '.join(map(str, shape))}] of {str(x.dtype).removeprefix('torch.')}"
    return text if tokens is not None else f"{text} ({zlib.crc32(_copied(x).tobytes()):08x})"


def _check(partition, *tensors):
    own = partition._count(partition.rank)
    for name, x in zip(("query", "key", "value"), tensors):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} of rank {partition.rank} is a {type(x).__name__}; it must be a torch.Tensor")
        if x.is_nested or x.layout is not torch.strided or x.dim() != 4 or not x.is_cpu:
            text = "it must be [batch, heads, tokens, dim] on the CPU, neither sparse nor nested"
            raise ValueError(f"{name} of rank {partition.rank} has shape {list(x.shape)} on {x.device}; {text}")
        if x.shape[2] != own:
            raise ValueError(f"{name} of rank {partition.rank} has shape {list(x.shape)}; its tokens (axis 2) must be the {own} that the partition gives it")
        _array(x)
    if _is_transformed():
        raise RuntimeError("torch.func and forward-mode derivatives do not go through context_parallel_attention")


class _SharedAttention(Function):
    @staticmethod
    def forward(ctx, partition, options, query, key, value, sink):
        keywords = options | _keywords((None, sink, None, None, None))
        arrays = (_array(query), _array(key), _array(value))
        out, exact, row_max, row_sum = _forward_shared(*arrays, (partition.seq, partition.block), partition._carrier, **keywords)
        partition._carrier.settle()
        out = _tensor(out)
        exact = None if exact is None else torch.from_numpy(exact)
        ctx.save_for_backward(query, key, value, sink, out, exact, torch.from_numpy(row_max), torch.from_numpy(row_sum))
        ctx.partition, ctx.options = partition, options
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out):
        query, key, value, sink, out, exact, row_max, row_sum = ctx.saved_tensors
        partition = ctx.partition
        saved = (_array(out), None if exact is None else exact.numpy(), row_max.numpy(), row_sum.numpy())
        keywords = ctx.options | _keywords((None, sink, None, None, None))
        arrays = (_array(query), _array(key), _array(value), _array(d_out), saved)
        with _call(partition, lambda: _Told("gradients of attention", (_words_of(d_out, 2), partition._words()))):
            found = _backward_shared(*arrays, (partition.seq, partition.block), partition._carrier, **keywords)
            partition._carrier.settle()
        of_sink = None
        if ctx.needs_input_grad[5]:
            # Every rank has the whole of it; one tells, so that a sum over the ranks is right.
            of_sink = _per_head(found.d_sink if partition.rank == 0 else np.zeros_like(found.d_sink), sink)
        return None, None, _tensor(found.dq), _tensor(found.dk), _tensor(found.dv), of_sink
