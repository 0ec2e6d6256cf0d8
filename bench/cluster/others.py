"""Attention of tokens that several processes share, by others and by regard, on the same inputs: what fails, and what differs from one process.

    python bench/cluster/others.py [--ranks 2 3 4] [--tries 6] [--seconds 30]

- PyTorch's own `torch.distributed.tensor.experimental.context_parallel`, forward and backward.
- A ring with merged partials: each rank has a range of the tokens, keys and values go round, what a rank gets of each range is merged by the
  logarithms of its sums. Once with PyTorch's kernel and the merge written here, once with `regard.attention` and `regard.merge`. Forward.
- `regard.torch.context_parallel_attention`, forward and backward.

Each try is a job of its own, by gloo on this machine; a job whose ranks have all slept for this long hangs, and is killed. Compared are the bits with those of
the same library in one process. The table is Markdown. For Linux.
"""

import argparse
import collections
import datetime
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # noqa: F401 (context_parallel loads it when it is called)
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.nn import functional as F

import regard
import regard.torch

#: Of the tensors: batch entries, heads, tokens (which 2, 3 and 4 ranks share evenly, as PyTorch needs it), dimensions.
SHAPE = (1, 4, 1536, 32)


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SHAPE, generator=generator) for _ in range(4)]


def gradients(out, leaves, d_out):
    out.backward(d_out)
    return dict(zip(("out", "dq", "dk", "dv"), (out.detach(), *(x.grad for x in leaves))))


# ------------------------------------------------------------------ the contenders: results of all tokens, put together


def by_pytorch(causal):
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    *leaves, d_out = (x.clone() for x in inputs())
    with context_parallel(mesh, buffers=[*leaves, d_out], buffer_seq_dims=[2] * 4):
        mine = [x.detach().clone().requires_grad_() for x in leaves]
        out, fails = F.scaled_dot_product_attention(*mine, is_causal=causal), {}
        if out.shape != mine[0].shape:
            return f"a result of shape {list(out.shape)} for queries of shape {list(mine[0].shape)}"
        try:
            found = gradients(out, mine, d_out.clone())
        except NotImplementedError as error:
            found, fails = {"out": out.detach()}, {"fails": f"backward: {error}"}
    names, parts = zip(*found.items())
    return dict(zip(names, context_parallel_unshard(mesh, list(parts), [2] * len(parts)))) | fails


def pytorch_partial(q, k, v, causal):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)[:2]


def merged(out, lse, more, of_more):
    both = torch.logaddexp(lse, of_more)
    return out * (lse - both).exp()[..., None] + more * (of_more - both).exp()[..., None], both


def regard_partial(q, k, v, causal):
    return [torch.from_numpy(x) for x in regard.attention(*(x.numpy() for x in (q, k, v)), causal=causal, return_lse=True)]


def merged_by_regard(*parts):
    return [torch.from_numpy(x) for x in regard.merge(*(x.numpy() for x in parts))]


def ring(partial, merge, causal):
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    q, k, v = (x.chunk(ranks, 2)[rank].contiguous() for x in inputs()[:3])
    keys, state = torch.stack((k, v)), None
    for step in range(ranks):
        of = (rank - step) % ranks
        if of == rank or of < rank or not causal:
            more = partial(q, *keys, causal and of == rank)
            state = more if state is None else merge(*state, *more)
        if step + 1 < ranks:
            got = torch.empty_like(keys)
            sent = distributed.isend(keys, (rank + 1) % ranks)
            distributed.recv(got, (rank - 1) % ranks)
            sent.wait()
            keys = got
    parts = [torch.empty_like(state[0]) for _ in range(ranks)]
    distributed.all_gather(parts, state[0].contiguous())
    return {"out": torch.cat(parts, 2)}


def by_regard(causal):
    part = regard.torch.Partition.snake(SHAPE[2], block=256)
    *leaves, d_out = (part.shard(x, 2) for x in inputs())
    out = regard.torch.context_parallel_attention(*(x.requires_grad_() for x in leaves), partition=part, is_causal=causal)
    return {name: part.join(x, 2) for name, x in gradients(out, leaves, d_out).items()}


#: What is computed, and the same by one process.
CONTENDERS = {
    "PyTorch's context_parallel": (by_pytorch, F.scaled_dot_product_attention),
    "ring, merged (PyTorch's kernel)": (lambda causal: ring(pytorch_partial, merged, causal), F.scaled_dot_product_attention),
    "ring, regard.merge": (lambda causal: ring(regard_partial, merged_by_regard, causal), regard.torch.scaled_dot_product_attention),
    "regard": (by_regard, regard.torch.scaled_dot_product_attention),
}


def one_process(name, causal):
    *leaves, d_out = inputs()
    return gradients(CONTENDERS[name][1](*(x.requires_grad_() for x in leaves), is_causal=causal), leaves, d_out)


def one_rank(name, causal):
    distributed.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
    found = CONTENDERS[name][0](causal)
    # No rank leaves before the others have what they need.
    distributed.barrier()
    return found


# ------------------------------------------------------------------ the jobs


def kept(name, causal, path):
    """What one process finds, in a file."""
    torch.set_num_threads(1)
    try:
        found = one_rank(name, causal) if "RANK" in os.environ else one_process(name, causal)
    except Exception as error:
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    torch.save(found, path)
    # Threads of a process group that do not end are not what is counted here.
    os._exit(0)


def busy(processes):
    """Whether a thread of them runs, or would if it had a core."""
    for process in processes:
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            try:
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue  # It has just ended.
            if state in "RD":
                return True
    return False


def ended(processes, seconds):
    """Whether all end; they do not when all of their threads have slept, nearly always, for this number of seconds."""
    running, step = list(processes), 0.05
    looks = collections.deque(maxlen=int(seconds / step))
    while running:
        time.sleep(step)
        running = [process for process in running if process.poll() is None]
        looks.append(busy(running))
        if len(looks) == looks.maxlen and sum(looks) < len(looks) / 20:
            for process in running:
                process.kill()
                process.wait()
            return False
    return True


def job(name, causal, ranks, seconds):
    """What the first of these ranks found, or why there is nothing; without ranks, what one process finds."""
    with tempfile.TemporaryDirectory() as folder:
        common = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
        places = [common | {"RANK": str(rank)} for rank in range(ranks)] or [{}]
        command = [sys.executable, __file__, "--rank-of", name] + ["--causal"] * causal
        processes = [subprocess.Popen([*command, "--keep", f"{folder}/{i}"], env=os.environ | place, stderr=subprocess.DEVNULL) for i, place in enumerate(places)]
        if not ended(processes, seconds):
            return "hangs"
        found = [torch.load(path) for path in sorted(Path(folder).iterdir())]
        # A rank that has lost another is not the one that says why.
        texts = sorted((x for x in found if isinstance(x, str)), key=lambda text: "onnection" in text)
        return texts[0] if texts else found[0] if len(found) == len(places) else "ends without a word"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def row(name, causal, ranks, options):
    expected = job(name, causal, 0, options.seconds)
    tries = [job(name, causal, ranks, options.seconds) for _ in range(options.tries)]
    texts = [found if isinstance(found, str) else found["fails"] for found in tries if isinstance(found, str) or "fails" in found]
    failed = "; ".join(f"{text} ({texts.count(text)} of {len(tries)})" for text in dict.fromkeys(texts)) or "nothing"
    cells = []
    for names in (("out",), ("dq", "dk", "dv")):
        pairs = [(found[x], expected[x]) for found in tries if not isinstance(found, str) for x in names if x in found]
        differ = sum(int((a.contiguous().view(torch.int32) != b.contiguous().view(torch.int32)).sum()) for a, b in pairs)
        most = max((float(np.nan_to_num((a - b).abs().max(), nan=np.inf)) for a, b in pairs), default=0.0)
        of = sum(b.numel() for _, b in pairs)
        cells.append("" if not of else "0" if differ == 0 else f"{100 * differ / of:.0f} %, by up to {most:.1e}")
    return f"| {name} | {'causal' if causal else 'all keys'} | {ranks} | {failed} | {cells[0]} | {cells[1]} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--tries", type=int, default=6, help="jobs of each kind")
    parser.add_argument("--seconds", type=float, default=30.0, help="of sleep of all ranks, after which a job hangs")
    parser.add_argument("--only", help="contenders whose name contains this")
    for name in ("--rank-of", "--keep"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--causal", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        return kept(options.rank_of, options.causal, options.keep)
    print(f"PyTorch {torch.__version__}, {platform.machine()}, {datetime.date.today()}, float32 {list(SHAPE)}\n")
    print("| by | mask | ranks | what fails | results that differ from one process | gradients |\n|---|---|---|---|---|---|", flush=True)
    for name in CONTENDERS:
        for causal in (True, False):
            for ranks in options.ranks:
                if not options.only or options.only in name:
                    print(row(name, causal, ranks, options), flush=True)


if __name__ == "__main__":
    main()
