"""Attention that several processes of torch.distributed (gloo) share, against one process, broadly: `cargo xtask cluster` runs it, since it takes minutes.

Started by pytest, this computes all cases in one process, and starts ranks, which are this file again: each compares its own rows, bit by bit.
"""

import functools
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as distributed

import regard.torch as rt
from regard import Mask

from test_shared import bits, start

#: Blocks are of 256 tokens, so that ranks beyond the third, or the first, have no rows of some.
LENGTHS = (1801, 601, 1031, 257)
HEADS = ((4, 4), (4, 2), (4, 1))
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
BLOCKS = (None, 256)
RANKS = (1, 2, 3, 4, 5, 7)


@functools.cache
def masks(n):
    """Every leaf, and some together."""
    ids = torch.arange(n)[None].numpy() // 190
    documents = Mask.documents(ids, ids)
    pattern = torch.arange(n * n).reshape(1, 1, n, n) * 40503 % 65536 % 5 > 0
    rows, columns = -(-n // 70), -(-n // 90)
    table = torch.arange(rows * columns).reshape(1, rows, columns) * 40503 % 65536 % 3 > 0
    # Tokens up to 300 see nothing, and neither does a rank that has no others.
    blind = Mask.documents((torch.arange(n)[None] < 300).int().numpy(), torch.zeros(1, n, dtype=torch.int32).numpy())
    return {
        "everything": Mask.everything(),
        "causal": Mask.causal(),
        "reverse": Mask.reverse(),
        "strictly future": Mask.strictly_future(),
        "window": Mask.window(150, 20),
        "first keys or window": Mask.first_keys(4) | Mask.window(90, 0),
        "key lengths": Mask.key_lengths([n // 2]),
        "documents": documents,
        "causal documents": Mask.causal() & documents,
        "dense": Mask.dense(pattern.numpy()),
        "blocks": Mask.blocks(table.numpy(), 70, 90),
        "not": ~Mask.window(200, 3),
        "a mixture": (Mask.causal() & ~documents) | Mask.first_keys(2),
        "a rank without keys": Mask.causal() & blind,
        "nothing": ~Mask.everything(),
    }


OPTIONS = (
    dict(),
    dict(is_causal=True, window=(99, 0), softcap=3.0, sink=[0.5, -1.0, 0.0, 2.0]),
    dict(is_causal=True, dropout_p=0.2, seed=5),
    dict(alibi=True, scale=-0.3),
    dict(is_causal=True, alibi=[0.5, 0.25, 0.1, 0.0], softcap=20.0, sink=[1.0, 1.0, -1.0, 0.0], dropout_p=0.1, seed=2**63 + 5),
)


def cases():
    """What is compared: masks with every kind of heads and of numbers, lengths and options in turns; and every option with all of them."""
    made = [(mask, heads, dtype, OPTIONS[0]) for mask in masks(1) for heads in HEADS for dtype in DTYPES]
    made += [(mask, HEADS[i % 3], DTYPES[i // 3 % 3], OPTIONS[1 + i % 4]) for i, mask in enumerate(masks(1))]
    made += [(None, heads, dtype, options) for heads in HEADS for dtype in DTYPES for options in OPTIONS[1:]]
    return [(LENGTHS[i % 4], block, *case) for i, case in enumerate(made) for block in BLOCKS] + [(n, 256, *made[1]) for n in (1, 0)]


def tensors(n, heads, dtype):
    (h, g), generator = heads, torch.Generator().manual_seed(n)
    shapes = ((1, h, n, 6), (1, g, n, 6), (1, g, n, 10), (1, h, n, 10))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def attend(call, given, options):
    """Results and gradients of a call."""
    *leaves, d_out = given
    options, sink = dict(options), options.get("sink")
    if sink is not None:
        options["sink"] = sink = torch.tensor(sink, dtype=torch.float64, requires_grad=True)
    out = call(*(x.requires_grad_() for x in leaves), **options)
    out.backward(d_out)
    return dict(out=out.detach(), dq=leaves[0].grad, dk=leaves[1].grad, dv=leaves[2].grad), None if sink is None else sink.grad


def alone(folder):
    for i, (n, _, mask, heads, dtype, options) in enumerate(cases()):
        options = options | dict(attn_mask=None if mask is None else masks(n)[mask], enable_gqa=True)
        torch.save(attend(rt.scaled_dot_product_attention, tensors(n, heads, dtype), options), f"{folder}/{i}.pt")


def differing(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(a.numel(), b.numel(), 1)
    return int((bits(a) != bits(b)).sum())


def one_rank(folder):
    differ, of = 0, 0
    for i, (n, block, mask, heads, dtype, options) in enumerate(cases()):
        part = rt.Partition(n, block=block)
        options = options | dict(attn_mask=None if mask is None else masks(n)[mask], partition=part)
        found, sink = attend(rt.context_parallel_attention, [part.shard(x, 2) for x in tensors(n, heads, dtype)], options)
        expected, of_sink = torch.load(f"{folder}/{i}.pt")
        compared = {name: (found[name], part.shard(x, 2)) for name, x in expected.items()}
        if sink is not None:
            distributed.all_reduce(sink)
            compared["d_sink"] = sink, of_sink
        for name, (got, wanted) in compared.items():
            count = differing(got, wanted)
            if count:
                print(f"rank {part.rank} of {part.ranks}: {count} of {wanted.numel()} numbers of {name} differ: {n, block, mask, heads, dtype, options}", flush=True)
            differ, of = differ + count, of + wanted.numel()
    torch.save((differ, of), f"{folder}/rank{distributed.get_rank()}.pt")


def test_any_number_of_ranks_has_the_bits_of_one_process():
    with tempfile.TemporaryDirectory() as folder:
        alone(folder)
        # The cases are what they are said to be: there is something to compare, and a mask that hides whole ranks.
        blind = next(i for i, case in enumerate(cases()) if case[2] == "a rank without keys" and case[0] == 1801)
        rows = torch.load(f"{folder}/{blind}.pt")[0]["out"].abs().sum((0, 1, 3))
        assert (rows[:300] == 0).all() and (rows[300:] > 0).all()
        for ranks in RANKS:
            processes = start(ranks, "all", folder, script=__file__)
            try:
                ended = [process.wait(timeout=900) for process in processes]
            finally:
                for process in processes:
                    process.kill()
            assert ended == [0] * ranks
            found = [torch.load(f"{folder}/rank{rank}.pt") for rank in range(ranks)]
            differ, of = (sum(x) for x in zip(*found))
            print(f"{ranks} ranks, {len(cases())} cases: {differ} of {of} numbers differ")
            assert differ == 0 and of > 10_000_000


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=float(sys.argv[3])))
    one_rank(sys.argv[2])
    distributed.destroy_process_group()
