"""Dropout: a function of the seed and the place of the weight, and of nothing else."""

import numpy as np
import pytest

import regard


@pytest.fixture
def arrays(normal):
    return normal(2, 4, 70, 16), normal(2, 2, 90, 16), normal(2, 2, 90, 8)


def weights(arrays, **options):
    return regard.attention(*arrays, return_weights=True, **options)[1]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_kept_weights_are_scaled_and_the_share_is_right(arrays, p):
    whole, dropped = weights(arrays), weights(arrays, dropout_p=p, seed=5)
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], whole[kept] / (1 - p), rtol=1e-5)
    share = 1 - kept.mean()
    assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / kept.size), share


def test_the_weights_explain_the_output(arrays):
    out, w = regard.attention(*arrays, dropout_p=0.3, seed=5, causal=True, return_weights=True)
    np.testing.assert_allclose(out, w @ arrays[2].repeat(2, axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(out, regard.attention(*arrays, dropout_p=0.3, seed=5, causal=True))


def test_the_seed_decides(arrays):
    first, again, other = (regard.attention(*arrays, dropout_p=0.3, seed=seed) for seed in (1, 1, 2**64 - 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(regard.attention(*arrays, dropout_p=0.0, seed=1), regard.attention(*arrays))


def test_neither_threads_nor_neighbours_nor_masks_move_a_drop(arrays):
    q, k, v = arrays
    dropped = weights(arrays, dropout_p=0.3, seed=5) == 0
    np.testing.assert_array_equal(weights(arrays, dropout_p=0.3, seed=5, threads=3) == 0, dropped)
    np.testing.assert_array_equal(weights((q[:1], k[:1], v[:1]), dropout_p=0.3, seed=5) == 0, dropped[:1])
    seen = np.tri(70, 90, dtype=bool)
    np.testing.assert_array_equal((weights(arrays, dropout_p=0.3, seed=5, causal=True) == 0)[..., seen], dropped[..., seen])


def test_heads_and_batch_entries_drop_differently(arrays):
    dropped = weights(arrays, dropout_p=0.5, seed=5) == 0
    flat = dropped.reshape(8, -1)
    for a in range(8):
        for b in range(a):
            assert abs((flat[a] == flat[b]).mean() - 0.5) < 0.05, (a, b)
