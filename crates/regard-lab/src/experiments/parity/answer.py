"""Answers questions about attention: JSON on the standard input, JSON on the standard output."""
import json
import sys

import torch
import torch.nn.functional as F


def answer(question, dtype):
    q = torch.tensor(question["q"], dtype=dtype).reshape(question["shape_q"])
    k, v = (torch.tensor(question[name], dtype=dtype).reshape(question["shape_kv"]) for name in "kv")
    out = F.scaled_dot_product_attention(q, k, v, is_causal=question["causal"], scale=question["scale"])
    return out.double().flatten().tolist()


questions = json.load(sys.stdin)
cases = [{"float64": answer(q, torch.float64), "float32": answer(q, torch.float32)} for q in questions]
json.dump({"version": torch.__version__, "cases": cases}, sys.stdout)
