"""Attention by its definition, the forms of its inputs, and their struct (operators/attention/attention.h)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from support import native
from support.drawn import Generator, chance, name_of, near
from support.kernel_cases import ARCHITECTURES, aligned, pointer
from support.native import MACHINES
from support.problems import problem, struct_type

Array = npt.NDArray[Any]

FORMS = ("apart", "packed_kv", "packed_qkv", "heads_first")
HEAD_SIZES = (40, 64, 80, 96, 128, 160)
"""Of the kernels with matrix instructions."""
WIDE_SIZES = (192, 512)
"""Of those that are two products."""


def strided(data: int | None, batch: int, row: int, head: int) -> ctypes.Structure:
    """A ``Tensor`` of the struct."""
    return struct_type("attention", "Tensor")(data, batch, row, head)


@dataclass(frozen=True)
class Case:
    """Queries, keys and values as (batch, rows, heads, size), float32 or float16."""

    q: Array
    k: Array
    v: Array
    bias: Array | None = None
    scale: float | None = None
    causal: bool = False

    @property
    def attributes(self) -> dict[str, Any]:
        scale = {} if self.scale is None else {"scale": self.scale}
        return {"num_heads": self.q.shape[2], "unidirectional": int(self.causal), **scale}

    @property
    def output_shape(self) -> tuple[int, int, int]:
        return (*self.q.shape[:2], self.v.shape[2] * self.v.shape[3])

    def exact(self) -> Array:
        """In float64, from the rounded inputs."""
        q, k, v = self._biased()
        scores = np.einsum("nshd,nlhd->nhsl", q, k) * (q.shape[-1] ** -0.5 if self.scale is None else self.scale)
        if self.causal:
            scores = np.where(np.arange(k.shape[1]) <= np.arange(q.shape[1])[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.asarray(np.einsum("nhsl,nlhe->nshe", weights, v).reshape(self.output_shape))

    def as_mi200_reads_it(self) -> Case:
        """With float16 subnormals as zero: what matrix instructions of gfx90a, the simulated mfma, compute with."""
        q, k, v = (np.where(np.abs(x) < 2.0**-14, x.dtype.type(0), x) for x in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v)

    def _biased(self) -> tuple[Array, Array, Array]:
        q, k, v = (x.astype(np.float64) for x in (self.q, self.k, self.v))
        if self.bias is None:
            return q, k, v
        heads, size = q.shape[2:]
        ends = [heads * size, 2 * heads * size]
        bq, bk, bv = (x.reshape(heads, -1) for x in np.split(self.bias.astype(np.float64), ends))
        return q + bq, k + bk, v + bv

    def inputs(self, form: str) -> dict[str, Array | None]:
        """The operator's inputs in one of :data:`FORMS`."""
        flat = [x.reshape(*x.shape[:2], x.shape[2] * x.shape[3]) for x in (self.q, self.k, self.v)]
        names: dict[str, Array | None] = dict(zip(("query", "key", "value"), flat, strict=True))
        if form == "packed_qkv":
            names = {"query": np.stack([self.q, self.k, self.v], 3), "key": None, "value": None}
        elif form == "packed_kv":
            names |= {"key": np.stack([self.k, self.v], 3), "value": None}
        elif form == "heads_first":
            names |= {"key": self.k.transpose(0, 2, 1, 3), "value": self.v.transpose(0, 2, 1, 3)}
        return {name: None if x is None else aligned(x) for name, x in names.items()} | {"bias": self.bias}

    def problem(self, inputs: dict[str, Array | None], form: str, y: int) -> ctypes.Structure:
        """The struct over ``inputs(form)``, which the caller keeps alive."""
        n, s, h, d = self.q.shape
        keys, e = self.k.shape[1], self.v.shape[3]
        scale = d**-0.5 if self.scale is None else self.scale
        q = self._strided(inputs["query"], s, h, d, 3 if form == "packed_qkv" else 1, 0)
        if form == "packed_qkv":
            k, v = (self._strided(inputs["query"], s, h, d, 3, part) for part in (1, 2))
        elif form == "packed_kv":
            k, v = (self._strided(inputs["key"], keys, h, d, 2, part) for part in (0, 1))
        elif form == "heads_first":
            k, v = (strided(pointer(inputs[name]), h * keys * m, m, keys * m) for name, m in (("key", d), ("value", e)))
        else:
            k, v = (self._strided(inputs[name], keys, h, m, 1, 0) for name, m in (("key", d), ("value", e)))
        sizes = {"batches": n, "heads": h, "queries": s, "keys": keys, "size": d, "value_size": e}
        options = {"scale": scale, "causal": self.causal}
        return problem("attention", q=q, k=k, v=v, bias=pointer(self.bias), y=y, **sizes, **options)

    def _strided(self, x: Array | None, rows: int, heads: int, size: int, parts: int, part: int) -> ctypes.Structure:
        assert x is not None
        row = heads * parts * size
        return strided(x.ctypes.data + part * size * x.itemsize, rows * row, row, parts * size)


def make(
    dtype: npt.DTypeLike,
    batches: int,
    queries: int,
    keys: int,
    heads: int,
    size: int,
    *,
    value_size: int | None = None,
    spread: float = 1.0,
    bias: bool = False,
    scale: float | None = None,
    causal: bool = False,
    seed: int | None = None,
) -> Case:
    """Random queries and keys of standard deviation ``spread``, values of 1."""
    rng = np.random.default_rng(queries * 1000 + keys if seed is None else [seed, 1])

    def normal(*shape: int, spread: float = 1.0) -> Array:
        return aligned((spread * rng.normal(size=shape)).astype(dtype))

    e = size if value_size is None else value_size
    return Case(
        normal(batches, queries, heads, size, spread=spread),
        normal(batches, keys, heads, size, spread=spread),
        normal(batches, keys, heads, e),
        normal(heads * (2 * size + e)) if bias else None,
        scale,
        causal,
    )


@dataclass(frozen=True)
class Drawn:
    """Sizes and options of :func:`make`, and a form that can hold them."""

    seed: int
    machine: str
    dtype: Any
    sizes: tuple[int, int, int, int, int]
    options: dict[str, Any]
    form: str

    def __str__(self) -> str:
        options = "-".join(f"{name}{value:.3g}" for name, value in self.options.items() if value is not None)
        sizes = "x".join(map(str, self.sizes))
        return f"{self.machine}-{name_of(self.dtype)}-{self.form}-{sizes}-{options}"

    def make(self) -> Case:
        return make(self.dtype, *self.sizes, **self.options, seed=self.seed)


def draw_case(rng: Generator, seed: int) -> Drawn:
    """Sizes around whole tiles of every kernel; every second case is one that the matrix kernels take in float16."""
    matrix = seed // (2 * len(MACHINES)) % 2 == 0
    size = int(rng.choice(HEAD_SIZES)) if matrix else near(rng, (1, 8, 32, 64), int(rng.choice([40, 200])))
    queries, keys = near(rng, (1, 16, 32, 64), 140), near(rng, (1, 16, 32, 64, 80, 128), 260)
    options: dict[str, Any] = {"spread": 10.0 ** rng.uniform(-1, 0.7)}
    form = str(rng.choice(FORMS))
    if not matrix:
        options |= {"bias": chance(rng), "causal": chance(rng)}
        if chance(rng):
            options["value_size"] = near(rng, (1, 16, 64), 200)
    if chance(rng):
        options["scale"] = float(rng.uniform(0.02, 0.5) * (1 if chance(rng, 0.8) else -1))
    if "value_size" in options and form.startswith("packed"):
        form = "heads_first"
    if form == "packed_qkv":
        queries = keys
    if chance(rng, 0.2):  # products that float16 cannot hold, which the scale makes moderate
        options |= {"spread": 100.0, "scale": 10.0 ** rng.uniform(-5, -4)}
    heads, batches = int(rng.integers(1, 7)), int(rng.integers(1, 3))
    if heads * batches * queries * keys > 60000:
        heads, batches = 2, 1
    machine = MACHINES[seed % len(MACHINES)]
    dtype = (np.float16, np.float32)[seed // len(MACHINES) % 2]
    return Drawn(seed, machine, dtype, (batches, queries, keys, heads, size), options, form)


def workspace_bytes(machine: str, problem: ctypes.Structure, dtype: npt.DTypeLike, units: int) -> int:
    """Bytes of the workspace that the kernels want on a device of so many compute units."""
    function = native.simulated(machine).simulated_attention_workspace
    function.restype = ctypes.c_int64
    half = int(np.dtype(dtype) == np.float16)
    return int(function(ctypes.byref(problem), half, ARCHITECTURES[machine].encode(), units))


def tolerance(case: Case, dtype: npt.DTypeLike, rounded_weights: bool = False) -> Array:
    """Float32's errors, and one rounding to the dtype.

    A score's error is that of a sum of products in float32, ``u * sum |q k|`` (u = 2^-24, each product within half a
    unit, errors of additions random), and appears in the weights relative to them; so the result's error is bounded by
    ``max |v|`` times twice that. Weights that matrix instructions read are rounded to float16: their relative errors of
    up to 2^-11 are independent, so the result's is below 2^-11 times ``sqrt(sum (w v)^2) * 4``, four standard
    deviations of a bound that is itself above the standard deviation.
    """
    q, k, v = case._biased()
    scale = q.shape[-1] ** -0.5 if case.scale is None else case.scale
    products = np.abs(scale) * np.einsum("nshd,nlhd->nhsl", np.abs(q), np.abs(k)).max()
    bound = np.abs(v).max() * (2.0**-23 * products + 1e-6)
    if rounded_weights:
        bound = bound + 4 * 2.0**-11 * squares(case)
    return np.asarray(np.abs(case.exact()) * np.finfo(dtype).eps * 0.51 + bound + 1e-7)


def close(actual: Array, case: Case, rounded_weights: bool = False) -> None:
    """Within :func:`tolerance` of the exact result."""
    error = np.abs(actual.astype(np.float64) - case.exact())
    np.testing.assert_array_less(error, tolerance(case, actual.dtype, rounded_weights))


def squares(case: Case) -> Array:
    """sqrt(sum over keys of (weight * value)^2)."""
    q, k, v = case._biased()
    scores = np.einsum("nshd,nlhd->nhsl", q, k) * (q.shape[-1] ** -0.5 if case.scale is None else case.scale)
    if case.causal:
        scores = np.where(np.arange(k.shape[1]) <= np.arange(q.shape[1])[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.asarray(np.sqrt(np.einsum("nhsl,nlhe->nshe", weights**2, v**2)).reshape(case.output_shape))
