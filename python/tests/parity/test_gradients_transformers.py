"""Gradients of activations against autograd of transformers in f64, on random models of several families."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import regard  # noqa: E402

SIZES = dict(vocab_size=97, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=8)


def saved(folder, model):
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (parameter.dim() == 1))
    model.save_pretrained(folder)
    return model.eval().double()


def families():
    eager = dict(attn_implementation="eager", max_position_embeddings=128)
    yield "llama", lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **eager))
    yield "qwen3", lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, **eager))
    yield "gemma2", lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SIZES, **eager, sliding_window=9, query_pre_attn_scalar=12))
    neox = {k: v for k, v in SIZES.items() if k not in ("num_key_value_heads", "head_dim")}
    yield "gpt_neox", lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**neox, **eager))


def layers_of(model):
    return model.gpt_neox.layers if hasattr(model, "gpt_neox") else model.model.layers


@pytest.mark.parametrize("name, make", list(families()), ids=[name for name, _ in families()])
def test_gradients_are_those_of_autograd(name, make, tmp_path):
    theirs = saved(tmp_path, make())
    ours = regard.load(tmp_path)
    ids = torch.randint(97, (1, 23), generator=torch.Generator().manual_seed(2))
    seen = {}

    def keep(key, take):
        def hook(module, args, keywords, output):
            tensor = take(args, keywords, output)
            tensor.retain_grad()
            seen[key] = tensor

        return hook

    given = lambda args, keywords, output: args[0] if args else keywords["hidden_states"]
    result = lambda args, keywords, output: output[0] if isinstance(output, tuple) else output
    for i, layer in enumerate(layers_of(theirs)):
        attention = layer.attention if hasattr(layer, "attention") else layer.self_attn
        wanted = [(layer, "resid_pre", given), (attention.dense if name == "gpt_neox" else attention.o_proj, "z", given)]
        if name == "gemma2":
            wanted += [(layer.post_attention_layernorm, "attn_out", result), (layer.post_feedforward_layernorm, "mlp_out", result)]
        else:
            wanted += [(attention, "attn_out", result), (layer.mlp, "mlp_out", result)]
        wanted += [(attention, "pattern", lambda args, keywords, output: output[1])]
        if name in ("llama", "gemma2"):
            wanted += [(attention.v_proj, "v", result)]
        for module, site, take in wanted:
            module.register_forward_hook(keep(f"L{i}.{site}", take), with_kwargs=True)
    for of in ("loss", {"position": 17, "logit_diff": [5, 60]}):
        seen.clear()
        theirs.zero_grad()
        logits = theirs(ids, output_attentions=True).logits[0]
        if of == "loss":
            value = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:])
        else:
            value = logits[17, 5] - logits[17, 60]
        value.backward()
        sites = sorted({key.split(".")[1] for key in seen})
        got = ours.gradients(ids[0].tolist(), of=of, wrt=sites)
        assert abs(got.value - value.item()) <= 1e-4 * max(1, abs(value.item()))
        for key, tensor in seen.items():
            expected = tensor.grad[0].numpy()
            if key.endswith((".z", ".v")):
                expected = expected.reshape(len(expected), -1, 8).swapaxes(0, 1)
            difference = np.abs(got[key] - expected).max() / np.abs(expected).max()
            assert difference <= 1e-4, (name, of, key, difference)
