"""Attention that several processes of torch.distributed (gloo) share: the bits of one process."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import regard.torch as door

import shared_ranks
from shared_ranks import CASES

SCRIPT = Path(shared_ranks.__file__)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(ranks, work, folder, patience=120.0):
    common = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
    command = [sys.executable, str(SCRIPT), work, str(folder), str(patience)]
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
        out = door.scaled_dot_product_attention(*leaves, sink=sink, enable_gqa=True, **options)
        out.backward(d_out)
        found[name] = {"out": out.detach()} | {name: x.grad for name, x in zip(("dq", "dk", "dv"), leaves)}
        if sink is not None:
            found[name]["d_sink"] = sink.grad
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_has_the_bits_of_one_process(alone, ranks, tmp_path):
    compared = 0
    for rank, found in enumerate(by_ranks(ranks, "cases", tmp_path)):
        assert found.keys() == alone.keys()
        for name, tensors in alone.items():
            assert found[name].keys() == tensors.keys()
            for what, expected in tensors.items():
                got = found[name][what]
                assert got.shape == expected.shape and got.dtype == expected.dtype
                differ = int((bits(got) != bits(expected)).sum())
                assert differ == 0, f"{what} of {name}, rank {rank} of {ranks}: {differ} of {expected.numel()} numbers differ"
                compared += expected.numel()
    assert compared > ranks * 1_000_000 and all(x.abs().sum() > 0 for x in alone["causal"].values())


@pytest.mark.parametrize("ranks, work", [(2, "train"), (3, "train"), (2, "train_contiguous")])
def test_a_hugging_face_model_trains_with_its_tokens_shared(ranks, work, tmp_path):
    pytest.importorskip("transformers")
    model, ids = shared_ranks.model_and_tokens()
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.5), []
    for _ in range(4):
        with door.use():
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


def test_a_rank_that_is_killed_is_named_with_the_keys(tmp_path):
    processes = start(2, "kill", tmp_path)
    try:
        assert processes[1].wait(timeout=120) == -signal.SIGKILL
        began = time.monotonic()
        assert processes[0].wait(timeout=60) == 0
        assert time.monotonic() - began < 30
    finally:
        for process in processes:
            process.kill()
    told = torch.load(tmp_path / "0.pt")
    assert told.startswith("ConnectionError: rank 0 needs ") and " keys " in told and " of rank 1, which is gone" in told, told


def test_a_rank_that_stands_still_is_named_with_the_keys(tmp_path):
    processes = start(2, "stop", tmp_path, patience=8.0)
    try:
        assert processes[0].wait(timeout=120) == 0
    finally:
        for process in processes:
            process.kill()
    told = torch.load(tmp_path / "0.pt")
    assert told.startswith("TimeoutError: rank 0 waited ") and " keys " in told and " of rank 1; " in told, told


def test_what_cannot_be_shared_is_refused_on_all_ranks(tmp_path):
    first, second = by_ranks(2, "refusals", tmp_path)
    words = {
        "tensor mask": "TypeError: attn_mask is a Tensor; tokens that are shared need a regard.Mask, is_causal or window",
        "tokens": "ValueError: q of rank",
        "slopes": "ValueError: alibi requires a gradient",
        "join": "RuntimeError: join is for results",
        "shard": "ValueError: x has",
        "block": "ValueError: the block of a partition is 100",
        "mask in a model": "RuntimeError: attention of shared tokens got a mask of this rank's tokens",
    }
    for found in (first, second):
        for name, text in words.items():
            assert found[name].startswith(text), found[name]
    assert second["options"].startswith("ValueError: rank 1 calls attention with [], seed 0, is_causal=False, and rank 0"), second["options"]


def test_one_process_alone_needs_no_group():
    part, x = door.Partition.snake(600), torch.randn(1, 2, 600, 8, requires_grad=True)
    out = door.context_parallel_attention(x, x, x, partition=part, is_causal=True)
    out.square().sum().backward()
    y = x.detach().requires_grad_()
    expected = door.scaled_dot_product_attention(y, y, y, is_causal=True)
    expected.square().sum().backward()
    assert torch.equal(out, expected) and torch.equal(x.grad, y.grad) and repr(part) == "Partition(600 tokens, snake of 512, rank 0 of 1)"


def test_examples_are_true():
    import doctest

    from regard import _context

    found = doctest.testmod(_context)
    assert found.attempted > 10 and found.failed == 0
