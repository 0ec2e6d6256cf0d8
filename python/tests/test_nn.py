"""Layers and trainings from Python."""

import numpy as np
import pytest

import regard
from regard.nn import AttentionOptions, MultiHeadAttention, fit


@pytest.mark.parametrize(("kv_heads", "bias", "cross"), [(None, False, False), (2, True, False), (1, False, True), (4, True, True)])
def test_gradients_are_finite_differences(kv_heads, bias, cross):
    rng = np.random.default_rng(7)
    layer = MultiHeadAttention(12, 4, kv_heads=kv_heads, bias=bias, seed=1, dtype=np.float64)
    x, memory, d_out = rng.standard_normal((2, 5, 12)), rng.standard_normal((2, 7, 12)) if cross else None, rng.standard_normal((2, 5, 12))
    options = {} if cross else {"causal": True}
    out, found = layer.vjp(x, d_out, memory, **options)
    assert np.array_equal(out, layer(x, memory, **options))
    places = {"x": x, **layer.parameters, **({"memory": memory} if cross else {})}
    assert set(found) == set(places)
    for name, values in places.items():
        at = tuple(rng.integers(0, n) for n in values.shape)
        before, step = values[at], 1e-6
        ends = []
        for sign in (1, -1):
            values[at] = before + sign * step
            ends.append((layer(x, memory, **options) * d_out).sum())
        values[at] = before
        right = (ends[0] - ends[1]) / (2 * step)
        assert abs(found[name][at] - right) <= 1e-6 * (1 + abs(right)), name


def test_heads_are_those_of_the_formula(tmp_path):
    layer = MultiHeadAttention(8, 2, seed=3, dtype=np.float64)
    x = np.random.default_rng(8).standard_normal((1, 6, 8))
    q, k, v = (x @ layer.parameters[name] for name in ("w_q", "w_k", "w_v"))
    parts = []
    for head in range(2):
        own = slice(4 * head, 4 * head + 4)
        scores = q[0, :, own] @ k[0, :, own].T / 2
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        assert np.abs(weights - layer.weights(x)[0, head]).max() < 1e-12
        parts.append(weights @ v[0, :, own])
    assert np.abs(np.concatenate(parts, axis=1) @ layer.parameters["w_o"] - layer(x)[0]).max() < 1e-12
    layer.save(tmp_path / "layer.npz")
    assert np.array_equal(MultiHeadAttention.load(tmp_path / "layer.npz")(x), layer(x))
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(ValueError, match="not a file of MultiHeadAttention"):
        MultiHeadAttention.load(tmp_path / "other.npz")
    for wrong in ((8, 3), (8, 0)):
        with pytest.raises(ValueError):
            MultiHeadAttention(*wrong)
    with pytest.raises(ValueError, match="batch, tokens, 8"):
        layer(np.ones((6, 8)))


def test_scaled_attention_keeps_its_options():
    q, k, v, d_out = np.random.default_rng(9).standard_normal((4, 1, 2, 6, 4))
    layer = AttentionOptions(causal=True, scale=1.0)
    assert np.array_equal(layer(q, k, v), regard.attention(q, k, v, causal=True, scale=1.0))
    assert np.array_equal(layer.weights(q, k), regard.weights(q, k, causal=True, scale=1.0))
    assert np.array_equal(layer.vjp(q, k, v, d_out).dq, regard.attention_vjp(q, k, v, d_out, causal=True, scale=1.0).dq)


def test_fit_trains_the_commands_model(tmp_path):
    steps = []
    model = fit(tmp_path / "a", steps=30, width=16, layers=1, heads=2, context=16, batch=8, characters=20_000, callback=lambda row: steps.append(row))
    assert steps[-1]["step"] == 30 and steps[-1]["loss"] < steps[0]["loss"]
    assert len(model.generate(model.tokens("Emma"), 5)) == 5
    from regard._regard import _command

    assert _command(["regard", "train", "--out", str(tmp_path / "b"), "--steps", "30", "--width", "16", "--layers", "1", "--heads", "2", "--context", "16", "--batch", "8", "--characters", "20000", "--quiet"]) == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="overwrite|model"):
        fit(tmp_path / "a", steps=3)
    # Another training in the same folder: its own steps, and nothing of the one before.
    later = []
    small = {"width": 16, "layers": 1, "heads": 2, "context": 16, "batch": 8, "characters": 20_000}
    fit(tmp_path / "a", steps=10, overwrite=True, callback=lambda row: later.append(row["step"]), **small)
    assert later == list(range(1, 11))
    fit(tmp_path / "a", steps=14, resume=True, callback=lambda row: later.append(row["step"]))
    assert later == list(range(1, 15))
    stopped = fit(tmp_path / "c", steps=100_000, width=16, layers=1, heads=2, context=16, batch=8, characters=20_000, callback=lambda row: row["step"] < 5)
    assert stopped.layers == 1
    with pytest.raises(ValueError):
        fit(tmp_path / "d", text="too short", steps=3)


def test_scaled_attention_has_its_projections(rng):
    layer, x = regard.nn.ScaledAttention(6, seed=3, dtype=np.float64), rng.standard_normal((2, 4, 6))
    q, k, v = (x @ layer.parameters[name] for name in ("w_q", "w_k", "w_v"))
    assert sorted(layer.parameters) == ["w_k", "w_q", "w_v"]
    scores = q @ k.swapaxes(1, 2) * 6**-0.5
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(layer.weights(x), weights, rtol=1e-12)
    np.testing.assert_allclose(layer(x), weights @ v, rtol=1e-12)
    np.testing.assert_allclose(regard.nn.ScaledAttention(6, seed=3, dtype=np.float64, scale=False)(x), regard.attention(q, k, v, scale=1.0), rtol=1e-12)
    d_out = rng.standard_normal((2, 4, 6))
    out, found = layer.vjp(x, d_out)
    np.testing.assert_array_equal(out, layer(x))
    assert sorted(found) == ["w_k", "w_q", "w_v", "x"]
    for name, at in (("w_q", (1, 2)), ("w_v", (0, 5))):
        step = np.zeros((6, 6))
        step[at] = 1e-6
        sides = []
        for sign in (1, -1):
            layer.parameters[name] = layer.parameters[name] + sign * step
            sides.append((layer(x) * d_out).sum())
            layer.parameters[name] = layer.parameters[name] - sign * step
        assert found[name][at] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-6)


def test_options_without_parameters_have_a_name_of_their_own(normal):
    x = normal(1, 2, 5, 8)
    kept = regard.nn.AttentionOptions(causal=True)
    np.testing.assert_array_equal(kept(x, x, x), regard.attention(x, x, x, causal=True))
    with pytest.warns(DeprecationWarning, match="AttentionOptions"):
        old = regard.nn.ScaledAttention(causal=True)
    assert isinstance(old, regard.nn.AttentionOptions) and repr(old) == "AttentionOptions(causal=True)"


def test_sinusoidal_encoding_by_its_formula():
    table = regard.nn.sinusoidal_encoding(7, 6, dtype=np.float64)
    for p in range(7):
        for i in range(3):
            angle = p / 10000 ** (2 * i / 6)
            assert table[p, 2 * i] == pytest.approx(np.sin(angle)) and table[p, 2 * i + 1] == pytest.approx(np.cos(angle))
    assert regard.nn.sinusoidal_encoding(3, 5).shape == (3, 5)
    with pytest.raises(ValueError, match="n is 0"):
        regard.nn.sinusoidal_encoding(0, 4)
