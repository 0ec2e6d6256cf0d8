"""regard.attention against the textbook: every keyword alone, many together, and the hard cases."""

import numpy as np
import pytest

import oracle
import regard

INF = np.inf


def qkv(normal, batch=2, heads_q=4, heads_kv=2, seq_q=19, seq_kv=37, head_dim=16, value_dim=12):
    return (
        normal(batch, heads_q, seq_q, head_dim),
        normal(batch, heads_kv, seq_kv, head_dim),
        normal(batch, heads_kv, seq_kv, value_dim),
    )


@pytest.mark.parametrize("seq_kv", [1, 7, 8, 9, 16, 17, 33, 64, 65, 129, 300])
@pytest.mark.parametrize("seq_q", [1, 5, 16, 65, 130])
def test_sizes_around_every_tile_edge(normal, seq_q, seq_kv):
    q, k, v = qkv(normal, 1, 2, 2, seq_q, seq_kv, 24, 24)
    oracle.check(regard.attention(q, k, v), q, k, v)
    oracle.check(regard.attention(q, k, v, causal=True), q, k, v, causal=True)


@pytest.mark.parametrize("head_dim", [1, 3, 8, 17, 64, 80, 128, 200])
def test_any_head_dim(normal, head_dim):
    q, k, v = qkv(normal, 1, 2, 1, 21, 70, head_dim, head_dim)
    oracle.check(regard.attention(q, k, v), q, k, v)


@pytest.mark.parametrize("value_dim", [1, 5, 16, 33, 130])
def test_value_dim_is_free(normal, value_dim):
    q, k, v = qkv(normal, value_dim=value_dim)
    oracle.check(regard.attention(q, k, v), q, k, v)


@pytest.mark.parametrize("heads_q, heads_kv", [(1, 1), (6, 6), (6, 3), (6, 2), (6, 1)])
def test_query_heads_share_key_heads(normal, heads_q, heads_kv):
    q, k, v = qkv(normal, heads_q=heads_q, heads_kv=heads_kv)
    oracle.check(regard.attention(q, k, v, causal=True), q, k, v, causal=True)


@pytest.mark.parametrize("heads_q, heads_kv", [(1, 1), (8, 2), (8, 8)])
def test_one_query_over_a_long_cache(normal, heads_q, heads_kv):
    q, k, v = qkv(normal, 2, heads_q, heads_kv, 1, 3001, 64, 64)
    oracle.check(regard.attention(q, k, v), q, k, v)
    lens = np.array([3001, 17])
    oracle.check(regard.attention(q, k, v, kv_lens=lens), q, k, v, kv_lens=lens)


@pytest.mark.parametrize("scale", [0.0, 1.0, 0.3, -0.7, 40.0])
def test_scale(normal, scale):
    q, k, v = qkv(normal)
    oracle.check(regard.attention(q, k, v, scale=scale), q, k, v, scale=scale)


def test_scores_of_a_million_do_not_overflow(normal):
    q, k, v = qkv(normal, 1, 3, 3, 64, 64, 64, 64)
    for scale in (1e4, -1e4):
        out = regard.attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), scale=scale)
        exact = oracle.attention(q, k, v, scale=scale).out
        np.testing.assert_allclose(out, exact, rtol=0, atol=1e-6)
        assert np.isfinite(regard.attention(q, k, v, scale=scale)).all()


@pytest.mark.parametrize("softcap", [0.5, 2.0, 30.0])
def test_softcap_comes_before_masks(normal, softcap):
    q, k, v = qkv(normal)
    options = dict(softcap=softcap, causal=True, q_offset=5, scale=1.5)
    oracle.check(regard.attention(q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("shape", [(19, 37), (1, 37), (19, 1), (37,), (4, 19, 37), (2, 1, 1, 37), (1, 4, 19, 37), (2, 4, 19, 37)])
@pytest.mark.parametrize("kind", ["bool", "float", "float_with_hidden"])
def test_mask_broadcasts(normal, rng, shape, kind):
    q, k, v = qkv(normal)
    mask = rng.random(shape) < 0.6 if kind == "bool" else normal(*shape)
    if kind == "float_with_hidden":
        mask[rng.random(shape) < 0.3] = -INF
    oracle.check(regard.attention(q, k, v, mask=mask), q, k, v, mask=mask)


def test_bias_is_added_and_goes_with_a_bool_mask(normal, rng):
    q, k, v = qkv(normal)
    bias = 3 * normal(1, 4, 19, 37)
    mask = rng.random((2, 1, 19, 37)) < 0.5
    oracle.check(regard.attention(q, k, v, bias=bias), q, k, v, bias=bias)
    oracle.check(regard.attention(q, k, v, bias=bias, mask=mask, causal=True, q_offset=9),
                 q, k, v, bias=bias, mask=mask, causal=True, q_offset=9)


@pytest.mark.parametrize("seq_q, seq_kv", [(5, 5), (3, 9), (9, 3), (130, 70), (70, 130)])
@pytest.mark.parametrize("causal", [True, "top_left", "bottom_right"])
def test_causal_alignment(normal, seq_q, seq_kv, causal):
    q, k, v = qkv(normal, seq_q=seq_q, seq_kv=seq_kv)
    oracle.check(regard.attention(q, k, v, causal=causal), q, k, v, causal=causal)


def test_causal_true_is_top_left_and_the_first_query_sees_one_key(normal):
    q, k, v = qkv(normal, seq_q=3, seq_kv=9)
    top_left = regard.attention(q, k, v, causal=True)
    np.testing.assert_array_equal(top_left, regard.attention(q, k, v, causal="top_left"))
    np.testing.assert_allclose(top_left[:, :, 0], v[:, :, 0].repeat(2, axis=1), rtol=1e-6)


@pytest.mark.parametrize("q_offset", [0, 7, -4, np.array([3, 18]), np.array([-30, 36])])
@pytest.mark.parametrize("options", [dict(causal=True), dict(window=(4, 2)), dict(causal=True, window=(6, None))])
def test_q_offset_serves_causal_and_window(normal, q_offset, options):
    q, k, v = qkv(normal)
    oracle.check(regard.attention(q, k, v, q_offset=q_offset, **options), q, k, v, q_offset=q_offset, **options)


@pytest.mark.parametrize("window", [(0, 0), (3, 0), (0, 3), (2, 5), (None, 1), (1, None), (-1, 2), (None, None), (200, 200)])
@pytest.mark.parametrize("seq", [19, 150])
def test_window_counts_neighbours_inclusively(normal, window, seq):
    q, k, v = qkv(normal, seq_q=seq, seq_kv=seq)
    oracle.check(regard.attention(q, k, v, window=window), q, k, v, window=window)
    oracle.check(regard.attention(q, k, v, window=window, causal=True), q, k, v, window=window, causal=True)


@pytest.mark.parametrize("kv_lens", [[37, 37], [1, 20], [0, 37], [0, 0]])
@pytest.mark.parametrize("causal", [False, True, "bottom_right"])
def test_kv_lens(normal, kv_lens, causal):
    q, k, v = qkv(normal)
    options = dict(kv_lens=np.array(kv_lens), causal=causal)
    oracle.check(regard.attention(q, k, v, **options), q, k, v, **options)


def test_all_masks_combine(normal, rng):
    q, k, v = qkv(normal, seq_q=90, seq_kv=140)
    options = dict(
        mask=rng.random((2, 1, 90, 140)) < 0.7, bias=normal(1, 4, 1, 140), causal=True, window=(50, 3),
        q_offset=np.array([10, 45]), kv_lens=np.array([88, 140]), softcap=5.0, scale=0.4,
    )
    oracle.check(regard.attention(q, k, v, **options), q, k, v, **options)


def test_top_k_keeps_the_greatest_visible_scores(normal):
    q, k, v = qkv(normal)
    for top_k in (1, 5, 36, 37, 100):
        oracle.check(regard.attention(q, k, v, top_k=top_k), q, k, v, top_k=top_k)
        oracle.check(regard.attention(q, k, v, top_k=top_k, causal=True), q, k, v, top_k=top_k, causal=True)


def test_sink_takes_a_share_of_the_softmax(normal):
    q, k, v = qkv(normal)
    for sink in (np.zeros(4, np.float32), np.array([-3, 0, 1, 8], np.float32)):
        oracle.check(regard.attention(q, k, v, sink=sink), q, k, v, sink=sink)
        oracle.check(regard.attention(q, k, v, sink=sink, causal=True), q, k, v, sink=sink, causal=True)


def test_weights_sum_to_one_and_explain_the_output(normal):
    q, k, v = qkv(normal)
    out, weights = regard.attention(q, k, v, causal=True, q_offset=4, return_weights=True)
    exact = oracle.attention(q, k, v, causal=True, q_offset=4)
    assert weights.shape == (2, 4, 19, 37) and weights.dtype == np.float32
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(weights, exact.weights, atol=1e-6)
    np.testing.assert_allclose(weights @ v.repeat(2, axis=1), out, atol=1e-5)
    assert (weights[~exact.visible] == 0).all()
    np.testing.assert_allclose(out, regard.attention(q, k, v, causal=True, q_offset=4), atol=1e-6)


@pytest.mark.parametrize("stage", ["raw", "softcap", "bias"])
def test_scores_after_each_stage(normal, rng, stage):
    q, k, v = qkv(normal)
    mask = normal(1, 4, 19, 37)
    mask[rng.random(mask.shape) < 0.2] = -INF
    options = dict(mask=mask, softcap=1.5, causal=True, q_offset=20)
    out, scores = regard.attention(q, k, v, return_scores=stage, **options)
    exact = oracle.attention(q, k, v, **options)
    np.testing.assert_allclose(scores, getattr(exact, stage), rtol=1e-5, atol=1e-5)
    oracle.check(out, q, k, v, **options)


def test_lse_is_a_natural_logarithm(normal):
    q, k, v = qkv(normal)
    options = dict(causal="bottom_right", softcap=9.0, kv_lens=np.array([37, 5]))
    out, lse = regard.attention(q, k, v, return_lse=True, **options)
    exact = oracle.attention(q, k, v, **options)
    assert lse.shape == (2, 4, 19) and np.isneginf(exact.lse).any()
    np.testing.assert_allclose(lse, exact.lse, rtol=1e-5, atol=1e-5)
    oracle.check(out, q, k, v, **options)


def test_row_without_a_visible_key_is_exactly_zero(normal, rng):
    q, k, v = qkv(normal, seq_q=70, seq_kv=90)
    mask = rng.random((2, 4, 70, 90)) < 0.5
    mask[:, :, 3::7] = False
    for hidden in (mask, np.where(mask, np.float32(0), np.float32(-INF))):
        out, weights = regard.attention(q, k, v, mask=hidden, return_weights=True)
        assert (out[:, :, 3::7] == 0).all() and (weights[:, :, 3::7] == 0).all()
        _, lse = regard.attention(q, k, v, mask=hidden, return_lse=True)
        assert np.isneginf(lse[:, :, 3::7]).all()
        oracle.check(out, q, k, v, mask=hidden)


def test_first_keys_hidden_and_later_ones_live(normal):
    q, k, v = qkv(normal, seq_q=40, seq_kv=400)
    mask = np.arange(400) >= 331
    oracle.check(regard.attention(q, k, v, mask=mask), q, k, v, mask=mask)


def test_mask_of_the_lowest_float_is_as_good_as_hidden(normal, rng):
    q, k, v = qkv(normal)
    keep = rng.random((19, 37)) < 0.5
    keep[:, 0] = True
    low = np.where(keep, np.float32(0), np.finfo(np.float32).min)
    oracle.check(regard.attention(q, k, v, mask=low), q, k, v, mask=keep)
    everywhere = np.full((19, 37), np.finfo(np.float32).min)
    assert np.isfinite(regard.attention(q, k, v, mask=everywhere)).all()


HIDING = {
    "bool_mask": lambda hidden: dict(mask=~hidden),
    "float_mask": lambda hidden: dict(mask=np.where(hidden, np.float32(-INF), np.float32(0.25))),
    "kv_lens": lambda hidden: dict(kv_lens=np.full(2, hidden.argmax())),
    "causal": lambda hidden: dict(causal=True, q_offset=int(hidden.argmax()) - 19),
    "window": lambda hidden: dict(window=(None, 0), q_offset=int(hidden.argmax()) - 19),
}


@pytest.mark.parametrize("how", HIDING)
@pytest.mark.parametrize("poison", [np.nan, INF, -INF])
@pytest.mark.parametrize("seq_kv, first_hidden", [(37, 30), (200, 129)])
def test_hidden_nan_never_leaks(normal, how, poison, seq_kv, first_hidden):
    q, k, v = qkv(normal, seq_kv=seq_kv)
    options = HIDING[how](np.arange(seq_kv) >= first_hidden)
    clean = regard.attention(q, k, v, **options)
    k[:, :, first_hidden:], v[:, :, first_hidden:] = poison, poison
    np.testing.assert_array_equal(regard.attention(q, k, v, **options), clean)


def test_visible_nan_propagates(normal):
    q, k, v = qkv(normal, heads_q=2, heads_kv=2)
    sees_key_20 = np.arange(19) >= 5
    options = dict(causal=True, q_offset=15)
    for operand, where in ((q, (0, 1, 3)), (k, (0, 1, 20)), (v, (0, 1, 20))):
        spoiled = [x.copy() for x in (q, k, v)]
        spoiled[[q is operand, k is operand, v is operand].index(True)][where] = np.nan
        out = regard.attention(*spoiled, **options)
        rows = np.isnan(out).all(axis=-1)
        expected = np.zeros((2, 2, 19), bool)
        expected[0, 1] = np.arange(19) == 3 if operand is q else sees_key_20
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_array_equal(np.isnan(out).any(axis=-1), expected)


def test_joint_permutation_of_keys_and_values_changes_nothing(normal, rng):
    q, k, v = qkv(normal, seq_kv=150)
    order = rng.permutation(150)
    np.testing.assert_allclose(
        regard.attention(q, k[:, :, order], v[:, :, order]), regard.attention(q, k, v), atol=2e-6
    )
