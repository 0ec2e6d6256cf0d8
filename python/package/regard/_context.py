"""What :mod:`regard.torch` has for sequences that several processes share: who has which tokens, and attention among them."""

from __future__ import annotations

import zlib
from typing import Any, Sequence

import numpy as np
import torch
import torch.distributed as distributed
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ._autograd import _array, _copied, _is_transformed, _keywords, _per_head, _tensor, _tensors_of
from ._regard import Mask, _backward_shared, _chosen_num_threads, _forward_shared, _partition

_SEED = 1 << 62


class _Loose(int):
    """Causal or not, as the other ranks say."""


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
        self.seq, self.group, self.block = int(seq), group, block
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
        """Blocks of so many tokens, a multiple of 256, go round the ranks, forwards and backwards in turn."""
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
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("join is for results, and has no gradient: each rank takes the loss of its own tokens, or join x.detach()")
        own = self._count(self.rank)
        if x.shape[dim] != own:
            raise ValueError(f"x of rank {self.rank} has {x.shape[dim]} tokens along dim {dim} (shape {list(x.shape)}); the partition gives it {own}")
        x = x.detach().movedim(dim, 0).contiguous()
        parts = [x if rank == self.rank else x.new_empty(self._count(rank), *x.shape[1:]) for rank in range(self.ranks)]
        requests = []
        for other in (rank for rank in range(self.ranks) if rank != self.rank):
            # Bytes, since not every carrier has every type of number.
            if x.numel():
                requests.append(self._carrier.post(distributed.isend, other, _bytes(x)))
            if parts[other].numel():
                requests.append(self._carrier.post(distributed.irecv, other, _bytes(parts[other])))
        for request in requests:
            request.wait()
        joined = x.new_empty(self.seq, *x.shape[1:])
        taken = [0] * self.ranks
        for start, stop, rank in self.blocks:
            joined[start:stop] = parts[rank][taken[rank] : taken[rank] + stop - start]
            taken[rank] += stop - start
        return joined.movedim(0, dim).contiguous()

    def _count(self, rank):
        return sum(stop - start for start, stop, owner in self.blocks if owner == rank)

    def __repr__(self) -> str:
        kind = "contiguous" if self.block is None else f"snake of {self.block}"
        return f"Partition({self.seq} tokens, {kind}, rank {self.rank} of {self.ranks})"


def _bytes(x):
    return x.flatten().view(torch.uint8)


class _Carrier:
    """Bytes by torch.distributed: their number first, which the receiver does not know."""

    #: Beyond all tags of messages.
    JOIN = 2**31 - 1

    def __init__(self, group, rank, ranks):
        self.group, self.rank, self.ranks = group, rank, ranks
        self.under_way = []

    def _place(self, rank):
        return rank if self.group is None else distributed.get_global_rank(self.group, rank)

    def post(self, way, other, x, tag=JOIN):
        return way(x, self._place(other), group=self.group, tag=tag)

    def send(self, to, tag, array):
        try:
            self.under_way = [(work, x) for work, x in self.under_way if not work.is_completed()]
            for x in (torch.tensor([array.size]), torch.from_numpy(array)):
                if x.numel():
                    self.under_way.append((self.post(distributed.isend, to, x, tag), x))
        except RuntimeError as error:
            raise _told(error)

    def receive(self, of, tag):
        try:
            count = torch.empty(1, dtype=torch.int64)
            self.post(distributed.recv, of, count, tag)
            x = torch.empty(int(count), dtype=torch.uint8)
            if x.numel():
                self.post(distributed.recv, of, x, tag)
        except RuntimeError as error:
            raise _told(error)
        return x.numpy()

    def settle(self):
        """All that was sent has been taken."""
        under_way, self.under_way = self.under_way, []
        for work, _ in under_way:
            work.wait()


def _told(error):
    return TimeoutError(str(error)) if "imed out" in str(error) else ConnectionError(str(error))


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
    * Refused: dense masks, top-k, and gradients of the scale and of slopes; backward also a scale beyond 4.

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
    if attn_mask is not None and not isinstance(attn_mask, Mask):
        raise TypeError(f"attn_mask is a {type(attn_mask).__name__}; tokens that are shared need a regard.Mask, is_causal or window")
    for name, x in (("scale", scale), ("alibi", alibi)):
        if isinstance(x, Tensor) and x.requires_grad:
            raise ValueError(f"{name} requires a gradient, which attention of shared tokens does not have; give {name}.detach()")
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 4 or not x.is_cpu:
            raise ValueError(f"{name} has shape {list(x.shape)} on {x.device}; it must be [batch, heads, tokens, dim] on the CPU")
    if _is_transformed():
        raise RuntimeError("torch.func and forward-mode derivatives do not go through context_parallel_attention")
    options: dict[str, Any] = {}
    for name, given in (("mask", attn_mask), ("scale", scale), ("window", window), ("softcap", softcap), ("alibi", alibi)):
        if given is not None:
            options[name] = given.detach().item() if name == "scale" and isinstance(given, Tensor) else _copied(given)
    if dropout_p:
        options["dropout_p"] = dropout_p
        options["seed"] = int(torch.randint(_SEED, ())) if seed is None else int(seed)
    if _agree(partition, options, is_causal, drawn=bool(dropout_p) and seed is None):
        options["causal"] = True
    options["threads"] = _chosen_num_threads() or torch.get_num_threads()
    (_, sink, *_) = _tensors_of((None, sink, None, None, None), options)
    return _SharedAttention.apply(partition, options, query, key, value, sink)


def _agree(partition, options, is_causal, drawn):
    """All ranks mean the same; where a seed is drawn, it is that of the first token's rank. Returned is whether they mean causal attention."""
    if partition.ranks == 1:
        return bool(is_causal)
    seed = options.pop("seed", 0)
    first = partition.blocks[0][2] if partition.blocks else 0
    words = repr(sorted(options.items(), key=lambda item: item[0]))
    mine = torch.tensor([seed >> 32, seed & 0xFFFFFFFF, zlib.crc32(words.encode()), bool(is_causal)])
    theirs = mine.clone()
    try:
        distributed.broadcast(theirs, partition._carrier._place(first), group=partition.group)
    except RuntimeError as error:
        what = f"rank {partition.rank} needs the options of attention of rank {first}"
        raise type(_told(error))(f"{what}, which is gone or silent: {error}") from error
    same = mine == theirs
    if not (same[2] and (drawn or same[:2].all()) and (same[3] or isinstance(is_causal, _Loose))):
        mine = f"{words}, seed {seed}, is_causal={bool(is_causal)}"
        raise ValueError(f"rank {partition.rank} calls attention with {mine}, and rank {first} with something else; all ranks need the same options")
    if "dropout_p" in options:
        options["seed"] = (int(theirs[0]) << 32) + int(theirs[1])
    return bool(theirs[3])


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
        found = _backward_shared(*arrays, (partition.seq, partition.block), partition._carrier, **keywords)
        partition._carrier.settle()
        of_sink = None
        if ctx.needs_input_grad[5]:
            # Every rank has the whole of it; one tells, so that a sum over the ranks is right.
            of_sink = _per_head(found.d_sink if partition.rank == 0 else np.zeros_like(found.d_sink), sink)
        return None, None, _tensor(found.dq), _tensor(found.dk), _tensor(found.dv), of_sink
