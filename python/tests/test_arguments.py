"""What may be given, and in which form; the names of what comes back; stubs and signatures agree."""

import ast
import copy
import inspect
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import oracle
import regard


def arrays(normal, dtype=np.float64):
    return [normal(*shape).astype(dtype) for shape in ((2, 4, 13, 8), (2, 2, 17, 8), (2, 2, 17, 5), (2, 4, 13, 5))]


@pytest.mark.parametrize("axes", [2, 3])
def test_batch_and_heads_may_be_left_out(normal, axes):
    q, k, v, dout = (x[0, :2] for x in arrays(normal))
    if axes == 2:
        q, k, v, dout = (x[0] for x in (q, k, v, dout))
    four = [x.reshape((1,) * (4 - axes) + x.shape) for x in (q, k, v, dout)]
    drop = lambda x: x.reshape(x.shape[4 - axes :])
    for mine, right in zip(
        regard.attention(q, k, v, causal=True, return_weights=True, return_lse=True),
        regard.attention(*four[:3], causal=True, return_weights=True, return_lse=True),
    ):
        np.testing.assert_array_equal(mine, drop(right))
    for mine, right in zip(regard.attention_vjp(q, k, v, dout), regard.attention_vjp(*four)):
        np.testing.assert_array_equal(mine, drop(right))
    stats, whole = regard.statistics(q, k, v, top_keys=2), regard.statistics(*four[:3], top_keys=2)
    for name in ("entropy", "argmax", "top_keys", "out", "lse"):
        np.testing.assert_array_equal(getattr(stats, name), drop(getattr(whole, name)), err_msg=name)
    np.testing.assert_array_equal(stats.heads.entropy, whole.heads.entropy.reshape(whole.heads.entropy.shape[4 - axes :]))
    np.testing.assert_array_equal(regard.column_sums(q, k), drop(regard.column_sums(*four[:2])))
    np.testing.assert_array_equal(regard.heat_map(q, k, rows=3, cols=4).max, drop(regard.heat_map(*four[:2], rows=3, cols=4).max))
    norms = regard.gradient_statistics(q, k, v, dout)
    np.testing.assert_array_equal(norms.dq_rows, drop(regard.gradient_statistics(*four).dq_rows))


def test_parts_of_two_axes_are_merged(normal):
    q, k, v, _ = (x[0, 0] for x in arrays(normal))
    a = regard.attention(q, k[:9], v[:9], return_lse=True)
    b = regard.attention(q, k[9:], v[9:], return_lse=True)
    out, lse = regard.merge(*a, *b)
    assert lse.shape == (13,)
    np.testing.assert_allclose(out, regard.attention(q, k, v), rtol=1e-12)


SAME = {
    "a_list_as_window": (dict(window=[3, 0]), dict(window=(3, 0))),
    "an_array_as_window": (dict(window=np.array([3, -1])), dict(window=(3, None))),
    "numpy_integers": (dict(window=(np.int32(3), np.uint8(0)), top_k=np.int64(4)), dict(window=(3, 0), top_k=4)),
    "numpy_floats": (dict(scale=np.float32(0.5), softcap=np.float64(2.0)), dict(scale=0.5, softcap=2.0)),
    "true_as_scale": (dict(scale=True), {}),
    "false_as_scale": (dict(scale=False), dict(scale=1.0)),
    "numpy_true_as_scale": (dict(scale=np.True_), {}),
    "numpy_false_as_scale": (dict(scale=np.False_), dict(scale=1.0)),
    "one_as_scale_is_a_number": (dict(scale=1), dict(scale=1.0)),
    "false_as_softcap": (dict(softcap=False), {}),
    "numpy_true_as_causal": (dict(causal=np.True_), dict(causal=True)),
    "numpy_true_as_slopes": (dict(alibi=np.True_), dict(alibi=True)),
    "numpy_false_as_slopes": (dict(alibi=np.False_), {}),
    "lists": (dict(kv_lens=[17, 3], q_offset=[1, 2], causal=True), dict(kv_lens=np.array([17, 3]), q_offset=np.array([1, 2]), causal=True)),
    "none_is_the_default": (dict(mask=None, causal=None, dropout_p=None, seed=None, threads=None), {}),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_in_other_words(normal, name):
    q, k, v, _ = arrays(normal)
    these, those = SAME[name]
    np.testing.assert_array_equal(regard.attention(q, k, v, **these), regard.attention(q, k, v, **those))


@pytest.mark.parametrize("scale, factor", [(True, None), (False, 1.0)])
def test_a_bool_as_scale_is_a_switch_in_every_function(normal, scale, factor):
    q, k, v, dout = arrays(normal)
    layer = regard.nn.AttentionOptions(scale=scale)
    ends = np.array([0, 13])
    packed = [x[0].swapaxes(0, 1)[:13] for x in (q, k, v, dout)]
    for call in (
        lambda scale: regard.attention(q, k, v, scale=scale, return_scores="raw")[1],
        lambda scale: regard.weights(q, k, scale=scale),
        lambda scale: regard.statistics(q, k, scale=scale).entropy,
        lambda scale: regard.heat_map(q, k, rows=4, cols=4, scale=scale).mean,
        lambda scale: regard.attention_vjp(q, k, v, dout, scale=scale).dq,
        lambda scale: regard.attention_varlen(*packed[:3], ends, ends, scale=scale),
        lambda scale: regard.analyze(q=q, k=k, scale=scale).entropy,
    ):
        np.testing.assert_array_equal(call(scale), call(factor))
    np.testing.assert_array_equal(layer(q, k, v), regard.attention(q, k, v, scale=factor))


def test_scores_after_the_bias_are_those_that_top_k_leaves(normal):
    q, k, v, _ = arrays(normal)
    scores = regard.attention(q, k, v, top_k=3, return_scores="bias")[1]
    every = regard.attention(q, k, v, return_scores="bias")[1]
    assert (np.isfinite(scores).sum(-1) == 3).all()
    np.testing.assert_array_equal(np.sort(scores, -1)[..., -3:], np.sort(every, -1)[..., -3:])


def relative_bias(table, seq_q, seq_kv):
    reach = table.shape[-1] // 2
    ahead = np.clip(np.arange(seq_kv) - np.arange(seq_q)[:, None], -reach, reach) + reach
    return table[..., ahead]


@pytest.mark.parametrize("heads", [4, 1, 0])
def test_a_number_per_distance_is_added_and_has_a_gradient(normal, heads):
    q, k, v, dout = arrays(normal)
    table = normal(*([heads] if heads else []), 7)
    bias = relative_bias(table, 13, 17).astype(np.float64)
    np.testing.assert_allclose(
        regard.attention(q, k, v, relative=table, causal=True), regard.attention(q, k, v, bias=bias, causal=True), rtol=1e-13, atol=1e-13
    )
    got = regard.attention_vjp(q, k, v, dout, relative=table).d_relative
    whole = regard.attention_vjp(q, k, v, dout, bias=np.broadcast_to(bias, (2, 4, 13, 17)).copy()).d_bias.sum(0)
    whole = whole if heads == 4 else whole.sum(0)[None]
    expected = np.zeros((max(heads, 1), 7))
    place = np.clip(np.arange(17) - np.arange(13)[:, None], -3, 3) + 3
    for at in range(7):
        expected[:, at] = whole[:, place == at].sum(-1)
    assert got.shape == table.shape and got.dtype == np.float32
    np.testing.assert_allclose(got, expected.reshape(table.shape), rtol=1e-5, atol=1e-6)


def test_several_biases_add_up_and_have_gradients_of_their_own(normal):
    q, k, v, dout = arrays(normal)
    mask, bias, table = normal(13, 17).astype(np.float16), normal(4, 1, 17), normal(4, 5)
    slopes = np.array([0.1, 0.2, 0.3, 0.4])
    distance = -slopes[:, None, None] * np.abs(np.arange(13)[:, None] - np.arange(17))
    total = mask.astype(np.float64) + bias + distance + relative_bias(table, 13, 17)
    options = dict(mask=mask, bias=bias, alibi=slopes, relative=table)
    np.testing.assert_allclose(regard.attention(q, k, v, **options), regard.attention(q, k, v, bias=total), rtol=1e-12, atol=1e-12)
    got = regard.attention_vjp(q, k, v, dout, **options)
    whole = regard.attention_vjp(q, k, v, dout, bias=np.broadcast_to(total, (2, 4, 13, 17)).copy()).d_bias
    assert got._fields == ("dq", "dk", "dv", "d_mask", "d_bias", "d_alibi", "d_relative")
    assert [str(x.dtype) for x in got[3:]] == ["float16", "float32", "float64", "float32"]
    np.testing.assert_allclose(got.d_mask, whole.sum((0, 1)), rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(got.d_bias, whole.sum((0, 2))[:, None], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got.d_alibi, (whole * (distance / slopes[:, None, None])).sum((0, 2, 3)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_half_precision_come_from_the_result_before_rounding(normal, dtype):
    """Values around 30 round to 1/8 or 1/64: with a delta of the rounded result, dq would be off by as much."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v, dout = (normal(1, 2, 40, 16).astype(dtype) for _ in range(4))
    v = (v.astype(np.float32) + 30).astype(dtype)
    exact = oracle.gradients(q, k, v, dout)[0]
    got = regard.attention_vjp(q, k, v, dout)[0].astype(np.float64)
    rounding = float(np.abs(exact).max()) * {2: 2.0**-10}[2] if dtype == "float16" else float(np.abs(exact).max()) * 2.0**-7
    assert np.abs(got - exact).max() < 2 * rounding


def test_gradients_have_names(normal):
    q, k, v, dout = arrays(normal)
    dq, dk, dv = plain = regard.attention_vjp(q, k, v, dout, mask=np.ones((13, 17), bool))
    assert plain.dq is dq and plain.dk is dk and plain.dv is dv and plain.d_mask is None and plain.d_sink is None
    full = regard.attention_vjp(q, k, v, dout, mask=np.zeros((13, 17)), sink=np.zeros(4), scale_gradient=True)
    assert len(full) == 6 and full.d_mask is full[3] and full.d_sink is full[4] and full.d_scale is full[5]
    assert "d_mask: float64 [13, 17]" in repr(full)
    for copied in (pickle.loads(pickle.dumps(full)), copy.deepcopy(full)):
        assert len(copied) == 6 and copied._fields == full._fields and np.array_equal(copied.d_mask, full.d_mask)


def test_gradients_of_a_mask_can_be_declined(normal):
    q, k, v, dout = arrays(normal)
    options = dict(mask=normal(13, 17), bias=normal(17), alibi=np.ones(4), sink=np.zeros(4))
    full, less = regard.attention_vjp(q, k, v, dout, **options), regard.attention_vjp(q, k, v, dout, mask_gradient=False, **options)
    assert less._fields == ("dq", "dk", "dv", "d_sink") and len(full) == 7
    for a, b in zip(full[:3], less[:3]):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("options", [{}, dict(causal=True, softcap=1.5), dict(dropout_p=0.3, seed=2)])
def test_the_gradient_of_the_scale(normal, options):
    q, k, v, dout = arrays(normal)
    loss = lambda scale: (regard.attention(q, k, v, scale=scale, **options) * dout).sum()
    got = regard.attention_vjp(q, k, v, dout, scale=0.4, scale_gradient=True, **options).d_scale
    assert got == pytest.approx((loss(0.4 + 1e-6) - loss(0.4 - 1e-6)) / 2e-6, rel=1e-6)


def test_a_region_of_the_weights_is_that_part_of_them(normal):
    q, k, *_ = arrays(normal, np.float32)
    options = dict(causal=True, alibi=True)
    whole = regard.weights(q, k, **options)
    np.testing.assert_array_equal(whole, regard.attention(q, k, k, return_weights=True, **options)[1])
    states = regard.row_states(q, k, **options)
    for given in ({}, dict(states=states)):
        part = regard.weights(q, k, region=(slice(3, 9), (2, 11)), **given, **options)
        np.testing.assert_array_equal(part, whole[:, :, 3:9, 2:11])
        picture = regard.heat_map(q, k, rows=2, cols=3, region=((3, 9), slice(2, 11)), **given, **options)
        cells = whole[:, :, 3:9, 2:11].reshape(2, 4, 2, 3, 3, 3)
        np.testing.assert_array_equal(picture.max, cells.max((3, 5)))
        np.testing.assert_allclose(picture.mean, cells.mean((3, 5)), rtol=1e-6)


@pytest.mark.parametrize("region, error", [((slice(0, 99, 2), slice(None)), ValueError), (((0, 14), (0, 3)), ValueError), ((3,), ValueError),
                                           ("x", (ValueError, TypeError)), (((5, 2), (0, 3)), ValueError)])
def test_a_region_that_is_none_is_refused(normal, region, error):
    q, k, *_ = arrays(normal)
    with pytest.raises(error, match="region|rows"):
        regard.weights(q, k, region=region)


def test_states_of_other_rows_are_refused(normal):
    q, k, *_ = arrays(normal)
    with pytest.raises(ValueError, match="row_max"):
        regard.weights(q, k, states=regard.row_states(q[:, :, :4], k))
    with pytest.raises(TypeError, match="row_states"):
        regard.heat_map(q, k, states=3)


def test_threads_can_be_left_to_the_machine_again():
    before = regard.get_num_threads()
    regard.set_num_threads(before + 3)
    assert regard.get_num_threads() == before + 3
    regard.set_num_threads(None)
    assert regard.get_num_threads() == before


def stub_signatures():
    """The last signature of every function of the stubs: of overloads, the one that says most."""
    text = (Path(regard.__file__).parent / "_regard.pyi").read_text()
    return {node.name: node.args for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", sorted(stub_signatures()))
def test_the_stubs_say_what_the_functions_take(name):
    stub = stub_signatures()[name]
    # What is not known is refused, with the keyword that is meant.
    real = [p for p in inspect.signature(getattr(regard._regard, name)).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    keywords = [p.name for p in real if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert [a.arg for a in stub.args] == [p.name for p in real if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert [a.arg for a in stub.kwonlyargs] == keywords
    for argument, default in zip(stub.kwonlyargs, stub.kw_defaults):
        if default is not None:
            given = inspect.signature(getattr(regard._regard, name)).parameters[argument.arg].default
            assert ast.literal_eval(default) == given, argument.arg


def test_every_function_takes_every_option():
    options = {"mask", "causal", "window", "relative", "sink", "threads"}
    for name in ("attention", "attention_vjp", "attention_varlen", "statistics", "heat_map", "weights", "column_sums", "row_states"):
        assert options <= set(inspect.signature(getattr(regard, name)).parameters), name


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("name", ["window", "top_k", "q_offset", "threads", "sink"])
def test_a_bool_is_no_number(normal, name, value):
    """``window=False`` was a window of the own key alone, ``sink=False`` a sink of logit 0."""
    q, k, v, _ = arrays(normal)
    with pytest.raises(TypeError, match=f"{name} must be .* not bool"):
        regard.attention(q, k, v, **{name: value})


@pytest.mark.parametrize("given, meant", {
    "attn_mask": "mask", "is_causal": "causal", "softmax_scale": "scale", "key_padding_mask": "mask=regard.Mask.key_padding(...)",
    "softcapp": "softcap", "treads": "threads", "need_weights": "return_weights",
}.items())
def test_an_unknown_keyword_is_refused_with_the_one_that_is_meant(normal, given, meant):
    q, k, v, _ = arrays(normal)
    with pytest.raises(TypeError, match=re.escape(f"attention() got an unexpected keyword argument '{given}'; did you mean {meant}?")):
        regard.attention(q, k, v, **{given: None})
    with pytest.raises(TypeError, match="it takes .*causal, .*threads"):
        regard.statistics(q, k, nothing_like_it=1)


def test_key_padding_as_a_mask_is_refused_with_what_is_meant(normal):
    q, k, v, _ = arrays(normal)
    padding = np.ones((q.shape[0], k.shape[2]), bool)
    with pytest.raises(ValueError, match=r"mask=regard\.Mask\.key_padding\(mask\)"):
        regard.attention(q, k, v, mask=padding)
