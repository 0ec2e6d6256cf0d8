"""Activations and their gradients against hooks of transformers and autograd in f64."""

import contextlib

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

SITES = ("resid_pre", "resid_mid", "resid_post", "q", "k", "v", "pattern", "z", "attn_out", "mlp_out")
seen = {}


def attention(module, query, key, value, attention_mask, scaling=None, **_):
    """Plain attention that keeps what goes in and comes out."""
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = torch.softmax(scores if attention_mask is None else scores + attention_mask, -1)
    z = weights @ value.repeat_interleave(groups, 1)
    for site, tensor in (("q", query), ("k", key), ("v", value), ("pattern", weights), ("z", z)):
        keep(f"L{module.place}.{site}", tensor)
    return z.transpose(1, 2).contiguous(), weights


AttentionInterface.register("kept", attention)
AttentionMaskInterface.register("kept", eager_mask)


def keep(name, tensor):
    tensor.retain_grad()
    seen[name] = tensor


def hooked(name, take):
    def hook(module, args, keywords, output):
        keep(name, take(args, keywords, output))

    return hook


def read(args, keywords, output):
    return args[0] if args else keywords["hidden_states"]


def made(args, keywords, output):
    return output[0] if isinstance(output, tuple) else output


def places(layer):
    """Module, activation, and whether it is read or made there."""
    if hasattr(layer, "self_attn"):
        return layer.self_attn, [
            (layer, "resid_pre", read), (layer, "resid_post", made), (layer.post_attention_layernorm, "resid_mid", read),
            (layer.self_attn, "attn_out", made), (layer.mlp, "mlp_out", made),
        ]
    return layer.attention.self, [
        (layer, "resid_pre", read), (layer, "resid_post", made), (layer.attention, "resid_mid", made),
        (layer.attention.output.dense, "attn_out", made), (layer.output.dense, "mlp_out", made),
    ]


@contextlib.contextmanager
def kept(hf, exact):
    """The model with hooks, in f64 where it is to be exact."""
    implementation, handles = hf.config._attn_implementation, []
    hf.set_attn_implementation("kept")
    if exact:
        # Models out of a GGUF refuse `double()` of their own, which is about files of 4 bits.
        torch.nn.Module.double(hf)
    for i, layer in enumerate(hf.model.layers if hasattr(hf, "model") else hf.encoder.layer):
        module, wanted = places(layer)
        module.place = i
        handles += [of.register_forward_hook(hooked(f"L{i}.{site}", take), with_kwargs=True) for of, site, take in wanted]
    hf.requires_grad_(True)
    yield
    [handle.remove() for handle in handles]
    seen.clear()
    hf.zero_grad()
    hf.requires_grad_(False)
    torch.nn.Module.float(hf)
    hf.set_attn_implementation(implementation)


def neighbours(x):
    """Queries or keys in the order of files that rotate neighbours; those of transformers are in halves."""
    return np.stack(np.split(x, 2, -1), -1).reshape(x.shape)


def passes(hf, ids, objectives, exact, rotates_neighbours):
    """Activations, and their gradients for each objective, by name."""
    def all_of(what):
        arrays = {name: what(tensor)[0].detach().numpy() for name, tensor in seen.items()}
        return {name: neighbours(x) if rotates_neighbours and name.endswith((".q", ".k")) else x for name, x in arrays.items()}

    results = {}
    with kept(hf, exact):
        for name, objective in objectives.items():
            seen.clear()
            hf.zero_grad()
            output = hf(torch.tensor([ids]))
            objective(output).backward()
            results.setdefault("", all_of(lambda x: x))
            results[name] = all_of(lambda x: x.grad)
    return results


def worst(got, exact):
    """The largest difference over the largest element of its activation; NaN is no agreement."""
    largest = 0.0
    for name, expected in exact.items():
        difference = float(np.abs(got[name] - expected).max() / np.abs(expected).max())
        largest = largest if difference <= largest else difference
    return largest


def compare(model, hf, ids, head=True):
    """Number of activations, and by name the largest relative differences from f64: Regard's, and those of transformers in f32."""
    middle, factors = len(ids) // 2, np.random.default_rng(1).standard_normal((len(ids), model.width)).astype(np.float32)
    if head:
        objectives = {
            "gradients of the loss in": lambda out: torch.nn.functional.cross_entropy(out.logits[0, :-1], torch.tensor(ids[1:])),
            "gradients of a logit difference in": lambda out: out.logits[0, middle, 5] - out.logits[0, middle, 60],
        }
        ours = dict(zip(objectives, ["loss", {"position": middle, "logit_diff": [5, 60]}]))
    else:
        objectives = {"gradients of hidden states in": lambda out: (out.last_hidden_state[0] * torch.tensor(factors).to(out.last_hidden_state)).sum()}
        ours = dict(zip(objectives, [{"hidden": factors}]))
    exact, f32 = (passes(hf, ids, objectives, f64, model.format in ("gguf", "llama2.c")) for f64 in (True, False))
    results = {"": (worst(model.run(ids, keep=SITES), exact[""]), worst(f32[""], exact[""]))}
    for name, of in ours.items():
        results[name] = worst(model.gradients(ids, of=of, wrt=SITES), exact[name]), worst(f32[name], exact[name])
    return len(exact[""]), results


def bits_that_differ(model, texts):
    """Activations of texts together that have other bits than each text alone."""
    together, count = model.run(texts, keep=SITES), 0
    for text, run in zip(texts, together, strict=True):
        alone = model.run(text, keep=SITES)
        for name in (f"L{layer}.{site}" for layer in range(model.layers) for site in SITES):
            count += not np.array_equal(run[name], alone[name])
        count += not np.array_equal(run.hidden, alone.hidden)
    return count
