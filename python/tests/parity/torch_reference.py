"""F.scaled_dot_product_attention, answered by regard, and PyTorch's unfused answer beside it."""

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard


def four_dimensions(q, k, v):
    """Leading dimensions added, batch broadcast by stride 0."""
    q, k, v = (x.reshape((1,) * (4 - x.dim()) + tuple(x.shape)) for x in (q, k, v))
    batch = max(x.shape[0] for x in (q, k, v))
    return [x.expand(batch, -1, -1, -1) for x in (q, k, v)]


def through_regard(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False, layout=lambda x: x):
    dimensions = max(x.dim() for x in (q, k, v))
    arrays = [layout(x.detach().numpy()) for x in four_dimensions(q, k, v)]
    keywords = dict(causal=is_causal, scale=scale, dropout_p=dropout_p)
    if attn_mask is not None:
        keywords["mask"] = attn_mask.detach().numpy()
    out = torch.from_numpy(regard.attention(*arrays, **keywords))
    return out.reshape(out.shape[4 - dimensions :])


def unfused(q, k, v, attn_mask=None, dtype=torch.float64, **keywords):
    """PyTorch's math backend; in float64 it is the expected value, in the inputs' type the yardstick."""
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.to(dtype)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q.to(dtype), k.to(dtype), v.to(dtype), attn_mask, **keywords)


# PyTorch's own tolerances for this operator, as (absolute, relative).
TOLERANCE = {torch.float32: (5e-5, 5e-6), torch.float64: (1e-7, 1e-7)}


def assert_agrees(got, tensors, keywords):
    """Within PyTorch's tolerance, or no worse than twice the unfused computation in the same precision."""
    exact = unfused(*tensors, **keywords)
    naive = unfused(*tensors, dtype=tensors[0].dtype, **keywords)
    absolute, relative = TOLERANCE[tensors[0].dtype]
    slack = 2 * (naive.double() - exact).abs().max().item() if exact.numel() else 0.0
    assert got.shape == exact.shape and got.dtype == tensors[0].dtype
    np.testing.assert_allclose(got.double().numpy(), exact.numpy(), rtol=relative, atol=max(absolute, slack))
