"""regard.statistics against numbers taken from the whole weight matrix."""

import numpy as np
import pytest

import oracle
import regard

CALLS = {
    "full": {},
    "causal": dict(causal=True),
    "bottom_right": dict(causal="bottom_right"),
    "window": dict(window=(9, 4)),
    "sharp": dict(scale=6.0),
    "softcap": dict(softcap=1.0),
    "offset": dict(causal=True, q_offset=np.array([2, 60])),
    "lengths": dict(kv_lens=np.array([3, 150])),
}


def exact_rows(q, k, v, local_window, **options):
    exact = oracle.attention(q, k, v, **options)
    place, _ = oracle.positions(
        q.shape[0], q.shape[2], k.shape[2], *(options.get(n) for n in ("causal", "q_offset", "kv_lens"))
    )
    return exact, oracle.row_statistics(exact.weights, place, local_window)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("seq_q", [1, 90, 150])
def test_rows_agree_with_the_weight_matrix(normal, name, seq_q):
    q, k, v = normal(2, 4, seq_q, 16), normal(2, 2, 150, 16), normal(2, 2, 150, 16)
    stats = regard.statistics(q, k, v, local_window=5, **CALLS[name])
    exact, rows = exact_rows(q, k, v, 5, **CALLS[name])
    oracle.check(stats.out, q, k, v, **CALLS[name])
    np.testing.assert_allclose(stats.lse, exact.lse, rtol=1e-5, atol=1e-5)
    for field, expected in rows.items():
        got = np.asarray(getattr(stats, field))
        assert got.shape == (2, 4, seq_q), field
        if field == "argmax":
            np.testing.assert_array_equal(got, expected)
        else:
            size = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5 * size, err_msg=field)


def test_masks_and_bias_count(normal, rng):
    q, k, v = normal(1, 2, 70, 16), normal(1, 2, 70, 16), normal(1, 2, 70, 16)
    options = dict(mask=rng.random((1, 1, 70, 70)) < 0.5, bias=normal(1, 2, 70, 70))
    stats = regard.statistics(q, k, v, local_window=3, **options)
    _, rows = exact_rows(q, k, v, 3, **options)
    np.testing.assert_allclose(stats.entropy, rows["entropy"], rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(stats.local_mass, rows["local_mass"], rtol=2e-5, atol=1e-5)


def test_known_values():
    """Equal scores over four visible keys: entropy ln 4, every weight a quarter."""
    x = np.zeros((1, 1, 4, 8), np.float32)
    stats = regard.statistics(x, x, x, local_window=1)
    np.testing.assert_allclose(stats.entropy, np.log(4), rtol=1e-6)
    np.testing.assert_allclose(stats.max_weight, 0.25, rtol=1e-6)
    np.testing.assert_allclose(stats.sum_of_squares, 0.25, rtol=1e-6)
    np.testing.assert_allclose(stats.local_mass[0, 0], [0.5, 0.75, 0.75, 0.5], rtol=1e-6)
    np.testing.assert_allclose(stats.mean_distance[0, 0], [1.5, 1.0, 1.0, 1.5], rtol=1e-6)
    np.testing.assert_allclose(stats.previous_token_mass[0, 0], [0, 0.25, 0.25, 0.25], rtol=1e-6)
    assert (np.asarray(stats.argmax) == 0).all()


def test_entropy_holds_at_huge_scores(normal):
    q, k, v = (normal(1, 2, 64, 16) for _ in range(3))
    stats = regard.statistics(q, k, v, scale=1e5)
    assert np.isfinite(stats.entropy).all() and (np.asarray(stats.entropy) >= -1e-6).all()
    np.testing.assert_allclose(stats.max_weight, 1.0, atol=1e-5)


def test_rows_without_a_visible_key_are_zero(normal):
    q, k, v = (normal(1, 2, 30, 8) for _ in range(3))
    mask = np.ones((30, 30), bool)
    mask[4] = False
    stats = regard.statistics(q, k, v, mask=mask)
    for field in ("entropy", "max_weight", "sum_of_squares", "local_mass", "mean_distance"):
        assert (np.asarray(getattr(stats, field))[:, :, 4] == 0).all(), field
    assert (np.asarray(stats.argmax)[:, :, 4] == -1).all()
    assert np.isneginf(stats.lse[:, :, 4]).all() and (stats.out[:, :, 4] == 0).all()


def test_hidden_nan_does_not_reach_the_statistics(normal):
    q, k, v = (normal(1, 2, 80, 8) for _ in range(3))
    lens = np.array([70])
    clean = regard.statistics(q, k, v, kv_lens=lens)
    k[:, :, 70:], v[:, :, 70:] = np.nan, np.nan
    spoiled = regard.statistics(q, k, v, kv_lens=lens)
    for field in ("entropy", "max_weight", "argmax", "mean_distance", "out"):
        np.testing.assert_array_equal(getattr(spoiled, field), getattr(clean, field))


def test_heads_are_the_means_over_rows(normal):
    q, k, v = (normal(2, 3, 50, 8) for _ in range(3))
    stats = regard.statistics(q, k, v, causal=True, local_window=4)
    heads = stats.heads
    for field in ("entropy", "max_weight", "diagonal_mass", "mean_distance"):
        got = heads[field] if isinstance(heads, dict) else getattr(heads, field)
        np.testing.assert_allclose(got, np.mean(getattr(stats, field), axis=-1), rtol=1e-5, err_msg=field)


def test_the_heaviest_keys_of_each_row(normal):
    q, k, v = (normal(1, 2, 60, 16) for _ in range(3))
    stats = regard.statistics(q, k, v, causal=True, top_keys=4)
    weights = oracle.attention(q, k, v, causal=True).weights
    assert stats.top_keys.shape == stats.top_weights.shape == (1, 2, 60, 4)
    order = np.argsort(-weights, axis=-1)[..., :4]
    np.testing.assert_array_equal(stats.top_keys[:, :, 3:], order[:, :, 3:])
    heaviest = np.take_along_axis(weights, order, axis=-1)
    np.testing.assert_allclose(stats.top_weights[:, :, 3:], heaviest[:, :, 3:], rtol=2e-5, atol=1e-6)
    assert (stats.top_keys[:, :, 0, 1:] == -1).all() and (stats.top_weights[:, :, 0, 1:] == 0).all()


def test_threads_do_not_change_a_bit(normal):
    q, k, v = (normal(1, 3, 200, 16) for _ in range(3))
    one, four = (regard.statistics(q, k, v, causal=True, threads=t) for t in (1, 4))
    for field in ("entropy", "max_weight", "argmax", "local_mass", "mean_distance", "out", "lse"):
        np.testing.assert_array_equal(getattr(one, field), getattr(four, field))
