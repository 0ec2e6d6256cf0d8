"""regard.torch.use(): unmodified models train through regard, and PyTorch is as it was afterwards."""

import sys
import types
import warnings

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import regard.torch as rt  # noqa: E402

THEIRS = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def pytorch_is_as_it_was():
    torch.manual_seed(5)
    yield
    assert F.scaled_dot_product_attention is THEIRS and torch._C._nn.scaled_dot_product_attention is THEIRS
    assert torch.backends.mha.get_fastpath_enabled()


def trained(model, inputs, loss, steps=3):
    """Losses and final weights of a few steps from the state that the model has now."""
    state = {name: x.clone() for name, x in model.state_dict().items()}
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(model(*inputs))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    weights = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    model.load_state_dict(state)
    return torch.tensor(losses), weights


def assert_trains_alike(model, inputs, loss, calls_per_step):
    expected = trained(model, inputs, loss)
    with rt.use() as calls:
        got = trained(model, inputs, loss)
    assert calls.computed == 3 * calls_per_step and not calls.left, calls
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


class WithoutWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 4, batch_first=True)

    def forward(self, x, mask):
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_multihead_attention_trains(kind):
    mask = {"none": None, "bool": torch.rand(7, 7) < 0.3, "float": torch.randn(7, 7)}[kind]
    assert_trains_alike(WithoutWeights(), (torch.randn(2, 7, 24), mask), lambda y: y.square().mean(), 1)


def test_transformer_encoder_and_decoder_train():
    model = nn.Transformer(24, 4, 2, 2, 48, dropout=0.0, batch_first=True)
    assert_trains_alike(model, (torch.randn(2, 9, 24), torch.randn(2, 6, 24)), lambda y: y.square().mean(), 2 + 2 * 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def test_a_module_that_calls_the_function_trains():
    assert_trains_alike(nn.Sequential(Block(), Block()), (torch.randn(2, 11, 16),), lambda y: y.square().mean(), 2)


@pytest.mark.parametrize("padded", [False, True])
def test_a_hugging_face_model_trains(padded):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="sdpa",
    )
    model, ids = transformers.LlamaForCausalLM(config), torch.randint(50, (2, 20))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, :6] = 0

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(ids, attention_mask=mask, labels=ids).loss

    assert_trains_alike(Loss(), (ids, mask), lambda loss: loss, 2)


@pytest.mark.parametrize("grad", [False, True])
def test_inference_of_multihead_attention_leaves_its_fast_path(grad):
    layer = nn.TransformerEncoderLayer(24, 4, 48, batch_first=True).eval()
    x, padding = torch.randn(2, 7, 24), torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    with torch.set_grad_enabled(grad):
        expected = layer(x, src_key_padding_mask=padding)
        with rt.use() as calls:
            got = layer(x, src_key_padding_mask=padding)
    assert calls.computed == 1
    torch.testing.assert_close(got[~padding], expected[~padding], rtol=1e-4, atol=1e-5)


def attend(**change):
    arguments = dict(query=torch.ones(1, 1, 3, 4), key=torch.ones(1, 1, 3, 4), value=torch.ones(1, 1, 3, 4)) | change
    return F.scaled_dot_product_attention(**arguments)


def all_of(x):
    return dict(query=x, key=x, value=x)


LEFT = {
    "another_device": lambda: all_of(torch.ones(1, 1, 3, 4, device="meta")),
    "nested": lambda: all_of(torch.nested.nested_tensor([torch.ones(2, 3, 4)] * 2)),
    "subclass": lambda: all_of(torch.ones(1, 1, 3, 4).as_subclass(type("Mine", (torch.Tensor,), {}))),
    "drop_all": lambda: dict(dropout_p=1.0),
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.filterwarnings("ignore")
def test_what_regard_does_not_do_is_left_to_pytorch(name):
    with torch.no_grad(), rt.use() as calls:
        out = attend(**LEFT[name]())
    assert out is not None and calls.computed == 0 and sum(calls.left.values()) >= 1, calls


def outcome(change):
    """What it gives, or the kind of its error: a mask beside is_causal is one since PyTorch 2.6."""
    try:
        return attend(**change)
    except (RuntimeError, NotImplementedError) as error:
        return type(error)


def test_what_is_an_error_in_pytorch_stays_one():
    refused = [dict(attn_mask=torch.ones(3, 3), is_causal=True), all_of(torch.ones(1, 1, 3, 4, dtype=torch.complex64))]
    expected = [outcome(change) for change in refused]
    assert isinstance(expected[1], type)
    with rt.use() as calls:
        for change, wanted in zip(refused, expected):
            found = outcome(change)
            assert torch.equal(found, wanted) if isinstance(wanted, torch.Tensor) else found is wanted
    assert calls.computed == 0 and sum(calls.left.values()) == 2


def test_a_refusal_is_the_error_that_pytorchs_callers_expect():
    with rt.use() as calls:
        for change in (dict(key=torch.ones(1, 1, 3, 5)), dict(value=torch.ones(1, 1, 2, 4)), dict(attn_mask=torch.ones(7, 7))):
            with pytest.raises(RuntimeError):
                attend(**change)
    assert calls.computed == 0 and not calls.left


@pytest.mark.filterwarnings("error")
def test_batched_gradients_are_those_of_one_at_a_time():
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
    d_outs = torch.randn(4, 2, 3, 5, 8, dtype=torch.float64)
    with rt.use() as calls:
        out = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    (together,) = torch.autograd.grad(out, x, d_outs, is_grads_batched=True, retain_graph=True)
    mapped = torch.func.vmap(lambda d_out: torch.autograd.grad(out, x, d_out, retain_graph=True)[0])(d_outs)
    alone = torch.stack([torch.autograd.grad(out, x, d_out, retain_graph=True)[0] for d_out in d_outs])
    assert calls.computed == 1 and torch.equal(together, alone) and torch.equal(mapped, alone)


def test_a_vectorised_jacobian_is_that_of_pytorch():
    from torch.autograd.functional import jacobian

    q, k, v = (torch.randn(1, 2, 3, 4, dtype=torch.float64) for _ in range(3))
    attend = lambda *x: F.scaled_dot_product_attention(*x)
    with rt.use() as calls:
        mine = jacobian(attend, (q, k, v), vectorize=True)
    assert calls.computed == 1
    torch.testing.assert_close(mine, jacobian(attend, (q, k, v)))


@pytest.mark.filterwarnings("ignore")
def test_a_function_is_scripted_as_ever():
    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = torch.randn(1, 2, 5, 8)
    with rt.use():
        scripted = torch.jit.script(attend)
        inside = scripted(x)
    torch.testing.assert_close(inside, attend(x))
    assert "aten::scaled_dot_product_attention" in str(scripted.graph)


def test_flops_are_counted_as_ever():
    from torch.utils.flop_counter import FlopCounterMode

    def flops():
        with FlopCounterMode(display=False) as counter:
            attend()
        return counter.get_total_flops()

    expected = flops()
    with rt.use():
        assert flops() == expected
    if expected == 0:
        pytest.skip("this PyTorch counts none of attention on a CPU")


def test_bfloat16_without_ml_dtypes_is_left_to_pytorch(monkeypatch):
    x = torch.randn(1, 2, 5, 8).bfloat16()
    expected = F.scaled_dot_product_attention(x, x, x)
    monkeypatch.setattr(rt, "_has_ml_dtypes", False)
    with rt.use() as calls:
        assert torch.equal(F.scaled_dot_product_attention(x, x, x), expected)
    assert calls.computed == 0 and "ml_dtypes" in str(calls)


def test_transforms_are_left_to_pytorch():
    x = torch.randn(2, 1, 3, 4)
    with rt.use() as calls:
        torch.func.grad(lambda x: F.scaled_dot_product_attention(x, x, x).sum())(x)
    assert calls.computed == 0 and calls.left


def test_restored_after_an_exception():
    with pytest.raises(KeyError), rt.use():
        assert F.scaled_dot_product_attention is not THEIRS
        raise KeyError


def test_nested_blocks_and_one_object_twice():
    with rt.use() as outer:
        attend()
        with rt.use() as inner, outer:
            attend()
        assert F.scaled_dot_product_attention is not THEIRS
        attend()
    assert inner.computed == 1 and outer.computed == 4


def test_as_a_decorator():
    calls = rt.use()

    @calls
    def step(x):
        return F.scaled_dot_product_attention(x, x, x)

    step(torch.ones(1, 1, 3, 4))
    step(torch.ones(1, 1, 3, 4))
    assert calls.computed == 2 and "2 calls computed by regard" in repr(calls)


def test_a_module_that_imported_the_function_by_name_is_replaced_too(monkeypatch):
    module = types.ModuleType("other_module")
    exec("from torch.nn.functional import scaled_dot_product_attention", module.__dict__)
    monkeypatch.setitem(sys.modules, "other_module", module)
    with rt.use() as calls:
        module.scaled_dot_product_attention(*all_of(torch.ones(1, 1, 3, 4)).values())
    assert calls.computed == 1 and module.scaled_dot_product_attention is THEIRS


def test_a_function_that_other_code_put_there_is_kept(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", THEIRS)
    theirs = lambda *args, **keywords: THEIRS(*args, **keywords)
    with rt.use():
        F.scaled_dot_product_attention = theirs
    assert F.scaled_dot_product_attention is theirs


def test_backward_after_the_block():
    x = torch.randn(1, 1, 5, 8, requires_grad=True)
    with rt.use() as calls:
        out = F.scaled_dot_product_attention(x, x, x)
    out.sum().backward()
    assert calls.computed == 1 and x.grad is not None


def test_a_decorated_generator_has_regard_while_it_runs():
    calls = rt.use()

    @calls
    def steps(n):
        """Steps."""
        for _ in range(n):
            x = torch.randn(1, 2, 5, 8)
            got = yield F.scaled_dot_product_attention(x, x, x)
            assert got is None or got == "sent"
        return "end"

    running = steps(3)
    assert steps.__doc__ == "Steps."
    next(running)
    assert calls.computed == 1
    # Between its steps PyTorch is as it was.
    assert F.scaled_dot_product_attention is rt._pytorch
    running.send("sent")
    next(running)
    with pytest.raises(StopIteration) as end:
        next(running)
    assert end.value.value == "end" and calls.computed == 3
    assert F.scaled_dot_product_attention is rt._pytorch


def test_a_decorated_generator_is_closed_and_thrown_into():
    seen = []

    @rt.use()
    def steps():
        try:
            while True:
                try:
                    yield len(seen)
                except KeyError as error:
                    seen.append(error.args[0])
        finally:
            seen.append(F.scaled_dot_product_attention is not rt._pytorch)

    running = steps()
    assert next(running) == 0
    assert running.throw(KeyError("thrown")) == 1
    running.close()
    assert seen == ["thrown", True]
    assert F.scaled_dot_product_attention is rt._pytorch


def test_a_decorated_coroutine_has_regard():
    import asyncio

    calls = rt.use()

    @calls
    async def step():
        x = torch.randn(1, 2, 5, 8)
        await asyncio.sleep(0)
        return F.scaled_dot_product_attention(x, x, x).shape

    assert asyncio.run(asyncio.wait_for(step(), 10)) == (1, 2, 5, 8)
    assert calls.computed == 1


def test_a_list_of_kernels_without_the_fused_one_is_pytorchs_to_compute():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    x = torch.randn(1, 1, 5, 8, dtype=torch.float64, requires_grad=True)
    with rt.use() as calls:
        attend()
        with sdpa_kernel(SDPBackend.MATH):
            (first,) = torch.autograd.grad(F.scaled_dot_product_attention(x, x, x).square().sum(), x, create_graph=True)
            # The second derivative that regard does not have, as its error says.
            first.sum().backward()
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            attend()
    assert calls.computed == 2 and list(calls.left) == ["torch.nn.attention.sdpa_kernel without FLASH_ATTENTION"]
    assert x.grad is not None


def test_a_bool_as_scale_means_what_it_means_in_pytorch():
    x = torch.randn(1, 2, 5, 8, dtype=torch.float64)
    for scale in (True, False):
        expected = F.scaled_dot_product_attention(x, x, x, scale=scale)
        with rt.use() as calls:
            torch.testing.assert_close(F.scaled_dot_product_attention(x, x, x, scale=scale), expected)
        assert calls.computed == 1


def test_mixed_precision_casts_before_the_choice():
    q, k = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8).bfloat16()
    for arguments in (dict(query=q, key=k, value=k), dict(query=k, key=q, value=k), dict(query=q, key=q, value=q, attn_mask=torch.randn(9, 9).bfloat16())):
        with torch.autocast("cpu", torch.bfloat16):
            expected = F.scaled_dot_product_attention(**arguments)
            with rt.use() as calls:
                found = F.scaled_dot_product_attention(**arguments)
        assert calls.computed == 1 and found.dtype == expected.dtype == torch.bfloat16
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_a_block_that_computes_nothing_warns_once():
    with pytest.warns(UserWarning, match="computed no call: torch.nn.functional.scaled_dot_product_attention was not called") as said:
        with rt.use() as calls:
            pass
        with calls:
            pass
    assert len(said) == 1
    with pytest.warns(UserWarning, match="computed no call: a tensor on meta: 2 left to PyTorch"), rt.use():
        attend(**LEFT["another_device"]())
        attend(**LEFT["another_device"]())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with rt.use():
            attend()
        with pytest.raises(KeyError), rt.use():
            raise KeyError

        @rt.use()
        def steps():
            yield 1
            yield attend()

        assert len(list(steps())) == 2
