"""Operators over rows, one module each: inputs, float64 results, and what is promised of their machine code.

A module is named as the operator's folder in ``custom_ops/operators`` and has an ``OPERATOR``; nothing lists them.
Every test that goes over all such operators (simulated machines, the CPU, machine code, other distributions of ONNX
Runtime) takes them from :func:`operators`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from support.kernel_cases import Guarded, pointer
from support.problems import problem, problem_type
from support.row_cases import Rows

Array = npt.NDArray[Any]
Inputs = dict[str, Array | None]
"""Field of the problem -> tensor, in the order of the operator's inputs; None of an optional one that is absent."""
Results = dict[str, tuple[Array, Array]]
"""Field of the problem -> values in float64, and the error that each may have; in the order of the outputs."""


HELD = [(16, 3), (16, 5), *itertools.product((32, 128), (1, 2, 3, 5))]
"""Lanes of a row and vectors of a lane: the forms in which ``rows::held`` keeps a row in registers."""


@dataclass(frozen=True)
class Promise:
    """What a kernel's header counts on; a field is None, or 0, where nothing is said."""

    blocks: int | None = None
    """At least, on a compute unit, as far as registers go."""
    in_flight: int | None = None
    """Loads of 16 bytes of tensors that a lane has on their way at a time."""
    loads: int = 0
    """Of 16 bytes in the code, at least; and nothing narrower."""
    stores: int = 0


def columns(dtype: Any, wave: int) -> Iterator[tuple[str, Rows]]:
    """The variants of ``rows::columns``; more vectors than one compute unit has threads, so some come back for more."""
    lanes = 16 // np.dtype(dtype).itemsize
    yield "vector", rows_of(dtype, 300, 7 * lanes)
    yield "narrow", rows_of(dtype, 300, 7)


def held(dtype: Any, wave: int) -> Iterator[tuple[str, Rows]]:
    """The variants of ``rows::held``: a row more than a block has, each the last but one vector of its lanes' room."""
    elements = 16 // np.dtype(dtype).itemsize
    for lanes, vectors in HELD:
        yield f"l{lanes}v{vectors}", rows_of(dtype, 128 // lanes + 1, (lanes * vectors - 1) * elements)
    yield "wide", rows_of(dtype, 9, 101, 3, optional=False)


def rows_of(dtype: Any, rows: int, width: int, skip_rows: int = 1, spread: float = 1.0, optional: bool = True) -> Rows:
    """Values around ten, so that sums are rounded to float16."""
    names = ("beta", "bias", "sum") if optional else ()
    return Rows(rows, "", dtype, rows, width, skip_rows, spread, 10.0, 1e-2, frozenset(names))


def rounded_once(exact: Array, dtype: Any) -> tuple[Array, Array]:
    """Of what float32 computes without any error: nothing but the value that is nearest."""
    return exact.astype(dtype).astype(np.float64), np.zeros(exact.shape)


def no_promise(variant: str, nvidia: bool) -> Promise:
    return Promise()


def leading_axis(case: Rows, name: str, value: Array) -> Array:
    """The tensor as a node takes it: matrices of rows as one image of them."""
    return value[None] if value.ndim == 2 else value


@dataclass(frozen=True)
class RowOperator:
    """An operator over rows, for tests."""

    name: str
    """Of ONNX's operator."""
    inputs: Callable[[Rows], Inputs]
    results: Callable[[Rows, Inputs], Results]
    variants: Callable[[Any, int], Iterator[tuple[str, Rows]]] = columns
    """For a dtype and lanes of a wave: every variant, and a small case for which it is legal."""
    promise: Callable[[str, bool], Promise] = no_promise
    """Of a variant, on NVIDIA or AMD GPUs."""
    outputs: Mapping[str, int] | None = field(default=None, hash=False)
    """Field of the problem -> which of the node's outputs it is; by default they are numbered."""
    attributes: Callable[[Rows], dict[str, Any]] = lambda case: {}
    as_input: Callable[[Rows, str, Array], Array] = leading_axis
    spread: float | None = None
    """The standard deviation of drawn inputs, if any one does not do."""
    domain: str = "com.microsoft"
    sizes: Callable[[Rows], dict[str, int]] = lambda case: {}
    """Numbers of the problem that the case's tensors say."""
    shapes_alone: frozenset[str] = frozenset()
    """Inputs of which the node reads no more than the shape: the problem does not have them."""
    kernels: str = ""
    """How the kernels' names begin: the folder, filled in by :func:`operators`."""

    def __str__(self) -> str:
        return self.kernels

    def bind(self, case: Rows, inputs: Inputs, outputs: Mapping[str, Guarded]) -> ctypes.Structure:
        """The problem of tensors that the caller keeps alive; numbers: attributes, sizes, or the case's."""
        tensors = {name: pointer(value) for name, value in inputs.items() if name not in self.shapes_alone}
        tensors |= {name: output.pointer for name, output in outputs.items()}
        stated = self.attributes(case) | self.sizes(case)
        numbers = {
            field[0]: stated[field[0]] if field[0] in stated else getattr(case, field[0])
            for field in problem_type(self.kernels)._fields_
            if field[1] is not ctypes.c_void_p
        }
        return problem(self.kernels, **tensors, **numbers)

    def node(self, case: Rows) -> tuple[str, dict[str, Array | None], list[str], dict[str, Any]]:
        """Operator, inputs, outputs and attributes of a node for the case; tensors are those of :attr:`inputs`."""
        inputs = self.inputs(case)
        given = {name: None if value is None else self.as_input(case, name, value) for name, value in inputs.items()}
        places = self.places(self.results(case, inputs))
        outputs = [""] * (max(places.values()) + 1)
        for name, place in places.items():
            outputs[place] = name
        options = self.attributes(case) | ({} if self.domain == "com.microsoft" else {"domain": self.domain})
        return self.name, given, outputs, options

    def places(self, results: Results) -> dict[str, int]:
        """Result -> which of the node's outputs it is."""
        numbered = self.outputs or {name: place for place, name in enumerate(results)}
        return {name: numbered[name] for name in results}


@cache
def operators() -> tuple[RowOperator, ...]:
    """Those of every module here."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem != "__init__")
    return tuple(replace(import_module(f"support.rows.{name}").OPERATOR, kernels=name) for name in names)


def operator_of(kernel: str) -> tuple[RowOperator, str] | None:
    """The operator and the variant of a kernel, by its name; None of a kernel of no such operator."""
    for operator in operators():
        for dtype in ("f16", "f32"):
            if kernel.startswith(f"{operator.kernels}_{dtype}_"):
                return operator, kernel.removeprefix(f"{operator.kernels}_{dtype}_")
    return None
