"""Tables for other libraries by the Arrow C stream interface, without a library for it: https://arrow.apache.org/docs/format/CStreamInterface.html"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np


class _Schema(ctypes.Structure):
    pass


class _Array(ctypes.Structure):
    pass


class _Stream(ctypes.Structure):
    pass


_ReleaseSchema = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))
_ReleaseArray = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))
_ReleaseStream = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Stream))
_GetSchema = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Schema))
_GetNext = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))
_GetError = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))

_Schema._fields_ = [
    ("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_char_p), ("flags", ctypes.c_int64), ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))), ("dictionary", ctypes.POINTER(_Schema)), ("release", _ReleaseSchema),
    ("private_data", ctypes.c_void_p),
]
_Array._fields_ = [
    ("length", ctypes.c_int64), ("null_count", ctypes.c_int64), ("offset", ctypes.c_int64), ("n_buffers", ctypes.c_int64), ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)), ("children", ctypes.POINTER(ctypes.POINTER(_Array))), ("dictionary", ctypes.POINTER(_Array)),
    ("release", _ReleaseArray), ("private_data", ctypes.c_void_p),
]
_Stream._fields_ = [
    ("get_schema", _GetSchema), ("get_next", _GetNext), ("get_last_error", _GetError), ("release", _ReleaseStream), ("private_data", ctypes.c_void_p),
]

_NULLABLE = 2
#: Memory of the exported structures, kept until the consumer releases it.
_held: dict[int, Any] = {}
_numbers = itertools.count(1)


def _hold(thing: Any) -> int:
    number = next(_numbers)
    _held[number] = thing
    return number


def _give_back(kind: Any, pointer: Any) -> None:
    own = pointer.contents
    for i in range(getattr(own, "n_children", 0)):
        child = own.children[i]
        if child.contents.release:
            child.contents.release(child)
    _held.pop(own.private_data, None)
    own.release = kind()


_release_schema = _ReleaseSchema(lambda pointer: _give_back(_ReleaseSchema, pointer))
_release_array = _ReleaseArray(lambda pointer: _give_back(_ReleaseArray, pointer))
_release_stream = _ReleaseStream(lambda pointer: _give_back(_ReleaseStream, pointer))


def _column(values: np.ndarray) -> tuple[bytes, list[Any], int]:
    """Format, buffers and number of missing values of a column."""
    if values.dtype.kind == "b":
        return b"b", [None, np.packbits(values, bitorder="little")], 0
    if values.dtype.kind == "i":
        return b"l", [None, np.ascontiguousarray(values, np.int64)], 0
    if values.dtype.kind == "u":
        return b"L", [None, np.ascontiguousarray(values, np.uint64)], 0
    if values.dtype.kind == "f":
        return b"g", [None, np.ascontiguousarray(values, np.float64)], 0
    there = np.array([x is not None for x in values.tolist()], bool)
    texts = [b"" if x is None else str(x).encode() for x in values.tolist()]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    valid = None if there.all() else np.packbits(there, bitorder="little")
    return b"u", [valid, offsets, np.frombuffer(b"".join(texts) or b"\0", np.uint8)], int((~there).sum())


def _fill_schema(out: Any, form: bytes, name: bytes, children: list[Any]) -> None:
    pointers = (ctypes.POINTER(_Schema) * max(1, len(children)))(*[ctypes.pointer(child) for child in children])
    out.format, out.name, out.metadata, out.flags, out.n_children = form, name, None, 0 if children else _NULLABLE, len(children)
    out.children = ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(_Schema)))
    out.dictionary = None
    out.private_data = _hold((form, name, children, pointers))
    out.release = _release_schema


def _fill_array(out: Any, length: int, nulls: int, buffers: list[Any], children: list[Any]) -> None:
    addresses = (ctypes.c_void_p * max(1, len(buffers)))(*[None if b is None else b.ctypes.data for b in buffers])
    pointers = (ctypes.POINTER(_Array) * max(1, len(children)))(*[ctypes.pointer(child) for child in children])
    out.length, out.null_count, out.offset, out.n_buffers, out.n_children = length, nulls, 0, len(buffers), len(children)
    out.buffers = ctypes.cast(addresses, ctypes.POINTER(ctypes.c_void_p))
    out.children = ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(_Array)))
    out.dictionary = None
    out.private_data = _hold((buffers, addresses, children, pointers))
    out.release = _release_array


_NAME = b"arrow_array_stream"
_capsules: dict[int, _Stream] = {}
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    own = _capsules.pop(_pointer_of(capsule, _NAME), None)
    # The capsule was not consumed.
    if own is not None and own.release:
        own.release(ctypes.pointer(own))


def _capsule(own: _Stream) -> Any:
    address = ctypes.addressof(own)
    _capsules[address] = own
    return _new_capsule(address, _NAME, ctypes.cast(_destroy, ctypes.c_void_p))


def stream(columns: dict[str, np.ndarray]) -> Any:
    """A capsule with all columns as one batch."""
    made = [(name.encode(), *_column(values)) for name, values in columns.items()]
    length = len(next(iter(columns.values()), ()))
    sent = [False]

    def get_schema(_: Any, out: Any) -> int:
        children = []
        for name, form, _buffers, _nulls in made:
            child = _Schema()
            _fill_schema(child, form, name, [])
            children.append(child)
        _fill_schema(out.contents, b"+s", b"", children)
        return 0

    def get_next(_: Any, out: Any) -> int:
        if sent[0]:
            out.contents.release = _ReleaseArray()
            return 0
        sent[0] = True
        children = []
        for _name, _form, buffers, nulls in made:
            child = _Array()
            _fill_array(child, length, nulls, buffers, [])
            children.append(child)
        _fill_array(out.contents, length, 0, [None], children)
        return 0

    own = _Stream()
    functions = (_GetSchema(get_schema), _GetNext(get_next), _GetError(lambda _: None))
    own.get_schema, own.get_next, own.get_last_error = functions
    own.private_data = _hold((functions, made))
    own.release = _release_stream
    return _capsule(own)
