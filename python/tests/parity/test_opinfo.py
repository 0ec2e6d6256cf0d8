"""PyTorch's sample inputs for its attention operators, expected values from its math backend."""

from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch.testing needs it")

import torch.nn.functional as F  # noqa: E402
from torch_reference import assert_agrees, through_regard  # noqa: E402

SAMPLES = {"scaled_dot_product_attention": 25, "_scaled_dot_product_flash_attention_for_cpu": 3}
DTYPES = (torch.float32, torch.float64)


def twisted(x):
    """Same values, rows backwards in memory, inner stride 2."""
    return np.ascontiguousarray(x[:, :, ::-1].repeat(2, axis=-1))[:, :, ::-1, ::2]


LAYOUTS = {
    "plain": lambda x: x,
    "columns_first": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "twisted": twisted,
}


@cache
def samples(operator, dtype):
    from torch.testing._internal.common_methods_invocations import op_db

    torch.manual_seed(0)
    info = next((op for op in op_db if op.name.endswith(operator)), None)
    if info is None:
        pytest.skip(f"this PyTorch has no samples of {operator}")
    return list(info.sample_inputs("cpu", dtype, requires_grad=False))


def arguments(sample):
    keywords = {name: value for name, value in sample.kwargs.items() if name != "attn_mask"}
    mask = sample.kwargs.get("attn_mask")
    return [sample.input, *sample.args, *([] if mask is None else [mask])], keywords


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operator, index", [(name, i) for name, count in SAMPLES.items() for i in range(count)])
def test_sample(operator, index, dtype, layout):
    tensors, keywords = arguments(samples(operator, dtype)[index])
    if keywords.get("dropout_p"):
        pytest.skip("dropout: no two random generators agree")
    got = through_regard(*tensors, **keywords, layout=LAYOUTS[layout])
    assert_agrees(got, tensors, keywords)


def test_the_samples_are_there():
    found = {name: len(samples(name, torch.float32)) for name in SAMPLES}
    assert found == SAMPLES
    assert len(samples("multi_head_attention_forward", torch.float32)) == 192


@pytest.mark.parametrize("index", range(192))
def test_multi_head_attention_forward(index):
    sample = samples("multi_head_attention_forward", torch.float32)[index]
    if sample.kwargs["training"]:
        pytest.skip("training samples use dropout")

    def forward():
        return F.multi_head_attention_forward(sample.input, *sample.args, **sample.kwargs, need_weights=False)[0]

    expected, calls = forward(), []

    def counted(*args, **kwargs):
        calls.append(args)
        return through_regard(*args, **kwargs)

    with patch.object(F, "scaled_dot_product_attention", counted):
        got = forward()
    assert calls, "the module did not reach scaled_dot_product_attention"
    np.testing.assert_allclose(got.detach().numpy(), expected.detach().numpy(), rtol=5e-6, atol=5e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("head_dim", [8, 16])
@pytest.mark.parametrize("seq", [1, 267, 1030])
def test_packed_projection(seq, head_dim, is_causal, dtype):
    torch.manual_seed(1)
    packed = torch.randn(2, seq, 3 * 3 * head_dim, dtype=dtype)
    q, k, v = packed.view(2, seq, 3, 3, head_dim).permute(2, 0, 3, 1, 4)
    keywords = dict(is_causal=is_causal)
    assert_agrees(through_regard(q, k, v, **keywords), [q, k, v], keywords)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask_shape", [(64, 90), (1, 90), (64, 1), (2, 1, 1, 90), (1, 3, 64, 90), (2, 3, 64, 90)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_mask_shapes(kind, mask_shape, dtype):
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 3, n, 32, dtype=dtype) for n in (64, 90, 90))
    mask = torch.rand(mask_shape) < 0.6 if kind == "bool" else torch.randn(mask_shape, dtype=dtype)
    assert_agrees(through_regard(q, k, v, mask), [q, k, v, mask], {})


@pytest.mark.parametrize("scale", [-1e4, 1e4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scores_of_a_million(dtype, scale):
    torch.manual_seed(3)
    x = torch.randn(1, 3, 64, 64, dtype=dtype)
    assert_agrees(through_regard(x, x, x, scale=scale), [x, x, x], dict(scale=scale))


@pytest.mark.parametrize("heads_kv", [1, 2, 4, 8])
def test_grouped_heads(heads_kv):
    torch.manual_seed(4)
    q, (k, v) = torch.randn(2, 8, 33, 16), torch.randn(2, 2, heads_kv, 70, 16)
    keywords = dict(enable_gqa=True, is_causal=True)
    assert_agrees(through_regard(q, k, v, **keywords), [q, k, v], keywords)
