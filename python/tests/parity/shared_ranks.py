"""One rank of a test of attention that several processes share: started by test_shared.py, or by torchrun."""

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as distributed
from torch.nn import functional as F

import regard
import regard.torch as rt

CASES = {
    "full": dict(n=1000),
    "causal": dict(n=1000, block=256, options=dict(is_causal=True)),
    "causal_in_large_blocks": dict(n=2113, block=512, options=dict(is_causal=True)),
    "window": dict(n=1500, options=dict(is_causal=True, window=(99, 0))),
    "grouped": dict(n=777, heads=(4, 2), block=256, options=dict(is_causal=True)),
    "one_key_head": dict(n=513, heads=(4, 1), options=dict(scale=0.3)),
    "dropout": dict(n=900, block=256, options=dict(is_causal=True, dropout_p=0.2, seed=2**63 + 5)),
    "everything": dict(
        n=1030, heads=(4, 2), block=256, sink=True,
        options=dict(alibi=True, softcap=20.0, dropout_p=0.1, seed=3, attn_mask=regard.Mask.first_keys(3) | regard.Mask.window(60, 10)),
    ),
    "double": dict(n=600, dtype=torch.float64, options=dict(is_causal=True)),
    "half": dict(n=600, dtype=torch.float16, options=dict(is_causal=True)),
    "ranks_without_rows": dict(n=300, options=dict(is_causal=True)),
    "one_token": dict(n=1),
    "seed_drawn": dict(n=400, options=dict(dropout_p=0.5)),
}


def tensors(case):
    n, (heads, of_keys), dtype = case["n"], case.get("heads", (2, 2)), case.get("dtype", torch.float32)
    generator = torch.Generator().manual_seed(n)
    return [torch.randn(2, h, n, 16, generator=generator, dtype=torch.float64).to(dtype) for h in (heads, of_keys, of_keys, heads)]


def sinks(case):
    return torch.linspace(-1, 1, case["heads"][0], dtype=torch.float64, requires_grad=True) if case.get("sink") else None


def attend(case, group=None):
    """Results and gradients of all tokens, put together."""
    part = rt.Partition(case["n"], group, case.get("block"))
    q, k, v, d_out = (part.shard(x, 2) for x in tensors(case))
    leaves, sink = [x.requires_grad_() for x in (q, k, v)], sinks(case)
    out = rt.context_parallel_attention(*leaves, partition=part, sink=sink, **case.get("options", {}))
    out.backward(d_out)
    found = {"out": out.detach()} | {name: x.grad for name, x in zip(("dq", "dk", "dv"), leaves)}
    found = {name: part.join(x, 2) for name, x in found.items()}
    if sink is not None:
        distributed.all_reduce(sink.grad, group=group)
        found["d_sink"] = sink.grad
    return found


def cases():
    torch.manual_seed(distributed.get_rank())
    return {name: attend(case) for name, case in CASES.items()}


def model_and_tokens(kind):
    """Of two layers: rotary positions and grouped heads, or learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=1024, attn_implementation="sdpa", resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )
        return GPT2LMHeadModel(config), torch.randint(50, (2, 701))
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config), torch.randint(50, (2, 700))


def train(kind="llama", block=256):
    """Losses of a Hugging Face model, which does not know that others have the rest of its tokens."""
    model, ids = model_and_tokens(kind)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    part = rt.Partition(ids.shape[1], block=block)
    targets = part.shard(F.pad(ids[:, 1:], (0, 1), value=-100), 1)
    mine, positions, losses = part.shard(ids, 1), part.positions()[None], []
    for _ in range(4):
        with rt.use(context_parallel=part) as calls:
            logits = model(mine, attention_mask=torch.ones_like(mine), position_ids=positions).logits
        assert calls.computed == 2 and not calls.left
        # The mean over all tokens, of which this is a share.
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (ids[:, 1:].numel())
        optimizer.zero_grad()
        loss.backward()
        loss = loss.detach()
        distributed.all_reduce(loss)
        for p in model.parameters():
            distributed.all_reduce(p.grad)
        optimizer.step()
        losses.append(loss)
    return {"losses": torch.stack(losses), **{name: p.detach() for name, p in model.named_parameters()}}


def fault(end):
    """Rank 1 does something at its second message of keys; what the others are told, and how long after, and what they are told if they go on."""
    part = rt.Partition(2000, block=256)
    attend(dict(n=2000, block=256))
    carrier, sent = type(part._carrier), []
    send = carrier.send

    def faulty(self, to, tag, array):
        sent.append(array.size > 2000)
        if self.rank == 1 and sum(sent) == 2:
            end()
        send(self, to, tag, array)

    carrier.send = faulty
    told, begun = [], time.monotonic()
    for _ in range(2):
        try:
            attend(dict(n=2000, block=256, options=dict(is_causal=True)))
        except (OSError, RuntimeError) as error:
            told.append(f"{type(error).__name__}: {error}")
    return told, time.monotonic() - begun


def raised():
    """Rank 1 has an error of its own after the first call, and ends."""
    part = rt.Partition(2000, block=256)
    attend(dict(n=2000, block=256))
    if part.rank == 1:
        raise KeyError("on purpose")
    try:
        return attend(dict(n=2000, block=256))
    except ConnectionError as error:
        return [f"{type(error).__name__}: {error}"], 0.0


def refusals():
    """What is refused, on all ranks alike, and without harm to what comes after; rank 1 is the odd one."""
    part, x = rt.Partition.snake(700, block=256), torch.ones(1, 2, 700, 8)
    mine, odd = part.shard(x, 2), part.rank == 1

    def call(q=mine, k=mine, v=mine, **options):
        return rt.context_parallel_attention(q, k, v, partition=part, **options)

    calls = {
        "tensor mask": lambda: call(attn_mask=torch.ones(700, 700)),
        "tokens": lambda: call(x, x, x),
        "slopes": lambda: call(alibi=torch.ones(1, requires_grad=True)),
        "join": lambda: part.join(mine.clone().requires_grad_(), 2),
        "shard": lambda: part.shard(mine, 2),
        "block": lambda: rt.Partition.snake(700, block=100),
        "negative": lambda: rt.Partition.snake(-1),
        "part of a token": lambda: rt.Partition.snake(3.7),
        "softcap": lambda: call(softcap=-1.0),
        "seed": lambda: call(dropout_p=0.1, seed=2**64),
        "options, odd": lambda: call(softcap=3.0 if odd else None),
        "causal, odd": lambda: call(is_causal=odd),
        "sink, odd": lambda: call(sink=torch.tensor([1.0, 2.0 + 1e-6 * odd])),
        "seed, odd": lambda: call(dropout_p=0.1, seed=5 if odd else None),
        "tokens, odd": lambda: call(mine[:, :, 1:] if odd else mine),
        "axes, odd": lambda: call(mine[0] if odd else mine),
        "heads, odd": lambda: call(mine[:, :1] if odd else mine),
        "dtype, odd": lambda: call(*[mine.double() if odd else mine] * 3),
        "array, odd": lambda: call(mine.numpy() if odd else mine),
        "tensor mask, odd": lambda: call(attn_mask=torch.ones(700, 700) if odd else None),
        "gradients, odd": lambda: call(mine.clone().requires_grad_(odd)),
        "partition, odd": lambda: rt.context_parallel_attention(*[rt.Partition(700).shard(x, 2)] * 3, partition=rt.Partition(700)) if odd else call(),
        "join, odd": lambda: part.join(mine, 2) if odd else call(),
        "join of another shape, odd": lambda: part.join(mine[:, :1] if odd else mine, 2),
    }
    with rt.use(context_parallel=part):
        calls["mask in a model"] = lambda: F.scaled_dot_product_attention(mine, mine, mine, torch.ones(mine.shape[2], mine.shape[2], dtype=torch.bool))
        calls["another thread"] = lambda: in_a_thread(lambda: F.scaled_dot_product_attention(mine, mine, mine))
        found = {}
        for name, made in calls.items():
            try:
                found[name] = repr(made())
            except (ValueError, TypeError, RuntimeError) as error:
                found[name] = f"{type(error).__name__}: {error}"
    found["afterwards"] = attend(CASES["everything"])
    return found


def in_a_thread(call):
    with ThreadPoolExecutor() as threads:
        return threads.submit(call).result()


def at_once():
    """Two groups of all ranks, each with calls of a thread of its own; and a group of some of them."""
    names, groups = ("everything", "causal_in_large_blocks"), [distributed.new_group() for _ in range(2)]
    with ThreadPoolExecutor() as threads:
        found = {name: threads.submit(lambda *given: [attend(*given) for _ in range(3)][-1], CASES[name], group) for name, group in zip(names, groups)}
        found = {name: future.result() for name, future in found.items()}
    some = distributed.new_group([1, 2])
    if distributed.get_rank() == 0:
        try:
            rt.Partition(700, some)
        except ValueError as error:
            assert str(error) == "this process is not in the group of the partition"
        return found
    return found | {"grouped": attend(CASES["grouped"], some)}


def late():
    """A partition that was made before there was a group is of one rank."""
    part, x = OLD, torch.ones(1, 1, 700, 4)
    try:
        return rt.context_parallel_attention(x, x, x, partition=part)
    except ValueError as error:
        return str(error)


WORK = {
    "cases": cases,
    "llama": train,
    "gpt2": lambda: train("gpt2", None),
    "kill": lambda: fault(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "stop": lambda: fault(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "raise": raised,
    "refusals": refusals,
    "at_once": at_once,
    "late": late,
}

if __name__ == "__main__":
    work, folder, timeout = sys.argv[1], sys.argv[2], float(sys.argv[3])
    torch.set_num_threads(1)
    OLD = rt.Partition(700)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    torch.save(WORK[work](), f"{folder}/{distributed.get_rank()}.pt")
    if work in ("kill", "stop"):
        os._exit(0)
    distributed.destroy_process_group()
