"""regard.torch.use(): unmodified models train through regard, and PyTorch is as it was afterwards."""

import sys
import types

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

import regard.torch as door  # noqa: E402

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
    with door.use() as calls:
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
        with door.use() as calls:
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
    with torch.no_grad(), door.use() as calls:
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
    with door.use() as calls:
        for change, wanted in zip(refused, expected):
            found = outcome(change)
            assert torch.equal(found, wanted) if isinstance(wanted, torch.Tensor) else found is wanted
    assert calls.computed == 0 and sum(calls.left.values()) == 2


def test_a_refusal_is_the_error_that_pytorchs_callers_expect():
    with door.use() as calls:
        for change in (dict(key=torch.ones(1, 1, 3, 5)), dict(value=torch.ones(1, 1, 2, 4)), dict(attn_mask=torch.ones(7, 7))):
            with pytest.raises(RuntimeError):
                attend(**change)
    assert calls.computed == 0 and not calls.left


@pytest.mark.filterwarnings("error")
def test_batched_gradients_are_those_of_one_at_a_time():
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True)
    d_outs = torch.randn(4, 2, 3, 5, 8, dtype=torch.float64)
    with door.use() as calls:
        out = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    (together,) = torch.autograd.grad(out, x, d_outs, is_grads_batched=True, retain_graph=True)
    mapped = torch.func.vmap(lambda d_out: torch.autograd.grad(out, x, d_out, retain_graph=True)[0])(d_outs)
    alone = torch.stack([torch.autograd.grad(out, x, d_out, retain_graph=True)[0] for d_out in d_outs])
    assert calls.computed == 1 and torch.equal(together, alone) and torch.equal(mapped, alone)


def test_a_vectorised_jacobian_is_that_of_pytorch():
    from torch.autograd.functional import jacobian

    q, k, v = (torch.randn(1, 2, 3, 4, dtype=torch.float64) for _ in range(3))
    attend = lambda *x: F.scaled_dot_product_attention(*x)
    with door.use() as calls:
        mine = jacobian(attend, (q, k, v), vectorize=True)
    assert calls.computed == 1
    torch.testing.assert_close(mine, jacobian(attend, (q, k, v)))


@pytest.mark.filterwarnings("ignore")
def test_a_function_is_scripted_as_ever():
    def attend(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    x = torch.randn(1, 2, 5, 8)
    with door.use():
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
    with door.use():
        assert flops() == expected
    if expected == 0:
        pytest.skip("this PyTorch counts none of attention on a CPU")


def test_bfloat16_without_ml_dtypes_is_left_to_pytorch(monkeypatch):
    x = torch.randn(1, 2, 5, 8).bfloat16()
    expected = F.scaled_dot_product_attention(x, x, x)
    monkeypatch.setattr(door, "_has_ml_dtypes", False)
    with door.use() as calls:
        assert torch.equal(F.scaled_dot_product_attention(x, x, x), expected)
    assert calls.computed == 0 and "ml_dtypes" in str(calls)


def test_transforms_are_left_to_pytorch():
    x = torch.randn(2, 1, 3, 4)
    with door.use() as calls:
        torch.func.grad(lambda x: F.scaled_dot_product_attention(x, x, x).sum())(x)
    assert calls.computed == 0 and calls.left


def test_restored_after_an_exception():
    with pytest.raises(KeyError), door.use():
        assert F.scaled_dot_product_attention is not THEIRS
        raise KeyError


def test_nested_blocks_and_one_object_twice():
    with door.use() as outer:
        attend()
        with door.use() as inner, outer:
            attend()
        assert F.scaled_dot_product_attention is not THEIRS
        attend()
    assert inner.computed == 1 and outer.computed == 4


def test_as_a_decorator():
    calls = door.use()

    @calls
    def step(x):
        return F.scaled_dot_product_attention(x, x, x)

    step(torch.ones(1, 1, 3, 4))
    step(torch.ones(1, 1, 3, 4))
    assert calls.computed == 2 and "2 calls computed by regard" in repr(calls)


def test_a_module_that_imported_the_function_by_name_is_served_too(monkeypatch):
    module = types.ModuleType("somebody")
    exec("from torch.nn.functional import scaled_dot_product_attention", module.__dict__)
    monkeypatch.setitem(sys.modules, "somebody", module)
    with door.use() as calls:
        module.scaled_dot_product_attention(*all_of(torch.ones(1, 1, 3, 4)).values())
    assert calls.computed == 1 and module.scaled_dot_product_attention is THEIRS


def test_somebody_elses_function_in_that_place_is_left_there(monkeypatch):
    monkeypatch.setattr(F, "scaled_dot_product_attention", THEIRS)
    theirs = lambda *args, **keywords: THEIRS(*args, **keywords)
    with door.use():
        F.scaled_dot_product_attention = theirs
    assert F.scaled_dot_product_attention is theirs


def test_backward_after_the_block():
    x = torch.randn(1, 1, 5, 8, requires_grad=True)
    with door.use() as calls:
        out = F.scaled_dot_product_attention(x, x, x)
    out.sum().backward()
    assert calls.computed == 1 and x.grad is not None


def test_a_decorated_generator_has_regard_while_it_runs():
    calls = door.use()

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
    assert F.scaled_dot_product_attention is door._pytorch
    running.send("sent")
    next(running)
    with pytest.raises(StopIteration) as end:
        next(running)
    assert end.value.value == "end" and calls.computed == 3
    assert F.scaled_dot_product_attention is door._pytorch


def test_a_decorated_generator_is_closed_and_thrown_into():
    seen = []

    @door.use()
    def steps():
        try:
            while True:
                try:
                    yield len(seen)
                except KeyError as error:
                    seen.append(error.args[0])
        finally:
            seen.append(F.scaled_dot_product_attention is not door._pytorch)

    running = steps()
    assert next(running) == 0
    assert running.throw(KeyError("thrown")) == 1
    running.close()
    assert seen == ["thrown", True]
    assert F.scaled_dot_product_attention is door._pytorch


def test_a_decorated_coroutine_has_regard():
    import asyncio

    calls = door.use()

    @calls
    async def step():
        x = torch.randn(1, 2, 5, 8)
        await asyncio.sleep(0)
        return F.scaled_dot_product_attention(x, x, x).shape

    assert asyncio.run(asyncio.wait_for(step(), 10)) == (1, 2, 5, 8)
    assert calls.computed == 1
