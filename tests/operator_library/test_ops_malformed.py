"""Problems that no graph of sdort's has: every operator computes them or refuses them in words; none ends the process.

Each case is a sound problem with up to three changes: a size, a rank, an input left out, an attribute. What is accepted
runs with every tensor in an allocation of its own, so that tests/operator_library/test_ops_sanitized.py sees each byte
beside them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
from support.drawn import Generator, chance
from support.kernel_cases import Array, one_node_model, opened
from support.native import library

from sdort.operator_library.library import describe_library

CASES = 120
"""Cases of each operator."""
LEAST = 20
"""Of them each operator must compute and refuse as many: cases that are all alike show nothing."""


class Problem(NamedTuple):
    """Shapes of the inputs by name (None: absent), attributes, and outputs that are read."""

    shapes: dict[str, tuple[int, ...] | None]
    attributes: dict[str, Any]
    outputs: tuple[str, ...] = ("Y",)


NORM = {"groups": 4, "epsilon": 1e-5, "activation": 1, "channels_last": 1}
CONV = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 2, 1, 0], "group": 1}
_ROWS, _IMAGE, _ALL = (2, 3, 8), (2, 1, 8), (8,)
_ONCE: dict[str, tuple[int, ...] | None] = {"scale": _IMAGE, "shift": _IMAGE}
_TWICE: dict[str, tuple[int, ...] | None] = {**_ONCE, "scale2": _IMAGE, "shift2": _IMAGE}
_GATED: dict[str, tuple[int, ...] | None] = {"X": _ROWS, "branch": _ROWS, "bias": _ALL, "gate": _IMAGE}
MODULATED = {
    "sdort.ModulatedLayerNormalization": Problem({"X": _ROWS, **_ONCE}, {"epsilon": 1e-6}),
    "sdort.TwiceModulatedLayerNormalization": Problem({"X": _ROWS, **_TWICE}, {"epsilon": 1e-6}, ("Y", "Y2")),
    "sdort.GatedModulatedLayerNormalization": Problem({**_GATED, **_ONCE}, {"epsilon": 1e-6}, ("Y", "sum")),
    "sdort.GatedTwiceModulatedLayerNormalization": Problem({**_GATED, **_TWICE}, {"epsilon": 1e-6}, ("Y", "sum", "Y2")),
    "sdort.ModulatedRMSNormalization": Problem({"X": _ROWS, "weight": _ALL, "scale": _IMAGE}, {"epsilon": 1e-5}),
    "sdort.GatedModulatedRMSNormalization": Problem(
        {"X": _ROWS, "branch": _ROWS, "factor": _ALL, "gate": _IMAGE, "weight": _ALL, "scale": _IMAGE},
        {"epsilon": 1e-5, "branch_epsilon": 1e-5},
        ("Y", "sum"),
    ),
    "sdort.GatedSum": Problem(_GATED, {}),
}
SOUND = {
    "com.microsoft.BiasAdd": Problem({"X": (2, 6, 8), "bias": (8,), "skip": (2, 6, 8)}, {}),
    "com.microsoft.BiasSplitGelu": Problem({"X": (2, 6, 16), "bias": (16,)}, {}),
    "sdort.BiasSplitGelu": Problem({"X": (2, 6, 16), "bias": (16,)}, {}),
    "com.microsoft.GroupNorm": Problem({"X": (2, 3, 4, 8), "gamma": (8,), "beta": (8,)}, NORM),
    "com.microsoft.SkipGroupNorm": Problem(
        {"X": (2, 3, 4, 8), "gamma": (8,), "beta": (8,), "skip": (2, 3, 4, 8), "bias": (8,)}, NORM, ("Y", "S")
    ),
    "sdort.GroupNorm": Problem(
        {
            "X": (2, 3, 4, 5),
            "X2": (2, 3, 4, 3),
            "gamma": (8,),
            "beta": (8,),
            "skip": (2, 3, 4, 8),
            "bias": (8,),
            "embedding": (2, 8),
        },
        NORM,
        ("Y", "S"),
    ),
    "sdort.BiasGroupNorm": Problem({"X": (2, 3, 4, 8), "gamma": (8,), "beta": (8,), "bias": (8,)}, NORM, ("Y", "S")),
    "com.microsoft.MultiHeadAttention": Problem(
        {"query": (2, 5, 12), "key": (2, 7, 12), "value": (2, 7, 12), "bias": (36,)},
        {"num_heads": 3, "unidirectional": 0},
    ),
    "sdort.MultiHeadAttention": Problem(
        {"query": (2, 5, 12), "key": (2, 7, 12), "value": (2, 7, 12)}, {"num_heads": 3, "scale": 0.5}
    ),
    "sdort.InterleavePhases": Problem({"X": (2, 5, 4, 32), "bias": (8,), "image": (2, 3, 3, 4)}, {}),
    "com.microsoft.NhwcConv": Problem({"X": (2, 5, 6, 4), "W": (3, 3, 2, 4), "B": (3,)}, CONV),
    "sdort.BiasLayerNormalization": Problem(
        {"X": (2, 6, 8), "gamma": (8,), "beta": (8,), "bias": (8,)}, {"epsilon": 1e-5}
    ),
    "sdort.RotaryEmbedding": Problem({"X": (2, 3, 16), "cos": (2, 3, 4), "sin": (2, 3, 4)}, {"interleaved": 1}),
    "sdort.RMSNormRotaryEmbedding": Problem(
        {"X": (2, 3, 16), "scale": (8,), "cos": (1, 3, 4), "sin": (1, 3, 4)}, {"interleaved": 0, "epsilon": 1e-5}
    ),
    **MODULATED,
    "sdort.SplitSilu": Problem({"X": (2, 6, 16)}, {}),
    "sdort.SplitFastGelu": Problem({"X": (2, 6, 16)}, {}),
    ".LayerNormalization": Problem({"X": (2, 6, 8), "Scale": (8,), "B": (8,)}, {"epsilon": 1e-5, "axis": -1}),
    "com.microsoft.SkipLayerNormalization": Problem(
        {"input": (2, 3, 8), "skip": (2, 3, 8), "gamma": (8,), "beta": (8,), "bias": (8,)},
        {"epsilon": 1e-5},
        ("Y", "", "", "S"),
    ),
}
NUMBERS = (0, 1, -1, 2, 3, 5, 7, 2**31, -(2**31), 2**62, -(2**63))


def changed(rng: Generator, problem: Problem) -> Problem:
    shapes, attributes = dict(problem.shapes), dict(problem.attributes)
    for _ in range(int(rng.integers(4))):
        if attributes and chance(rng):
            name = str(rng.choice(sorted(attributes)))
            attributes[name] = changed_value(rng, attributes[name])
            if chance(rng) and chance(rng):
                del attributes[name]
        else:
            name = str(rng.choice(sorted(shapes)))
            shape = changed_shape(rng, shapes[name])
            # A node without any input is ONNX Runtime's to refuse, and it does without a word.
            shapes[name] = shapes[name] if shape is None and len(shapes) == 1 else shape
    return Problem(shapes, attributes, problem.outputs)


def changed_shape(rng: Generator, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if shape is None or rng.integers(12) == 0:
        return None
    dims = list(shape)
    place = int(rng.integers(len(dims))) if dims else 0
    kind = int(rng.integers(5))
    if kind == 0 or not dims:
        dims.insert(place, int(rng.choice([0, 1, 2, 3])))
    elif kind == 1:
        del dims[place]
    elif kind == 2:
        dims.reverse()
    else:
        dims[place] = int(rng.choice([0, 1, dims[place] + 1, max(0, dims[place] - 1), 2 * dims[place]]))
    return tuple(dims)


def changed_value(rng: Generator, value: Any) -> Any:
    if isinstance(value, float):
        return float(rng.choice([0.0, -1.0, np.nan, np.inf, 1e-45, 3e38]))
    if isinstance(value, int):
        return int(rng.choice(NUMBERS))
    values = list(value)
    values[int(rng.integers(len(values)))] = int(rng.choice(NUMBERS))
    return values[: int(rng.integers(len(values) + 1))] if rng.integers(6) == 0 else values


def dtype_of(name: str, operator: str, dtype: type) -> type:
    return np.float32 if operator.endswith("GroupNorm") and name in ("gamma", "beta") else dtype


Sessions = dict[bytes, onnxruntime.InferenceSession]
"""Of models: cases that differ in sizes alone share one, for opening takes longer than running."""


def attempt(
    sessions: Sessions, operator: str, inputs: dict[str, Array | None], *arguments: Any, **options: Any
) -> str | None:
    """What ONNX Runtime said against it; None if it ran."""
    try:
        model = one_node_model(operator, inputs, *arguments, **options)
        if model not in sessions:
            sessions[model] = opened(model)
        sessions[model].run(None, {name: value for name, value in inputs.items() if value is not None})
    except Exception as error:  # ONNX Runtime's classes share no base but Exception
        return str(error)
    return None


def test_every_operator_is_here() -> None:
    assert {f"{op.domain}.{op.name}" for op in describe_library(library()).operators if op.cpu} == SOUND.keys()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("operator", SOUND)
def test_computed_or_refused_in_words(operator: str, dtype: type) -> None:
    domain, _, name = operator.rpartition(".")
    computed, refused = 0, 0
    sessions: Sessions = {}
    for seed in range(CASES):
        rng = np.random.default_rng([seed, *operator.encode()])
        problem = changed(rng, SOUND[operator])
        inputs: dict[str, Array | None] = {
            key: None if shape is None else rng.standard_normal(shape).astype(dtype_of(key, operator, dtype))
            for key, shape in problem.shapes.items()
        }
        refusal = attempt(sessions, name, inputs, problem.outputs, domain=domain, **problem.attributes)
        assert refusal is None or name in refusal or "node" in refusal, problem
        computed += refusal is None
        refused += refusal is not None
    assert computed >= LEAST
    assert refused >= LEAST
