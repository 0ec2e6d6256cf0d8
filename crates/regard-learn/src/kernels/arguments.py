"""Runs an attention kernel for the judge: finds out what the function takes, calls it, answers with arrays of f64."""

import importlib
import importlib.util
import inspect
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile
import threading
import types

# What an argument means, by its usual names. The first that the function has is used.
NAMES = {
    "q": ("q", "query", "queries", "Q", "xq", "q_states", "query_states", "query_layer"),
    "k": ("k_cache", "key_cache", "k", "key", "keys", "K", "xk", "k_int8", "k_quant", "k_q", "k_i8", "key_states",
          "key_layer"),
    "v": ("v_cache", "value_cache", "v", "value", "values", "V", "xv", "value_states", "value_layer"),
    "mask": ("attn_mask", "mask", "attention_mask", "visible", "key_mask", "bool_mask"),
    "bias": ("bias", "attn_bias", "attention_bias", "position_bias", "rel_bias"),
    "causal": ("is_causal", "causal", "use_causal_mask"),
    "scale": ("scale", "softmax_scale", "sm_scale", "scaling", "qk_scale"),
    "window": ("window_size", "local_window_size", "window", "sliding_window", "sliding_window_size", "window_left", "local_window"),
    "window_right": ("window_right", "window_size_right", "right_window"),
    "softcap": ("softcap", "logits_soft_cap", "logit_softcapping", "soft_cap", "logit_cap", "logits_softcap", "attn_logit_softcapping",
                "logit_softcap", "logit_soft_cap", "attn_softcap"),
    "alibi": ("alibi_slopes", "alibi", "slopes"),
    "sinks": ("sinks", "sink", "s_aux", "attention_sinks", "sink_logits", "learnable_sink"),
    "lengths": ("key_value_seq_lengths", "cache_seqlens", "nonpad_kv_seqlen", "key_lengths", "kv_lens", "kv_lengths", "seqused_k", "seq_lens",
                "lengths", "seqlens_k", "valid_lens", "context_lens", "kv_len", "seqlens", "seq_lengths", "kv_seq_lens"),
    "offset": ("q_offset", "offset", "start_pos", "query_offset", "past_len", "position_offset", "q_start", "cache_position", "past_length",
               "kv_offset", "pos", "past_kv_len"),
    "dropout": ("dropout_p", "dropout", "p_dropout", "dropout_prob", "dropout_rate", "p"),
    "gqa": ("enable_gqa",),
    "qkv": ("qkv", "qkv_packed"),
    "block_table": ("block_table", "block_tables", "page_table", "page_tables"),
    "heads": ("num_heads", "n_heads", "n_head", "nhead", "num_attention_heads", "q_num_heads", "num_q_heads", "heads"),
    "heads_kv": ("kv_num_heads", "num_kv_heads", "num_key_value_heads", "n_kv_heads", "n_kv_head"),
    "cu_q": ("cu_seqlens_q", "cu_seq_q", "qo_indptr", "cu_seqlens", "q_indptr", "cu_q"),
    "cu_k": ("cu_seqlens_k", "cu_seq_k", "kv_indptr", "cu_seqlens_kv", "k_indptr", "cu_k"),
    "max_q": ("max_seqlen_q", "max_q", "max_seqlen"),
    "max_k": ("max_seqlen_k", "max_k", "max_seqlen_kv"),
    "k_scale": ("k_scale", "k_scales", "key_scale", "k_descale"),
    "d_out": ("d_out", "dout", "do", "grad_out", "grad_output", "dO", "g", "dy"),
    "out": ("out", "o", "output", "O"),
    "lse": ("lse", "softmax_lse", "logsumexp", "L"),
    "want_lse": ("return_lse", "return_softmax_lse", "return_attn_probs", "need_lse", "with_lse"),
    "out_a": ("out_a", "v_a", "prefix_output", "o1", "out1", "a", "acc_a", "o_a"),
    "lse_a": ("lse_a", "s_a", "prefix_lse", "lse1", "l1", "l_a"),
    "out_b": ("out_b", "v_b", "suffix_output", "o2", "out2", "b", "acc_b", "o_b"),
    "lse_b": ("lse_b", "s_b", "suffix_lse", "lse2", "l2", "l_b"),
}
FEATURES = ("mask", "bias", "causal", "scale", "softcap", "alibi", "sinks", "lengths", "offset", "dropout", "k_scale")
# Arguments for an object with settings, such as a layer of transformers.
SETTINGS = ("module", "layer", "config")
REFUSALS = (NotImplementedError, ValueError, TypeError, AssertionError, RuntimeError)
# Libraries whose limits are documented, by the module of a frame or the name of a C function.
LIBRARIES = {"onnxruntime": "onnxruntime", "openvino": "openvino", "regard": "regard", "flash_attn": "flash_attn", "xformers": "xformers"}


class Unusable(Exception):
    """A target that cannot be called."""


class Link:
    """Frames on a socket: header length, payload length, header (JSON), payload."""

    def __init__(self, link):
        self.link = link

    def take(self, count):
        parts = bytearray()
        while len(parts) < count:
            piece = self.link.recv(min(count - len(parts), 1 << 20))
            if not piece:
                raise EOFError
            parts += piece
        return bytes(parts)

    def receive(self):
        header, payload = struct.unpack("<II", self.take(8))
        return json.loads(self.take(header)), self.take(payload)

    def send(self, header, payload=b""):
        text = json.dumps(header).encode()
        self.link.sendall(struct.pack("<II", len(text), len(payload)) + text + payload)


def find(name):
    """The function of `module:function` or `file.py:function`."""
    place, colon, path = name.rpartition(":")
    if not colon or not place or not path:
        raise Unusable(f"{name} has no function; write module:function or file.py:function")
    if place.endswith(".py"):
        full = os.path.abspath(place)
        if not os.path.isfile(full):
            raise Unusable(f"there is no file {place}")
        spec = importlib.util.spec_from_file_location(os.path.basename(place)[:-3], full)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        sys.path.insert(0, os.path.dirname(full))
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    found = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise Unusable(f"{place} has no {part}")
        found = getattr(found, part)
    return found


def parameters(function):
    """Names of the parameters with their defaults; PyTorch's builtins have a text only."""
    try:
        return {name: p for name, p in inspect.signature(function).parameters.items()
                if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    except (TypeError, ValueError):
        text = (function.__doc__ or "").strip().split("\n")[0]
        inside = text[text.find("(") + 1:text.find(")")] if "(" in text else "q, k, v"
        if "scaled_dot_product_attention" in text:
            inside = "query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False"
        found = {}
        for word in inside.split(","):
            name, _, default = word.strip().partition("=")
            if name and name.isidentifier():
                value = inspect.Parameter.empty if not default else None
                found[name] = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)
        return found


def said(error, most):
    """Type and text of an exception; one whose text cannot be made or sent has its type."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    return text[:most].encode("utf-8", "replace").decode()


def value_of(text):
    """A fixed argument as JSON, or as the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class Kernel:
    """A function and the meaning of its arguments."""

    def __init__(self, function, header):
        self.function = function
        self.has = parameters(function)
        self.meant = {}
        given = header.get("arguments") or {}
        for meaning, names in NAMES.items():
            name = given.get(meaning) or next((n for n in names if n in self.has and n not in self.meant.values()), None)
            if name:
                self.meant[meaning] = name
        self.fixed = {name: value_of(text) for name, text in (header.get("fixed") or {}).items()}
        name = getattr(function, "__name__", "") or ""
        if "out_a" in self.meant and not ("lse_a" in self.meant and "lse_b" in self.meant):
            for meaning in ("out_a", "lse_a", "out_b", "lse_b"):
                self.meant.pop(meaning, None)
        self.merge = "lse_a" in self.meant and "q" not in self.meant
        if not self.merge:
            for meaning in ("out_a", "lse_a", "out_b", "lse_b"):
                self.meant.pop(meaning, None)
        self.always_causal = ("causal" in name.lower() or "offset" in self.meant) and "causal" not in self.meant
        if "window" not in self.meant:
            self.meant.pop("window_right", None)
        self.check()
        # Whether the output has the other order of heads and sequence: known after the first case that shows it.
        self.swapped = None
        # Whether arguments without a default need a value that changes nothing in place of None: known after the first call.
        self.neutral = None

    def check(self):
        if "qkv" not in self.meant and not self.merge and not all(meaning in self.meant for meaning in "qkv"):
            order = [name for name, p in self.has.items()]
            if len(order) < 3:
                raise Unusable(f"the function takes {order}; q, k and v are expected")
            for meaning, name in zip("qkv", order):
                self.meant.setdefault(meaning, name)
        known = set(self.meant.values()) | set(self.fixed) | set(SETTINGS)
        open_ = [name for name, p in self.has.items() if p.default is p.empty and name not in known]
        if open_:
            raise Unusable(f"unknown argument {open_[0]}; say what it is with --arg MEANING={open_[0]} "
                           f"(meanings: {', '.join(NAMES)}), or give its value with --set {open_[0]}=VALUE")

    def default(self, meaning):
        parameter = self.has.get(self.meant.get(meaning))
        return None if parameter is None or parameter.default is parameter.empty else parameter.default

    def needs(self, meaning):
        """Whether an argument has no default."""
        parameter = self.has.get(self.meant.get(meaning))
        return parameter is not None and parameter.default is parameter.empty

    def window_kind(self):
        """`pair` (left, right), `count` (keys with one's own), `left`."""
        name, default = self.meant.get("window"), self.default("window")
        if name is None:
            return None
        if name == "window_left":
            return "left"
        documented = self.ours() or "(left, right)" in (getattr(self.function, "__doc__", None) or "")
        if isinstance(default, (tuple, list)) or name in ("local_window_size",) or documented:
            return "pair"
        if name == "window_size" and not isinstance(default, int):
            return "pair"
        return "count"

    def features(self, framework):
        if self.merge:
            return ["merge"]
        found = [f for f in FEATURES if f in self.meant]
        if self.always_causal:
            found += ["causal", "always-causal"]
        if "cu_q" in self.meant:
            found.append("packed")
        if "mask" in self.meant and "bias" not in self.meant and self.meant["mask"] in ("attn_mask", "attention_mask"):
            found.append("bias")
        if "window" in self.meant:
            both = self.window_kind() == "pair" or "window_right" in self.meant
            found.append("window" if both else "window_left")
        if "mask" in self.meant and "bias" in self.meant:
            found.append("mask+bias")
        if "block_table" in self.meant:
            found += ["paged"] + (["always-paged"] if self.needs("block_table") else [])
        return found + ["causal+mask"]

    def style(self):
        have = set(self.has)
        if self.merge:
            return "merge of two states"
        if {"cu_seqlens_q", "cu_seqlens_k"} <= have:
            return "flash-attention, packed"
        if "cache_seqlens" in have:
            return "flash-attention with a cache"
        if {"nonpad_kv_seqlen"} & have or {"Q", "K", "V"} <= have:
            return "onnx"
        if "key_value_seq_lengths" in have or {"local_window_size", "query"} <= have:
            return "jax.nn.dot_product_attention"
        if {"softmax_scale", "causal"} <= have or {"window_size", "causal"} <= have:
            return "flash-attention"
        if "is_causal" in have or "attn_mask" in have:
            return "scaled_dot_product_attention"
        return "own"

    def ours(self):
        return (getattr(self.function, "__module__", "") or "").split(".")[0] == "regard"

    def align(self):
        style = self.style()
        if self.ours():
            return "top-left"
        if style.startswith("flash"):
            return "bottom-right"
        if style in ("onnx", "jax.nn.dot_product_attention", "scaled_dot_product_attention"):
            return "top-left"
        if "offset" in self.meant:
            return "top-left"
        return "bottom-right" if self.meant.get("causal") == "causal" or self.always_causal else "top-left"

    def layouts(self):
        style = self.style()
        if self.merge or style == "flash-attention, packed" or "cu_q" in self.meant:
            return ["shd", "bhsd"]
        if "qkv" in self.meant or self.needs("block_table"):
            return ["bshd", "bhd"]
        if self.needs("heads"):
            return ["bsf", "bhsd", "bshd"]
        if self.needs("lengths"):
            return ["bshd", "bhsd", "bhd", "hsd", "shd", "sd"]
        if style.startswith("flash") or style.startswith("jax"):
            return ["bshd", "bhsd"]
        return ["bhsd", "bshd", "hsd", "shd", "sd"]


def words_of(function):
    """Names that the code of a function uses, its inner functions included."""
    codes, found = [getattr(getattr(function, "__wrapped__", function), "__code__", None)], set()
    while codes:
        code = codes.pop()
        if code is not None:
            found |= set(code.co_names)
            codes += [one for one in code.co_consts if inspect.iscode(one)]
    return found


def frameworks(function):
    """The frameworks that the function may expect, the most likely first."""
    module = getattr(function, "__module__", "") or ""
    names = getattr(function, "__globals__", {})
    kinds = {getattr(value, "__name__", "").split(".")[0] for value in list(names.values()) if inspect.ismodule(value)}
    kinds |= {(getattr(value, "__module__", "") or "").split(".")[0] for value in list(names.values()) if callable(value)}
    found = []
    used = {getattr(names.get(word), "__name__", word).split(".")[0] for word in words_of(function)}
    libraries = ("torch", "jax", "numpy")
    # What the function itself uses says more than what its file imports.
    if any(name in used for name in libraries):
        found += [name for name in libraries if name in used]
    for name in libraries:
        if name not in found and (module.split(".")[0] == name or name in kinds):
            found.append(name)
    if "jax" in found and "torch" not in found:
        found = ["jax"] + [f for f in found if f != "jax"]
    for name in ("numpy", "torch", "jax"):
        if name not in found and (name == "numpy" or name in sys.modules or module.startswith("torch._C")):
            found.append(name)
    return found


