"""Conversion faults, planted into copies of small models: what `regard diff` says of each.

    python bench/microscope/faults.py stories15M/model.bin
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

TEXT = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball in the sky. "


def layers(*names):
    """Those weights of every layer."""
    return lambda tensors: [name for name in tensors if any(f".{part}.weight" in name for part in names)]


def each(names, change):
    def settle(config, tensors):
        for name in names(tensors):
            tensors[name] = change(tensors[name]).contiguous()

    return settle


def setting(**values):
    return lambda config, tensors: config.update(values)


def rope(**values):
    return lambda config, tensors: config["rope_parameters"].update(values)


def interleaved(x, dim=48):
    return x.reshape(-1, 2, dim // 2, x.shape[1]).transpose(1, 2).reshape(x.shape)


def swapped(a, b):
    def settle(config, tensors):
        for name in [name for name in tensors if a in name]:
            other = name.replace(a, b)
            tensors[name], tensors[other] = tensors[other], tensors[name]

    return settle


def tiled(x, heads, dim):
    """Shared heads in the order of tiles where those of groups are meant."""
    return x.reshape(heads // 2, 2, dim, -1).transpose(0, 1).reshape(x.shape)


def rounded_to_4_bits(x):
    blocks = x.reshape(-1, 32)
    scale = blocks.abs().amax(1, keepdim=True) / 7
    return (torch.round(blocks / scale.clamp(min=1e-30)) * scale).reshape(x.shape)


def without_bos(config, tensors):
    config["_bos"] = False


def in_bf16(config, tensors):
    for name in tensors:
        tensors[name] = tensors[name].bfloat16()


HEADS = layers("q_proj", "k_proj")
#: Name, model, how it is planted, and the causes that name it.
FAULTS = [
    ("rotary pairing of rows", "stories", each(HEADS, interleaved), ["rotary pairing"]),
    ("theta", "stories", rope(rope_theta=1e5), ["theta"]),
    ("eps", "stories", setting(rms_norm_eps=1e-6), ["eps"]),
    ("softcap of scores", "gemma2", setting(attn_logit_softcapping=None), ["softcap"]),
    ("scale", "stories", each(layers("q_proj"), lambda x: x * 48**0.5), ["scale"]),
    ("scale of another width", "gemma2", setting(query_pre_attn_scalar=3), ["scale"]),
    ("window", "mistral", setting(sliding_window=None), ["window"]),
    ("tied embeddings", "untied", setting(tie_word_embeddings=True), ["tied embeddings"]),
    ("norm placement", "gpt_neox", setting(use_parallel_residual=False), ["norm placement"]),
    ("norms exchanged", "stories", swapped("input_layernorm", "post_attention_layernorm"), ["exchanged tensors"]),
    ("BOS", "stories", without_bos, ["BOS"]),
    ("bf16", "stories", in_bf16, ["quantisation type"]),
    ("4 bits, stored as f32", "stories", each(layers("q_proj", "k_proj", "v_proj", "o_proj"), rounded_to_4_bits), ["quantisation type"]),
    ("heads of values permuted", "stories", each(layers("v_proj"), lambda x: x.reshape(6, 48, -1).flip(0).reshape(x.shape)), ["order of heads"]),
    ("shared heads in tiles", "llama", each(layers("k_proj", "v_proj"), lambda x: tiled(x, 4, 8)), ["order of heads"]),
    ("transposed output", "stories", each(layers("o_proj"), lambda x: x.T), ["transposed tensors"]),
    ("gate and up", "stories", swapped("gate_proj", "up_proj"), ["exchanged tensors"]),
    ("layers in the order of names", "stories", swapped("layers.1.", "layers.2."), ["exchanged tensors"]),
    ("gains less one", "stories", each(lambda all: [name for name in all if "norm" in name], lambda x: x - 1), ["gains of norms less one"]),
    ("activation", "stories", setting(hidden_act="gelu"), ["activation"]),
]


def saved(folder, config, tensors):
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False))
    if config.pop("_bos", True):
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))


def small(kind, **more):
    """A small random model of a family."""
    sizes = dict(vocab_size=400, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=8, max_position_embeddings=128)
    if kind != "GPTNeoX":
        sizes.update(num_key_value_heads=4, head_dim=8)
    torch.manual_seed(4)
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (parameter.dim() == 1))
    return model


def written(model, folder):
    """The model's settings and tensors."""
    model.save_pretrained(folder)
    return json.loads((folder / "config.json").read_text()), load_file(str(folder / "model.safetensors"))


def plant(hf, folder):
    """Of each fault, and of each model beside itself: its name, and what `regard diff` says of it."""
    originals = {"stories": written(hf, folder / "hf")}
    config, tensors = originals["stories"]
    originals["untied"] = ({**config, "tie_word_embeddings": False}, {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].flip(0).contiguous()})
    gemma2 = small("Gemma2", attn_logit_softcapping=2.0, query_pre_attn_scalar=8, sliding_window=9)
    for name, model in (("gemma2", gemma2), ("llama", small("Llama")), ("mistral", small("Mistral", sliding_window=9)), ("gpt_neox", small("GPTNeoX"))):
        originals[name] = written(model, folder / f"hf_{name}")
    for name, (config, tensors) in originals.items():
        saved(folder / name, dict(config), tensors)
        yield f"nothing, {name}", difference(folder / name, folder / name, folder), []
    for number, (what, model, fault, causes) in enumerate(FAULTS):
        config, tensors = originals[model]
        config, tensors = json.loads(json.dumps(config)), {name: x.clone() for name, x in tensors.items()}
        fault(config, tensors)
        saved(folder / str(number), config, tensors)
        yield what, difference(folder / model, folder / str(number), folder), causes


def difference(a, b, folder):
    """The first part that differs, the most likely cause and what it leaves; None where nothing does. Any difference at all counts."""
    command = ["-m", "regard", "diff", a, b, "--text", TEXT, "--text", TEXT[20:], "--json", "--out", folder / f"{b.name}_out"]
    out = subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True, text=True).stdout
    parts, heads, causes = (table["rows"] for table in json.loads(out))
    first = next((row for row in parts if row["differs"]), None)
    cause = causes[0] if causes else None
    if first is None and cause is None and not any(row["relative"] for row in parts) and not any(row["pattern"] for row in heads):
        return None
    return first and f"L{first['layer']}.{first['part']}", cause and cause["cause"], cause and cause["what"], cause and cause["left"]


def judged(hf):
    """Faults, those that are not found, those without their cause, and identical files that differ."""
    missed, unnamed, differ = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for what, found, causes in plant(hf, Path(folder)):
            print(f"  {what}: {found or 'no difference'}", flush=True)
            if not causes:
                differ += [what] if found else []
            elif found is None:
                missed.append(what)
            elif found[1] not in causes:
                unnamed.append(what)
    return len(FAULTS), missed, unnamed, differ


if __name__ == "__main__":
    from compare import stories_of

    print(judged(stories_of(Path(sys.argv[1]))))
