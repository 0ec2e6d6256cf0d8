"""One function per library: workload and threads in, a call without arguments out.

Inputs are converted outside the timing. `Unable` says that a library cannot do a workload.
"""

import numpy as np

from workloads import WINDOW


class Unable(Exception):
    """This library cannot do this workload."""


def regard_call(work, threads):
    import regard

    regard.set_num_threads(threads)
    if work.kind == "training":
        import regard.torch

        keywords = {"window": (WINDOW - 1, 0)} if work.mask == "window" else {}
        return training_step(work, threads, regard.torch.scaled_dot_product_attention, **keywords)
    q, k, v = (x.astype(work.numpy_dtype()) for x in work.inputs())
    keywords = work.regard_keywords()
    if work.kind == "statistics":
        return lambda: regard.statistics(q, k, v, **keywords)
    return lambda: regard.attention(q, k, v, **keywords)


def torch_inputs(work, threads):
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return [torch.from_numpy(x).to(getattr(torch, work.dtype)) for x in work.inputs()]


def torch_call(work, threads):
    import torch
    import torch.nn.functional as F

    if work.kind == "training":
        mask = torch.from_numpy(work.dense_mask()) if work.mask == "window" else None
        return training_step(work, threads, pytorch_path(work.against), attn_mask=mask)
    q, k, v = torch_inputs(work, threads)
    if work.kind == "statistics":
        return lambda: eager_statistics(q, k, v)
    mask = work.dense_mask()
    keywords = dict(
        attn_mask=None if mask is None else torch.from_numpy(mask),
        is_causal=work.mask == "causal",
        enable_gqa=work.heads_q != work.heads_kv,
    )
    return lambda: F.scaled_dot_product_attention(q, k, v, **keywords)


def pytorch_path(name):
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def math(*tensors, **keywords):
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(*tensors, **keywords)

    return math if name == "math" else F.scaled_dot_product_attention


def training_step(work, threads, attend, attn_mask=None, **keywords):
    """Forward and backward through a function with PyTorch's signature: the gradients of all that has one."""
    import torch

    torch.set_num_threads(threads)
    dtype = getattr(torch, work.dtype)
    leaves = [torch.from_numpy(x).to(dtype).requires_grad_() for x in work.inputs()]
    if work.mask == "bias":
        attn_mask = torch.from_numpy(work.bias()).requires_grad_()
        leaves.append(attn_mask)
    d_out = torch.from_numpy(work.out_gradient()).to(dtype)
    gqa = work.heads_q != work.heads_kv
    keywords |= dict(attn_mask=attn_mask, is_causal=work.mask == "causal", enable_gqa=gqa, dropout_p=work.dropout)

    def step():
        with torch.enable_grad():
            out = attend(*leaves[:3], **keywords)
        return out, *torch.autograd.grad(out, leaves, d_out)

    return step


def eager_statistics(q, k, v):
    """Output, row entropy, row maximum and mean of the diagonal, from the whole weight matrix."""
    import torch

    weights = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    entropy = torch.special.entr(weights).sum(dim=-1)
    diagonal = weights.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    return weights @ v, entropy, weights.amax(dim=-1), diagonal


def flex_call(work, threads):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    visible = {
        "full": None,
        "causal": lambda b, h, i, j: j <= i,
        "window": lambda b, h, i, j: (j <= i) & (i - j < WINDOW),
        "padding": lambda b, h, i, j: j < 3 * work.seq_kv // 4,
    }
    if work.kind in ("statistics", "training") or work.mask not in visible:
        raise Unable
    q, k, v = torch_inputs(work, threads)
    rule = visible[work.mask]
    blocks = rule and create_block_mask(rule, None, None, work.seq_q, work.seq_kv, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=blocks, enable_gqa=work.heads_q != work.heads_kv)


def onnx_session(threads, operator, domain, feeds, out_shape, **attributes):
    """A session of ONNX Runtime for one operator, and its call."""
    import onnxruntime
    from onnx import TensorProto, helper

    elements = {"bool": TensorProto.BOOL, "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
    kinds = {name: elements[x.dtype.name] for name, x in feeds.items()}
    declared = [helper.make_tensor_value_info(name, kinds[name], x.shape) for name, x in feeds.items()]
    result = helper.make_tensor_value_info("out", kinds["q"], out_shape)
    node = helper.make_node(operator, list(feeds), ["out"], domain=domain, **attributes)
    graph = helper.make_graph([node], "attention", declared, [result])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def dense_inputs(work, dtypes):
    """q, k, v and a mask of all pairs where there is one."""
    if work.kind in ("statistics", "training") or work.dtype not in dtypes:
        raise Unable
    feeds = dict(zip("qkv", (x.astype(work.numpy_dtype()) for x in work.inputs())))
    mask = work.dense_mask()
    if mask is not None:
        feeds["mask"] = np.ascontiguousarray(np.broadcast_to(mask, (1, 1, work.seq_q, work.seq_kv)))
    return feeds


def ort_call(work, threads):
    """The standard operator; on CPUs it has no bf16."""
    feeds = dense_inputs(work, ("float32", "float16"))
    return onnx_session(threads, "Attention", "", feeds, feeds["q"].shape, is_causal=int(work.mask == "causal"))


def ort_mha_call(work, threads):
    """The contributed operator, in its own layout: [batch, seq, heads * dim]; on CPUs it has no bf16."""
    feeds = dense_inputs(work, ("float32", "float16"))
    if work.mask not in ("full", "causal") or work.heads_q != work.heads_kv:
        raise Unable
    feeds = {name: np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape[0], x.shape[2], -1) for name, x in feeds.items()}
    causal = int(work.mask == "causal")
    shape = feeds["q"].shape
    return onnx_session(threads, "MultiHeadAttention", "com.microsoft", feeds, shape, num_heads=work.heads_q, unidirectional=causal)


def openvino_call(work, threads):
    """Rounds f16 to bf16 where the CPU has no multiply-adds in f16: an error of 4e-3."""
    import openvino
    from openvino import opset13

    feeds = list(dense_inputs(work, OPENVINO_TYPES).values())
    if work.heads_q != work.heads_kv:
        raise Unable
    precision = OPENVINO_TYPES[work.dtype]
    kinds = [openvino.Type.boolean if x.dtype == bool else getattr(openvino.Type, precision) for x in feeds]
    parameters = [opset13.parameter(list(x.shape), kind) for x, kind in zip(feeds, kinds)]
    if precision == "bf16":
        feeds = [x if x.dtype == bool else openvino.Tensor(x.view(np.uint16), list(x.shape), kind) for x, kind in zip(feeds, kinds)]
    node = opset13.scaled_dot_product_attention(*parameters, causal=work.mask == "causal")
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(openvino.Model([node], parameters), "CPU", settings).create_infer_request()
    return lambda: request.infer(feeds, share_inputs=True, share_outputs=True)


OPENVINO_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
PEERS = {"ort": ort_call, "ort-mha": ort_mha_call, "openvino": openvino_call, "flex": flex_call}
