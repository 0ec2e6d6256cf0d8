"""attn_implementation="regard": Hugging Face models against their own eager attention."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import regard.torch as rt  # noqa: E402
import regard.transformers as rtf  # noqa: E402
from transformers import masking_utils  # noqa: E402

rtf.register()

VOCAB, BATCH, TOKENS, PADDING = 61, 3, 17, 5
SMALL = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=None, attention_dropout=0.0,
)
PLAIN = {name: value for name, value in SMALL.items() if name not in ("num_key_value_heads", "head_dim", "attention_dropout")}


def gpt2():
    sizes = dict(vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4, n_inner=48)
    return transformers.GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=1, eos_token_id=None, pad_token_id=0)


def t5():
    sizes = dict(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0)
    return transformers.T5Config(**sizes, pad_token_id=0, eos_token_id=None, decoder_start_token_id=0)


def whisper():
    sizes = dict(vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
    sizes.update(encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=20, max_target_positions=64, dropout=0.0)
    return transformers.WhisperConfig(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=[], begin_suppress_tokens=[])


def vit():
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=16, patch_size=4)
    return transformers.ViTConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def bert():
    return transformers.BertConfig(**PLAIN, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


#: Configuration, class, and the number of attention layers.
CAUSAL = {
    "llama": (lambda: transformers.LlamaConfig(**SMALL), "LlamaForCausalLM", 4),
    "mistral": (lambda: transformers.MistralConfig(**SMALL, sliding_window=6), "MistralForCausalLM", 4),
    "gemma2": (lambda: transformers.Gemma2Config(**SMALL, sliding_window=6, attn_logit_softcapping=0.5, query_pre_attn_scalar=5), "Gemma2ForCausalLM", 4),
    "gemma3": (lambda: transformers.Gemma3TextConfig(**SMALL, sliding_window=6, layer_types=["sliding_attention", "full_attention"] * 2), "Gemma3ForCausalLM", 4),
    "qwen3": (lambda: transformers.Qwen3Config(**SMALL), "Qwen3ForCausalLM", 4),
    "gpt2": (gpt2, "GPT2LMHeadModel", 2),
    "gpt_oss": (lambda: transformers.GptOssConfig(**SMALL, sliding_window=6, num_local_experts=2, num_experts_per_tok=1), "GptOssForCausalLM", 4),
    "phi3": (lambda: transformers.Phi3Config(**{name: x for name, x in SMALL.items() if name != "head_dim"}, sliding_window=6), "Phi3ForCausalLM", 4),
}
OTHERS = {
    "bert": (bert, "BertForMaskedLM", 4),
    "t5": (t5, "T5ForConditionalGeneration", 2 + 2 * 2),
    "whisper": (whisper, "WhisperForConditionalGeneration", 2 + 2 * 2),
    "vit": (vit, "ViTForImageClassification", 2),
}
ALL = CAUSAL | OTHERS
GENERATIVE = [*CAUSAL, "t5", "whisper"]


@pytest.fixture(autouse=True)
def seeded_on_one_thread():
    # Small tensors: more threads wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    yield
    torch.set_num_threads(threads)


def models(name):
    """The model with eager attention, and the same with regard."""
    make, kind, _ = ALL[name]
    torch.manual_seed(3)
    eager = getattr(transformers, kind)._from_config(make(), attn_implementation="eager").eval()
    # Sinks and biases begin at zero, or almost: drawn anew, larger.
    with torch.no_grad():
        for parameter in eager.parameters():
            parameter.copy_(torch.randn_like(parameter) * (0.2 if parameter.dim() > 1 else 0.5))
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation("regard")
    return eager, ours


def inputs(name, padding):
    """Arguments of a model, and which outputs count: those of tokens that are no padding."""
    if name == "vit":
        return dict(pixel_values=torch.randn(BATCH, 3, 16, 16)), None
    if name == "whisper":
        return dict(input_features=torch.randn(BATCH, 8, 40), decoder_input_ids=torch.randint(3, VOCAB, (BATCH, TOKENS))), None
    ids = torch.randint(3, VOCAB, (BATCH, TOKENS))
    mask = torch.ones_like(ids)
    if padding == "left":
        mask[1, :PADDING] = 0
    elif padding == "right":
        mask[1, -PADDING:] = 0
    ids[mask == 0] = 0
    if name == "t5":
        return dict(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.randint(3, VOCAB, (BATCH, TOKENS - 4))), None
    return dict(input_ids=ids, attention_mask=mask), mask.bool()


def close(got, expected, tolerance):
    """The largest difference, relative to the largest element; NaN is no agreement."""
    difference = (got - expected).abs().max().item() / max(expected.abs().max().item(), 1e-30)
    assert difference <= tolerance, difference
    return difference


def assert_all_by_regard(model, name):
    rows = rtf.report(model)
    assert len(rows) == ALL[name][2], rows
    assert set(rows.computed_by) == {"regard"} and set(rows.why) == {""} and min(rows.calls) >= 1, rows


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", ALL)
def test_forward_and_gradients_are_those_of_eager_attention(name, padding):
    eager, ours = models(name)
    given, counts = inputs(name, padding)
    results = []
    for model in (eager, ours):
        logits = model(**given).logits
        logits = logits if counts is None else logits[counts]
        direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
        (logits * direction).sum().backward()
        results.append((logits.detach(), {n: p.grad for n, p in model.named_parameters()}))
    (expected, of_eager), (got, of_ours) = results
    forward = close(got, expected, 1e-5)
    largest = max(g.abs().max() for g in of_eager.values() if g is not None)
    for parameter, gradient in of_eager.items():
        if gradient is None:
            assert of_ours[parameter] is None, parameter
            continue
        difference = (of_ours[parameter] - gradient).abs().max().item()
        # Relative to the parameter's own gradient, unless that is rounding of zero (keys' biases).
        assert difference <= 1e-4 * max(gradient.abs().max().item(), 1e-3 * largest.item()), (parameter, difference)
    assert_all_by_regard(ours, name)
    print(f"{name} {padding}: forward {forward:.1e}")


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", GENERATIVE)
def test_generation_gives_the_same_tokens(name, padding, cache):
    eager, ours = models(name)
    given, _ = inputs(name, padding)
    given.pop("decoder_input_ids", None)
    more = {} if cache == "dynamic" else {"cache_implementation": "static"}
    expected, got = (m.generate(**given, max_new_tokens=14, do_sample=False, **more) for m in (eager, ours))
    assert torch.equal(got, expected)
    assert_all_by_regard(ours, name)


@pytest.mark.parametrize("name", ALL)
def test_output_attentions_gives_the_weights(name):
    eager, ours = models(name)
    given, counts = inputs(name, "right")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, got = (m(**given, output_attentions=True) for m in (eager, ours))
    fields = [field for field in expected if field.endswith("attentions")]
    assert fields
    for field in fields:
        for theirs, mine in zip(getattr(expected, field), getattr(got, field), strict=True):
            # Padding attends to anything in eager attention.
            rows = theirs.transpose(1, 2)[counts], mine.transpose(1, 2)[counts]
            close(rows[1], rows[0], 1e-5)
    # Differentiable, as those of eager attention are.
    name = next(n for n, p in ours.named_parameters() if p.grad is None and n.endswith(("q_proj.weight", "query.weight", "c_attn.weight", "q.weight", "qkv_proj.weight")))
    grads = []
    for output, model in ((expected, eager), (got, ours)):
        weights = [w.transpose(1, 2)[counts] if counts is not None else w for w in getattr(output, fields[0])]
        sum(w.square().sum() for w in weights).backward()
        grads.append(dict(model.named_parameters())[name].grad)
    close(grads[1], grads[0], 1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert"])
def test_a_mask_of_four_axes_is_taken(name):
    eager, ours = models(name)
    given, _ = inputs(name, "none")
    visible = torch.rand(BATCH, 1, TOKENS, TOKENS) < 0.6
    visible |= torch.eye(TOKENS, dtype=torch.bool)
    added = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    masks = (lambda x: {"full_attention": x, "sliding_attention": x}) if name in ("gemma2", "gpt_oss") else (lambda x: x)
    with torch.no_grad():
        expected = eager(**{**given, "attention_mask": masks(added)}).logits
        for mask in (added, visible):
            close(ours(**{**given, "attention_mask": masks(mask)}).logits, expected, 1e-5)


def test_packed_sequences_are_described():
    eager, ours = models("llama")
    ids = torch.randint(3, VOCAB, (1, TOKENS))
    positions = torch.cat([torch.arange(6), torch.arange(TOKENS - 6)])[None]
    with torch.no_grad():
        close(ours(ids, position_ids=positions).logits, eager(ids, position_ids=positions).logits, 1e-5)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ["causal", "window", "both_ways", "packed", "custom"])
def test_described_masks_are_those_of_transformers(kind, padded):
    custom = masking_utils.and_masks(masking_utils.causal_mask_function, lambda b, h, q, k: (q + k) % 3 != 1)
    ids = torch.arange(12).div(5, rounding_mode="floor").expand(2, 12)
    function = {
        "causal": masking_utils.causal_mask_function,
        "window": masking_utils.sliding_window_causal_mask_function(4),
        "both_ways": masking_utils.sliding_window_bidirectional_mask_function(3),
        "packed": masking_utils.and_masks(masking_utils.causal_mask_function, masking_utils.packed_sequence_mask_function(ids)),
        "custom": custom,
    }[kind]
    places = [(12, 12, 0, 0)] if kind == "packed" else [(12, 12, 0, 0), (3, 12, 9, 0), (1, 12, 7, 0), (2, 8, 10, 4)]
    for q_length, kv_length, q_offset, kv_offset in places:
        padding = torch.ones(2, kv_length + kv_offset, dtype=torch.bool)
        padding[1, 6:9] = not padded
        options = dict(batch_size=2, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=function)
        options.update(attention_mask=padding, allow_is_causal_skip=False)
        made, whole = rtf._mask(**options), masking_utils.sdpa_mask(**options)
        assert isinstance(made, rtf._DescribedMask) == (kind != "custom")
        assert made.shape == (2, 1, q_length, kv_length) and made.dtype is torch.bool
        # Whatever else touches it gets the mask.
        assert torch.equal(made & True, whole.expand(made.shape))
        if kind != "custom":
            q, k = torch.zeros(2, 1, q_length, 4), torch.zeros(2, 1, kv_length, 4)
            _, weights = rt.scaled_dot_product_attention(q, k, k, attn_mask=made.rule, q_offset=made.q_offset, return_weights=True)
            assert torch.equal(weights > 0, whole.expand(made.shape))


def test_training_mode_drops_weights_and_repeats_by_the_seed():
    config = transformers.LlamaConfig(**{**SMALL, "attention_dropout": 0.5})
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="regard").train()
    ids = torch.randint(3, VOCAB, (2, TOKENS))
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(model(ids).logits)
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_gradient_checkpointing_trains_alike():
    _, ours = models("mistral")
    given, _ = inputs("mistral", "left")
    grads = []
    for checkpointed in (False, True):
        ours.train()
        ours.zero_grad()
        ours.gradient_checkpointing_enable() if checkpointed else None
        ours(**given, labels=given["input_ids"]).loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in ours.parameters()]))
    assert torch.equal(*grads)


def test_bfloat16_models_are_computed():
    eager, ours = (m.to(torch.bfloat16) for m in models("gemma2"))
    given, counts = inputs("gemma2", "left")
    with torch.no_grad():
        close(ours(**given).logits[counts].float(), eager(**given).logits[counts].float(), 0.1)
    assert_all_by_regard(ours, "gemma2")


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_what_falls_back_says_so_once_and_agrees(name, monkeypatch):
    eager, ours = models(name)
    given, counts = inputs(name, "right")
    monkeypatch.setattr(rt, "_reason_against_call", lambda *_: "this test")
    rtf._warn_once.cache_clear()
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        close(ours(**given).logits[counts], eager(**given).logits[counts], 1e-5)
        ours(**given)
    said = [str(w.message) for w in said if "regard" in str(w.message)]
    assert len(said) == 1 and "this test" in said[0], said
    rows = rtf.report(ours)
    assert set(rows.computed_by) == {"sdpa" if name == "llama" else "eager"} and set(rows.why) == {"this test"} and set(rows.calls) == {2}


def test_the_report_tells_what_the_configuration_says_before_any_call():
    eager, ours = models("llama")
    rows = rtf.report(ours)
    assert set(rows.computed_by) == {"regard"} and set(rows.calls) == {0} and len(rows) == 4
    rows = rtf.report(eager)
    assert set(rows.computed_by) == {"eager"} and all("set_attn_implementation" in why for why in rows.why)
    assert list(rows.layer) == [f"model.layers.{i}.self_attn" for i in range(4)]


def test_use_has_the_same_report():
    eager, _ = models("llama")
    ids = torch.randint(3, VOCAB, (1, 5))
    with rt.use() as calls, torch.no_grad():
        torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 4)] * 3)
        eager(ids)
        assert set(calls.report(eager).computed_by) == {"eager"}
        eager.set_attn_implementation("sdpa")
        eager(ids)
        rows = calls.report(eager)
    assert set(rows.computed_by) == {"regard"} and set(rows.calls) == {1} and len(rows) == 4, rows
    block = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    with rt.use() as calls:
        block(torch.ones(1, 3, 8))
    rows = calls.report(block)
    assert list(rows.layer) == ["self_attn"] and list(rows.computed_by) == ["regard"], rows
