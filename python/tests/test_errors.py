"""Every refusal is a ValueError or TypeError whose text names the operand and quotes both shapes."""

import numpy as np
import pytest

import regard

F32 = np.float32


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


def inputs():
    return dict(q=zeros(2, 4, 5, 8), k=zeros(2, 2, 7, 8), v=zeros(2, 2, 7, 6))


# (change to good arguments, exception, words that the message must contain)
REFUSED = {
    "a_range_that_fills_memory": ({"q": range(10**9)}, ValueError, ["q is a range", "give an array"]),
    "q_of_three_dimensions": (dict(q=zeros(4, 5, 8)), ValueError, ["q", "4, 5, 8"]),
    "k_of_five_dimensions": (dict(k=zeros(1, 2, 2, 7, 8)), ValueError, ["k", "1, 2, 2, 7, 8"]),
    "k_of_another_batch": (dict(k=zeros(3, 2, 7, 8)), ValueError, ["k", "3, 2, 7, 8", "2, 4, 5, 8"]),
    "k_of_another_head_dim": (dict(k=zeros(2, 2, 7, 9)), ValueError, ["k", "2, 2, 7, 9", "2, 4, 5, 8"]),
    "v_of_another_length": (dict(v=zeros(2, 2, 6, 6)), ValueError, ["v", "2, 2, 6, 6", "2, 2, 7, 8"]),
    "v_of_other_heads": (dict(v=zeros(2, 4, 7, 6)), ValueError, ["v", "2, 4, 7, 6", "2, 2, 7, 8"]),
    "heads_that_do_not_divide": (dict(k=zeros(2, 3, 7, 8), v=zeros(2, 3, 7, 6)), ValueError, ["heads", "3", "4"]),
    "no_key_heads": (dict(k=zeros(2, 0, 7, 8), v=zeros(2, 0, 7, 6)), ValueError, ["heads"]),
    "k_of_another_dtype": (dict(k=zeros(2, 2, 7, 8, dtype=np.float64)), TypeError, ["k", "float64", "float32"]),
    "v_of_another_dtype": (dict(v=zeros(2, 2, 7, 6, dtype=np.float16)), TypeError, ["v", "float16", "float32"]),
    "integer_q": (dict(q=zeros(2, 4, 5, 8, dtype=np.int32)), TypeError, ["q", "int32"]),
    "complex_k": (dict(k=zeros(2, 2, 7, 8, dtype=np.complex64)), TypeError, ["k", "complex64"]),
    "q_is_a_string": (dict(q="queries"), TypeError, ["q"]),
    "integer_mask": (dict(mask=np.ones((5, 7), np.int64)), TypeError, ["mask", "int64"]),
    "mask_of_other_keys": (dict(mask=np.ones((5, 6), bool)), ValueError, ["mask", "5, 6", "2, 4, 5, 7"]),
    "mask_of_other_batch": (dict(mask=np.ones((3, 1, 5, 7), bool)), ValueError, ["mask", "3, 1, 5, 7", "2, 4, 5, 7"]),
    "mask_of_five_dimensions": (dict(mask=np.ones((1, 1, 1, 5, 7), bool)), ValueError, ["mask", "1, 1, 1, 5, 7"]),
    "boolean_bias": (dict(bias=np.ones((5, 7), bool)), TypeError, ["bias", "bool"]),
    "bias_of_other_heads": (dict(bias=zeros(3, 5, 7)), ValueError, ["bias", "3, 5, 7", "2, 4, 5, 7"]),
    "scale_nan": (dict(scale=float("nan")), ValueError, ["scale"]),
    "softcap_nan": (dict(softcap=float("nan")), ValueError, ["softcap"]),
    "softcap_negative": (dict(softcap=-1.0), ValueError, ["softcap"]),
    "dropout_of_one": (dict(dropout_p=1.0), ValueError, ["dropout_p"]),
    "dropout_negative": (dict(dropout_p=-0.1), ValueError, ["dropout_p"]),
    "dropout_nan": (dict(dropout_p=float("nan")), ValueError, ["dropout_p"]),
    "dropout_without_seed": (dict(dropout_p=0.5), ValueError, ["seed is missing", "rng.integers"]),
    "offset_beside_bottom_right": (dict(causal="bottom_right", q_offset=1), ValueError, ["q_offset", "bottom_right", "causal=True"]),
    "softcap_of_true": (dict(softcap=True), TypeError, ["softcap", "bool"]),
    "threads_by_mistake": (dict(threads=10**9), ValueError, ["threads is 1000000000", "1024"]),
    "window_of_three": (dict(window=(1, 2, 3)), (ValueError, TypeError), ["window"]),
    "window_negative": (dict(window=(-2, 0)), ValueError, ["window"]),
    "kv_lens_beyond_the_keys": (dict(kv_lens=np.array([7, 8])), ValueError, ["kv_lens", "8", "7"]),
    "kv_lens_negative": (dict(kv_lens=np.array([-1, 7])), ValueError, ["kv_lens", "-1"]),
    "kv_lens_of_other_batch": (dict(kv_lens=np.array([7, 7, 7])), ValueError, ["kv_lens", "3", "2"]),
    "kv_lens_of_floats": (dict(kv_lens=np.array([7.0, 7.0])), TypeError, ["kv_lens"]),
    "q_offset_of_other_batch": (dict(causal=True, q_offset=np.array([0, 0, 0])), ValueError, ["q_offset", "3", "2"]),
    "q_offset_of_floats": (dict(causal=True, q_offset=np.array([0.5, 0.5])), TypeError, ["q_offset"]),
    "unknown_causal": (dict(causal="sideways"), ValueError, ["causal", "sideways", "bottom_right"]),
    "unknown_score_stage": (dict(return_scores="cooked"), ValueError, ["return_scores", "cooked", "raw"]),
    "unknown_level": (dict(level="abacus"), ValueError, ["level", "abacus", "portable"]),
    "top_k_of_none": (dict(top_k=0), ValueError, ["top_k"]),
    "sink_of_other_heads": (dict(sink=zeros(3)), ValueError, ["sink", "3", "4"]),
    "unknown_keyword": (dict(colour="red"), TypeError, ["colour"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_text_that_helps(name):
    change, error, words = REFUSED[name]
    with pytest.raises(error) as caught:
        regard.attention(**(inputs() | change))
    text = str(caught.value)
    missing = [word for word in words if word not in text]
    assert not missing, f"{text!r} does not say {missing}"


def test_the_unchanged_arguments_are_good():
    assert regard.attention(**inputs()).shape == (2, 4, 5, 6)


def test_keywords_are_not_positional():
    arrays = inputs()
    with pytest.raises(TypeError):
        regard.attention(arrays["q"], arrays["k"], arrays["v"], np.ones((5, 7), bool))


@pytest.mark.parametrize("change", ["v_of_another_length", "integer_mask", "k_of_another_dtype", "kv_lens_beyond_the_keys"])
def test_statistics_refuses_the_same(change):
    with pytest.raises(REFUSED[change][1]):
        regard.statistics(**(inputs() | REFUSED[change][0]))
