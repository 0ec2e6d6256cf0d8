"""Activations of a run, hooks, weights, and masks as arrays; against transformers' own hooks in parity/test_activations_transformers.py."""

import pickle

import numpy as np
import pytest
import regard
from regard import Mask

TEXT = "Emma and David went to the market. David said, \"the cat sleeps.\" Emma and David"
SITES = ("resid_pre", "resid_mid", "resid_post", "q", "k", "v", "pattern", "z", "attn_out", "mlp_out")


@pytest.fixture(scope="module")
def model():
    return regard.load()


def close(got, expected, tolerance=1e-4):
    difference = np.abs(np.asarray(got, np.float64) - expected).max() / np.abs(expected).max()
    assert difference <= tolerance, difference


def test_activations_fit_together(model):
    run = model.run(TEXT, keep=SITES)
    n, width, layers = len(run), model.width, model.layers
    for name in ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"):
        assert run[name].shape == (layers, n, width) and run[name].dtype == np.float32
    for layer in range(layers):
        at = {name: run[f"L{layer}.{name}"].astype(np.float64) for name in SITES}
        close(at["pattern"] @ at["v"].repeat(model.heads // model.kv_heads, 0), at["z"])
        close(at["resid_pre"] + at["attn_out"], at["resid_mid"], 1e-6)
        close(at["resid_mid"] + at["mlp_out"], at["resid_post"], 1e-6)
        # Nothing but a bias, which is the same for all tokens, is added to the sum over heads of z W_O.
        rest = at["attn_out"] - np.einsum("hnd,hdw->nw", at["z"], model.weights(f"L{layer}.W_O"))
        assert np.abs(rest - rest[0]).max() <= 1e-5 * np.abs(at["attn_out"]).max()
        if layer:
            assert np.array_equal(run[f"L{layer}.resid_pre"], run[f"L{layer - 1}.resid_post"])
    assert np.array_equal(run["logits"], run.logits)


@pytest.mark.parametrize("edits", ["", "L1.H1=uniform", "L0.H2=hide:first@3-9"])
def test_column_sums_are_sums_of_the_weights(model, edits):
    run = model.run(TEXT, edits)
    assert run.column_sums.shape == (model.layers, model.heads, len(run))
    for layer in range(model.layers):
        for head in range(model.heads):
            close(run.column_sums[layer, head], run.weights(layer, head).astype(np.float64).sum(0), 1e-5)


def test_keeping_the_stream_changes_no_bit(model):
    plain, kept = model.run(TEXT), model.run(TEXT, keep=["resid_pre", "L1.resid_mid", "q"])
    assert np.array_equal(plain.logits, kept.logits)
    with pytest.raises(KeyError, match="keep"):
        kept["L0.resid_mid"]


def test_a_batch_has_the_bits_of_each_text_alone(model):
    texts = [TEXT, "The dog", TEXT[:40]]
    runs = model.run(texts, keep=["resid_post", "mlp_out"])
    assert isinstance(runs, list) and len(runs) == 3
    for text, run in zip(texts, runs):
        alone = model.run(text, keep=["resid_post", "mlp_out"])
        for name in ("logits", "resid_post", "mlp_out", "L1.z"):
            assert np.array_equal(run[name], alone[name])
    ids = [model.tokens(text) for text in texts]
    assert np.array_equal(model.run(ids)[1].logits, model.run(texts[1]).logits)


def test_hooks_do_what_edits_do(model):
    def zero(z):
        z[1] = 0
        return z

    hooked, edited = model.run(TEXT, hooks={"L1.z": zero}), model.run(TEXT, "L1.H1=zero")
    assert np.array_equal(hooked.logits, edited.logits) and not np.array_equal(hooked.logits, model.run(TEXT).logits)
    close(model.run(TEXT, hooks={"L1.mlp_out": np.zeros_like}).logits, model.run(TEXT, "L1.mlp=zero").logits, 1e-6)
    uniform = lambda w: np.tril(np.ones_like(w)) / np.arange(1, w.shape[-1] + 1)[:, None]
    close(model.run(TEXT, hooks={"L1.pattern": uniform}).logits, model.run(TEXT, "L1=uniform").logits, 1e-4)


@pytest.mark.parametrize("name", SITES)
def test_a_hook_is_called_once_per_layer_and_seen_by_what_follows(model, name):
    seen = []

    def look(x):
        seen.append(x.copy())

    plain = model.run(TEXT, keep=[name])
    looked = model.run(TEXT, hooks={name: look}, keep=[name])
    assert len(seen) == model.layers
    for layer, x in enumerate(seen):
        close(x, plain[f"L{layer}.{name}"], 1e-6)
    # Without a change every bit is that of the run that keeps the same.
    assert np.array_equal(looked.logits, plain.logits)
    changed = model.run(TEXT, hooks={f"L0.{name}": lambda x: x * 1.5}, keep=[name])
    close(changed[f"L0.{name}"], 1.5 * plain[f"L0.{name}"].astype(np.float64), 1e-6)
    assert np.abs(changed.logits - plain.logits).max() > 1e-3


def test_steering_adds_a_direction(model):
    direction = np.linspace(-1, 1, model.width, dtype=np.float32)
    run = model.run(TEXT, hooks={"L1.resid_pre": lambda x: x + 2 * direction}, keep=["L0.resid_post", "L1.resid_pre"])
    close(run["L1.resid_pre"], model.run(TEXT, keep=["L1.resid_pre"])["L1.resid_pre"] + 2.0 * direction, 1e-6)


def test_errors_of_hooks_and_names(model):
    def bad(x):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        model.run(TEXT, hooks={"L0.z": bad})
    with pytest.raises(ValueError, match="same shape"):
        model.run(TEXT, hooks={"L0.z": lambda x: x[0]})
    for name in ("L0.what", "what", "L99.z", "0.z"):
        with pytest.raises(ValueError, match="resid_pre"):
            model.run(TEXT, hooks={name: bad})
        with pytest.raises(ValueError, match="resid_pre"):
            model.run(TEXT, keep=[name])
    with pytest.raises(ValueError, match="pattern"):
        model.run(TEXT, "L1.H0=zero", hooks={"L1.pattern": lambda w: w})
    with pytest.raises(ValueError, match="W_Q"):
        model.weights("L0.W_X")


def test_generation_stops_at_a_text_and_forgets_beyond_a_context(model):
    free = model.generate(TEXT, 40)
    text = model.text(free)
    stop = text[len(text) // 2 :][:4]
    stopped = model.generate(TEXT, 40, stop=stop)
    assert stopped == free[: len(stopped)] and len(stopped) < len(free)
    assert stop in model.text(stopped) and stop not in model.text(stopped[:-1])
    assert model.generate(TEXT, 40, stop=["never in any story", stop]) == stopped
    assert model.generate(TEXT, 40, context=8) != free
    with pytest.raises(ValueError, match="context"):
        model.generate(TEXT, 4, context=1)


MASKS = [
    Mask.everything(), Mask.causal(), Mask.reverse(), Mask.strictly_future(), Mask.window(2, None), Mask.first_keys(2), Mask.key_lengths([3, 5]),
    Mask.documents([[0, 0, 1, 1, 2]]), Mask.blocks(np.eye(2, dtype=bool), 3, 3), Mask.dense(np.tri(5, dtype=bool)),
    Mask.causal() & (Mask.first_keys(1) | ~Mask.window(1, 0)),
]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_masks_are_pickled_compared_and_dense(mask):
    same = pickle.loads(pickle.dumps(mask))
    assert same == mask and hash(same) == hash(mask) and repr(same) == repr(mask)
    assert sum(other == mask for other in MASKS) == 1
    dense = mask.to_dense(5, batch=2, heads=1)
    assert dense.dtype == bool and dense.shape == (2, 1, 5, 5)
    x = np.zeros((2, 1, 5, 4), np.float32)
    assert np.array_equal(dense, regard.weights(x, x, mask=mask) > 0)


def test_masks_as_arrays():
    assert np.array_equal(Mask.causal().to_dense(3, 4), np.tri(3, 4, dtype=bool))
    assert np.array_equal(Mask.causal().to_dense(2, 4, q_offset=2), np.tri(2, 4, 2, dtype=bool))
    assert np.array_equal(np.asarray(Mask.dense(np.tri(3, dtype=bool)))[0, 0], np.tri(3, dtype=bool))
    with pytest.raises(TypeError, match="to_dense"):
        np.asarray(Mask.causal())
    padding = np.array([[True, True, False], [True, False, False]])
    assert np.array_equal(Mask.key_padding(padding).to_dense(3, batch=2)[:, 0], np.broadcast_to(padding[:, None], (2, 3, 3)))


def test_a_window_of_one_integer_is_both_sides(rng):
    q, k, v = rng.standard_normal((3, 9, 4))
    assert np.array_equal(regard.attention(q, k, v, window=3), regard.attention(q, k, v, window=(3, 3)))
    with pytest.raises(ValueError, match="window"):
        regard.attention(q, k, v, window=-1)


def test_gradients_are_slopes_of_runs_with_hooks(model):
    made = model.gradients(TEXT, of="loss", wrt=SITES)
    n = len(model.tokens(TEXT))
    assert abs(made.value - model.run(TEXT).loss) <= 1e-5 and len(made) == len(SITES) * model.layers == len(made.keys())
    assert made["q"].shape == (model.layers, model.heads, n, model.head_dim) and made["L1.pattern"].shape == (model.heads, n, n)
    for name in ("L0.resid_pre", "L1.q", "L1.k", "L2.v", "L1.z", "L0.mlp_out", "L1.pattern", "L2.attn_out"):
        gradient = made[name]
        length = float((gradient.astype(np.float64) ** 2).sum())
        step = 2e-3 / length
        up, down = (model.run(TEXT, hooks={name: lambda x: x + sign * step * gradient}).loss for sign in (1, -1))
        assert abs((up - down) / (2 * step) / length - 1) <= 0.02, name
    # What attention adds reaches the loss by the stream alone.
    assert np.array_equal(made["attn_out"], made["resid_mid"]) and np.array_equal(made["mlp_out"], made["resid_post"])


def test_gradients_of_logits_and_hidden_states(model):
    ids = model.tokens(TEXT)
    difference = model.gradients(ids, of={"position": -2, "logit_diff": [5, 9]}, wrt=["L2.resid_post"])
    logits = model.run(ids).logits[-2]
    assert abs(difference.value - (logits[5] - logits[9])) <= 1e-4
    assert not difference["L2.resid_post"][-1].any() and difference["L2.resid_post"][-2].any()
    hidden = model.gradients(ids, of={"hidden": np.ones((len(ids), model.width))}, wrt=["L0.resid_pre"])
    assert abs(hidden.value - model.run(ids).hidden.sum()) <= 1e-2
    for of, message in (("losses", "of must be"), ({"logit_diff": [1]}, "two tokens"), ({"position": 99, "logit_diff": [1, 2]}, "99"), ({"hidden": np.ones(3)}, "hidden|array")):
        with pytest.raises((ValueError, TypeError), match=message):
            model.gradients(ids, of=of)
    with pytest.raises(KeyError, match="wrt"):
        hidden["L1.q"]
