"""Strides, element types, empty dimensions, and inputs left as they were."""

import os
import subprocess
import sys

import numpy as np
import pytest

import oracle
import regard


def reversed_rows(x):
    return np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1]


def inner_stride_two(x):
    return x.repeat(2, axis=-1)[..., ::2]


def inner_negative(x):
    return np.ascontiguousarray(x[..., ::-1])[..., ::-1]


def columns_first(x):
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


def sequence_before_heads(x):
    return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)


def inside_a_larger_array(x):
    room = np.full([n + 3 for n in x.shape], np.nan, x.dtype)
    inner = room[1:-2, 2:-1, 1:-2, 2:-1]
    inner[...] = x
    return inner


def reversed_everywhere(x):
    return np.ascontiguousarray(x[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1]


LAYOUTS = [
    reversed_rows, inner_stride_two, inner_negative, columns_first, sequence_before_heads,
    inside_a_larger_array, reversed_everywhere, np.asfortranarray,
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operand", ["q", "k", "v", "mask", "bias"])
@pytest.mark.parametrize("seq_q", [1, 33])
def test_any_strides_give_the_same_result(normal, rng, layout, operand, seq_q):
    arrays = dict(
        q=normal(2, 4, seq_q, 20), k=normal(2, 2, 45, 20), v=normal(2, 2, 45, 9),
        mask=rng.random((2, 4, seq_q, 45)) < 0.7, bias=normal(2, 4, seq_q, 45),
    )
    if operand == "mask" and layout is inside_a_larger_array:
        strided = np.ones((4, 6, seq_q + 2, 50), bool)[1:3, 1:5, 1:-1, 2:47]
        strided[...] = arrays["mask"]
    else:
        strided = layout(arrays[operand])
    np.testing.assert_array_equal(strided, arrays[operand])
    oracle.check(regard.attention(**(arrays | {operand: strided})), **arrays)


def test_views_into_a_fused_projection(normal):
    packed = normal(2, 50, 3 * 4 * 16)
    q, k, v = packed.reshape(2, 50, 3, 4, 16).transpose(2, 0, 3, 1, 4)
    assert not q.flags.c_contiguous and q.base is not None
    oracle.check(regard.attention(q, k, v, causal=True), q, k, v, causal=True)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_broadcast_views_with_stride_zero(normal, axis):
    shape = [2, 3, 40, 16]
    shape[axis] = 1
    k, v = (np.broadcast_to(normal(*shape), (2, 3, 40, 16)) for _ in range(2))
    q = normal(2, 3, 21, 16)
    assert k.strides[axis] == 0
    oracle.check(regard.attention(q, k, v), q, k, v)


def test_broadcast_mask_with_stride_zero(normal, rng):
    q, k, v = normal(3, 2, 20, 8), normal(3, 2, 30, 8), normal(3, 2, 30, 8)
    row = rng.random((1, 1, 1, 30)) < 0.5
    mask = np.broadcast_to(row, (3, 2, 20, 30))
    np.testing.assert_array_equal(regard.attention(q, k, v, mask=mask), regard.attention(q, k, v, mask=row))
    oracle.check(regard.attention(q, k, v, mask=mask), q, k, v, mask=mask)


def element_type(name):
    return pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else np.dtype(name)


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("seq_q, seq_kv", [(1, 300), (33, 65), (130, 130)])
def test_element_types(normal, name, seq_q, seq_kv):
    dtype = element_type(name)
    q, k, v = (normal(2, h, n, 24, dtype=dtype) for h, n in ((4, seq_q), (2, seq_kv), (2, seq_kv)))
    for options in ({}, dict(causal="bottom_right", softcap=3.0), dict(window=(9, 9), kv_lens=np.array([40, 65]))):
        oracle.check(regard.attention(q, k, v, **options), q, k, v, **options)


def test_float64_is_computed_in_float64(normal):
    q, k, v = (normal(1, 2, 40, 16, dtype=np.float64) for _ in range(3))
    np.testing.assert_allclose(regard.attention(q, k, v), oracle.attention(q, k, v).out, rtol=1e-12, atol=1e-13)


def test_float16_scores_beyond_65504_do_not_overflow():
    q = np.full((1, 1, 4, 64), 60.0, np.float16)
    k = np.full((1, 1, 8, 64), 60.0, np.float16)
    v = np.arange(8, dtype=np.float16).reshape(1, 1, 8, 1)
    np.testing.assert_array_equal(regard.attention(q, k, v, scale=1.0), np.full((1, 1, 4, 1), 3.5, np.float16))


@pytest.mark.parametrize("q, k, v", [
    ((2, 4, 5, 8), (2, 2, 0, 8), (2, 2, 0, 6)),
    ((2, 4, 0, 8), (2, 2, 7, 8), (2, 2, 7, 6)),
    ((0, 4, 5, 8), (0, 2, 7, 8), (0, 2, 7, 6)),
    ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 0)),
    ((2, 0, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)),
    ((2, 4, 5, 0), (2, 2, 7, 0), (2, 2, 7, 6)),
    ((0, 4, 0, 0), (0, 2, 0, 0), (0, 2, 0, 0)),
])
@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(window=(2, 2))])
def test_empty_dimensions_are_legal(normal, q, k, v, options):
    q, k, v = normal(*q), normal(*k), normal(*v)
    out, lse = regard.attention(q, k, v, return_lse=True, **options)
    assert out.shape == (*q.shape[:3], v.shape[3]) and lse.shape == q.shape[:3]
    if k.shape[2] == 0:
        assert (out == 0).all() and np.isneginf(lse).all()
    elif out.size:
        oracle.check(out, q, k, v, **options)


def test_read_only_inputs_are_accepted_and_nothing_is_written(normal):
    arrays = [normal(1, 2, 20, 8) for _ in range(3)]
    before = [x.copy() for x in arrays]
    for x in arrays:
        x.flags.writeable = False
    out = regard.attention(*arrays)
    assert out.flags.writeable and out.flags.c_contiguous
    for x, old in zip(arrays, before):
        np.testing.assert_array_equal(x, old)


# VmHWM and not ru_maxrss: a child process inherits the latter from its parent.
NO_COPY = """
import re, numpy as np, regard
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read()).group(1))
packed = np.ones((1, 32768, 2, 8, 64), np.float32)
k, v = packed.transpose(2, 0, 3, 1, 4)
q = np.ones((1, 8, 1, 64), np.float32)
regard.attention(q, k[:, :, :64], v[:, :, :64], threads=1)
before = peak()
regard.attention(q, k, v, threads=1)
print((peak() - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_keys_and_values_are_not_copied():
    """128 MiB of strided keys and values; the call may grow the process by a fraction of it."""
    run = subprocess.run([sys.executable, "-c", NO_COPY], capture_output=True, text=True, check=True, env=os.environ)
    assert int(run.stdout) < 32, f"the call grew the process by {run.stdout.strip()} MiB"
