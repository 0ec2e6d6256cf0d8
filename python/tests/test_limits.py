"""No memory is a MemoryError, Ctrl-C ends a call, threads and forks leave nothing behind: each in a process of its own."""

import os
import subprocess
import sys

import numpy as np
import pytest

import regard


def in_new_process(code, timeout=120):
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout)
    assert run.returncode == 0, run.stderr
    return run.stdout


def one(*shape, dtype=np.float32):
    """A tensor of any size in no memory."""
    return np.broadcast_to(dtype(1), shape)


TOO_LARGE = {
    "out": lambda: regard.attention(one(1, 1, 2, 8), one(1, 1, 2, 8), one(1, 1, 2, 1 << 42)),
    "rows": lambda: regard.attention(one(1, 1, 1 << 44, 8), one(1, 1, 2, 8), one(1, 1, 2, 8)),
    "weights": lambda: regard.weights(one(1, 1, 1 << 23, 8), one(1, 1, 1 << 23, 8), window=(0, 0)),
    "half_weights": lambda: regard.attention(
        *(one(1, 1, 1 << 22, 1, dtype=np.float16),) * 3, window=(0, 0), return_weights=True
    ),
    "scores": lambda: regard.attention(*(one(1, 1, 1 << 22, 1),) * 3, window=(0, 0), return_scores="raw"),
    "gradients": lambda: regard.attention_vjp(*(one(1, 1, 1 << 38, 8),) * 4, window=(0, 0)),
    "heat_map": lambda: regard.heat_map(*(one(1, 1, 1 << 22, 1),) * 2, rows=1 << 22, cols=1 << 22, window=(0, 0)),
    "top_keys": lambda: regard.statistics(*(one(1, 1, 1 << 10, 1),) * 2, top_keys=1 << 50),
    "packed": lambda: regard.attention_varlen(one(2, 1, 8), one(2, 1, 8), one(2, 1, 1 << 42), [0, 2], [0, 2]),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_no_memory_holds_is_a_memory_error(name):
    with pytest.raises(MemoryError):
        TOO_LARGE[name]()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs a limit on the address space")
def test_a_process_that_is_out_of_memory_goes_on():
    """Within a limit, sizes at which the first results still fit and the later ones do not."""
    out = in_new_process(
        """
import resource, numpy as np, regard
x = np.zeros((1, 4, 65536, 64), np.float32)
regard.attention(x[:, :, :64], x[:, :, :64], x[:, :, :64])
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
refused = 0
for more in (16, 80, 150, 220, 290):
    resource.setrlimit(resource.RLIMIT_AS, (size + (more << 20), -1))
    try:
        regard.attention_vjp(x, x, x, x, window=(0, 0), threads=1)
    except MemoryError as error:
        refused += 1
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
print(refused, regard.attention(x, x, x, window=(0, 0)).shape)
"""
    )
    refused, shape = out.split(" ", 1)
    assert int(refused) >= 2 and "65536" in shape, out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak in the system's units")
def test_two_biases_take_linear_memory():
    peak = in_new_process(
        """
import resource, numpy as np, regard
x = np.ones((1, 1, 8192, 8), np.float32)
bias = np.zeros((1, 1, 1, 8192), np.float32)
regard.attention(x[:, :, :8], x[:, :, :8], x[:, :, :8])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
regard.attention(x, x, x, bias=bias, mask=bias[0, 0], alibi=True)
regard.attention_vjp(x, x, x, x, bias=bias, mask=bias[0, 0], alibi=[0.5])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    )
    # A matrix in float32 would be 256 MiB.
    assert int(peak) < 64 << 10, f"{peak} KiB"


CALLS = {
    "forward": "regard.attention(x, x, x)",
    "one_thread": "regard.attention(x, x, x, threads=1)",
    "gradients": "regard.attention_vjp(x, x, x, x)",
    "column_sums": "regard.column_sums(x, x)",
}


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
@pytest.mark.parametrize("name", ["forward", "one_thread", "gradients", "column_sums"])
def test_ctrl_c_ends_a_call(name):
    out = in_new_process(
        f"""
import os, signal, threading, time, numpy as np, regard
x = np.zeros((1, 64, 16384, 64), np.float32)
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
begin = time.perf_counter()
try:
    {CALLS[name]}
    print("finished")
except KeyboardInterrupt:
    print(time.perf_counter() - begin - 0.5)
small = regard.attention(x[:, :, :4], x[:, :, :4], x[:, :, :4])
assert (small == 0).all()
"""
    )
    assert float(out) < 1.0, out


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_a_handler_that_does_not_raise_lets_the_call_finish():
    out = in_new_process(
        """
import os, signal, threading, time, numpy as np, regard
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.perf_counter()))
x = np.zeros((1, 8, 4096, 64), np.float32)
threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
out = regard.attention(x, x, x, threads=1)
end = time.perf_counter()
print(len(seen), seen[0] < end, out.shape)
"""
    )
    assert out.split() == ["1", "True", "(1,", "8,", "4096,", "64)"], out


def test_trying_all_numbers_of_threads_leaves_few_behind():
    out = in_new_process(
        """
import threading, time, numpy as np, regard
x = np.ones((1, 8, 300, 32), np.float32)
for threads in range(2, 65):
    regard.attention(x, x, x, threads=threads)
time.sleep(0.5)
count = 0
try:
    import os
    count = len(os.listdir("/proc/self/task"))
except OSError:
    pass
print(count)
"""
    )
    assert int(out) < 200, f"{out} threads"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore")
def test_a_fork_while_another_thread_is_in_a_call_leaves_a_child_that_computes():
    out = in_new_process(
        """
import os, signal, threading, warnings, numpy as np, regard
warnings.simplefilter("ignore")
x = np.ones((2, 4, 256, 64), np.float32)
expected = regard.attention(x, x, x, causal=True)
done = threading.Event()
def work():
    while not done.is_set():
        regard.attention_vjp(x, x, x, x, causal=True, threads=2)
worker = threading.Thread(target=work)
worker.start()
failed = 0
for _ in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        ok = (regard.attention(x, x, x, causal=True) == expected).all()
        regard.attention_vjp(x, x, x, x, causal=True)
        os._exit(0 if ok else 1)
    failed += os.waitpid(child, 0)[1] != 0
done.set()
worker.join()
print(failed)
""",
        timeout=300,
    )
    assert int(out) == 0, f"{out} of 60 children failed"


LONG_LISTS = ["run(range(10**12))", "run('Emma', keep=range(10**12))", "screen(range(10**13))", "generate('Emma', 3, stop=range(10**14))"]


@pytest.mark.parametrize("call", LONG_LISTS)
def test_a_list_longer_than_memory_is_an_error(call):
    code = f"import regard\ntry: regard.load().{call}\nexcept (TypeError, ValueError): print('refused')"
    assert in_new_process(code) == "refused\n"
