"""regard.torch for packed and nested tensors, against PyTorch's computation of the padded ones."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.autograd import gradcheck  # noqa: E402

from regard import Mask  # noqa: E402
from regard.torch import scaled_dot_product_attention as sdpa  # noqa: E402
from regard.torch import varlen_attention  # noqa: E402

LENGTHS = [(5, 7), (1, 30), (17, 17), (64, 3)]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(11)


def ends(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


ENDS_Q, ENDS_K = ends([n for n, _ in LENGTHS]), ends([m for _, m in LENGTHS])


def packed(dtype=torch.float64, heads_kv=4):
    tokens_q, tokens_k = int(ENDS_Q[-1]), int(ENDS_K[-1])
    shapes = ((tokens_q, 4, 8), (tokens_k, heads_kv, 8), (tokens_k, heads_kv, 6))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def padded(query, key, value, causal, **options):
    """PyTorch's attention of the sequences side by side, the shorter ones filled up and masked; and packed again."""
    longest = max(n for n, _ in LENGTHS), max(m for _, m in LENGTHS)

    def fill(x, at, length):
        rows = [F.pad(x[a:b], (0, 0, 0, 0, 0, length - int(b - a))) for a, b in zip(at[:-1], at[1:])]
        return torch.stack(rows).transpose(1, 2)

    batch = fill(query, ENDS_Q, longest[0]), fill(key, ENDS_K, longest[1]), fill(value, ENDS_K, longest[1])
    mask = torch.zeros(len(LENGTHS), 1, *longest, dtype=torch.bool)
    for i, (n, m) in enumerate(LENGTHS):
        mask[i, :, :n, :m] = torch.ones(n, m, dtype=torch.bool).tril() if causal else True
        # What is padding anyway must see something, or its NaN would spoil the gradients.
        mask[i, :, n:, 0] = True
    out = F.scaled_dot_product_attention(*batch, mask, **options).transpose(1, 2)
    return torch.cat([out[i, :n] for i, (n, _) in enumerate(LENGTHS)])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_kv", [4, 2])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_packed_sequences_are_the_padded_ones(causal, heads_kv, dtype, tolerance):
    tensors = packed(dtype, heads_kv)
    mine = varlen_attention(*tensors, ENDS_Q, ENDS_K, is_causal=causal, scale=0.4)
    theirs = padded(*tensors, causal, scale=0.4, enable_gqa=heads_kv != 4)
    d_out = torch.randn_like(mine)
    results = [(out, *torch.autograd.grad(out, tensors, d_out)) for out in (mine, theirs)]
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", [dict(window=(3, 0)), dict(softcap=2.0, sink=[0.1, 0.2, 0.3, 0.4]), dict(mask=Mask.causal() | Mask.first_keys(2)),
                                     dict(dropout_p=0.4, seed=5), dict(top_k=3), dict(alibi=True)])
def test_options_pass_gradcheck(options):
    assert gradcheck(lambda *x: varlen_attention(*x, ENDS_Q, ENDS_K, **options), packed(), fast_mode=True)


@pytest.mark.parametrize("wanted", ["sink", "alibi", "scale"])
def test_operands_that_are_tensors_get_their_gradients(wanted):
    start = {"sink": torch.randn(4), "alibi": torch.rand(4), "scale": torch.tensor(0.3)}[wanted].double().requires_grad_()
    tensors = [x.detach() for x in packed()]
    assert gradcheck(lambda x: varlen_attention(*tensors, ENDS_Q, ENDS_K, **{wanted: x}), [start])


def test_cumulative_lengths_changed_later_change_no_gradient():
    tensors, at = packed(), ENDS_Q.clone()
    out = varlen_attention(*tensors, at, ENDS_K)
    at.fill_(0)
    got = torch.autograd.grad(out.sum(), tensors)
    expected = torch.autograd.grad(varlen_attention(*tensors, ENDS_Q, ENDS_K).sum(), tensors)
    for a, b in zip(got, expected):
        assert torch.equal(a, b)


def nested(x, at):
    return torch.nested.nested_tensor_from_jagged(x, at).transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
def test_nested_tensors_are_computed_without_padding(causal):
    tensors = packed()
    at = [ENDS_Q, ENDS_K, ENDS_K]
    out = sdpa(*(nested(x, ends) for x, ends in zip(tensors, at)), is_causal=causal)
    assert out.is_nested and out.shape[1] == 4
    values = out.transpose(1, 2).values()
    theirs = padded(*tensors, causal)
    d_out = torch.randn_like(values)
    for a, b in zip(torch.autograd.grad(values, tensors, d_out), torch.autograd.grad(theirs, tensors, d_out)):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values, theirs, rtol=1e-12, atol=1e-12)


def test_a_nested_result_goes_on_with_its_query():
    x = nested(packed()[0], ENDS_Q)
    assert (sdpa(x, x, x) + x).is_nested


def test_nested_tensors_that_do_not_fit_are_refused():
    x = torch.nested.nested_tensor_from_jagged(packed()[0], ENDS_Q)
    with pytest.raises(ValueError, match="transpose"):
        sdpa(x, x, x)
    x = x.transpose(1, 2)
    with pytest.raises(ValueError, match="key"):
        sdpa(x, torch.randn(4, 4, 5, 8, dtype=torch.float64), x)
    with pytest.raises(ValueError, match="attn_mask"):
        sdpa(x, x, x, torch.ones(3, 3, dtype=torch.bool))
