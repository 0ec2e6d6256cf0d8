"""Small random checkpoints of every family and format, with what transformers computes of them.

    python crates/regard-model/tests/golden/make.py [decoders | pairs]

needs torch, transformers, safetensors and gguf. Every folder gets `golden.safetensors`: ids, logits or hidden states, weights of the last layer's second
head, and losses of edits. The oracle shares no code with what it judges.
"""

import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

import oracle

HERE = Path(__file__).parent
VOCAB, N = 96, 40
torch.manual_seed(17)


def spread(model):
    """Weights large enough that a mistake shows."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                p.mul_(6)
            else:
                p.add_(0.3 * torch.randn_like(p))
    return model.eval()


def ids():
    return [int(x) for x in np.random.default_rng(5).integers(3, VOCAB, N)]


def own_weights(model, tokens):
    """The weights that a model gives of itself, by layer."""
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_attentions=True)
    return {layer: weights[0] for layer, weights in enumerate(out.attentions)}


def golden(folder, model, causal, out=None, edits=True):
    tokens = ids()
    intact = oracle.edited(model, tokens, keep=True)
    tensors = {"ids": torch.tensor(tokens, dtype=torch.float32)}
    weights = dict(oracle.STATE["weights"]) or own_weights(model, tokens)
    last = max(weights)
    tensors["weights"] = weights[last][1]
    result = intact.logits[0] if hasattr(intact, "logits") else intact.last_hidden_state[0]
    tensors["logits" if hasattr(intact, "logits") else "hidden"] = result
    if causal and edits:
        losses = {
            "": oracle.loss(intact.logits, tokens),
            "scale=off": oracle.loss(oracle.edited(model, tokens, scale=1.0).logits, tokens),
            "mask=full": oracle.loss(oracle.edited(model, tokens, mask=("full",)).logits, tokens),
            "mask=window:7,0": oracle.loss(oracle.edited(model, tokens, mask=("window", 7, 0)).logits, tokens),
            "heads=hide:first": oracle.loss(oracle.edited(model, tokens, mode="hide").logits, tokens),
            "heads=uniform": oracle.loss(oracle.edited(model, tokens, mode="uniform").logits, tokens),
        }
        if out is not None:
            for head in range(4):
                cut = oracle.edited(model, tokens, zero=(out, head, out.weight.shape[1] // 4 if out.weight.shape[1] == out.in_features else 8))
                losses[f"L1.H{head}=zero"] = oracle.loss(cut.logits, tokens)
        (folder / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")
    save_file({k: v.contiguous().float() for k, v in tensors.items()}, folder / "golden.safetensors")


def folder_of(name):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def save(name, model, causal, out=None, change=None, writer=None, edits=True, bfloat16=False):
    folder = folder_of(name)
    model = spread(model)
    if bfloat16:
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.bfloat16())
    (writer or (lambda m, f: m.save_pretrained(f)))(model, folder)
    for extra in ("generation_config.json",):
        (folder / extra).unlink(missing_ok=True)
    config = folder / "config.json"
    if change:
        settings = json.loads(config.read_text())
        change(settings)
        config.write_text(json.dumps(settings, indent=1) + "\n")
    golden(folder, model, causal, out, edits)


def old(settings):
    """As transformers 4 wrote it."""
    rope = settings.pop("rope_parameters")
    settings["rope_theta"] = rope["rope_theta"]
    if rope["rope_type"] != "default":
        settings["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
    settings["torch_dtype"] = settings.pop("dtype", "float32")


SMALL = dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, attn_implementation="surgery")


# Families whose attention is not an attention function of transformers: their own weights are the golden ones.
EAGER = dict(attn_implementation="eager")


def pickle(legacy):
    def write(model, folder):
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)

    return write


def families_of_decoders(t):
    """Families that are a table of names and a list of known parts."""
    model = t.GemmaForCausalLM(t.GemmaConfig(**SMALL, num_key_value_heads=2, head_dim=8))
    save("gemma", model, True, edits=False)
    kinds = ["sliding_attention", "full_attention"]
    gemma3 = t.Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=8, sliding_window=9, query_pre_attn_scalar=12, layer_types=kinds)
    save("gemma3", t.Gemma3ForCausalLM(gemma3), True, edits=False)
    save("phi", t.PhiForCausalLM(t.PhiConfig(**SMALL, num_key_value_heads=2)), True, edits=False)
    phi3 = t.Phi3Config(**SMALL, num_key_value_heads=2, sliding_window=9, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    save("phi3", t.Phi3ForCausalLM(phi3), True, edits=False)
    for name, parallel in (("stablelm", False), ("stablelm_parallel", True)):
        config = t.StableLmConfig(**SMALL, num_key_value_heads=2, use_qkv_bias=True, use_parallel_residual=parallel)
        save(name, t.StableLmForCausalLM(config), True, edits=False)
    save("starcoder2", t.Starcoder2ForCausalLM(t.Starcoder2Config(**SMALL, num_key_value_heads=2, sliding_window=9)), True, edits=False)
    olmo2 = t.Olmo2Config(**SMALL, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    save("olmo2", t.Olmo2ForCausalLM(olmo2), True, edits=False)
    mixtral = t.MixtralConfig(**{**SMALL, "intermediate_size": 24}, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    save("mixtral", t.MixtralForCausalLM(mixtral), True, edits=False)
    named = dict(vocab_size=VOCAB, attn_implementation="surgery")
    sizes = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4)
    save("gptj", t.GPTJForCausalLM(t.GPTJConfig(**{**named, **EAGER}, **sizes)), True, edits=False)
    opt = dict(hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, max_position_embeddings=64)
    save("opt", t.OPTForCausalLM(t.OPTConfig(**named, **opt)), True, edits=False)
    save("bloom", t.BloomForCausalLM(t.BloomConfig(**{**named, **EAGER}, hidden_size=32, n_layer=2, n_head=4)), True, edits=False)
    save("mpt", t.MptForCausalLM(t.MptConfig(**{**named, **EAGER}, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)), True, edits=False)


def of_pair(name, model, source, **inputs):
    """An encoder-decoder (or, without `written`, a model of images): what transformers computes of its inputs."""
    folder, model = folder_of(name), spread(model)
    model.save_pretrained(folder)
    # What the file has: sinusoidal tables are not saved, and `spread` has changed them.
    model = type(model).from_pretrained(folder, **EAGER).eval()
    written = torch.tensor([ids()[:12]])
    arguments = inputs if source is None else {**inputs, "decoder_input_ids": written}
    with torch.no_grad():
        out = model(**arguments, output_attentions=True)
    tensors = {"logits": out.logits[0], **{name: x[0] for name, x in inputs.items()}}
    if source is None:
        tensors["weights"] = out.attentions[-1][0][1]
    else:
        parts = {"encoder": out.encoder_attentions, "decoder": out.decoder_attentions, "cross": out.cross_attentions}
        tensors |= {part: weights[-1][0][1] for part, weights in parts.items()}
        tensors |= {"written": written[0], "hidden": out.encoder_last_hidden_state[0]}
        with torch.no_grad():
            tensors["generated"] = model.generate(**inputs, max_new_tokens=12, num_beams=1, do_sample=False)[0]
    save_file({k: v.contiguous().float() for k, v in tensors.items()}, folder / "pair.safetensors")


def pairs(t):
    """Encoder-decoders and images; their settings are small."""
    eager = dict(vocab_size=VOCAB, **EAGER)
    source = torch.tensor([ids()[12:33]])
    sizes = dict(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48
    )
    t5 = dict(d_model=32, d_kv=6, d_ff=48, num_layers=2, num_heads=4, relative_attention_num_buckets=8, relative_attention_max_distance=16)
    of_pair("t5", t.T5ForConditionalGeneration(t.T5Config(**eager, **t5, decoder_start_token_id=0)), True, input_ids=source)
    gated = t.T5Config(**eager, **t5, feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0)
    of_pair("t5_gated", t.T5ForConditionalGeneration(gated), True, input_ids=source)
    bart = t.BartForConditionalGeneration(t.BartConfig(**eager, **sizes, max_position_embeddings=64, forced_bos_token_id=5))
    bart.final_logits_bias = torch.randn_like(bart.final_logits_bias)
    of_pair("bart", bart, True, input_ids=source)
    special = dict(pad_token_id=VOCAB - 1, decoder_start_token_id=VOCAB - 1, scale_embedding=True, activation_function="swish")
    of_pair("marian", t.MarianMTModel(t.MarianConfig(**eager, **sizes, max_position_embeddings=64, **special)), True, input_ids=source)
    special = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None)
    whisper = t.WhisperConfig(**eager, **sizes, num_mel_bins=8, max_source_positions=30, max_target_positions=40, **special)
    features = torch.randn(1, 8, 60)
    of_pair("whisper", t.WhisperForConditionalGeneration(whisper), True, input_features=features)
    patches = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=24, patch_size=6, num_labels=7)
    of_pair("vit", t.ViTForImageClassification(t.ViTConfig(**patches, **EAGER)), None, pixel_values=torch.randn(1, 3, 24, 24))


def families():
    t = transformers
    llama3 = {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    model = t.LlamaForCausalLM(t.LlamaConfig(**SMALL, num_key_value_heads=2, rope_parameters=llama3, tie_word_embeddings=False))
    save("llama3", model, True, model.model.layers[1].self_attn.o_proj)
    model = t.LlamaForCausalLM(t.LlamaConfig(**SMALL, num_key_value_heads=1, rope_parameters=llama3, tie_word_embeddings=True))
    save("llama_old", model, True, model.model.layers[1].self_attn.o_proj, change=old)
    model = t.MistralForCausalLM(t.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=9))
    save("mistral", model, True, edits=False, writer=lambda m, f: m.save_pretrained(f, max_shard_size="20KB"))
    model = t.Qwen2ForCausalLM(t.Qwen2Config(**SMALL, num_key_value_heads=2))
    halves = lambda m, f: m.save_pretrained(f, state_dict={k: v.bfloat16() for k, v in m.state_dict().items()})  # noqa: E731
    save("qwen2", model, True, model.model.layers[1].self_attn.o_proj, writer=halves, bfloat16=True)
    model = t.Qwen3ForCausalLM(t.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=12))
    save("qwen3", model, True)
    model = t.Gemma2ForCausalLM(t.Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=8, sliding_window=9, query_pre_attn_scalar=12))
    save("gemma2", model, True, edits=False)
    families_of_decoders(t)
    model = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_implementation="surgery"))
    save("gpt2", model, True)
    model = t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**SMALL, max_position_embeddings=64))
    save("gpt_neox", model, True, model.gpt_neox.layers[1].attention.dense)
    positions = dict(max_position_embeddings=64)
    save("bert", t.BertForMaskedLM(t.BertConfig(**SMALL, **positions)), False, writer=pickle(legacy=True))
    save("bert_only", t.BertModel(t.BertConfig(**SMALL, **positions), add_pooling_layer=False), False)
    save("roberta", t.RobertaForMaskedLM(t.RobertaConfig(**SMALL, **positions)), False)
    distil = t.DistilBertConfig(
        vocab_size=VOCAB, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=64, attn_implementation="surgery"
    )
    save("distilbert", t.DistilBertForMaskedLM(distil), False)
    small = {**SMALL, "num_hidden_layers": 3}
    save("albert", t.AlbertForMaskedLM(t.AlbertConfig(**small, embedding_size=16, **positions)), False, writer=pickle(legacy=False))


# GGUF: where the f16 numbers of a block are, so that random bytes are blocks.
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_XS": (0,), "IQ4_NL": (0,)}


def blocks(kind, shape, rng):
    kind_number = getattr(gguf.GGMLQuantizationType, kind)
    size, width = gguf.GGML_QUANT_SIZES[kind_number]
    if kind in HALVES:
        count = shape[0] * shape[1] // size
        raw = rng.integers(0, 256, (count, width), dtype=np.uint8)
        for at in HALVES[kind]:
            spread = {"Q2_K": 0.02, "Q3_K": 0.003, "Q4_K": 0.0006, "Q5_K": 0.0003, "Q6_K": 0.0001, "IQ4_XS": 0.0001, "IQ4_NL": 0.002}[kind]
            raw[:, at : at + 2] = (spread * rng.uniform(0.5, 1, count)).astype(np.float16).view(np.uint8).reshape(count, 2)
        raw = raw.reshape(shape[0], -1)
    else:
        raw = quantize(0.15 * rng.standard_normal(shape).astype(np.float32), kind_number)
    return kind_number, raw, dequantize(raw, kind_number)


def pairs_to_halves(w, heads):
    """GGUF's llama turns neighbours; transformers turns halves: the same rows in another order."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def gguf_file(name, width, kinds, heads=4, kv_heads=2, hidden=None, extras=False):
    rng, hidden = np.random.default_rng(3), hidden or width
    folder = folder_of(name)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1000.0)
    writer.add_vocab_size(VOCAB)
    dim = width // heads
    shapes = {
        "token_embd": (VOCAB, width), "blk.0.attn_q": (width, width), "blk.0.attn_k": (kv_heads * dim, width), "blk.0.attn_v": (kv_heads * dim, width),
        "blk.0.attn_output": (width, width), "blk.0.ffn_gate": (hidden, width), "blk.0.ffn_up": (hidden, width), "blk.0.ffn_down": (width, hidden),
    }
    dense = {}
    for (tensor, shape), kind in zip(shapes.items(), kinds):
        number, raw, dense[tensor] = blocks(kind, shape, rng)
        writer.add_tensor(f"{tensor}.weight", raw, raw_dtype=number)
    for tensor in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        dense[tensor] = 1 + 0.2 * rng.standard_normal(width).astype(np.float32)
        writer.add_tensor(f"{tensor}.weight", dense[tensor])
    factors = None
    if extras:
        factors = rng.uniform(1, 8, dim // 2).astype(np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=width, num_hidden_layers=1, num_attention_heads=heads, num_key_value_heads=kv_heads, intermediate_size=hidden,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 1000.0}, tie_word_embeddings=True, attn_implementation="surgery",
    )
    model = transformers.LlamaForCausalLM(config).eval()
    names = {
        "token_embd": "model.embed_tokens", "output_norm": "model.norm", "blk.0.attn_norm": "model.layers.0.input_layernorm",
        "blk.0.ffn_norm": "model.layers.0.post_attention_layernorm", "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
        "blk.0.attn_k": "model.layers.0.self_attn.k_proj", "blk.0.attn_v": "model.layers.0.self_attn.v_proj",
        "blk.0.attn_output": "model.layers.0.self_attn.o_proj", "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
        "blk.0.ffn_up": "model.layers.0.mlp.up_proj", "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
    }
    dense["blk.0.attn_q"] = pairs_to_halves(dense["blk.0.attn_q"], heads)
    dense["blk.0.attn_k"] = pairs_to_halves(dense["blk.0.attn_k"], kv_heads)
    state = {f"{names[k]}.weight": torch.tensor(np.ascontiguousarray(v)) for k, v in dense.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    if factors is not None:
        model.model.rotary_emb.inv_freq /= torch.tensor(factors)
    golden(folder, model, True, edits=False)


def llama2c(name):
    """Version 0 of llama2.c's file: seven integers, then everything in f32."""
    rng, folder = np.random.default_rng(4), folder_of(name)
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False)
    model = spread(transformers.LlamaForCausalLM(config))
    state = {k: v.numpy() for k, v in model.state_dict().items()}

    def halves_to_pairs(w, heads):
        return w.reshape(heads, 2, w.shape[0] // heads // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)

    def layers(part, heads=None):
        all_of = [state[f"model.layers.{i}.{part}.weight"] for i in range(2)]
        return [halves_to_pairs(w, heads) if heads else w for w in all_of]

    parts = [[state["model.embed_tokens.weight"]], layers("input_layernorm"), layers("self_attn.q_proj", 4), layers("self_attn.k_proj", 2)]
    parts += [layers("self_attn.v_proj"), layers("self_attn.o_proj"), layers("post_attention_layernorm"), layers("mlp.gate_proj")]
    parts += [layers("mlp.down_proj"), layers("mlp.up_proj"), [state["model.norm.weight"]], [np.zeros((2, 64, 4), np.float32)]]
    parts += [[state["lm_head.weight"]]]
    with open(folder / "model.bin", "wb") as file:
        file.write(np.array([32, 48, 2, 4, 2, -VOCAB, 64], "<i4").tobytes())
        for part in parts:
            for w in part:
                file.write(np.ascontiguousarray(w, "<f4").tobytes())
    golden(folder, model, True)


if __name__ == "__main__":
    if sys.argv[1:] == ["decoders"]:
        families_of_decoders(transformers)
        sys.exit()
    if sys.argv[1:] == ["pairs"]:
        pairs(transformers)
        sys.exit()
    families()
    pairs(transformers)
    gguf_file("gguf_k", 256, ["Q4_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "Q8_0"])
    gguf_file("gguf_small", 64, ["Q8_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "F16", "BF16", "F32"], extras=True)
    llama2c("llama2c")
    total = sum(f.stat().st_size for f in HERE.rglob("*") if f.is_file())
    print(f"{total / 1e6:.2f} MB in all")
    assert total < 4e6
