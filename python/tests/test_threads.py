"""Bits do not move with threads or batch; other Python threads run meanwhile; levels can be forced."""

import doctest
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import oracle
import regard

CALLS = {
    "full": {},
    "causal": dict(causal=True),
    "window": dict(window=(30, 5)),
    "softcap": dict(softcap=2.0),
}


@pytest.fixture
def restore_threads():
    before = regard.get_num_threads()
    yield
    regard.set_num_threads(before)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seq_q, seq_kv", [(1, 5000), (3, 1025), (257, 257), (600, 130)])
def test_thread_count_does_not_change_a_bit(normal, name, seq_q, seq_kv):
    q, k, v = normal(2, 6, seq_q, 32), normal(2, 2, seq_kv, 32), normal(2, 2, seq_kv, 32)
    one, one_lse = regard.attention(q, k, v, threads=1, return_lse=True, **CALLS[name])
    for threads in (2, 3, 5, 16):
        many, many_lse = regard.attention(q, k, v, threads=threads, return_lse=True, **CALLS[name])
        assert many.tobytes() == one.tobytes() and many_lse.tobytes() == one_lse.tobytes()


def test_the_global_thread_count_does_not_change_a_bit(normal, restore_threads):
    q, k, v = (normal(3, 4, 200, 16) for _ in range(3))
    results = []
    for threads in (1, 2, 4):
        regard.set_num_threads(threads)
        assert regard.get_num_threads() == threads
        results.append(regard.attention(q, k, v, causal=True).tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seq_q", [1, 140])
def test_alone_or_in_a_batch_gives_the_same_bits(normal, name, seq_q):
    q, k, v = normal(3, 4, seq_q, 16), normal(3, 2, 300, 16), normal(3, 2, 300, 16)
    together = regard.attention(q, k, v, **CALLS[name])
    for b in range(3):
        alone = regard.attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], **CALLS[name])
        np.testing.assert_array_equal(alone[0], together[b])


def test_other_python_threads_run_during_a_call(normal):
    q, k, v = (normal(1, 8, 2048, 64) for _ in range(3))
    worker = threading.Thread(target=lambda: regard.attention(q, k, v, threads=1))
    start, ticks = time.perf_counter(), 0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        ticks += 1
    milliseconds = 1e3 * (time.perf_counter() - start)
    assert milliseconds > 10, "the call was too short to tell"
    assert ticks > 0.1 * milliseconds, f"{ticks} ticks in {milliseconds:.0f} ms: the interpreter was blocked"


def test_calls_from_many_python_threads_agree(normal):
    q, k, v = (normal(2, 4, 150, 32) for _ in range(3))
    expected, results = regard.attention(q, k, v), [None] * 6

    def call(slot):
        results[slot] = regard.attention(q, k, v)

    workers = [threading.Thread(target=call, args=(slot,)) for slot in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for got in results:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512", "avx512bf16", "amx"])
def test_a_level_is_right_or_refused(normal, level):
    q, k, v = (normal(1, 4, 77, 40) for _ in range(3))
    try:
        out = regard.attention(q, k, v, causal=True, level=level)
    except ValueError as error:
        assert level in str(error) and level not in ("portable", regard.simd_level())
        pytest.skip(f"this CPU has no {level}: {error}")
    oracle.check(out, q, k, v, causal=True)


def in_new_process(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment
    )


def test_the_environment_forces_a_level():
    run = in_new_process("import regard; print(regard.simd_level())", REGARD_SIMD="portable")
    assert run.stdout.strip() == "portable", run.stderr


def test_an_unknown_level_in_the_environment_is_an_error():
    code = "import numpy as np, regard; x = np.ones((1, 1, 2, 4), np.float32); regard.attention(x, x, x)"
    run = in_new_process(code, REGARD_SIMD="abacus")
    assert run.returncode != 0 and "abacus" in run.stderr


def test_the_examples_in_the_docstrings_hold():
    functions = [getattr(regard, name) for name in regard.__all__ if callable(getattr(regard, name))]
    finder, runner = doctest.DocTestFinder(exclude_empty=True), doctest.DocTestRunner()
    for function in functions:
        assert function.__doc__, f"{function.__name__} has no docstring"
        for example in finder.find(function, function.__name__, globs={"np": np, "regard": regard}):
            runner.run(example)
    found = runner.summarize(verbose=False)
    assert found.failed == 0 and found.attempted > 30


@pytest.mark.parametrize("n", [0, -1, 1025, 10**9])
def test_a_number_of_threads_out_of_bounds_is_refused(n, restore_threads):
    with pytest.raises(ValueError, match=f"n is {n}; it must be from 1 to 1024"):
        regard.set_num_threads(n)


@pytest.mark.parametrize("call", ["regard.attention(x, x, x)", "regard.get_num_threads()", "regard.load()", "regard.lab.sweep(d_k=[4])"])
def test_a_number_of_threads_out_of_bounds_in_the_environment_is_refused(call):
    code = f"import numpy as np, regard; x = np.ones((1, 1, 4, 4), np.float32); regard.attention(x, x, x, threads=2); {call}"
    run = in_new_process(code, RAYON_NUM_THREADS="1000000000")
    assert run.returncode == 1 and "ValueError: RAYON_NUM_THREADS is 1000000000; it must be at most 1024" in run.stderr, run.stderr
    assert in_new_process(code, RAYON_NUM_THREADS="3").returncode == 0
