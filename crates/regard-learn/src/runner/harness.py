"""Runs a learner's file for the judge: reads calls from a socket, answers with arrays. Standard output stays the learner's."""

import faulthandler
import json
import os
import signal
import struct
import sys
import threading
import types

try:
    import resource
except ImportError:  # Windows
    resource = None

# Taken before the learner's file is read: whatever it replaces, these stay.
_write, _getpid, _exit, _getppid = os.write, os.getpid, os._exit, os.getppid
_dumps, _loads, _pack, _unpack = json.dumps, json.loads, struct.pack, struct.unpack
_type, _isinstance, _str, _len, _repr = type, isinstance, str, len, repr
LONGEST_TEXT = 2000
LARGEST_RESULT = 32 << 20
# The judge watches what is resident; what is far beyond that is refused at once.
ADDRESSES = 8 << 30


class Judge:
    """The other end of the socket."""

    def __init__(self, link):
        self.link, self.fd, self.pid = link, link.fileno(), _getpid()
        self.read, self.write = os.read, _write
        if os.name == "nt":  # A socket is not a file descriptor there.
            self.read, self.write = lambda _, count: link.recv(count), lambda _, data: link.send(data)

    def take(self, count):
        parts = bytearray()
        while _len(parts) < count:
            piece = self.read(self.fd, count - _len(parts))
            if not piece:
                _exit(0)
            parts += piece
        return bytes(parts)

    def receive(self):
        header, payload = _unpack("<II", self.take(8))
        return _loads(self.take(header)), self.take(payload)

    def send(self, header, payload=b""):
        if _getpid() != self.pid:
            _exit(0)  # A copy of this process, made by the learner's code: only the first one answers.
        text = _dumps(header).encode()
        data = memoryview(_pack("<II", _len(text), _len(payload)) + text + payload)
        while data:
            data = data[self.write(self.fd, data):]


class Form(Exception):
    """A result that is no array of numbers."""


class Arrays:
    """Between bytes and NumPy's arrays."""

    def __init__(self, numpy, torch=None):
        self.torch = torch
        self.frombuffer, self.asarray, self.empty = numpy.frombuffer, numpy.asarray, numpy.empty
        self.contiguous, self.ndarray = numpy.ascontiguousarray, numpy.ndarray
        self.types = {"f32": numpy.dtype("<f4"), "f64": numpy.dtype("<f8"), "i64": numpy.dtype("<i8"), "u8": numpy.dtype("u1")}
        self.flag, self.wide = numpy.dtype(bool), numpy.dtype("<f8")

    def unpack(self, specs, payload):
        args, at = [], 0
        for spec in specs:
            if spec["dtype"] == "path":
                count = spec["shape"][0]
                args.append(bytes(payload[at:at + count]).decode())
                at += count
                continue
            kind, shape = self.types[spec["dtype"]], tuple(spec["shape"])
            count = 1
            for size in shape:
                count *= size
            array = self.frombuffer(payload, kind, count, at).reshape(shape).copy()
            at += count * kind.itemsize
            if not shape:
                args.append(array.item())
                continue
            if spec["dtype"] == "u8":
                array = array.astype(self.flag)
            if spec.get("strided"):
                view = self.empty(shape[:-1] + (2 * shape[-1],), array.dtype)[..., ::2]
                view[...] = array
                array = view
            args.append(array)
        return args

    def detached(self, name, result):
        """A tensor as an array; a plain number stays."""
        torch = self.torch
        if not _isinstance(result, torch.Tensor):
            if _isinstance(result, (int, float, self.ndarray)) and getattr(result, "ndim", 0) == 0:
                return result
            raise Form(f"{name} is of type {_type(result).__name__}: return a tensor")
        tensor = result.detach().to("cpu").resolve_conj().resolve_neg()
        if tensor.dtype == torch.bfloat16:
            raise Form(f"{name} is of type bfloat16, which cannot hold it: return float32 or float64")
        return tensor.numpy()

    def given(self, array):
        """An argument as the learner gets it."""
        tensor = self.torch is not None and _isinstance(array, self.ndarray)
        return self.torch.from_numpy(array) if tensor else array

    def pack(self, name, result):
        if result is None:
            raise Form(f"{name} is None: is there a return?")
        if _isinstance(result, (bytes, bytearray, _str, dict, set)):
            raise Form(f"{name} is of type {_type(result).__name__}, not an array of numbers")
        if self.torch is not None:
            result = self.detached(name, result)
        try:
            array = self.asarray(result)
            kind = array.dtype.kind
        except Exception as error:
            raise Form(f"{name} cannot be read as an array: {describe(error)[:200]}") from None
        if kind == "c":
            raise Form(f"{name} is complex ({array.dtype}): the result is real")
        if kind not in "fiub":
            raise Form(f"{name} is of type {_type(result).__name__} with elements of type {array.dtype}, not an array of numbers")
        spec = {"dtype": "f32" if array.dtype == self.types["f32"] else "f64", "shape": list(array.shape), "was": array.dtype.name}
        if array.nbytes > LARGEST_RESULT:
            spec["omitted"] = True
            return spec, b""
        return spec, self.contiguous(array.astype(self.types[spec["dtype"]])).tobytes()


def describe(error):
    try:
        return _str(error)[:LONGEST_TEXT]
    except BaseException:
        return "(an exception whose text is unavailable)"


def line_in(path, error):
    """The last line of the learner's file that the exception went through."""
    line, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == path:
            line = at.tb_lineno
        at = at.tb_next
    if _isinstance(error, SyntaxError) and error.filename == path:
        line = error.lineno
    return line


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            pass


class Runner:
    """Answers the calls of one judge with one learner's file."""

    def __init__(self, judge, arrays, path):
        self.judge, self.arrays, self.path, self.module = judge, arrays, path, None

    def load(self):
        with open(self.path, "rb") as file:
            source = file.read()
        # Earlier answers of the same folder can be imported.
        sys.path.insert(0, os.path.dirname(self.path))
        self.module = types.ModuleType("answer")
        self.module.__file__ = self.path
        sys.modules["answer"] = self.module
        exec(compile(source, self.path, "exec"), self.module.__dict__)

    def ask(self, identity, tokens):
        self.judge.send({"id": identity, "ask": [int(token) for token in tokens]})
        header, payload = self.judge.receive()
        if "error" in header:
            raise RuntimeError(header["error"])
        return tuple(self.arrays.given(one) for one in self.arrays.unpack(header["results"], payload))

    def differentiated(self, spec, args):
        """Gradients through a `torch.autograd.Function` of the learner's, and what its forward pass returned."""
        torch, known = self.arrays.torch, getattr(self.module, spec["class"], None)
        if not (_isinstance(known, _type) and issubclass(known, torch.autograd.Function)):
            raise Form(f"the file has no class {spec['class']} that is a torch.autograd.Function")
        d_out = args[spec["d_out"]]
        rest = args[:spec["d_out"]] + args[spec["d_out"] + 1:]
        leaves = [one.detach().requires_grad_(True) for one in rest[:spec["leaves"]]]
        out = known.apply(*leaves, *rest[spec["leaves"]:])
        if not _isinstance(out, torch.Tensor):
            raise Form(f"forward returned a {_type(out).__name__}, not a tensor")
        if out.shape != d_out.shape:
            raise Form(f"forward returned the shape {list(out.shape)}; it must be {list(d_out.shape)}")
        if out.grad_fn is None:
            raise Form("the result of forward has no gradient: return what it computes, and do not detach it afterwards")
        found = _grad(out, leaves, d_out.to(out.dtype), allow_unused=True)
        for name, one in zip(("dq", "dk", "dv"), found):
            if one is None:
                raise Form(f"backward returned None in place of {name}")
        return (*found, out)

    def call(self, header, payload):
        custom = header.get("custom")
        function = getattr(self.module, header["call"], None) if custom is None else None
        if function is None and custom is None:
            raise Form(f"the file has no function {header['call']}")
        arrays = self.arrays
        args = arrays.unpack(header["args"], payload)
        before = [(a.tobytes(), a.shape) if _isinstance(a, arrays.ndarray) else None for a in args]
        if header.get("model"):
            result = function(lambda tokens: self.ask(header["id"], tokens), *args)
            return [{"text": _str(result)[:100]}], b"", []
        given = [arrays.given(one) for one in args]
        result = self.differentiated(custom, given) if custom else function(*given)
        changed = [i for i, (a, old) in enumerate(zip(args, before)) if old is not None and (a.shape != old[1] or a.tobytes() != old[0])]
        names = header["results"] + (["the result of forward"] if custom else [])
        if _len(names) == 1:
            results = [result]
        elif not _isinstance(result, (tuple, list)) or _len(result) != _len(names):
            what = f"a {_type(result).__name__}" + (f" of {_len(result)}" if _isinstance(result, (tuple, list)) else "")
            raise Form(f"the function returned {what}, not the {_len(names)} results ({', '.join(names)})")
        else:
            results = result
        packed = [arrays.pack(name, one) for name, one in zip(names, results)]
        return [spec for spec, _ in packed], b"".join(data for _, data in packed), changed

    def answer(self, header, payload):
        identity = header["id"]
        try:
            if header["call"] == "load":
                self.load()
                reply, data = {"id": identity, "results": []}, b""
            else:
                results, data, changed = self.call(header, payload)
                reply = {"id": identity, "results": results, "changed": changed}
        except Form as error:
            reply, data = {"id": identity, "error": {"kind": "form", "text": describe(error)}}, b""
        except NotImplementedError as error:
            reply, data = {"id": identity, "error": {"kind": "todo", "text": "", "line": line_in(self.path, error)}}, b""
        except BaseException as error:
            line = line_in(self.path, error)
            kind = "memory" if _isinstance(error, MemoryError) else _type(error).__name__
            reply, data = {"id": identity, "error": {"kind": kind, "text": describe(error), "line": line}}, b""
        flush()
        self.judge.send(reply, data)


_grad = None


def import_torch(tensors):
    """PyTorch on one thread; where the gradient is the exercise, without automatic differentiation."""
    global _grad
    import torch
    torch.set_num_threads(1)
    _grad = torch.autograd.grad
    if tensors == "custom":
        def refused(*_, **__):
            raise RuntimeError("automatic differentiation is not available in this exercise: write the gradient in backward")
        torch.autograd.grad = torch.autograd.backward = torch.Tensor.backward = refused
        for name in ("grad", "grad_and_value", "vjp", "jvp", "jacrev", "jacfwd"):
            setattr(torch.func, name, refused)
    return torch


def main():
    tensors = os.environ.pop("REGARD_LEARN_TORCH", None)
    address, path, trace = sys.argv[1:4]
    sys.argv = [path]
    judge = Judge(connect(address))
    threading.Thread(target=end_with, args=(_getppid(),), daemon=True).start()
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=open(trace, "w"), all_threads=True, chain=False)
    try:
        import numpy
    except BaseException as error:
        judge.send({"id": 0, "error": {"kind": "no-numpy", "text": describe(error)}})
        return
    torch = None
    if tensors:
        try:
            torch = import_torch(tensors)
        except BaseException as error:
            judge.send({"id": 0, "error": {"kind": "no-torch", "text": describe(error)}})
            return
    try:
        if resource:
            # PyTorch maps libraries of gigabytes.
            resource.setrlimit(resource.RLIMIT_AS, (8 * ADDRESSES if torch else ADDRESSES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    except (OSError, ValueError):
        pass
    runner = Runner(judge, Arrays(numpy, torch), path)
    judge.send({"id": 0, "results": [], "python": sys.version.split()[0], "numpy": numpy.__version__})
    while True:
        runner.answer(*judge.receive())


main()
