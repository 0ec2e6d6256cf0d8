"""Calls an attention kernel for the judge; `arguments.py` stands before this file."""

class Arrays:
    """Between NumPy and a framework."""

    def __init__(self, framework, dtype):
        self.framework, self.dtype = framework, dtype
        import numpy
        self.np = numpy
        if framework == "torch":
            import torch
            self.lib = torch
            self.kind = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[dtype]
        elif framework == "jax":
            import jax
            import jax.numpy
            if dtype == "f64":
                jax.config.update("jax_enable_x64", True)
            self.lib = jax
            self.kind = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}[dtype]
        elif dtype == "bf16":
            import ml_dtypes
            self.kind = ml_dtypes.bfloat16
        else:
            self.kind = {"f64": "float64", "f32": "float32", "f16": "float16"}[dtype]

    def make(self, array, kind=None):
        if self.framework == "torch":
            return self.lib.from_numpy(self.np.ascontiguousarray(array)).to(kind or self.kind)
        if self.framework == "jax":
            return self.lib.numpy.asarray(array, dtype=kind or self.kind)
        return self.np.ascontiguousarray(array).astype(kind or self.kind)

    def whole(self, array, name):
        wide = "int32" if self.framework == "jax" or name.startswith("cu_") or name == "lengths" else "int64"
        if self.framework == "torch":
            return self.lib.from_numpy(self.np.ascontiguousarray(array)).to(getattr(self.lib, wide))
        return self.make(array, wide) if self.framework == "jax" else array.astype(wide)

    def flags(self, array):
        return self.make(array, self.lib.bool if self.framework == "torch" else "bool")

    def stacked(self, parts):
        """q, k and v as `[batch, seq, 3, heads, dim]`."""
        lib = self.lib.numpy if self.framework == "jax" else self.lib if self.framework == "torch" else self.np
        return lib.stack(parts, 2)

    def back(self, array):
        if array is None:
            return None
        if hasattr(array, "detach"):
            array = array.detach().to("cpu")
            if array.dtype.is_floating_point:
                array = array.double()
            array = array.numpy()
        array = self.np.asarray(array)
        if array.dtype.kind not in "fiub" and array.dtype.name not in ("bfloat16", "float16"):
            raise Unusable(f"a result has elements of type {array.dtype}")
        return array.astype("float64")


# Rows of a page of a paged cache.
PAGE = 16


def grouped(given):
    """Whether heads are grouped."""
    return given["q"].shape[1] != given["k"].shape[1]


class Call:
    """One problem in the kernel's own layout."""

    def __init__(self, kernel, header, arrays):
        self.kernel, self.header, self.given = kernel, header, arrays
        self.tools = Arrays(header["framework"], header["dtype"])
        self.layout, self.batch, self.scalars = header["layout"], header["batch"], header["scalars"]

    def laid(self, array, of_keys=False):
        """Rows of `[tokens, heads, dim]` in the layout."""
        if self.batch == 0 or self.kernel.merge:
            return array if self.layout == "shd" else array.swapaxes(0, 1)[None]
        full = array.reshape((self.batch, -1) + array.shape[1:])
        if self.layout == "bsf":
            return full.reshape(full.shape[:2] + (-1,))
        if self.layout == "bhd" and not of_keys:
            if full.shape[1] != 1:
                raise NotImplementedError("one query per sequence")
            return full[:, 0]
        if self.layout in ("bshd", "bhd"):
            return full
        if self.layout == "shd":
            return full[0]
        full = full.swapaxes(1, 2)
        return {"bhsd": lambda: full, "hsd": lambda: full[0], "sd": lambda: full[0, 0]}[self.layout]()

    def rows(self, array, name, width):
        """Back to `[tokens, heads, dim]`, flat; the expected shape is that of `width` in the layout."""
        heads = (self.given["k"] if name in ("dk", "dv") else self.given["q"] if "q" in self.given else self.given["out_a"]).shape[1]
        tokens = (self.given["k"] if name in ("dk", "dv") else self.given["q"] if "q" in self.given else self.given["out_a"]).shape[0]
        like = self.laid(self.tools.np.zeros((tokens, heads, width)), name in ("dk", "dv"))
        other = (like.shape[:-3] + (like.shape[-2], like.shape[-3], like.shape[-1])) if len(like.shape) > 2 else like.shape
        if self.layout in ("bsf", "bhd"):
            if array.size == like.size and array.shape != like.shape and self.layout == "bhd":
                array = array.reshape(like.shape)
            if array.shape != like.shape:
                raise Unusable(f"{name} has the shape {list(array.shape)}; it must be {list(like.shape)}")
            return array.reshape(tokens, heads, width)
        if name == "out" and other != like.shape and array.shape in (like.shape, other):
            self.kernel.swapped = array.shape == other
        if name == "out" and self.kernel.swapped and array.shape == other:
            array = array.swapaxes(-3, -2)
        if array.shape != like.shape:
            raise Unusable(f"{name} has the shape {list(array.shape)}; it must be {list(like.shape)}")
        if self.batch == 0 or self.kernel.merge:
            return array if self.layout == "shd" else array[0].swapaxes(0, 1)
        if self.layout in ("bshd", "shd"):
            return array
        if self.layout == "sd":
            return array
        return array.swapaxes(-3, -2)

    def lse_rows(self, array):
        q = self.given["q"] if "q" in self.given else self.given["out_a"]
        tokens, heads = q.shape[0], q.shape[1]
        if array.ndim and array.shape[-1] == 1 and array.ndim > 1 and array.size == tokens * heads:
            array = array[..., 0]
        if self.batch == 0 or self.kernel.merge:
            if array.shape == (tokens, heads):
                return array
            if array.shape == (heads, tokens):
                return array.T
            return array[0].T if array.shape == (1, heads, tokens) else None
        n = tokens // self.batch
        if array.shape == (self.batch, heads, n):
            return array.swapaxes(1, 2)
        if array.shape == (self.batch, n, heads) and self.layout in ("bshd", "bsf"):
            return array
        if array.shape == (self.batch, heads) and self.layout == "bhd":
            return array
        if array.shape == (heads, n) and self.layout in ("hsd", "shd"):
            return array.T
        return array if array.shape == (n,) and self.layout == "sd" else None

    def pages(self, array):
        """Rows of keys or values in pages, which lie in memory in reversed order."""
        np = self.tools.np
        full = array.reshape((self.batch, -1) + array.shape[1:])
        count = -(-full.shape[1] // PAGE)
        wide = np.zeros((self.batch, count * PAGE) + full.shape[2:], full.dtype)
        wide[:, :full.shape[1]] = full
        return wide.reshape((self.batch * count, PAGE) + full.shape[2:])[::-1]

    def tensor(self, name):
        if self.header.get("paged") and name in "kv":
            return self.tools.make(self.pages(self.given[name]))
        array = self.laid(self.given[name], name in "kv")
        np, memory = self.tools.np, self.header["memory"]
        if memory == "strided" and self.tools.framework != "jax":
            wide = np.zeros(array.shape[:-1] + (2 * array.shape[-1],), array.dtype)
            wide[..., ::2] = array
            return self.tools.make(wide)[..., ::2]
        if memory == "transposed" and self.tools.framework != "jax" and array.ndim >= 3:
            return self.tools.make(np.ascontiguousarray(array.swapaxes(-3, -2))).swapaxes(-3, -2)
        if name == "k" and "k_scale" in self.given:
            return self.tools.make(array, self.tools.lib.int8 if self.tools.framework == "torch" else "int8")
        return self.tools.make(array)

    def plane(self, name, array):
        cut = {"hsd": array[0], "shd": array[0], "sd": array[0, 0]}.get(self.layout, array)
        if self.layout == "sd" and self.tools.framework == "numpy" and cut.shape[0] == 1:
            pass
        return self.tools.flags(cut) if name == "mask" else self.tools.make(cut)

    def arguments(self):
        kernel, meant, tools = self.kernel, self.kernel.meant, self.tools
        values = {}
        names = ["out_a", "lse_a", "out_b", "lse_b"] if kernel.merge else ["q", "k", "v"]
        for name in names:
            if name.startswith("lse"):
                lse = self.given[name]
                values[name] = tools.make(lse if self.layout == "shd" else lse.T[None])
            else:
                values[name] = self.tensor(name)
        if "qkv" in meant:
            parts = [values.pop(name) for name in "qkv"]
            if len({tuple(part.shape) for part in parts}) > 1:
                raise NotImplementedError("q, k and v of one array")
            values["qkv"] = parts
        if self.header.get("paged"):
            count = -(-self.given["k"].shape[0] // self.batch // PAGE)
            table = tools.np.arange(self.batch * count)[::-1].reshape(self.batch, count)
            values["block_table"] = tools.whole(table, "lengths")
            if "lengths" in meant:
                values["lengths"] = self.nothing("lengths")
        if "heads" in meant and (self.layout == "bsf" or kernel.needs("heads")):
            values["heads"] = self.given["q"].shape[1]
        if "heads_kv" in meant and (self.layout == "bsf" or kernel.needs("heads_kv")):
            values["heads_kv"] = self.given["k"].shape[1]
        elif self.layout == "bsf" and grouped(self.given):
            raise NotImplementedError("as many key heads as query heads")
        for name in ("mask", "bias"):
            if name in self.given:
                target = name if name in meant else "mask"
                values[target] = self.plane(name, self.given[name])
        for name in ("alibi", "sinks"):
            if name in self.given:
                values[name] = tools.make(self.given[name], getattr(tools.lib, "float32") if tools.framework == "torch" else "float32")
        for name in ("lengths", "cu_q", "cu_k"):
            if name in self.given:
                array = self.given[name]
                values[name] = int(array[0]) if name == "lengths" and self.layout in ("hsd", "shd", "sd") else tools.whole(array, name)
        if "k_scale" in self.given:
            scale = self.laid(self.given["k_scale"][..., None])[..., 0]
            values["k_scale"] = tools.make(scale)
        s = self.scalars
        for name in ("scale", "softcap", "offset", "max_q", "max_k"):
            if s.get(name) is not None:
                values[name] = s[name]
        if values.get("scale") is None and "scale" in meant and kernel.default("scale") is not None or kernel.needs("scale"):
            # Without a default that means 1/sqrt(d) the caller gives it.
            values.setdefault("scale", float(self.given["q"].shape[2]) ** -0.5)
        if s["causal"] or ("causal" in meant and kernel.default("causal") is None):
            values["causal"] = bool(s["causal"])
        if "causal" in meant and not s["causal"]:
            values["causal"] = False
        if s["dropout"] or kernel.default("dropout") not in (None, 0, 0.0):
            values["dropout"] = s["dropout"]
        if "dropout" in meant and kernel.has[meant["dropout"]].default is inspect.Parameter.empty:
            values.setdefault("dropout", 0.0)
        if s["gqa"] and "gqa" in meant:
            values["gqa"] = True
        if s.get("window") is not None:
            left, right = s["window"]
            kind = kernel.window_kind()
            pair = (left, right)
            if kernel.style().startswith("jax"):
                n = self.given["k"].shape[0]
                pair = tuple(n if side < 0 else side for side in pair)
            values["window"] = pair if kind == "pair" else left + 1 if kind == "count" else left
            if kind != "pair" and "window_right" in meant:
                values["window"], values["window_right"] = left, right
        if self.header["lse"] and "want_lse" in meant:
            values["want_lse"] = True
        return values

    def passed(self, values):
        """Keyword arguments; what has no default and no value is passed as None."""
        out = {}
        for name, value in values.items():
            if name == "causal" and self.kernel.always_causal:
                continue
            if name not in self.kernel.meant:
                # What the other arguments say already.
                if name in ("max_q", "max_k") or (name == "causal" and not value):
                    continue
                if name == "cu_k" and self.given["cu_q"].tolist() == self.given["cu_k"].tolist():
                    continue
                if name == "cu_k":
                    raise NotImplementedError("one list of cumulative lengths for queries and keys")
                raise Unusable(f"the function has no argument for {name}")
            if name == "qkv":
                value = self.tools.stacked(value)
            out[self.kernel.meant[name]] = value
        if self.scalars["dropout"] and "seed" in self.kernel.has:
            out["seed"] = 7
        out.update(self.kernel.fixed)
        return out

    def completed(self, words, neutral):
        """What has no default and no value gets None, or a value that changes nothing."""
        meanings = {name: meaning for meaning, name in self.kernel.meant.items()}
        whole = dict(words)
        for name, parameter in self.kernel.has.items():
            if parameter.default is parameter.empty and name not in words:
                whole[name] = self.settings() if name in SETTINGS else self.nothing(meanings.get(name)) if neutral else None
        return whole

    def nothing(self, meaning):
        """A value of an argument that changes no result."""
        np, tools = self.tools.np, self.tools
        if meaning in ("window", "softcap", "offset"):
            pair = meaning == "window" and self.kernel.window_kind() == "pair"
            return (-1, -1) if pair else -1 if meaning == "window" else 0
        if meaning in ("sinks", "alibi"):
            # A sink far below all scores has no weight.
            return tools.make(np.full(self.given["q"].shape[1], -1e30 if meaning == "sinks" else 0.0))
        if self.batch == 0 or meaning not in ("mask", "bias", "lengths"):
            return None
        q, k = self.given["q"], self.given["k"]
        n, m = q.shape[0] // self.batch, k.shape[0] // self.batch
        if meaning == "lengths":
            return m if self.layout in ("hsd", "shd", "sd") else tools.whole(np.full(self.batch, m), meaning)
        shape = (self.batch, q.shape[1], n, m)
        return self.plane(meaning, np.ones(shape) if meaning == "mask" else np.zeros(shape))

    def settings(self):
        """What a layer of transformers tells its attention function."""
        q, k = self.given["q"], self.given["k"]
        return types.SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], num_attention_heads=q.shape[1],
                                     num_key_value_heads=k.shape[1], head_dim=q.shape[2], training=bool(self.scalars["dropout"]),
                                     is_causal=bool(self.scalars["causal"]), layer_idx=0, sliding_window=None)

    def invoke(self, function, values):
        words, kernel = self.passed(values), self.kernel
        if kernel.neutral is not None:
            return self.called(function, self.completed(words, kernel.neutral))
        try:
            result, kernel.neutral = self.called(function, self.completed(words, False)), False
        except Exception:
            whole = self.completed(words, True)
            if all(one is None or name in words or name in SETTINGS for name, one in whole.items()):
                raise
            result, kernel.neutral = self.called(function, whole), True
        return result

    def called(self, function, words):
        positional = []
        for name, parameter in self.kernel.has.items():
            if parameter.kind is parameter.POSITIONAL_ONLY and name in words:
                positional.append(words.pop(name))
        lead = [self.kernel.meant[n] for n in ("q", "k", "v") if n in self.kernel.meant]
        if list(self.kernel.has)[:3] == lead and not positional:
            positional = [words.pop(name) for name in lead]
        return function(*positional, **words)

    def picked(self, result):
        """The output and the log-sum-exp of what the function returned."""
        if isinstance(result, dict):
            result = [result[next(n for n in NAMES["out"] + ("Y",) if n in result)]] + [result[n] for n in NAMES["lse"] if n in result]
        if not isinstance(result, (tuple, list)):
            return result, None
        result = list(result)
        if not result:
            raise Unusable("the function returned nothing")
        for other in result[1:]:
            if other is not None and hasattr(other, "shape") and self.lse_rows(self.tools.back(other)) is not None:
                return result[0], other
        return result[0], None


class Harness:
    """Answers the judge's calls with one function."""

    def __init__(self, link, function=None):
        self.link, self.function = link, function
        self.kernel, self.backward, self.command = None, None, None
        self.library = None

    def load(self, header):
        if header.get("command"):
            self.command = header["target"]

            def run(q, k, v):
                raise Unusable("a command has no Python function")
            self.kernel = Kernel(run, {})
            takes = header.get("takes") or []
            for meaning in takes:
                self.kernel.meant[meaning] = meaning
            layouts, kinds = [header.get("layout") or "bhsd"], ["numpy"]
            features = [f for f in takes if f in FEATURES] + (["window"] if "window" in takes else [])
            return {"features": features + ["causal+mask"], "frameworks": kinds, "layouts": layouts, "style": "command",
                    "align": "top-left", "takes": takes, "unknown": []}
        function = self.function or find(header["target"])
        if not callable(function):
            raise Unusable(f"{header['target']} is not a function")
        self.kernel = Kernel(function, header)
        if header.get("backward"):
            self.backward = Kernel(find(header["backward"]), {})
        kinds = [header["framework"]] if header.get("framework") else frameworks(function)
        layouts = [header["layout"]] if header.get("layout") else self.kernel.layouts()
        features = self.kernel.features(kinds[0])
        known = set(self.kernel.meant.values()) | set(self.kernel.fixed)
        unknown = [name for name in self.kernel.has if name not in known]
        if "d_out" in self.kernel.meant or self.backward:
            features.append("backward")
        return {"features": features, "frameworks": kinds, "layouts": layouts, "style": self.kernel.style(),
                "align": self.kernel.align(), "takes": sorted(self.kernel.meant), "unknown": unknown}

    def profiled(self, call):
        """The first call, with the names of the libraries that it enters."""
        seen = set()

        def watch(frame, event, arg):
            if event == "c_call":
                seen.add(getattr(arg, "__module__", "") or "")
                if getattr(arg, "__name__", "") == "scaled_dot_product_attention":
                    seen.add("torch sdpa")
            else:
                module = frame.f_globals.get("__name__", "")
                seen.add(module)
                if module.startswith("jax") and frame.f_code.co_name == "dot_product_attention":
                    seen.add("jax sdpa")
        sys.setprofile(watch)
        try:
            return call()
        finally:
            sys.setprofile(None)
            for name in list(seen):
                top = name.split(".")[0]
                if top in LIBRARIES and not name.startswith("regard.testing") and not name.startswith("regard._judge"):
                    self.library = LIBRARIES[top]
            if "torch sdpa" in seen:
                self.library = "torch"
            elif "jax sdpa" in seen:
                self.library = "jax"

    def run(self, header, arrays):
        call = Call(self.kernel, header, arrays)
        if self.command:
            return self.run_command(call)
        tools, kernel = call.tools, self.kernel
        values = call.arguments()
        results = []
        if kernel.merge:
            out, lse = call.picked(self.profiled(lambda: call.invoke(kernel.function, values)))
            return self.forward_results(call, out, lse, results)
        if "d_out" in kernel.meant:
            return self.own_backward(call, kernel, values, results)
        wants = header["gradients"] and tools.framework in ("torch", "jax") and not self.backward
        inputs = ["q", "k", "v"]
        if "bias" in arrays and tools.np.isfinite(arrays["bias"]).all():
            inputs.append("bias" if "bias" in kernel.meant else "mask")
        if wants and "k_scale" in arrays:
            wants = False
        if wants and tools.framework == "torch":
            leaves = {}
            for name in inputs:
                packed = name in "qkv" and "qkv" in values
                place, key = (values["qkv"], "qkv".index(name)) if packed else (values, name)
                leaves[name] = place[key] = place[key].detach().requires_grad_(True)
            out, lse = call.picked(self.profiled(lambda: call.invoke(kernel.function, values)))
            self.forward_results(call, out, lse, results)
            if not getattr(out, "requires_grad", False):
                if header.get("probe"):
                    raise Unusable("the output has no gradient")
                grads = [None] * len(inputs)
            else:
                grads = tools.lib.autograd.grad(out, list(leaves.values()), tools.make(call.laid(arrays["d_out"])), allow_unused=True)
            grads = [tools.lib.zeros_like(leaves[name]) if g is None else g for name, g in zip(inputs, grads)]
        elif wants and "qkv" not in values:
            keys = {name: values[name] for name in inputs}

            def partial(parts):
                out, lse = call.picked(call.invoke(kernel.function, {**values, **parts}))
                return out, lse
            out, pull, lse = tools.lib.vjp(partial, keys, has_aux=True)
            self.profiled(lambda: call.invoke(kernel.function, values)) if self.library is None else None
            self.forward_results(call, out, lse, results)
            found = pull(tools.make(call.laid(arrays["d_out"])))[0]
            grads = [found[name] for name in inputs]
        else:
            before = {name: tools.back(values[name]).tobytes() for name in ("q", "k", "v")} if header.get("check_inputs") else {}
            out, lse = call.picked(self.profiled(lambda: call.invoke(kernel.function, values)))
            self.forward_results(call, out, lse, results)
            for name, old in before.items():
                if tools.back(values[name]).tobytes() != old:
                    raise Unusable(f"the function changed its argument {name}")
            if header["gradients"] and self.backward:
                again = Call(self.backward, header, arrays)
                self.own_backward(again, self.backward, again.arguments(), results, (out, lse))
            return results
        self.gradient_results(call, inputs, grads, results)
        return results

    def own_backward(self, call, kernel, values, results, forward=(None, None)):
        """A function that takes d_out and returns dq, dk, dv."""
        arrays = call.given
        if "d_out" not in arrays:
            raise NotImplementedError("no gradient is asked for")
        values["d_out"] = call.tools.make(call.laid(arrays["d_out"]))
        for name, value in zip(("out", "lse"), forward):
            if name in kernel.meant and value is not None:
                values[name] = value
        names = list(kernel.meant)
        if any(name in names and name not in values for name in ("out", "lse")):
            right = self.forward_pass(call)
            values.update({name: right[name] for name in ("out", "lse") if name in names and name not in values})
        grads = list(call.invoke(kernel.function, values))
        self.gradient_results(call, ["q", "k", "v", "bias"][:len(grads)], grads, results)
        return results

    def forward_pass(self, call):
        """The right output and log-sum-exp, for a backward function that is judged alone."""
        np, given, s = call.tools.np, call.given, call.scalars
        others = ("alibi", "sinks", "lengths", "cu_q", "k_scale")
        q, k, v = (given[name].reshape((max(call.batch, 1), -1) + given[name].shape[1:]).swapaxes(1, 2) for name in "qkv")
        n, m, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
        if any(name in given for name in others) or s.get("window") or s.get("softcap") or s.get("offset") is not None or s["dropout"]:
            raise NotImplementedError("the gradient needs out or lse; judge the forward function with --backward module:function")
        if s["causal"] and n != m:
            raise NotImplementedError("out and lse of a causal mask with unequal lengths: judge the forward function with --backward")
        scale = q.shape[-1] ** -0.5 if s.get("scale") is None else s["scale"]
        scores = q @ np.repeat(k, group, 1).swapaxes(-1, -2) * scale + given.get("bias", 0.0)
        if "mask" in given:
            scores = np.where(given["mask"] != 0, scores, -np.inf)
        if s["causal"]:
            scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        top = scores.max(-1, keepdims=True)
        shift = np.where(np.isneginf(top), 0, top)
        power = np.exp(scores - shift)
        total = power.sum(-1, keepdims=True)
        out = power / np.where(total == 0, 1, total) @ np.repeat(v, group, 1)
        with np.errstate(divide="ignore"):
            lse = (shift + np.log(total))[..., 0]
        rows = out.swapaxes(1, 2).reshape((-1,) + (out.shape[1], out.shape[3]))
        lse = {"hsd": lse[0], "shd": lse[0], "sd": lse[0, 0]}.get(call.layout, lse)
        return {"out": call.tools.make(call.laid(rows)), "lse": call.tools.make(lse)}

    def gradient_results(self, call, inputs, grads, results):
        arrays = call.given
        for name, grad in zip(inputs, grads):
            if grad is None:
                continue
            array = call.tools.back(grad)
            if name in "qkv":
                results.append(("d" + name, call.rows(array, "d" + name, arrays[name].shape[2])))
            else:
                if array.size != arrays["bias"].size:
                    raise Unusable(f"the bias gradient has the shape {list(array.shape)}; it must be {list(arrays['bias'].shape)}")
                results.append(("d_bias", array))

    def forward_results(self, call, out, lse, results):
        if out is None:
            raise Unusable("the function returned None")
        width = (call.given["v"] if "v" in call.given else call.given["out_a"]).shape[2]
        results.append(("out", call.rows(call.tools.back(out), "out", width)))
        if lse is not None:
            rows = call.lse_rows(call.tools.back(lse))
            if rows is not None:
                results.append(("lse", rows))
        return results

    def run_command(self, call):
        """Arrays and scalars as one .npz file; the command writes another, with `out` and whatever else it has."""
        np = call.tools.np
        values = call.arguments()
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "in.npz"), os.path.join(folder, "out.npz")
            np.savez(source, **{name: np.asarray(value) for name, value in values.items()})
            words = [word.replace("{in}", source).replace("{out}", target) for word in shlex.split(self.command)]
            if not any("{in}" in word for word in shlex.split(self.command)):
                words += [source, target]
            end = b""
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as ran:
                # A command may print without an end: the last bytes are kept.
                while piece := ran.stdout.read1(1 << 16):
                    end = (end + piece)[-1200:]
            if ran.returncode != 0:
                raise RuntimeError(f"exit code {ran.returncode}: {end.decode(errors='replace')[-300:]}")
            with np.load(target) as stored:
                found = {name: stored[name] for name in stored.files}
        if "out" not in found:
            raise Unusable(f"the command wrote {sorted(found)}; out is expected")
        return self.forward_results(call, found["out"], found.get("lse"), [])

    def answer(self, header, payload):
        identity = header["id"]
        try:
            if header["call"] == "load":
                return {"id": identity, **self.load(header)}, b""
            if header["call"] == "library":
                return {"id": identity, "library": self.library}, b""
            arrays, at = {}, 0
            import numpy
            kinds = {"f64": "<f8", "i64": "<i8", "u8": "u1"}
            for spec in header["arrays"]:
                kind = numpy.dtype(kinds[spec["dtype"]])
                count = 1
                for size in spec["shape"]:
                    count *= size
                arrays[spec["name"]] = numpy.frombuffer(payload, kind, count, at).reshape(spec["shape"]).copy()
                at += count * kind.itemsize
            results = self.run(header, arrays)
            specs = [{"name": name, "count": int(array.size)} for name, array in results]
            data = b"".join(numpy.ascontiguousarray(array, "<f8").tobytes() for _, array in results)
            return {"id": identity, "results": specs}, data
        except Unusable as error:
            return {"id": identity, "error": {"kind": "shape", "text": str(error)[:1000].encode("utf-8", "replace").decode()}}, b""
        except REFUSALS as error:
            return {"id": identity, "error": {"kind": "refused", "text": said(error, 600)}}, b""
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Exceptions of a library's own refuse what it does not support.
            kind = "refused" if type(error).__module__.split(".")[0] in LIBRARIES else "raised"
            return {"id": identity, "error": {"kind": kind, "text": said(error, 600)}}, b""

    def serve(self):
        self.link.send({"id": 0, "results": []})
        while True:
            try:
                header, payload = self.link.receive()
            except (EOFError, OSError):
                return
            if header["call"] == "end":
                return
            self.link.send(*self.answer(header, payload))


def main():
    address, folder = sys.argv[1], sys.argv[2]
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = ["judge"]
    link = Link(connect(address))
    try:
        import numpy  # noqa: F401
    except BaseException as error:
        link.send({"id": 0, "error": {"kind": "no-numpy", "text": str(error)}})
        return
    Harness(link).serve()


if __name__ == "__main__":
    main()
