"""attention_vjp and gradient_statistics against the textbook backward pass, written out in float64."""

import numpy as np
import pytest

import oracle
import regard

OPTIONS = {
    "full": {},
    "causal": dict(causal=True),
    "bottom_right": dict(causal="bottom_right"),
    "window": dict(window=(3, 2)),
    "window_causal": dict(causal=True, window=(5, None)),
    "offsets": dict(causal=True, q_offset=np.array([4, 9])),
    "lengths": dict(kv_lens=np.array([17, 0])),
    "softcap": dict(softcap=1.5),
    "scale": dict(scale=-0.7),
    "sink": dict(sink=np.array([0.5, -1.0, 2.0, 0.0])),
    "top_k": dict(top_k=3),
    "dropout": dict(dropout_p=0.4, seed=11),
    "everything": dict(causal=True, window=(9, 1), q_offset=5, kv_lens=np.array([15, 12]), softcap=2.0, dropout_p=0.25, seed=3),
}


def inputs(normal, dtype=np.float64, shape=(2, 4, 13, 8), heads_kv=2, seq_kv=17, value_dim=5):
    batch, heads_q, seq_q, head_dim = shape
    arrays = normal(*shape), normal(batch, heads_kv, seq_kv, head_dim), normal(batch, heads_kv, seq_kv, value_dim)
    return [x.astype(dtype) for x in (*arrays, normal(batch, heads_q, seq_q, value_dim))]


def close(got, expected, tolerance=1e-11):
    assert len(got) == len(expected)
    for name, mine, right in zip(("dq", "dk", "dv", "fourth", "fifth", "sixth"), got, expected):
        assert mine.shape == right.shape, name
        np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_the_textbook(normal, name):
    arrays, options = inputs(normal), OPTIONS[name]
    close(regard.attention_vjp(*arrays, **options), oracle.gradients(*arrays, **oracle_options(arrays, options)))


def oracle_options(arrays, options):
    """Which weights are dropped is regard's to say: the oracle is given the factors."""
    dropout = {name: options[name] for name in ("dropout_p", "seed") if name in options}
    others = {name: value for name, value in options.items() if name not in dropout}
    return others | (dict(factors=dropout_factors(arrays, dropout)) if dropout else {})


def dropout_factors(arrays, dropout):
    """0 or 1 / (1 - p) for every pair, from a call in which all weights are alike."""
    q, k, v, _ = arrays
    weights = regard.attention(np.zeros_like(q), np.zeros_like(k), v, return_weights=True, **dropout)[1]
    factors = weights * k.shape[2]
    dropped = float((factors == 0).mean())
    assert abs(dropped - dropout["dropout_p"]) < 0.05, dropped
    np.testing.assert_allclose(factors[factors != 0], 1 / (1 - dropout["dropout_p"]), rtol=1e-12)
    return factors


MASKS = [(13, 17), (1, 17), (13, 1), (4, 13, 17), (2, 1, 13, 17), (1, 4, 1, 17), (2, 4, 13, 17), (1, 1, 1, 1)]


@pytest.mark.parametrize("shape", MASKS)
def test_a_float_mask_gets_its_gradient_in_its_own_shape(normal, shape):
    arrays = inputs(normal)
    mask = normal(*shape, dtype=np.float64)
    if mask.size > 8:
        mask.flat[::5] = -np.inf
    close(regard.attention_vjp(*arrays, mask=mask, causal=True), oracle.gradients(*arrays, mask=mask, causal=True))


def test_mask_bias_slopes_and_sinks_get_their_gradients_in_this_order(normal):
    arrays, mask, bias = inputs(normal), normal(13, 17, dtype=np.float64), normal(4, 1, 17, dtype=np.float64)
    slopes, sink = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, -1.0, 2.0, 0.0])
    options = dict(mask=mask, bias=bias, alibi=slopes, sink=sink)
    got = regard.attention_vjp(*arrays, **options)
    close(got[3:], by_differences(arrays, options), 1e-7)


def by_differences(arrays, options, step=1e-6):
    *tensors, dout = arrays
    loss = lambda: (regard.attention(*tensors, **options) * dout).sum()
    gradients = []
    for operand in options.values():
        gradient = np.zeros_like(operand)
        for at in np.ndindex(operand.shape):
            middle = operand[at]
            operand[at] = middle + step
            above = loss()
            operand[at] = middle - step
            gradient[at] = (above - loss()) / (2 * step)
            operand[at] = middle
        gradients.append(gradient)
    return gradients


def test_a_mask_beside_standard_slopes_keeps_its_shape(normal):
    arrays, mask = inputs(normal), normal(13, 17, dtype=np.float64)
    got = regard.attention_vjp(*arrays, mask=mask, alibi=True)
    slopes = np.array(regard.alibi_slopes(4))[:, None, None]
    distance = -slopes * np.abs(np.arange(13)[:, None] - np.arange(17))
    close(got, oracle.gradients(*arrays, mask=mask, bias=distance))


def test_standard_slopes_and_a_bool_mask_have_no_gradient(normal):
    arrays = inputs(normal)
    assert len(regard.attention_vjp(*arrays, alibi=True, mask=np.ones((13, 17), bool))) == 3
    assert len(regard.attention_vjp(*arrays, alibi=np.ones(4))) == 4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_other_element_types(normal, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    arrays = inputs(normal, dtype)
    mask = normal(13, 17).astype(dtype)
    exact = oracle.gradients(*arrays, mask=mask, causal=True)
    naive = oracle.gradients(*arrays, mask=mask, causal=True, dtype=np.float32)
    got = regard.attention_vjp(*arrays, mask=mask, causal=True)
    assert {str(x.dtype) for x in got} == {str(np.dtype(dtype))}
    for name, mine, right, yardstick in zip(("dq", "dk", "dv", "dmask"), got, exact, naive):
        oracle.assert_as_good_as_naive(mine, right, yardstick, name, factor=3.0, floor=3e-7 if dtype == "float32" else 4e-3)


@pytest.mark.parametrize("scale", [100.0, 1e4, 1e6])
def test_gradients_hold_at_huge_scores(normal, scale):
    arrays = inputs(normal, np.float32, shape=(1, 2, 40, 16), seq_kv=50)
    exact, naive = (oracle.gradients(*arrays, scale=scale, dtype=dtype) for dtype in (np.float64, np.float32))
    # Where two scores of 1e5 compete, it is luck how well plain arithmetic does; exact ones of queries that are a rounding away are as far off.
    draws = np.random.default_rng(1)
    q, *others = (x.astype(np.float64) for x in arrays)
    away = [q * (1 + draws.choice([-1, 1], q.shape) * np.finfo(np.float32).eps) for _ in range(4)]
    near = [naive, *(oracle.gradients(q, *others, scale=scale) for q in away)]
    # d_weights - delta is rounded, and then multiplied with the scale.
    rounding = 2 * np.finfo(np.float32).eps * scale * np.abs(arrays[3]).max() * np.abs(arrays[2]).max()
    for name, mine, right, *yardsticks in zip(("dq", "dk", "dv"), regard.attention_vjp(*arrays, scale=scale), exact, *near):
        yardstick = max(yardsticks, key=lambda x: np.abs(x - right).max())
        size = max(np.abs(right).max(), 1.0)
        floor = 2e-7 if name == "dv" else 2e-7 + rounding / size
        oracle.assert_as_good_as_naive(mine, right, yardstick, name, factor=3.0, floor=floor)


def test_a_row_without_any_visible_key_has_no_gradient_and_poisons_none(normal):
    q, k, v, dout = inputs(normal)
    mask = np.ones((13, 17), bool)
    mask[4] = False
    dq, dk, dv = regard.attention_vjp(q, k, v, dout, mask=mask)
    assert (dq[:, :, 4] == 0).all() and all(np.isfinite(x).all() for x in (dq, dk, dv))
    changed = dout.copy()
    changed[:, :, 4] = 1e300
    np.testing.assert_array_equal(regard.attention_vjp(q, k, v, changed, mask=mask)[1], dk)


def test_a_hidden_key_gets_no_gradient_and_a_hidden_nan_gives_none(normal):
    q, k, v, dout = inputs(normal)
    k[:, :, 15:], v[:, :, 15:] = np.nan, np.inf
    dq, dk, dv = regard.attention_vjp(q, k, v, dout, kv_lens=np.array([15, 15]))
    assert np.isfinite(dq).all() and (dk[:, :, 15:] == 0).all() and (dv[:, :, 15:] == 0).all()


def test_strides_do_not_matter(normal):
    arrays = inputs(normal)
    twisted = [np.ascontiguousarray(x[:, :, ::-1].repeat(2, axis=-1))[:, :, ::-1, ::2] for x in arrays]
    for mine, right in zip(regard.attention_vjp(*twisted), regard.attention_vjp(*arrays)):
        np.testing.assert_array_equal(mine, right)
    spread = [*arrays[:3], np.broadcast_to(np.float64(1.0), arrays[3].shape)]
    for mine, right in zip(regard.attention_vjp(*spread), regard.attention_vjp(*arrays[:3], np.ones_like(arrays[3]))):
        np.testing.assert_array_equal(mine, right)


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(dropout_p=0.3, seed=1), dict(window=(70, 0))])
def test_bits_do_not_depend_on_threads_or_on_the_batch(normal, options):
    arrays = inputs(normal, np.float32, shape=(3, 2, 300, 32), heads_kv=1, seq_kv=300, value_dim=32)
    one, two, three = (regard.attention_vjp(*arrays, threads=n, **options) for n in (1, 2, 3))
    for a, b, c in zip(one, two, three):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    alone = regard.attention_vjp(*(x[:1] for x in arrays), **options)
    for whole, part in zip(one, alone):
        np.testing.assert_array_equal(whole[:1], part)


def test_empty_dimensions():
    zeros = lambda *shape: np.zeros(shape, np.float32)
    got = regard.attention_vjp(zeros(1, 2, 3, 4), zeros(1, 2, 0, 4), zeros(1, 2, 0, 5), zeros(1, 2, 3, 5))
    assert [x.shape for x in got] == [(1, 2, 3, 4), (1, 2, 0, 4), (1, 2, 0, 5)]
    got = regard.attention_vjp(zeros(1, 2, 0, 4), zeros(1, 2, 3, 4), zeros(1, 2, 3, 5), zeros(1, 2, 0, 5))
    assert (got[1] == 0).all() and got[1].shape == (1, 2, 3, 4)


def test_statistics_are_norms_of_the_gradients(normal):
    arrays = inputs(normal)
    exact = oracle.backward(*arrays, causal=True)
    stats = regard.gradient_statistics(*arrays, causal=True)
    np.testing.assert_array_equal(stats.dq, regard.attention_vjp(*arrays, causal=True)[0])
    for name in ("dq", "dk", "dv"):
        rows = np.linalg.norm(getattr(exact, name), axis=-1)
        np.testing.assert_allclose(getattr(stats, f"{name}_rows"), rows, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(stats.d_scores_rows, np.linalg.norm(exact.d_scores, axis=-1), rtol=1e-10, atol=1e-12)
    for name in ("dq", "dk", "dv"):
        assert getattr(stats, f"{name}_norm") == pytest.approx(np.linalg.norm(getattr(exact, name)), rel=1e-10)
    middle = float(np.median(stats.dq_rows))
    assert stats.share_below(middle) == pytest.approx(0.5, abs=0.02)
    assert "median" in repr(stats)


REFUSED = {
    "dout_of_another_length": (dict(dout=np.zeros((2, 4, 12, 5))), ValueError, ["d_out", "[2, 4, 12, 5]", "[2, 4, 13, 5]"]),
    "dout_of_another_dtype": (dict(dout=np.zeros((2, 4, 13, 5), np.float32)), TypeError, ["dout", "float32", "float64"]),
    "dout_of_three_axes": (dict(dout=np.zeros((4, 13, 5))), ValueError, ["dout", "[4, 13, 5]"]),
    "negative_seed": (dict(dropout_p=0.5, seed=-1), ValueError, ["seed", "-1"]),
    "seed_of_text": (dict(dropout_p=0.5, seed="x"), TypeError, ["seed", "str"]),
    "dropout_of_one": (dict(dropout_p=1.0), ValueError, ["dropout_p"]),
    "unknown_keyword": (dict(return_weights=True), TypeError, ["return_weights"]),
}


@pytest.mark.parametrize("function", [regard.attention_vjp, regard.gradient_statistics])
@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_text_that_helps(normal, name, function):
    change, error, words = REFUSED[name]
    good = dict(zip(("q", "k", "v", "dout"), inputs(normal)))
    with pytest.raises(error) as caught:
        function(**(good | change))
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{caught.value} does not say {missing}"


def test_the_instruments_refuse_dropout(normal):
    q, k, v, _ = inputs(normal)
    with pytest.raises(TypeError, match="dropout_p"):
        regard.statistics(q, k, v, dropout_p=0.5)
