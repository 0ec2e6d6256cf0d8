"""Activations of a checkpoint on disk against hooks of transformers on the same checkpoint, and instruments on torch tensors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import regard  # noqa: E402


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(4)
    sizes = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2)
    config = transformers.LlamaConfig(**sizes, max_position_embeddings=128, attn_implementation="eager")
    theirs = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (parameter.dim() == 1))
    theirs.save_pretrained(folder)
    return theirs.double(), regard.load(folder)


def test_activations_are_those_of_transformers_hooks(both):
    theirs, ours = both
    ids = torch.randint(97, (1, 23), generator=torch.Generator().manual_seed(2))
    seen = {}

    def note(name, take):
        return lambda module, args, keywords, output: seen.__setitem__(name, take(args, keywords, output).detach()[0].numpy())

    first = lambda args, keywords, output: output[0] if isinstance(output, tuple) else output
    for i, layer in enumerate(theirs.model.layers):
        given = lambda args, keywords, output: args[0] if args else keywords["hidden_states"]
        hooks = [
            (layer, "resid_pre", given), (layer, "resid_post", first), (layer.self_attn, "attn_out", first),
            (layer.mlp, "mlp_out", first), (layer.post_attention_layernorm, "resid_mid", given), (layer.self_attn.o_proj, "z", given),
            (layer.self_attn.v_proj, "v", first), (layer.self_attn, "pattern", lambda args, keywords, output: output[1]),
        ]
        for module, name, take in hooks:
            module.register_forward_hook(note(f"L{i}.{name}", take), with_kwargs=True)
    with torch.no_grad():
        logits = theirs(ids).logits[0].numpy()
    run = ours.run(ids[0].tolist(), keep=["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out"])
    worst = 0.0
    for name, expected in {**seen, "logits": logits}.items():
        if name.endswith((".z", ".v")):
            expected = expected.reshape(len(expected), -1, 8).swapaxes(0, 1)
        difference = np.abs(run[name] - expected).max() / np.abs(expected).max()
        assert difference <= 1e-4, (name, difference)
        worst = max(worst, difference)
    assert len(seen) == 3 * 8
    print(f"largest relative difference {worst:.1e}")


def test_weights_are_those_of_the_checkpoint(both):
    theirs, ours = both
    attention = theirs.model.layers[1].self_attn
    for name, linear in (("W_Q", attention.q_proj), ("W_K", attention.k_proj), ("W_V", attention.v_proj)):
        expected = linear.weight.detach().numpy().reshape(-1, 8, 48).swapaxes(1, 2)
        assert np.array_equal(ours.weights(f"L1.{name}"), expected.astype(np.float32))
    expected = attention.o_proj.weight.detach().numpy().T.reshape(6, 8, 48)
    assert np.array_equal(ours.weights("L1.W_O"), expected.astype(np.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_instruments_take_tensors(dtype):
    q, k = (torch.randn(1, 2, 7, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    array = lambda x: regard._autograd._array(x)
    for run in (regard.weights, regard.statistics, regard.heat_map, regard.head_similarity, regard.column_sums):
        got, expected = run(q, k, causal=True), run(array(q), array(k), causal=True)
        for a, b in zip(*([x] if isinstance(x, np.ndarray) else list(vars(x).values()) for x in (got, expected))):
            if isinstance(a, np.ndarray):
                assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    with pytest.raises(ValueError, match="gradient"):
        regard.attention(q, k, k)
    with pytest.raises(ValueError, match="meta"):
        regard.weights(q.to("meta"), k)
