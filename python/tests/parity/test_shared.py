"""Attention that several processes of torch.distributed (gloo) share: the bits of one process."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import regard.torch as rt

import shared_ranks
from shared_ranks import CASES

SCRIPT = Path(shared_ranks.__file__)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(ranks, work, folder, timeout=120.0, script=SCRIPT):
    common = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
    command = [sys.executable, str(script), work, str(folder), str(timeout)]
    return [subprocess.Popen(command, env=os.environ | common | {"RANK": str(rank)}) for rank in range(ranks)]


def by_ranks(ranks, work, folder):
    """What each rank returned."""
    processes = start(ranks, work, folder)
    try:
        for rank, process in enumerate(processes):
            assert process.wait(timeout=300) == 0, f"rank {rank} of {ranks}"
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


def bits(x):
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


@pytest.fixture(scope="module")
def alone():
    """The same by one process that knows nothing of ranks."""
    found = {}
    torch.manual_seed(0)
    for name, case in CASES.items():
        *leaves, d_out = shared_ranks.tensors(case)
        [x.requires_grad_() for x in leaves]
        options, sink = dict(case.get("options", {})), shared_ranks.sinks(case)
        if "dropout_p" in options and "seed" not in options:
            options["seed"] = int(torch.randint(1 << 62, ()))
        out = rt.scaled_dot_product_attention(*leaves, sink=sink, enable_gqa=True, **options)
        out.backward(d_out)
        found[name] = {"out": out.detach()} | {name: x.grad for name, x in zip(("dq", "dk", "dv"), leaves)}
        if sink is not None:
            found[name]["d_sink"] = sink.grad
    return found


def assert_bits(found, alone, who):
    """Every number of the cases that were found; how many they are."""
    compared = 0
    for name, tensors in found.items():
        assert tensors.keys() == alone[name].keys()
        for what, expected in alone[name].items():
            got = tensors[what]
            assert got.shape == expected.shape and got.dtype == expected.dtype
            differ = int((bits(got) != bits(expected)).sum())
            assert differ == 0, f"{what} of {name}, {who}: {differ} of {expected.numel()} numbers differ"
            compared += expected.numel()
    return compared


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_has_the_bits_of_one_process(alone, ranks, tmp_path):
    compared = 0
    for rank, found in enumerate(by_ranks(ranks, "cases", tmp_path)):
        assert found.keys() == alone.keys()
        compared += assert_bits(found, alone, f"rank {rank} of {ranks}")
    assert compared > ranks * 1_000_000 and all(x.abs().sum() > 0 for x in alone["causal"].values())


@pytest.mark.parametrize("ranks, work", [(2, "llama"), (3, "llama"), (2, "gpt2")])
def test_a_hugging_face_model_trains_with_its_tokens_shared(ranks, work, tmp_path):
    pytest.importorskip("transformers")
    model, ids = shared_ranks.model_and_tokens(work)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.5), []
    for _ in range(4):
        with rt.use():
            logits = model(ids).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    all_found = by_ranks(ranks, work, tmp_path)
    for found in all_found:
        torch.testing.assert_close(found["losses"], torch.stack(losses), rtol=1e-5, atol=0)
        for name, p in model.named_parameters():
            torch.testing.assert_close(found[name], p.detach(), rtol=1e-3, atol=1e-5)
            assert torch.equal(found[name], all_found[0][name])
    assert losses[-1] < losses[0] - 0.01


def after_a_fault(work, folder, timeout):
    """What ranks 0 and 2 are told when something happens to rank 1."""
    processes = start(3, work, folder, timeout)
    try:
        for rank in (0, 2):
            assert processes[rank].wait(timeout=120) == 0
    finally:
        for process in processes:
            process.kill()
    return processes[1].wait(), *(torch.load(folder / f"{rank}.pt") for rank in (0, 2))


def names_rank_and_keys(text):
    return re.search(r"rank [02] (needs|waited [0-9.]+ s for) .*\bkeys .* of rank [012]\b", text)


def test_a_rank_that_is_killed_is_named_with_the_keys(tmp_path):
    code, *told = after_a_fault("kill", tmp_path, 60)
    assert code == -signal.SIGKILL
    for (first, second), seconds in told:
        # Rank 2 may not have heard of rank 1 at all.
        assert first.startswith("ConnectionError: rank ") and "which is disconnected" in first, first
        assert names_rank_and_keys(first) or first.startswith("ConnectionError: rank 2 needs its options of the call of rank 1, "), first
        assert "ended half way (ConnectionError: rank " in second and seconds < 30, (second, seconds)
    # Who needs the rank that is gone says so; the other may need one that has ended because of it.
    assert any(" of rank 1, which is disconnected" in first for (first, _), _ in told), told


def test_a_rank_that_stands_still_is_named_with_the_keys(tmp_path):
    _, *told = after_a_fault("stop", tmp_path, 6)
    for (first, second), seconds in told:
        assert names_rank_and_keys(first), first
        assert "ended half way (" in second and seconds < 6 + 5, (second, seconds)
    assert any(re.match(r"TimeoutError: rank . waited .* of rank 1; ", first) for (first, _), _ in told), told


def test_a_rank_that_raises_is_named(tmp_path):
    code, *told = after_a_fault("raise", tmp_path, 60)
    assert code == 1
    for (first,), _ in told:
        assert re.match("ConnectionError: rank [02] needs rank 1 for a call [(]attention[)], which is gone or silent", first), first


def test_what_cannot_be_shared_is_refused_on_all_ranks(alone, tmp_path):
    all_found = by_ranks(3, "refusals", tmp_path)
    alike = {
        "tensor mask": "TypeError: attn_mask is a Tensor; tokens that are shared need a regard.Mask, is_causal or window",
        "tokens": "ValueError: query of rank",
        "slopes": "ValueError: alibi requires a gradient",
        "join": "RuntimeError: join is for results",
        "shard": "ValueError: x has",
        "block": "ValueError: the block of a partition is 100",
        "negative": "ValueError: seq is -1",
        "part of a token": "TypeError: 'float' object",
        "softcap": "ValueError: softcap is -1",
        "seed": "ValueError: seed is 18446744073709551616",
        "mask in a model": "RuntimeError: attention of shared tokens got a mask of this rank's tokens",
        "another thread": "RuntimeError: another thread has use(context_parallel=...) open",
    }
    refused_by_rank_1 = {
        "tokens, odd": "ValueError: query of rank 1 has shape [1, 2, 255, 8]; its tokens (axis 2) must be the 256",
        "axes, odd": "ValueError: query of rank 1 has shape [2, 256, 8]",
        "array, odd": "TypeError: query of rank 1 is a ndarray",
        "tensor mask, odd": "TypeError: attn_mask is a Tensor",
    }
    # Of rank 1, and of the others.
    different = {
        "options, odd": ("softcap=3.0", "none of that"),
        "causal, odd": ("is_causal=True", "is_causal=False"),
        "sink, odd": ("sink=[2] of float32 (", "sink=[2] of float32 ("),
        "seed, odd": ("seed=5", "a seed that is drawn"),
        "heads, odd": ("query [1, 1, _, 8] of float32", "query [1, 2, _, 8] of float32"),
        "dtype, odd": ("query [1, 2, _, 8] of float64", "query [1, 2, _, 8] of float32"),
        "gradients, odd": ("with gradients", "without gradients"),
        "partition, odd": ("700 tokens, contiguous", "700 tokens, snake of 256"),
        "join, odd": ("join; x [1, 2, _, 8] of torch.float32", "attention; query"),
        "join of another shape, odd": ("x [1, 1, _, 8] of torch.float32", "x [1, 2, _, 8] of torch.float32"),
    }
    for rank, found in enumerate(all_found):
        assert found.keys() == {*alike, *refused_by_rank_1, *different, "afterwards"}
        for name, text in alike.items():
            assert found[name].startswith(text), (name, found[name])
        for name, text in refused_by_rank_1.items():
            expected = text if rank == 1 else f"ValueError: rank 1 refuses the call of all ranks: {text}"
            assert found[name].startswith(expected), (name, found[name])
        for name, (odd, others) in different.items():
            first, second, other = (odd, others, 0) if rank == 1 else (others, odd, 1)
            assert found[name].startswith(f"ValueError: rank {rank} calls with {first}"), (name, found[name])
            assert f", and rank {other} with {second}" in found[name], (name, found[name])
        assert_bits({"everything": found["afterwards"]}, alone, f"rank {rank}")


def test_groups_do_not_hear_each_other(alone, tmp_path):
    first, *others = by_ranks(3, "at_once", tmp_path)
    assert len(first) == 2 and all(len(found) == 3 for found in others)
    for rank, found in enumerate((first, *others)):
        assert_bits(found, alone, f"rank {rank}")


def test_a_partition_that_is_older_than_its_group_is_refused(tmp_path):
    for text in by_ranks(2, "late", tmp_path):
        assert text == "the partition was made for 1 ranks, and the group has 2; make it after init_process_group"


def test_one_process_alone_needs_no_group():
    part, x = rt.Partition.snake(600), torch.randn(1, 2, 600, 8, requires_grad=True)
    out = rt.context_parallel_attention(x, x, x, partition=part, is_causal=True)
    out.square().sum().backward()
    y = x.detach().requires_grad_()
    expected = rt.scaled_dot_product_attention(y, y, y, is_causal=True)
    expected.square().sum().backward()
    assert torch.equal(out, expected) and torch.equal(x.grad, y.grad) and repr(part) == "Partition(600 tokens, snake of 512, rank 0 of 1)"


def test_examples_are_true():
    import doctest

    from regard import _context

    found = doctest.testmod(_context)
    assert found.attempted > 10 and found.failed == 0
