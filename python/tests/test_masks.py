"""Masks: bool arrays of any strides are read where they lie, and regard.Mask means what its matrix means."""

import numpy as np
import pytest

import oracle
import regard
from regard import Mask


def strided(mask):
    """The same truth values, laid out in every way that people have."""
    n, m = mask.shape
    larger = np.zeros((n + 5, m + 9), bool)
    larger[:n, :m] = mask
    spread = np.zeros((2 * n, 3 * m), bool)
    spread[::2, ::3] = mask
    return {
        "contiguous": mask,
        "slice_of_a_larger": larger[:n, :m],
        "transposed": np.ascontiguousarray(mask.T).T,
        "backwards": np.ascontiguousarray(mask[::-1, ::-1])[::-1, ::-1],
        "every_second": spread[::2, ::3],
        "broadcast_heads": np.broadcast_to(mask, (2, 4, n, m)),
        "fortran": np.asfortranarray(mask),
    }


@pytest.mark.parametrize("layout", strided(np.ones((2, 2), bool)))
def test_strides_of_a_bool_mask_do_not_change_a_bit(normal, rng, layout):
    q, k, v = normal(2, 4, 70, 16), normal(2, 2, 150, 16), normal(2, 2, 150, 16)
    mask = rng.random((70, 150)) < 0.4
    got = regard.attention(q, k, v, mask=strided(mask)[layout])
    np.testing.assert_array_equal(got, regard.attention(q, k, v, mask=mask))
    oracle.check(got, q, k, v, mask=mask)


@pytest.mark.parametrize("layout", strided(np.ones((2, 2), bool)))
def test_bytes_that_are_neither_zero_nor_one_are_true_in_every_layout(normal, rng, layout):
    q, k, v = normal(2, 4, 20, 8), normal(2, 4, 30, 8), normal(2, 4, 30, 8)
    mask = rng.random((20, 30)) < 0.5
    odd = mask.copy()
    odd.view(np.uint8)[mask] = 6
    laid_out = strided(odd)[layout]
    assert laid_out.view(np.uint8).max() == 6
    np.testing.assert_array_equal(regard.attention(q, k, v, mask=laid_out), regard.attention(q, k, v, mask=mask))


Q, K = 9, 13
I, J = np.arange(Q)[:, None], np.arange(K)
DOCUMENTS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2]), np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3])
DENSE = np.random.default_rng(3).random((Q, K)) < 0.5
BLOCKS = np.random.default_rng(4).random((3, 4)) < 0.6

# A mask, and its matrix.
LEAVES = {
    "everything": (Mask.everything(), np.ones((Q, K), bool)),
    "causal": (Mask.causal(), J <= I),
    "reverse": (Mask.reverse(), J >= I),
    "strictly_future": (Mask.strictly_future(), J > I),
    "window": (Mask.window(2, 1), (J >= I - 2) & (J <= I + 1)),
    "half_window": (Mask.window(None, np.int64(3)), J <= I + 3),
    "first_keys": (Mask.first_keys(2), np.broadcast_to(J < 2, (Q, K))),
    "key_lengths": (Mask.key_lengths([7]), np.broadcast_to(J < 7, (Q, K))),
    "documents": (Mask.documents(*DOCUMENTS), DOCUMENTS[0][:, None] == DOCUMENTS[1]),
    "dense": (Mask.dense(DENSE), DENSE),
    "blocks": (Mask.blocks(BLOCKS, 4, 4), BLOCKS.repeat(4, 0).repeat(4, 1)[:Q, :K]),
}
JOINED = {
    "and": (LEAVES["causal"][0] & LEAVES["dense"][0], LEAVES["causal"][1] & LEAVES["dense"][1]),
    "or": (LEAVES["first_keys"][0] | LEAVES["window"][0], LEAVES["first_keys"][1] | LEAVES["window"][1]),
    "not": (~LEAVES["documents"][0], ~LEAVES["documents"][1]),
    "deep": (
        LEAVES["causal"][0] & (LEAVES["first_keys"][0] | ~(LEAVES["blocks"][0] & LEAVES["window"][0])),
        LEAVES["causal"][1] & (LEAVES["first_keys"][1] | ~(LEAVES["blocks"][1] & LEAVES["window"][1])),
    ),
}


@pytest.mark.parametrize("name", [*LEAVES, *JOINED])
def test_a_mask_is_its_matrix(normal, name):
    mask, matrix = (LEAVES | JOINED)[name]
    q, k, v, dout = normal(1, 2, Q, 8), normal(1, 2, K, 8), normal(1, 2, K, 8), normal(1, 2, Q, 8)
    np.testing.assert_array_equal(regard.attention(q, k, v, mask=mask), regard.attention(q, k, v, mask=matrix))
    for mine, right in zip(regard.attention_vjp(q, k, v, dout, mask=mask), regard.attention_vjp(q, k, v, dout, mask=matrix)):
        np.testing.assert_array_equal(mine, right)


def test_masks_go_together_with_the_other_options(normal):
    q, k, v = normal(1, 2, Q, 8), normal(1, 2, K, 8), normal(1, 2, K, 8)
    got = regard.attention(q, k, v, mask=Mask.first_keys(2) | Mask.window(1, 0), causal=True, q_offset=3)
    position = I + 3
    matrix = ((J < 2) | ((J >= position - 1) & (J <= position))) & (J <= position)
    np.testing.assert_array_equal(got, regard.attention(q, k, v, mask=matrix))


def test_arrays_of_a_mask_are_copied(normal):
    x, visible = normal(1, 1, 4, 8), np.tri(4, dtype=bool)
    mask = Mask.dense(visible)
    before = regard.attention(x, x, x, mask=mask)
    visible[:] = True
    np.testing.assert_array_equal(regard.attention(x, x, x, mask=mask), before)


def test_a_mask_shows_itself():
    assert repr(Mask.causal() & ~(Mask.window(1, None) | Mask.first_keys(3))) == "(causal() & ~(window(1, None) | first_keys(3)))"


REFUSED = {
    "negative": (lambda: Mask.window(-1, 0), ValueError, "left is -1"),
    "no_integer": (lambda: Mask.first_keys(1.5), TypeError, "count"),
    "floats": (lambda: Mask.dense(np.ones((2, 2))), TypeError, "float64"),
    "array_beside": (lambda: Mask.causal() & np.ones((2, 2), bool), TypeError, "Mask.dense"),
    "ids": (lambda: Mask.documents([0, -1]), ValueError, "-1"),
    "another_shape": (lambda: regard.weights(*np.zeros((2, 4, 8)), mask=Mask.dense(np.ones((3, 3), bool))), ValueError, "3, 3"),
    "empty_blocks": (lambda: regard.weights(*np.zeros((2, 4, 8)), mask=Mask.blocks(np.ones((1, 1), bool), 0, 4)), ValueError, "q_block"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_text_that_helps(name):
    make, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        make()


def test_operations_inside_each_other_without_end_are_refused():
    mask = Mask.causal()
    with pytest.raises(ValueError, match="tree"):
        for _ in range(100_000):
            mask = ~mask


def test_numbers_that_were_meant_as_truth_are_warned_of(normal, recwarn):
    q, k, v = normal(3, 6, 4), normal(3, 6, 4), normal(3, 6, 4)
    for dtype in (np.float16, np.float32, np.float64):
        with pytest.warns(UserWarning, match="hide nothing.*astype"):
            regard.attention(q, k, v, mask=np.tril(np.ones((6, 6), dtype)))
    recwarn.clear()
    regard.attention(q, k, v, bias=np.tril(np.ones((6, 6), np.float32)))
    regard.attention(q, k, v, mask=np.tril(np.ones((6, 6), bool)))
    for numbers in (np.zeros((6, 6)), np.ones((6, 6)), np.where(np.tri(6) > 0, 0.0, -np.inf), np.tri(6) * 0.5):
        regard.attention(q, k, v, mask=numbers.astype(np.float32))
    assert not recwarn.list


def test_a_masked_array_is_refused(normal):
    x = normal(3, 6, 4)
    hidden = np.ma.masked_array(x, mask=x < 0)
    for given in ((hidden, x, x), (x, hidden, x), (x, x, hidden)):
        with pytest.raises(ValueError, match="is a masked array.*filled"):
            regard.attention(*given)
    with pytest.raises(ValueError, match="mask is a masked array"):
        regard.attention(x, x, x, mask=np.ma.masked_array(np.ones((6, 6), bool), mask=np.eye(6) > 0))


@pytest.mark.parametrize("join", [lambda a, b: a and b, lambda a, b: a or b, lambda a, b: not a, lambda a, b: 1 if a else 2])
def test_a_mask_has_no_truth_value(join):
    with pytest.raises(TypeError, match="&, \\| and ~"):
        join(regard.Mask.causal(), regard.Mask.first_keys(2))


@pytest.mark.parametrize("size", [{"queries": 2**62}, {"queries": 1, "keys": 2**63}, {"queries": 3, "batch": 2**61, "heads": 2**61}])
def test_a_mask_too_large_to_address_is_a_memory_error(size):
    with pytest.raises(MemoryError, match="too large|no memory"):
        regard.Mask.causal().to_dense(**size)
