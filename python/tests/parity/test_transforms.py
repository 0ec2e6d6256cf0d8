"""regard.torch under torch.func and torch.compile, beside PyTorch's own function."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap  # noqa: E402

import regard  # noqa: E402
from regard.torch import scaled_dot_product_attention as sdpa, varlen_attention  # noqa: E402

THEIRS = F.scaled_dot_product_attention
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)
    torch._dynamo.reset()


def normal(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype)


def test_gradients_of_functions():
    q, k, v, mask = normal(2, 3, 5, 8), normal(2, 3, 6, 8), normal(2, 3, 6, 4), normal(5, 6)
    loss = lambda function: lambda *x: function(*x).square().sum()
    for argnums in (0, (0, 1, 2), (3,)):
        torch.testing.assert_close(grad(loss(sdpa), argnums)(q, k, v, mask), grad(loss(THEIRS), argnums)(q, k, v, mask))
    torch.testing.assert_close(jacrev(lambda q: sdpa(q, k, v))(q), jacrev(lambda q: THEIRS(q, k, v))(q))


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 1, 0), (2, 0, None)])
def test_mapped_over_examples(in_dims):
    def stacked(dim):
        x = normal(2, 3, 5, 8)
        return x if dim is None else torch.stack([normal(2, 3, 5, 8) for _ in range(4)], dim)

    arguments = [stacked(dim) for dim in in_dims]
    one = lambda i: [x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims)]
    mapped = vmap(lambda q, k, v: sdpa(q, k, v, is_causal=True), in_dims)(*arguments)
    for i in range(4):
        assert torch.equal(mapped[i], sdpa(*one(i), is_causal=True))


def test_gradients_per_example():
    q, k, v = (normal(4, 3, 5, 8) for _ in range(3))
    of = lambda function: vmap(grad(lambda q, k: function(q, k, v[0]).square().sum(), (0, 1)), (0, 0))(q, k)
    torch.testing.assert_close(of(sdpa), of(THEIRS))


def test_gradients_per_example_of_a_module():
    class Block(torch.nn.Module):
        def __init__(self, attend):
            super().__init__()
            self.qkv, self.attend = torch.nn.Linear(8, 24), attend

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(1, 2, 0, 3)
            return self.attend(q, k, v, is_causal=True).square().sum()

    found = []
    for attend in (sdpa, THEIRS):
        torch.manual_seed(1)
        block = Block(attend).double()
        x = normal(4, 6, 8)
        weights = dict(block.named_parameters())
        found.append(vmap(grad(lambda w, x: functional_call(block, w, (x,))), (None, 0))(weights, x))
    torch.testing.assert_close(*found)


def test_options_under_transforms():
    x, mask = normal(2, 3, 6, 8), regard.Mask.causal() | regard.Mask.first_keys(2)
    for options in (
        dict(attn_mask=mask), dict(window=(2, 1)), dict(softcap=1.5), dict(top_k=3), dict(sink=[0.1, 0.2, 0.3]), dict(alibi=True), dict(scale=False),
        dict(is_causal=True, q_offset=torch.tensor([1, 2]), kv_lens=[6, 4]), dict(dropout_p=0.4, seed=2**64 - 1), dict(scale=0.3, is_causal="bottom_right"),
    ):
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(sdpa(leaf, x, x, **options).square().sum(), leaf)
        assert torch.equal(grad(lambda q: sdpa(q, x, x, **options).square().sum())(x), expected), options


def test_dropout_draws_a_seed_per_example_only_if_asked():
    x = normal(3, 1, 2, 30, 8)[:1].expand(3, -1, -1, -1, -1)
    run = lambda x: sdpa(x, x, x, dropout_p=0.5)
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(run)(x)
    same, different = vmap(run, randomness="same")(x), vmap(run, randomness="different")(x)
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])


def test_what_has_no_derivative_says_so():
    x = normal(1, 1, 5, 8)
    loss = lambda q: sdpa(q, x, x).square().sum()
    with pytest.raises(NotImplementedError, match="regard.torch has no forward-mode derivatives"):
        jvp(loss, (x,), (x,))
    with pytest.raises(NotImplementedError, match="regard.torch has no forward-mode derivatives"):
        hessian(loss)(x)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        grad(lambda q: grad(loss)(q).sum())(x)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["plain", "mask", "window", "lengths", "grouped", "half"])
def test_compiled_as_one_graph(name, dynamic):
    dtype = torch.bfloat16 if name == "half" else torch.float32
    q, k, v = normal(2, 4, 6, 8, dtype=dtype), normal(2, 2 if name == "grouped" else 4, 7, 8, dtype=dtype), normal(2, 2 if name == "grouped" else 4, 7, 5, dtype=dtype)
    mask = normal(6, 7, dtype=dtype)
    options = {
        "plain": {}, "mask": {}, "window": dict(is_causal=True, window=(3, None), scale=True, softcap=2.0), "lengths": dict(kv_lens=torch.tensor([7, 3])),
        "grouped": dict(enable_gqa=True), "half": dict(is_causal="bottom_right"),
    }[name]
    run = lambda q, k, v, mask: sdpa(q, k, v, mask if name == "mask" else None, **options).float().square()
    results = []
    for function in (run, torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, mask)]
        out = function(*leaves)
        results.append((out, *torch.autograd.grad(out.sum(), leaves[: 4 if name == "mask" else 3])))
    for mine, right in zip(*results):
        assert torch.equal(mine, right)


def test_a_described_mask_is_compiled_and_another_one_is_another_graph():
    x = normal(1, 2, 7, 8)
    run = torch.compile(lambda x, mask: sdpa(x, x, x, mask), fullgraph=True, backend="aot_eager")
    for make in (regard.Mask.causal, lambda: regard.Mask.first_keys(2), lambda: regard.Mask.window(1, 1), regard.Mask.causal):
        assert torch.equal(run(x, make()), sdpa(x, x, x, make()))


def test_compiled_dropout_follows_the_generator():
    x = normal(1, 2, 30, 8)
    run = torch.compile(lambda x: sdpa(x, x, x, dropout_p=0.5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    first, second = run(x), run(x)
    torch.manual_seed(1)
    assert torch.equal(run(x), first) and not torch.equal(first, second)


def test_packed_sequences_compiled_and_differentiated():
    x, ends = normal(8, 2, 16), torch.tensor([0, 3, 8])
    loss = lambda x: varlen_attention(x, x, x, ends, ends, is_causal=True).square().sum()
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    assert torch.equal(grad(loss)(x), expected)
    leaf = x.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(leaf), leaf)[0], expected)


def test_the_operators_pass_pytorchs_own_checks():
    """Schema, autograd registration, shapes without data, and the graph of both passes."""
    q, k, v = (normal(1, 2, 5, 8).requires_grad_() for _ in range(3))
    arguments = (q, k, v, normal(5, 5).requires_grad_(), *([None] * 10), 0, "top_left", [2, -1], 1.5, None, 0.4, False, 0.0)
    torch.library.opcheck(torch.ops.regard.attention_forward.default, arguments)
