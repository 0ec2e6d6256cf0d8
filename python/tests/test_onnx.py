"""The node cases that the onnx package generates for Attention and FlexAttention.

Expected values are ONNX's. Every case runs twice: with causal, window and lengths as keywords, and
with all of them folded into one explicit mask. Half-precision cases run once more in float32.
"""

import warnings
from functools import cache

import numpy as np
import pytest

import regard
from oracle import structural_mask

onnx = pytest.importorskip("onnx")

HALF_STEP = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
SCORE_STAGES = ("raw", "softcap", "bias")


@cache
def node_cases():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case for case in collect_testcases() if "_expanded" not in case.name]
    operators = ("Attention", "FlexAttention")
    return {case.name: case for case in found if case.model.graph.node[0].op_type in operators}


def parameters():
    for name, case in node_cases().items():
        halves = any(str(x.dtype) in HALF_STEP for x in case.data_sets[0][0])
        for form in ("keywords", "one_mask"):
            for precision in ("native", "float32") if halves else ("native",):
                yield pytest.param(name, form, precision, id=f"{name}-{form}-{precision}")


def split_heads(packed, heads):
    batch, seq, width = packed.shape
    return packed.reshape(batch, seq, heads, width // heads).transpose(0, 2, 1, 3)


def merge_heads(out):
    batch, heads, seq, dim = out.shape
    return out.transpose(0, 2, 1, 3).reshape(batch, seq, heads * dim)


def mask_keyword(mask, seq_kv):
    """ONNX lets a mask be shorter than the keys; what it does not cover is hidden."""
    missing = seq_kv - mask.shape[-1]
    if missing > 0:
        hidden = np.zeros if mask.dtype == bool else lambda s, t: np.full(s, -np.inf).astype(t)
        mask = np.concatenate([mask, hidden((*mask.shape[:-1], missing), mask.dtype)], axis=-1)
    return mask[(None,) * (4 - mask.ndim)]


def position_keywords(attributes, seq_q, past, lens):
    window = [attributes.get(f"{side}_window_size", -1) for side in ("left", "right")]
    keywords = {}
    if attributes.get("is_causal"):
        keywords["causal"] = True
    if window != [-1, -1]:
        keywords["window"] = tuple(None if side < 0 else side for side in window)
    if keywords and lens is not None:
        keywords["q_offset"] = lens - seq_q
    elif keywords and past:
        keywords["q_offset"] = past
    if lens is not None:
        keywords["kv_lens"] = lens
    return keywords


def attention_call(attributes, inputs, outputs):
    q, k, v = (inputs[name] for name in "QKV")
    if q.ndim == 3:
        q = split_heads(q, attributes["q_num_heads"])
        k, v = (split_heads(x, attributes["kv_num_heads"]) for x in (k, v))
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        k = np.concatenate([inputs["past_key"], k], axis=2)
        v = np.concatenate([inputs["past_value"], v], axis=2)
    lens = inputs.get("nonpad_kv_seqlen")
    keywords = position_keywords(attributes, q.shape[2], past, lens)
    for name in ("scale", "softcap"):
        if attributes.get(name):
            keywords[name] = float(attributes[name])
    if "attn_mask" in inputs:
        keywords["mask"] = mask_keyword(inputs["attn_mask"], k.shape[2])
    if "qk_matmul_output" in outputs:
        stage = attributes.get("qk_matmul_output_mode", 0)
        if stage < len(SCORE_STAGES):
            keywords["return_scores"] = SCORE_STAGES[stage]
        else:
            keywords["return_weights"] = True
    return q, k, v, keywords


def flex_call(attributes, inputs):
    from onnx import numpy_helper

    if "prob_mod" in attributes:
        pytest.skip("prob_mod is an arbitrary graph over the weights; regard has no such hook")
    q, k, v = (inputs[name] for name in "QKV")
    keywords = {"scale": float(attributes["scale"])} if "scale" in attributes else {}
    graph = attributes.get("score_mod")
    if graph is not None:
        added = added_by(graph, (*q.shape[:3], k.shape[2]), q.dtype)
        if added is not None:
            keywords["bias"] = added
        else:
            assert [node.op_type for node in graph.node] == ["Div", "Tanh", "Mul"], "unknown score_mod"
            keywords["softcap"] = float(numpy_helper.to_array(graph.initializer[0]))
    return q, k, v, keywords


def added_by(graph, shape, dtype):
    """What a score_mod graph adds to any scores, or None when it does more than add."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    evaluate = ReferenceEvaluator(model)
    apply = lambda scores: evaluate.run(None, {graph.input[0].name: scores})[0]
    added = apply(np.zeros(shape, dtype))
    for level in (-3.0, 0.5, 2.0):
        level_scores = np.full(shape, level, dtype)
        if not np.allclose(apply(level_scores), level_scores + added, atol=1e-6):
            return None
    return added


def fold_into_one_mask(q, k, keywords):
    """causal, window, q_offset, kv_lens and bias become one explicit mask."""
    named = {name: keywords.pop(name) for name in ("causal", "window", "q_offset", "kv_lens") if name in keywords}
    bias = keywords.pop("bias", None)
    assert bias is None or "mask" not in keywords
    mask = keywords.get("mask", bias)
    if named:
        seen = structural_mask(q.shape[0], q.shape[2], k.shape[2], **named)
        if mask is None:
            mask = seen
        elif mask.dtype == bool:
            mask = mask & seen
        else:
            mask = np.where(seen, mask, np.asarray(-np.inf, dtype=mask.dtype))
    if mask is not None:
        keywords["mask"] = mask


def test_the_cases_are_all_there():
    assert len(node_cases()) >= 104


@pytest.mark.parametrize("name, form, precision", parameters())
def test_onnx_node_case(name, form, precision):
    case = node_cases()[name]
    node = case.model.graph.node[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    given, expected = case.data_sets[0]
    inputs = dict(zip(filter(None, node.input), given))
    outputs = dict(zip(filter(None, node.output), expected))
    rtol, atol = case.rtol, case.atol
    steps = [HALF_STEP[str(x.dtype)] for x in given if str(x.dtype) in HALF_STEP]
    if steps:
        # ONNX rounds every intermediate result to half precision: four steps of slack.
        rtol = atol = 4 * max(steps)
    if precision == "float32":
        inputs = {n: x.astype(np.float32) if str(x.dtype) in HALF_STEP else x for n, x in inputs.items()}
    if node.op_type == "Attention":
        q, k, v, keywords = attention_call(attributes, inputs, outputs)
    else:
        q, k, v, keywords = flex_call(attributes, inputs)
    if form == "one_mask":
        fold_into_one_mask(q, k, keywords)
    result = regard.attention(q, k, v, **keywords)
    out, extra = result if isinstance(result, tuple) else (result, None)
    assert out.dtype == q.dtype
    wanted = outputs[node.output[0]]
    pairs = [("out", merge_heads(out) if wanted.ndim == 3 else out, wanted)]
    if "qk_matmul_output" in outputs:
        pairs.append(("qk_matmul_output", extra, outputs["qk_matmul_output"]))
    for what, got, want in pairs:
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, err_msg=what
        )
