"""regard.documents: the names, arguments and meanings of the exercise sheet, on NumPy arrays; on torch tensors in parity/test_documents_torch.py."""

import doctest
from importlib.util import find_spec

import numpy as np
import pytest

import regard
from regard import documents


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("scale", [True, False])
def test_attention_returns_output_and_weights(rng, scale):
    q, k, v = rng.standard_normal((2, 5, 8)), rng.standard_normal((2, 5, 8)), rng.standard_normal((2, 5, 3))
    output, weights = documents.attention(q, k, v, None, scale)
    expected = softmax(q @ k.swapaxes(1, 2) * (8**-0.5 if scale else 1.0))
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    np.testing.assert_allclose(output, expected @ v, rtol=1e-12)


def test_masks_in_all_three_forms_are_the_same(rng):
    q, k, v = rng.standard_normal((3, 2, 4, 8))
    visible = np.tri(4, dtype=bool)
    expected = regard.attention(q, k, v, causal=True)
    for mask in (visible, visible.astype(int), visible.astype(np.float32), np.where(visible, 0.0, -np.inf), np.broadcast_to(visible, (2, 4, 4))):
        np.testing.assert_array_equal(documents.attention(q, k, v, mask)[0], expected)
    # All zeros are added, and hide nothing: the causal mask of one token.
    np.testing.assert_array_equal(documents.attention(q, k, v, np.zeros((4, 4)))[0], regard.attention(q, k, v))
    with pytest.raises(ValueError, match="other than 0 and 1"):
        documents.attention(q, k, v, np.full((4, 4), 2))


def test_a_row_without_keys_is_zero(rng):
    q, k, v = rng.standard_normal((3, 1, 3, 4))
    mask = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0]])
    output, weights = documents.attention(q, k, v, mask)
    assert (output[0, 0] == 0).all() and (weights[0, 0] == 0).all() and np.isfinite(weights).all()


def test_statistics_by_hand():
    weights = np.array([[1.0, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0.5, 0, 0, 0, 0.5]])
    found = documents.analyze_attention_patterns(weights)
    assert list(found) == ["max_attention", "entropy", "diagonal_mass", "local_vs_global"] and all(type(x) is float for x in found.values())
    assert found["max_attention"] == 1.0
    assert found["entropy"] == pytest.approx(2 * np.log(2) / 5)
    assert found["diagonal_mass"] == pytest.approx(4 / 5)
    # Of five rows' weight, 0.5 lies four tokens away.
    assert found["local_vs_global"] == pytest.approx(4.5 / 0.5)
    assert documents.analyze_attention_patterns(np.eye(3))["local_vs_global"] == float("inf")
    assert regard.analyze(weights).local_vs_global[0] == pytest.approx(9.0)
    assert regard.analyze(np.eye(3)).local_vs_global[0] == np.inf


def test_statistics_of_queries_and_keys_have_the_same_ratio(rng):
    q, k = rng.standard_normal((2, 1, 2, 20, 8))
    weights = regard.weights(q, k, causal=True)
    np.testing.assert_allclose(regard.analyze(q=q, k=k, causal=True).local_vs_global, regard.analyze(weights).local_vs_global, rtol=1e-10)


def test_drawings_have_the_tokens():
    tokens = ["the", "cat", "sat"]
    assert documents.plot_attention_heatmap(np.eye(3), tokens).svg().count(">cat</text>") == 2
    assert documents.plot_multihead_attention(np.stack([np.eye(3)] * 4), tokens, 4).svg().count(">cat</text>") == 4
    with pytest.raises(ValueError, match="num_heads is 3"):
        documents.plot_multihead_attention(np.stack([np.eye(3)] * 4), tokens, 3)
    with pytest.raises(ValueError, match="plot_multihead_attention"):
        documents.plot_attention_heatmap(np.stack([np.eye(3)] * 4), tokens)


def test_the_scale_keeps_the_largest_weight_where_it_is():
    table = documents.experiment_scaling_factor()
    assert table.d_k.tolist() == [16, 16, 64, 64, 256, 256, 1024, 1024] and set(table.scaled.tolist()) == {True, False}
    assert table.max_attention[table.scaled].max() < 0.6 and table.max_attention[~table.scaled][-1] > 0.9
    assert (table.entropy[table.scaled] > table.entropy[~table.scaled]).all()


def test_masks_of_the_sheet():
    mask = np.asarray(documents.create_causal_mask(3))
    assert mask.tolist() == [[0, -np.inf, -np.inf], [0, 0, -np.inf], [0, 0, 0]] and mask.dtype == np.float32
    assert np.asarray(documents.create_reverse_mask(3)).tolist() == mask.T.tolist()


def test_masks_compared():
    table = documents.compare_masking()
    assert table["mask"].tolist() == ["causal", "none", "reverse"]
    assert table.future[0] == pytest.approx(0, abs=1e-15) and table.past[2] == pytest.approx(0, abs=1e-15) and table.past[1] > 0.2 and table.future[1] > 0.2
    np.testing.assert_allclose(table.past + table.own + table.future, 1)


def test_the_examples_hold():
    found = doctest.testmod(documents)
    assert found.attempted >= 8 and found.failed == 0


def test_the_names_are_at_the_top_level():
    names = {"documents", "nn", "lab", "plot", "analyze", "plot_heads", "plot_attention"}
    assert regard.documents is documents and names <= set(dir(regard)) and names <= set(regard.__all__)
    assert ("torch" in dir(regard)) == (find_spec("torch") is not None)
