"""Patching, lens, attribution and ablation on SmolLM2 against TransformerLens where it is installed, else against transformers with hooks
that do the same. Both take turns in one process; times are CPU seconds.

    pip install "transformer-lens<4"     # later ones have no HookedTransformer
    python bench/microscope/patching.py MODEL.gguf [tokens]
"""

import sys
import time
from pathlib import Path

import numpy as np
import regard
import torch
import transformers

TEXT = "When Mary and John went to the store, John gave a drink to Mary. Then the two of them walked along the river and talked about the weather of the summer. "


def turns(ours, theirs, times=3):
    """The best CPU seconds of both, which take turns."""
    best = [float("inf")] * 2
    for _ in range(times):
        for i, work in enumerate((ours, theirs)):
            begin = time.process_time()
            work()
            best[i] = min(best[i], time.process_time() - begin)
    return best


class Hooked:
    """The same work by forward hooks of transformers: heads are columns of what o_proj reads. Batches of texts, as TransformerLens allows."""

    def __init__(self, hf):
        self.hf, self.layers, self.heads = hf, hf.config.num_hidden_layers, hf.config.num_attention_heads
        self.dim, self.kept, self.change, self.last = hf.config.hidden_size // hf.config.num_attention_heads, {}, None, False
        for i, layer in enumerate(hf.model.layers):
            layer.self_attn.o_proj.register_forward_pre_hook(lambda module, inputs, i=i: self.at_heads(i, inputs[0]))
            layer.register_forward_pre_hook(lambda module, inputs, i=i: self.keep(("resid", i), inputs[0]))
            layer.mlp.register_forward_hook(lambda module, inputs, output, i=i: self.keep(("mlp", i), output))

    def keep(self, name, x):
        if self.kept is not None:
            self.kept[name] = x

    def at_heads(self, i, z):
        self.keep(("z", i), z)
        if self.change is not None and self.change[0] == i:
            head, value = self.change[1:]
            z = z.clone()
            z[..., head * self.dim : (head + 1) * self.dim] = value if isinstance(value, float) else value[..., head * self.dim : (head + 1) * self.dim]
            return (z,)
        return None

    def run(self, ids, keep=False, change=None, last=False):
        self.kept, self.change = ({} if keep else None), change
        out = self.hf(torch.tensor([ids]), use_cache=False, logits_to_keep=1 if last else 0).logits[0]
        kept, self.kept, self.change = self.kept, None, None
        return out, kept

    def patch(self, clean, corrupt, pair):
        _, kept = self.run(clean, keep=True)
        margins = np.zeros((self.layers, self.heads))
        for layer in range(self.layers):
            for head in range(self.heads):
                logits, _ = self.run(corrupt, change=(layer, head, kept["z", layer]))
                margins[layer, head] = logits[-1, pair[0]] - logits[-1, pair[1]]
        return margins

    def ablate(self, ids):
        losses = np.zeros((self.layers, self.heads))
        for layer in range(self.layers):
            for head in range(self.heads):
                logits, _ = self.run(ids, change=(layer, head, 0.0))
                losses[layer, head] = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
        return losses

    def lens(self, ids):
        _, kept = self.run(ids, keep=True)
        streams = [kept["resid", layer][0] for layer in range(self.layers)]
        logits = self.hf.lm_head(self.hf.model.norm(torch.stack(streams)))
        return torch.log_softmax(logits, -1).topk(5, -1)

    def attribute(self, ids, token):
        _, kept = self.run(ids, keep=True)
        row, parts = len(ids) - 1, [kept["resid", 0][0, -1]]
        for i, layer in enumerate(self.hf.model.layers):
            z = kept["z", i][0, row].view(self.heads, self.dim)
            parts.extend(torch.einsum("hd,whd->hw", z, layer.self_attn.o_proj.weight.view(-1, self.heads, self.dim)))
            parts.append(kept["mlp", i][0, row])
        parts = torch.stack(parts)
        whole = parts.sum(0)
        scale = torch.rsqrt((whole**2).mean() + self.hf.config.rms_norm_eps)
        return (parts * scale * self.hf.model.norm.weight) @ self.hf.lm_head.weight[token]


class Lens:
    """The same in TransformerLens."""

    def __init__(self, hf):
        from transformer_lens import HookedTransformer, HookedTransformerConfig
        from transformer_lens.pretrained.weight_conversions import convert_llama_weights

        c = hf.config
        self.layers, self.heads = c.num_hidden_layers, c.num_attention_heads
        theta = getattr(c, "rope_theta", None) or c.rope_parameters["rope_theta"]
        cfg = HookedTransformerConfig(
            d_model=c.hidden_size, d_head=c.hidden_size // c.num_attention_heads, n_heads=c.num_attention_heads, n_layers=c.num_hidden_layers,
            n_key_value_heads=c.num_key_value_heads, n_ctx=512, d_vocab=c.vocab_size, d_mlp=c.intermediate_size, act_fn="silu",
            normalization_type="RMS", positional_embedding_type="rotary", rotary_dim=c.hidden_size // c.num_attention_heads, rotary_base=theta,
            rotary_adjacent_pairs=False, final_rms=True, gated_mlp=True, eps=c.rms_norm_eps, device="cpu", original_architecture="LlamaForCausalLM",
        )
        self.model = HookedTransformer(cfg, move_to_device=False)
        self.model.load_state_dict(convert_llama_weights(hf, cfg), strict=False)
        self.model.eval()

    def logits(self, ids, hooks=()):
        return self.model.run_with_hooks(torch.tensor([ids]), fwd_hooks=list(hooks))[0]

    def patch(self, clean, corrupt, pair):
        _, cache = self.model.run_with_cache(torch.tensor([clean]))
        margins = np.zeros((self.layers, self.heads))
        for layer in range(self.layers):
            name = f"blocks.{layer}.attn.hook_z"
            for head in range(self.heads):

                def put(z, hook, head=head, name=name):
                    z[:, :, head] = cache[name][:, :, head]
                    return z

                logits = self.logits(corrupt, [(name, put)])
                margins[layer, head] = logits[-1, pair[0]] - logits[-1, pair[1]]
        return margins

    def ablate(self, ids):
        losses = np.zeros((self.layers, self.heads))
        for layer in range(self.layers):
            for head in range(self.heads):

                def zero(z, hook, head=head):
                    z[:, :, head] = 0
                    return z

                logits = self.logits(ids, [(f"blocks.{layer}.attn.hook_z", zero)])
                losses[layer, head] = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]))
        return losses

    def lens(self, ids):
        _, cache = self.model.run_with_cache(torch.tensor([ids]))
        stream = cache.accumulated_resid(layer=-1, incl_mid=False, apply_ln=True)
        return torch.log_softmax(self.model.unembed(stream[:, 0]), -1).topk(5, -1)

    def attribute(self, ids, token):
        _, cache = self.model.run_with_cache(torch.tensor([ids]))
        parts = torch.cat([cache.stack_head_results(layer=-1, pos_slice=-1), cache.decompose_resid(layer=-1, pos_slice=-1, mode="mlp")])
        return cache.apply_ln_to_stack(parts, layer=-1, pos_slice=-1)[:, 0] @ self.model.W_U[:, token]


def main():
    path, count = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 32
    torch.set_grad_enabled(False)
    torch.set_num_threads(regard.get_num_threads())
    model = regard.load(path)
    hf = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    clean = (model.tokens(TEXT) * (count // 30 + 1))[:count]
    corrupt = (model.tokens(TEXT.replace("John gave a drink to Mary", "Mary gave a drink to John")) * (count // 30 + 1))[:count]
    try:
        peer, name = Lens(hf), "TransformerLens"
    except ImportError as missing:
        print(f"TransformerLens is not there ({missing}): hooks of transformers instead")
        peer, name = Hooked(hf), "transformers with hooks"
    pair = (int(model.run(clean).logits[-1].argmax()), int(model.run(corrupt).logits[-1].argsort()[-2]))

    def loop():
        model.run(clean)
        return [model.run(clean, f"L{layer}.H{head}=zero").loss for layer in range(model.layers) for head in range(model.heads)]

    theirs, ours = peer.patch(clean, corrupt, pair), model.patch(clean, corrupt, tokens=pair).margin.reshape(model.layers, model.heads)
    print(f"{count} tokens, {regard.get_num_threads()} threads, peer: {name}; margins differ by {np.abs(theirs - ours).max():.1e}")
    token = pair[0]
    works = {
        "head patching": (lambda: model.patch(clean, corrupt, tokens=pair), lambda: peer.patch(clean, corrupt, pair), 2),
        "ablation loop": (loop, lambda: peer.ablate(clean), 2),
        "logit lens": (lambda: model.lens(clean), lambda: peer.lens(clean), 5),
        "attribution": (lambda: model.attribute(clean, token=token), lambda: peer.attribute(clean, token), 5),
        "run, all logits": (lambda: model.run(clean, "L0.H0=gain:1").logits, lambda: peer.run(clean) if name[0] == "t" else peer.logits(clean), 7),
    }
    for what, (mine, other, times) in works.items():
        a, b = turns(mine, other, times)
        print(f"{what:16} {a:8.3f} s   {b:8.3f} s   {b / a:5.2f}x")


if __name__ == "__main__":
    main()
