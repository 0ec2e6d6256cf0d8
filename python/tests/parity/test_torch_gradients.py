"""regard.torch.scaled_dot_product_attention beside PyTorch's: values, gradients, and what autograd expects of a function."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch.testing needs it")

import torch.nn.functional as F  # noqa: E402
from test_opinfo import DTYPES, SAMPLES, arguments, samples  # noqa: E402
from torch.autograd import forward_ad, gradcheck  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402
from torch_reference import TOLERANCE  # noqa: E402

import regard  # noqa: E402
from regard.torch import scaled_dot_product_attention as sdpa  # noqa: E402


def normal(*shape, dtype=torch.float64, grad=True):
    return torch.randn(*shape, dtype=dtype).requires_grad_(grad)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)


def leaves_of(tensors):
    return [x for x in tensors if x.requires_grad]


def unfused(tensors, keywords, dtype):
    tensors = [x.to(dtype) if x.is_floating_point() else x for x in tensors]
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(*tensors, **keywords)


def assert_same(tensors, keywords):
    """Values and gradients are PyTorch's, or no worse than its unfused ones in the same precision (thrice that for gradients)."""
    tensors = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
    dtype, leaves = tensors[0].dtype, leaves_of(tensors)
    outs = [sdpa(*tensors, **keywords), unfused(tensors, keywords, torch.float64), unfused(tensors, keywords, dtype)]
    d_out = torch.randn_like(outs[0])
    results = [(out, *torch.autograd.grad(out, leaves, d_out.to(out.dtype))) for out in outs]
    absolute, relative = TOLERANCE[dtype]
    for name, mine, exact, naive in zip(("out", "dq", "dk", "dv", "dmask"), *results):
        assert mine.shape == exact.shape and mine.dtype == dtype, name
        slack = (naive - exact).abs().max().item() if exact.numel() else 0.0
        allowed = max(absolute, (2 if name == "out" else 3) * slack)
        np.testing.assert_allclose(
            mine.detach().double().numpy(), exact.detach().numpy(), rtol=relative, atol=allowed, err_msg=name
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("operator, index", [(name, i) for name, count in SAMPLES.items() for i in range(count)])
def test_sample(operator, index, dtype):
    tensors, keywords = arguments(samples(operator, dtype)[index])
    keywords.pop("dropout_p", None)
    assert_same(tensors, keywords)


@pytest.mark.parametrize("index", range(SAMPLES["scaled_dot_product_attention"]))
def test_sample_gradcheck(index):
    tensors, keywords = arguments(samples("scaled_dot_product_attention", torch.float64)[index])
    tensors = [x.detach().requires_grad_(x.is_floating_point()) for x in tensors]
    seed = dict(seed=3) if keywords.get("dropout_p") else {}
    assert gradcheck(lambda *x: sdpa(*x, **keywords, **seed), tensors, fast_mode=True)


SHAPES = {
    "two_axes": ((5, 8), (7, 8), (7, 4), None),
    "three_axes": ((3, 5, 8), (3, 7, 8), (3, 7, 4), (5, 7)),
    "three_axes_own_mask": ((3, 5, 8), (3, 7, 8), (3, 7, 4), (3, 5, 7)),
    "five_axes": ((2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 4), (2, 2, 3, 5, 7)),
    "five_axes_broadcast": ((2, 2, 3, 5, 8), (1, 2, 3, 7, 8), (2, 1, 3, 7, 4), (2, 1, 1, 5, 7)),
    "five_axes_flat_mask": ((2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 4), (1, 7)),
    "one_key_for_all": ((2, 3, 5, 8), (1, 1, 7, 8), (1, 1, 7, 4), (2, 1, 5, 7)),
    "axes_missing": ((2, 3, 5, 8), (3, 7, 8), (2, 1, 7, 4), None),
    "one_query_head": ((2, 1, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4), None),
    "mask_of_rows": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4), (2, 1, 5, 1)),
    "mask_of_keys": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4), (2, 1, 1, 7)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_broadcast(name):
    *shapes, mask = SHAPES[name]
    assert_same([normal(*shape) for shape in (*shapes, *([mask] if mask else []))], {})


@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (3, 3), (2, 3)])
@pytest.mark.parametrize("axes", [3, 4])
def test_grouped_heads(heads, axes):
    lead = (2,) * (axes - 3)
    tensors = [normal(*lead, n, m, 8) for n, m in ((6, 5), (heads[0], 7), (heads[1], 7))]
    assert_same(tensors, dict(enable_gqa=True, is_causal=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seq", [3, 17, 67])
def test_half_precision(dtype, seq):
    x, mask, d_out = normal(2, 3, seq, 11).to(dtype), normal(seq, seq).to(dtype), torch.randn(2, 3, seq, 11).to(dtype)
    mine, wide = [], []
    for to, function, kind in ((mine, sdpa, dtype), (wide, F.scaled_dot_product_attention, torch.float64)):
        leaves = [t.detach().to(kind).requires_grad_() for t in (x, x, x, mask)]
        out = function(*leaves)
        to += [out, *torch.autograd.grad(out, leaves, d_out.to(kind))]
    ulp = torch.finfo(dtype).eps
    for name, a, b in zip(("out", "dq", "dk", "dv", "dmask"), mine, wide):
        assert a.dtype == dtype
        assert (a.double() - b).abs().max() <= 3 * ulp * b.abs().max(), name


OPTIONS = {
    "window": dict(window=(2, 1)),
    "softcap": dict(softcap=1.5),
    "top_k": dict(top_k=3),
    "bottom_right": dict(is_causal="bottom_right"),
    "offset_and_lengths": dict(is_causal=True, q_offset=torch.tensor([1, 2]), kv_lens=torch.tensor([6, 4])),
    "dropout": dict(dropout_p=0.4, seed=9),
    "slopes": dict(alibi=[0.25, 0.5, 1.0]),
    "standard_slopes": dict(alibi=True),
    "sink": dict(sink=0.5),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_our_options_pass_gradcheck(name):
    tensors = [normal(2, 3, 5, 8), normal(2, 3, 6, 8), normal(2, 3, 6, 4), normal(5, 6)]
    assert gradcheck(lambda *x: sdpa(*x, **OPTIONS[name]), tensors)


def test_our_options_mean_what_they_mean_in_numpy():
    q, k, v = (normal(2, 3, 6, 8, grad=False) for _ in range(3))
    for name, options in OPTIONS.items():
        plain = {key: x.numpy() if isinstance(x, torch.Tensor) else x for key, x in options.items() if key != "is_causal"}
        expected = regard.attention(q.numpy(), k.numpy(), v.numpy(), causal=options.get("is_causal", False), **plain)
        np.testing.assert_array_equal(sdpa(q, k, v, **options).numpy(), expected, err_msg=name)


@pytest.mark.parametrize("wanted", ["mask", "sink", "alibi", "scale", "query", "key", "value"])
def test_only_one_tensor_requires_a_gradient(wanted):
    tensors = dict(
        query=normal(1, 2, 5, 8, grad=False), key=normal(1, 2, 6, 8, grad=False), value=normal(1, 2, 6, 4, grad=False),
        attn_mask=normal(5, 6, grad=False), sink=normal(2, grad=False), alibi=torch.tensor([0.3, 0.6], dtype=torch.float64),
        scale=torch.tensor(0.4, dtype=torch.float64),
    )
    name = "attn_mask" if wanted == "mask" else wanted
    leaf = tensors[name].requires_grad_()
    assert gradcheck(lambda x: sdpa(**(tensors | {name: x})), [leaf])


def test_one_sink_and_several_have_gradients_of_their_own_shape_and_dtype():
    q = normal(1, 2, 5, 8, dtype=torch.float32)
    for sink in (torch.tensor(0.5, requires_grad=True), torch.tensor([0.5, 0.1], requires_grad=True)):
        sdpa(q, q, q, sink=sink).sum().backward()
        assert sink.grad.shape == sink.shape and sink.grad.dtype == sink.dtype and (sink.grad != 0).all()


def test_a_scale_that_is_a_tensor_keeps_its_shape_and_dtype():
    q = normal(1, 2, 5, 8, dtype=torch.float32)
    for scale in (torch.tensor(0.5, requires_grad=True), torch.tensor([0.5], requires_grad=True)):
        sdpa(q, q, q, scale=scale).square().sum().backward()
        assert scale.grad.shape == scale.shape and scale.grad.dtype == scale.dtype and (scale.grad != 0).all()


@pytest.mark.parametrize("scale, factor", [(True, None), (False, 1.0)])
def test_a_bool_as_scale_is_a_switch(scale, factor):
    q = normal(1, 2, 5, 8)
    assert torch.equal(sdpa(q, q, q, scale=scale), sdpa(q, q, q, scale=factor))
    with torch.no_grad():
        assert torch.equal(sdpa(q, q, q, scale=scale), sdpa(q, q, q, scale=factor))


def test_a_table_of_distances_gets_its_gradient():
    q, table = normal(2, 3, 9, 8, dtype=torch.float32, grad=False), normal(3, 5, dtype=torch.float32)
    bias = table[:, (torch.arange(9) - torch.arange(9)[:, None]).clamp(-2, 2) + 2]
    d_out = torch.randn(2, 3, 9, 8)
    mine = torch.autograd.grad(sdpa(q, q, q, relative=table), table, d_out)[0]
    theirs = torch.autograd.grad(F.scaled_dot_product_attention(q, q, q, bias), table, d_out)[0]
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_described_mask():
    q, k = normal(1, 2, 7, 8), normal(1, 2, 9, 8)
    mask = regard.Mask.causal() | regard.Mask.first_keys(3)
    matrix = torch.ones(7, 9, dtype=torch.bool).tril() | (torch.arange(9) < 3)
    torch.testing.assert_close(sdpa(q, k, k, mask), F.scaled_dot_product_attention(q, k, k, matrix))
    assert gradcheck(lambda q, k: sdpa(q, k, k, mask), [q, k])


CHANGED = {
    "kv_lens_tensor": lambda: dict(kv_lens=torch.tensor([4, 6])),
    "kv_lens_array": lambda: dict(kv_lens=np.array([4, 6])),
    "kv_lens_list": lambda: dict(kv_lens=[4, 6]),
    "q_offset_array": lambda: dict(is_causal=True, q_offset=np.array([1, 2])),
    "alibi_list": lambda: dict(alibi=[0.5, 0.1, 0.2]),
}


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_changed_after_the_forward_pass_changes_no_gradient(name):
    x, options = normal(2, 3, 6, 8), CHANGED[name]()
    out = sdpa(x, x, x, **options)
    for given in options.values():
        if given is not True:
            given[0] = 0
    d_out = torch.randn_like(out)
    expected = torch.autograd.grad(sdpa(x, x, x, **CHANGED[name]()), x, d_out)[0]
    assert torch.equal(torch.autograd.grad(out, x, d_out)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_half_precision_come_from_the_result_before_rounding(dtype):
    q, k, v, d_out = (torch.randn(1, 2, 40, 16).to(dtype) for _ in range(4))
    v = v + 30
    gradients = []
    for function, kind in ((sdpa, dtype), (F.scaled_dot_product_attention, torch.float64)):
        leaf = q.detach().to(kind).requires_grad_()
        out = function(leaf, k.to(kind), v.to(kind))
        gradients.append(torch.autograd.grad(out, leaf, d_out.to(kind))[0].double())
    mine, exact = gradients
    assert (mine - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()


def test_dropout_repeats_with_torch_manual_seed():
    x = normal(1, 2, 40, 8)
    run = lambda: sdpa(x, x, x, dropout_p=0.5)
    torch.manual_seed(1)
    first, second = run(), run()
    torch.manual_seed(1)
    assert torch.equal(run(), first) and torch.equal(run(), second) and not torch.equal(first, second)
    # As PyTorch's own modules expect: without dropout the generator is left alone.
    state = torch.get_rng_state()
    sdpa(x, x, x)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_keeps_the_mean():
    q, k, v = (normal(1, 1, 4, 8, grad=False) for _ in range(3))
    mean = torch.stack([sdpa(q, k, v, dropout_p=0.3) for _ in range(1000)]).mean(0)
    assert (mean - sdpa(q, k, v)).abs().max() < 0.15


def test_inference_goes_without_a_graph_and_gives_the_same_bits():
    x = normal(2, 3, 50, 16, dtype=torch.float32)
    with torch.no_grad():
        quiet = sdpa(x, x, x, is_causal=True)
    with torch.inference_mode():
        assert torch.equal(sdpa(x, x, x, is_causal=True), quiet)
    loud = sdpa(x, x, x, is_causal=True)
    assert not quiet.requires_grad and loud.requires_grad and torch.equal(loud, quiet)


def test_memory_is_shared_both_ways():
    from regard import _autograd as rt

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x = torch.randn(2, 3, 4, 5).to(dtype).transpose(1, 2)
        array = rt._array(x.requires_grad_())
        assert array.__array_interface__["data"][0] == x.data_ptr() and array.strides[0] == x.stride(0) * x.element_size()
        back = rt._tensor(array)
        assert back.data_ptr() == x.data_ptr() and back.dtype == dtype and torch.equal(back, x)


def test_views_of_a_packed_projection_and_an_expanded_gradient():
    packed = normal(2, 33, 3 * 4 * 8)
    run = lambda f: torch.autograd.grad(f(*packed.view(2, 33, 3, 4, 8).permute(2, 0, 3, 1, 4), is_causal=True).sum(), packed)[0]
    torch.testing.assert_close(run(sdpa), run(F.scaled_dot_product_attention))


def test_a_tensor_changed_in_between_is_noticed():
    x = normal(1, 1, 5, 8)
    q = x * 1.0
    out = sdpa(q, x, x)
    q.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_second_derivative_is_refused_and_not_lost():
    x = normal(1, 1, 5, 8)
    (first,) = torch.autograd.grad(sdpa(x, x, x).sum(), x, create_graph=True)
    torch.testing.assert_close(first, torch.autograd.grad(F.scaled_dot_product_attention(x, x, x).sum(), x)[0])
    with pytest.raises(RuntimeError, match="first derivatives only"):
        (first.sum() + x.sum()).backward()


def test_forward_mode_is_refused_and_not_lost():
    x = normal(1, 1, 5, 8, grad=False)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivatives"):
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        sdpa(dual, dual, dual)


def test_checkpointing_draws_the_same_dropout_again():
    from torch.utils.checkpoint import checkpoint

    x = normal(1, 2, 30, 8)
    run = lambda: sdpa(x, x, x, dropout_p=0.5).sum()
    gradients = []
    for attend in (run, lambda: checkpoint(run, use_reentrant=False)):
        torch.manual_seed(3)
        gradients.append(torch.autograd.grad(attend(), x)[0])
    assert torch.equal(*gradients)


def test_pytorchs_causal_biases():
    q, k = normal(1, 2, 3, 8), normal(1, 2, 6, 8)
    for bias in (causal_upper_left(3, 6), causal_lower_right(3, 6)):
        torch.testing.assert_close(sdpa(q, k, k, bias), F.scaled_dot_product_attention(q, k, k, bias))


def test_mixed_precision_regions_mean_what_they_mean_in_pytorch():
    x = normal(1, 2, 9, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out, theirs = sdpa(x, x, x), F.scaled_dot_product_attention(x, x, x)
    assert out.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(out, theirs, rtol=0.02, atol=0.02)
    out.sum().backward()
    assert x.grad.dtype == torch.float32


def test_threads_follow_pytorch_unless_told_otherwise():
    code = """
import torch, regard, regard.torch as rt
from regard import _operator
seen = []
real = _operator.attention
_operator.attention = lambda *a, **k: (seen.append(k["threads"]), real(*a, **k))[1]
x = torch.ones(1, 1, 2, 2)
torch.set_num_threads(1); rt.scaled_dot_product_attention(x, x, x)
torch.set_num_threads(2); rt.scaled_dot_product_attention(x, x, x)
regard.set_num_threads(3); rt.scaled_dot_product_attention(x, x, x)
assert seen == [1, 2, 3], seen
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_examples_in_the_docstrings_hold():
    import doctest

    import regard.torch

    found = doctest.testmod(regard.torch)
    assert found.attempted > 10 and found.failed == 0


def test_plain_import_leaves_pytorch_alone():
    code = "import sys, regard; assert 'torch' not in sys.modules; assert hasattr(regard, 'torch'); assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_pytorch_the_attribute_is_missing_and_says_why():
    code = """
import sys; sys.modules["torch"] = None
import regard
assert not hasattr(regard, "torch")
try: regard.torch
except AttributeError as error: assert "pip install torch" in str(error), error
"""
    subprocess.run([sys.executable, "-c", code], check=True)


REFUSED = {
    "another_device": (dict(query=torch.ones(1, 4, 5, 8, device="meta")), ValueError, ["query", "meta", "CPU"]),
    "heads_without_gqa": (dict(key=torch.ones(1, 2, 6, 8), value=torch.ones(1, 2, 6, 8)), ValueError, ["enable_gqa"]),
    "one_axis": (dict(query=torch.ones(8)), ValueError, ["query", "[8]"]),
    "mixed_dtypes": (dict(key=torch.ones(1, 4, 6, 8).double()), TypeError, ["k", "float64", "float32"]),
    "length_of_value": (dict(value=torch.ones(1, 4, 7, 8)), ValueError, ["length"]),
    "integer_mask": (dict(attn_mask=torch.ones(5, 6, dtype=torch.int64)), TypeError, ["mask", "int64"]),
    "mask_shape": (dict(attn_mask=torch.ones(5, 5)), ValueError, ["mask", "[5, 5]"]),
    "dropout": (dict(dropout_p=1.5), ValueError, ["dropout_p"]),
    "complex": ({n: torch.ones(1, 4, 5, 8, dtype=torch.complex64) for n in ("query", "key", "value")}, TypeError, ["complex64"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_text_that_helps(name):
    change, error, words = REFUSED[name]
    good = dict(query=torch.ones(1, 4, 5, 8), key=torch.ones(1, 4, 6, 8), value=torch.ones(1, 4, 6, 8))
    with pytest.raises(error) as caught:
        sdpa(**(good | change))
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{caught.value} does not say {missing}"
