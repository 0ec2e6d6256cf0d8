# Written by hand, but for the functions that have all options: `cargo xtask stubs` makes these.

from os import PathLike
from typing import Any, Callable, Literal, Mapping, Sequence, SupportsIndex, Tuple, Union, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._results import Figure, Gradients, GradientStatistics, HeadSimilarity, HeatMap, Lens, RowStates, Statistics, Table

_Floats = NDArray[Any]
_Causal = Union[bool, np.bool_, Literal["top_left", "bottom_right"]]
_Integers = Union[Sequence[int], NDArray[np.integer[Any]]]
_Window = Union[SupportsIndex, Tuple[Union[SupportsIndex, None], Union[SupportsIndex, None]], Sequence[Union[SupportsIndex, None]], NDArray[np.integer[Any]]]
_Offset = Union[SupportsIndex, _Integers]
_Range = Union[slice, Tuple[int, int], Sequence[int]]
_Region = Union[Tuple[_Range, _Range], Sequence[_Range]]
_Stage = Literal["raw", "softcap", "bias"]
_Level = Literal["portable", "neon", "avx2", "avx512", "avx512bf16"]

_Tokens = Union[str, Sequence[int], NDArray[np.integer[Any]]]
_Texts = Union[Sequence[_Tokens], None]
_Hooks = Mapping[str, Callable[[NDArray[np.float32]], Any]]
_Vectors = Union[str, PathLike[str], Mapping[str, ArrayLike]]
_Source = Union[_Tokens, Run, Mapping[str, ArrayLike]]
_Metric = Union[Literal["loss"], Mapping[str, Any]]
_Site = Literal["resid_pre", "q", "k", "v", "pattern", "z", "attn_out", "resid_mid", "mlp_out", "resid_post"]
_Sink = Literal["show", "hide", "renormalise"]

__version__: str

@final
class _Table:
    name: str
    caption: str
    columns: list[Tuple[str, str]]
    origin: dict[str, str]
    def column(self, place: int) -> list[Any]: ...
    def csv(self) -> bytes: ...
    def __len__(self) -> int: ...

@final
class _Figure:
    name: str
    title: str
    caption: str
    alt: str
    def svg(self) -> str: ...
    def png(self) -> bytes: ...

def _experiments() -> list[dict[str, Any]]: ...
def _experiment(name: str, words: list[str], watch: Callable[[str, Any], None]) -> Tuple[list[_Table], list[_Figure], bool | None]: ...
def _plot_map(
    values: NDArray[np.float64],
    words: dict[str, str],
    rows: list[str] | None,
    keys: list[str] | None,
    pooled: Tuple[int, int] | None,
    limits: Tuple[float, float] | None,
) -> _Figure: ...
def _plot_grid(values: NDArray[np.float64], words: dict[str, str], names: Sequence[str], columns: int, tokens: tuple[Sequence[str], Sequence[str]] | None) -> _Figure: ...
def _plot_links(values: NDArray[np.float64], words: dict[str, str], names: Sequence[str], tokens: Tuple[Sequence[str], Sequence[str]], chosen: Sequence[int]) -> _Figure: ...
def _plot_lines(words: dict[str, str], x: Tuple[str, list[float], bool], series: list[Tuple[str, list[float]]]) -> _Figure: ...

def load(path: str | PathLike[str] | None = None, *, vectors: _Vectors | None = None) -> Model: ...

@final
class Model:
    family: str
    format: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    vocab: int
    context: int
    parameters: int
    def tokens(self, text: str) -> list[int]: ...
    def text(self, ids: _Tokens) -> str: ...
    def pieces(self, input: _Tokens) -> list[str]: ...
    @overload
    def run(
        self,
        text_or_ids: _Tokens,
        edits: str = "",
        *,
        texts: Mapping[str, _Source] | None = None,
        reference: _Texts = None,
        keep: Sequence[str] = ...,
        hooks: _Hooks | None = None,
        vectors: _Vectors | None = None,
    ) -> Run: ...
    @overload
    def run(
        self,
        text_or_ids: list[str] | list[list[int]],
        edits: str = "",
        *,
        texts: Mapping[str, _Source] | None = None,
        reference: _Texts = None,
        keep: Sequence[str] = ...,
        hooks: _Hooks | None = None,
        vectors: _Vectors | None = None,
    ) -> list[Run]: ...
    def with_vectors(self, vectors: _Vectors) -> Model: ...
    def read(
        self,
        text_or_ids: _Tokens | None = None,
        *,
        audio: str | PathLike[str] | None = None,
        image: str | PathLike[str] | None = None,
        features: NDArray[np.float32] | None = None,
        pixels: NDArray[np.float32] | None = None,
        edits: str = "",
    ) -> Run: ...
    def reading(self, run: Run) -> Model: ...
    start_ids: list[int]
    def routing(self, text_or_ids: _Tokens, layer: int) -> list[list[tuple[int, float]]]: ...
    def weights(self, name: str) -> NDArray[np.float32]: ...
    def gradients(
        self, text_or_ids: _Tokens, of: Literal["loss"] | Mapping[str, Any] | None = None, wrt: Sequence[str] = ...
    ) -> ActivationGradients: ...
    def generate(
        self,
        text_or_ids: _Tokens,
        n: int,
        edits: str = "",
        temperature: float = 0.0,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        reference: _Texts = None,
        stop: str | Sequence[str] | None = None,
        context: int | None = None,
        cache_type: Literal["f32", "f16", "bf16", "q8_0"] = "f32",
    ) -> list[int]: ...
    def embed(self, text_or_ids: _Tokens) -> NDArray[np.float32]: ...
    def classify(self, texts: _Texts = None) -> Table: ...
    def screen(self, texts: _Texts = None, *, direct: bool = False, of: _Metric | Sequence[_Metric] | None = None) -> Table: ...
    def surgery(self, texts: _Texts, edits: str, *, reference: _Texts = None) -> Table: ...
    def lens(self, text_or_ids: _Tokens, edits: str = "", top: int = 5) -> Lens: ...
    def patch(
        self,
        clean: _Tokens,
        corrupt: _Tokens,
        site: _Site = "z",
        *,
        tokens: Sequence[int | str] | None = None,
        by_position: bool | None = None,
    ) -> Table: ...
    def attribute(
        self,
        text_or_ids: _Tokens,
        row: int | None = None,
        token: int | str | None = None,
        edits: str = "",
        *,
        minus: int | str | None = None,
        by_position: bool = False,
    ) -> Table: ...

@final
class ActivationGradients:
    value: float
    def keys(self) -> list[str]: ...
    def __getitem__(self, name: str) -> NDArray[np.float32]: ...
    def __len__(self) -> int: ...

@final
class Run:
    ids: list[int]
    tokens: list[str]
    edits: str
    logits: NDArray[np.float32]
    loss: float
    losses: NDArray[np.float64]
    hidden: NDArray[np.float32]
    statistics: Statistics
    column_sums: NDArray[np.float32]
    encoder: Run | None
    cross: Run | None
    def weights(self, layer: int, head: int, rows: Tuple[int, int] | None = None) -> NDArray[np.float32]: ...
    def heat_map(self, layer: int, head: int, rows: int = 512, cols: int | None = None, *, sink: _Sink = "show") -> HeatMap: ...
    def picture(
        self, layer: int | None = None, head: int | None = None, *, sink: _Sink = "show", keys: bool = False
    ) -> Figure: ...
    def neuron(self, layer: int, head: int, query: int, key: int) -> Table: ...
    def row(self, layer: int, head: int, query: int) -> Table: ...
    def q(self, layer: int, rotated: bool = True) -> NDArray[np.float32]: ...
    def k(self, layer: int, rotated: bool = True) -> NDArray[np.float32]: ...
    def v(self, layer: int) -> NDArray[np.float32]: ...
    def z(self, layer: int) -> NDArray[np.float32]: ...
    def __getitem__(self, name: str) -> NDArray[np.float32]: ...
    def __len__(self) -> int: ...

@final
class Mask:
    @staticmethod
    def everything() -> Mask: ...
    @staticmethod
    def causal() -> Mask: ...
    @staticmethod
    def reverse() -> Mask: ...
    @staticmethod
    def strictly_future() -> Mask: ...
    @staticmethod
    def window(left: SupportsIndex | None, right: SupportsIndex | None) -> Mask: ...
    @staticmethod
    def first_keys(count: SupportsIndex) -> Mask: ...
    @staticmethod
    def key_lengths(lengths: _Integers) -> Mask: ...
    @staticmethod
    def documents(queries: ArrayLike, keys: ArrayLike | None = None) -> Mask: ...
    @staticmethod
    def blocks(table: ArrayLike, q_block: SupportsIndex, kv_block: SupportsIndex) -> Mask: ...
    @staticmethod
    def dense(visible: ArrayLike) -> Mask: ...
    @staticmethod
    def key_padding(visible: ArrayLike) -> Mask: ...
    def to_dense(
        self, queries: int, keys: int | None = None, *, batch: int | None = None, heads: int | None = None, q_offset: int = 0
    ) -> NDArray[np.bool_]: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    def __and__(self, other: Mask) -> Mask: ...
    def __or__(self, other: Mask) -> Mask: ...
    def __invert__(self) -> Mask: ...

# Generated by `cargo xtask stubs` from python/src/table.rs: begin
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_weights: Literal[False] = False,
    return_scores: None = None,
    return_lse: Literal[False] = False,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> _Floats: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_weights: Literal[True],
    return_scores: None = None,
    return_lse: Literal[False] = False,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> tuple[_Floats, _Floats]: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_weights: Literal[False] = False,
    return_scores: _Stage,
    return_lse: Literal[False] = False,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> tuple[_Floats, _Floats]: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_weights: Literal[False] = False,
    return_scores: None = None,
    return_lse: Literal[True],
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> tuple[_Floats, _Floats]: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_weights: Literal[True],
    return_scores: None = None,
    return_lse: Literal[True],
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> tuple[_Floats, _Floats, _Floats]: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_weights: Literal[False] = False,
    return_scores: _Stage,
    return_lse: Literal[True],
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> tuple[_Floats, _Floats, _Floats]: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    return_weights: bool = False,
    return_scores: _Stage | None = None,
    return_lse: bool = False,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> _Floats | tuple[_Floats, _Floats] | tuple[_Floats, _Floats, _Floats]: ...
@overload
def attention_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: _Integers,
    cu_seqlens_k: _Integers,
    *,
    return_lse: Literal[False] = False,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> _Floats: ...
@overload
def attention_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: _Integers,
    cu_seqlens_k: _Integers,
    *,
    return_lse: Literal[True],
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> tuple[_Floats, _Floats]: ...
def attention_vjp(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dout: ArrayLike,
    *,
    mask_gradient: bool = True,
    scale_gradient: bool = False,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> Gradients: ...
def gradient_statistics(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dout: ArrayLike,
    *,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> GradientStatistics: ...
def attention_varlen_vjp(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dout: ArrayLike,
    cu_seqlens_q: _Integers,
    cu_seqlens_k: _Integers,
    *,
    mask_gradient: bool = True,
    scale_gradient: bool = False,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> Gradients: ...
def weights(
    q: ArrayLike,
    k: ArrayLike,
    *,
    region: _Region | None = None,
    states: RowStates | None = None,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> _Floats: ...
def statistics(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None = None,
    *,
    local_window: SupportsIndex = 3,
    top_keys: SupportsIndex = 0,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
) -> Statistics: ...
def row_states(
    q: ArrayLike,
    k: ArrayLike,
    *,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
) -> RowStates: ...
def heat_map(
    q: ArrayLike,
    k: ArrayLike,
    *,
    rows: SupportsIndex = 512,
    cols: SupportsIndex = 512,
    region: _Region | None = None,
    states: RowStates | None = None,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
) -> HeatMap: ...
def column_sums(
    q: ArrayLike,
    k: ArrayLike,
    *,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
) -> _Floats: ...
def head_similarity(
    q: ArrayLike,
    k: ArrayLike,
    *,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
) -> HeadSimilarity: ...
def _forward_saved(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    *,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> tuple[_Floats, _Floats | None, _Floats, _Floats]: ...
def _backward(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dout: ArrayLike,
    saved: Sequence[Any],
    *,
    mask_gradient: bool = True,
    scale_gradient: bool = False,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> Gradients: ...
def _forward_shared(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    partition: Tuple[int, int | None],
    carrier: Any,
    *,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> tuple[_Floats, _Floats | None, _Floats, _Floats]: ...
def _backward_shared(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dout: ArrayLike,
    saved: Sequence[Any],
    partition: Tuple[int, int | None],
    carrier: Any,
    *,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> Gradients: ...
def _forward_saved_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: _Integers,
    cu_seqlens_k: _Integers,
    *,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> tuple[_Floats, _Floats | None, _Floats, _Floats]: ...
def _backward_varlen(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    dout: ArrayLike,
    saved: Sequence[Any],
    cu_seqlens_q: _Integers,
    cu_seqlens_k: _Integers,
    *,
    mask_gradient: bool = True,
    scale_gradient: bool = False,
    mask: ArrayLike | Mask | None = None,
    causal: _Causal | None = None,
    scale: bool | float | np.floating[Any] | None = None,
    softcap: float | np.floating[Any] | None = None,
    window: _Window | None = None,
    q_offset: _Offset | None = None,
    kv_lens: _Integers | None = None,
    bias: ArrayLike | None = None,
    alibi: ArrayLike | bool | None = None,
    relative: ArrayLike | None = None,
    top_k: SupportsIndex | None = None,
    sink: ArrayLike | None = None,
    threads: SupportsIndex | None = None,
    level: _Level | None = None,
    dropout_p: float | np.floating[Any] | None = None,
    seed: SupportsIndex | None = None,
) -> Gradients: ...
# Generated: end
def merge(out_a: ArrayLike, lse_a: ArrayLike, out_b: ArrayLike, lse_b: ArrayLike) -> tuple[_Floats, _Floats]: ...
def alibi_slopes(heads: int) -> list[float]: ...
def set_num_threads(n: int | None) -> None: ...
def get_num_threads() -> int: ...
def simd_level() -> _Level: ...
def _command(words: Sequence[str]) -> int: ...
def _judge_harness() -> str: ...
def _chosen_num_threads() -> int | None: ...
def _partition(tokens: int, ranks: int, block: int | None) -> list[Tuple[int, int, int]]: ...
