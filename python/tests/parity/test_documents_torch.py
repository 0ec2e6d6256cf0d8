"""regard.documents and ScaledAttention on torch tensors, called as the documents call them."""

import pytest

torch = pytest.importorskip("torch")

import regard  # noqa: E402
from regard import documents  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(4)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("make", [None, documents.create_causal_mask, documents.create_reverse_mask])
def test_attention_is_pytorchs_with_gradients(make, scale):
    q, k, v = (torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    mask = None if make is None else make(5)
    assert mask is None or isinstance(mask, torch.Tensor) and mask.shape == (5, 5)
    scores = q @ k.transpose(1, 2) * (8**-0.5 if scale else 1.0)
    expected = torch.softmax(scores if mask is None else scores + mask, -1)
    output, weights = documents.attention(q, k, v, mask, scale)
    torch.testing.assert_close((output, weights), (expected @ v, expected))
    for mine, right in ((output, expected @ v), (weights, expected)):
        found = torch.autograd.grad(mine.square().sum(), (q, k), retain_graph=True)
        torch.testing.assert_close(found, torch.autograd.grad(right.square().sum(), (q, k), retain_graph=True))


def test_the_other_functions_take_tensors():
    q = torch.randn(4, 3, 8, requires_grad=True)
    weights = documents.attention(q, q, q, torch.tril(torch.ones(3, 3)))[1]
    assert (weights[:, 0, 1:] == 0).all()
    tokens = ["the", "cat", "sat"]
    assert "cat" in documents.plot_attention_heatmap(weights[0], tokens).svg()
    assert "cat" in documents.plot_multihead_attention(weights, tokens, 4).svg()
    assert documents.analyze_attention_patterns(weights)["max_attention"] == 1.0
    assert documents.create_causal_mask(4, device="cpu").device.type == "cpu"


def test_scaled_attention_is_a_module():
    layer = regard.torch.ScaledAttention(64)
    x = torch.randn(2, 10, 64, requires_grad=True)
    out = layer(x)
    assert out.shape == x.shape and len(list(layer.parameters())) == 3
    q, k, v = layer.query(x), layer.key(x), layer.value(x)
    expected = torch.softmax(q @ k.transpose(-2, -1) * 64**-0.5, -1) @ v
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    out.sum().backward()
    assert all(p.grad.abs().max() > 1e-8 for p in layer.parameters()) and x.grad is not None
    unscaled = regard.torch.ScaledAttention(64, scale=False)
    unscaled.load_state_dict(layer.state_dict())
    assert not torch.allclose(unscaled(x), out)


def test_scaled_attention_over_numpy_takes_tensors():
    layer = regard.nn.ScaledAttention(64)
    out = layer(torch.randn(2, 10, 64))
    assert isinstance(out, torch.Tensor) and out.shape == (2, 10, 64)
