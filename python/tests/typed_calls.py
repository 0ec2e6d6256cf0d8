"""Calls as a user with a strict type checker writes them: test_typing.py runs them, and pyright over them."""

import numpy as np

import regard
from regard import Mask

x = np.ones((1, 2, 5, 8), np.float32)
tokens = np.ones((5, 2, 8), np.float32)

out = regard.attention(x, x, x, window=[3, 0], scale=np.float32(0.5), top_k=np.int64(3), causal=np.True_)
_, weights = regard.attention(x, x, x, return_weights=True)
_, scores, lse = regard.attention(x, x, x, return_scores="raw", return_lse=True)
gradients = regard.attention_vjp(x, x, x, x, mask=Mask.causal() & ~Mask.window(1, None), mask_gradient=False)
states = regard.row_states(x, x)
part = regard.weights(x, x, states=states, region=((0, 3), slice(1, 2)))
picture = regard.heat_map(x, x, rows=3, region=[[0, 3], [0, 2]])
packed = regard.attention_varlen(tokens, tokens, tokens, [0, 5], np.array([0, 5]))
_, packed_lse = regard.attention_varlen(tokens, tokens, tokens, [0, 5], [0, 5], return_lse=True)
regard.set_num_threads(None)
drawn = regard.plot_attention(weights, ["a", "b", "c", "d", "e"])
lines = regard.plot.plot_head_view(weights, heads=[0, 1], queries=2)
found = regard.analyze(weights)
swept = regard.lab.sweep(d_k=[4, 64])
run = regard.load().run("the cat")
read: list[str] = run.tokens
steered = regard.load().run("the cat", "L1.resid=add:v*2", vectors={"v": np.ones(64)}, texts={"x": run, "y": {"L1.z": run.z(1)}})
patched = regard.load().patch([1, 2, 3], [1, 2, 4], "resid_pre", tokens=[5, "a"])
screened = regard.load().screen(["the cat"], of={"logit_diff": ["a", 5]})

SHAPES = [
    (out.shape, (1, 2, 5, 8)),
    (weights.shape, (1, 2, 5, 5)),
    (scores.shape, (1, 2, 5, 5)),
    (lse.shape, (1, 2, 5)),
    (gradients.dq.shape, (1, 2, 5, 8)),
    (part.shape, (1, 2, 3, 1)),
    (picture.mean.shape, (1, 2, 3, 2)),
    (packed.shape, (5, 2, 8)),
    (packed_lse.shape, (2, 5)),
    (drawn.svg()[:4], "<svg"),
    (lines.svg()[:4], "<svg"),
    (len(found["entropy"]), 2),
    (steered.hidden.shape, (len(run), 64)),
    (len(patched), 9),
    (len(screened), 12),
    (swept.to_csv(comments=True)[:2], "# "),
    (len(read), len(run.ids)),
]
