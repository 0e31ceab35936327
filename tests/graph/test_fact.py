"""The arithmetic of shapes that operators share: broadcasting and windows against numpy and ONNX."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sdort.graph.fact import NOTHING, Fact, broadcast, windows
from sdort.graph.symbolic import is_known, symbol

SIZES = {
    "pads": ([0, 0, 0, 0], [1, 0, 2, 1], [0, 3, 0, 0]),
    "strides": ([1, 1], [2, 1], [1, 3]),
    "dilations": ([1, 1], [2, 1], [1, 2]),
}


def convolved(settings: dict[str, Any], kernel: tuple[int, int]) -> tuple[int, ...]:
    """Height and width that a convolution leaves of 9 x 12, by ONNX's own inference."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], **settings)
    shapes = {"x": (1, 1, 9, 12), "w": (1, 1, *kernel), "y": None}
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([node], "g", infos[:2], infos[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (output,) = onnx.shape_inference.infer_shapes(model).graph.output
    return tuple(dim.dim_value for dim in output.type.tensor_type.shape.dim[2:])


@pytest.mark.parametrize("kernel", [(1, 1), (3, 2), (2, 5)])
def test_windows_are_those_of_onnx(kernel: tuple[int, int]) -> None:
    for pads, strides, dilations in product(*SIZES.values()):
        settings = {"pads": pads, "strides": strides, "dilations": dilations}
        wanted = convolved(settings, kernel)
        assert windows(settings, (9, 12), kernel) == wanted, settings
        # A mode that is named does without pads, and what is left out is as if it were 1 and 0.
        valid = {"strides": strides, "dilations": dilations, "auto_pad": "VALID"}
        assert windows({**valid, "pads": pads}, (9, 12), kernel) == convolved(valid, kernel)
        for mode in ("SAME_UPPER", "SAME_LOWER"):
            same = {"strides": strides, "auto_pad": mode}
            assert windows({**same, "pads": pads}, (9, 12), kernel) == convolved(same, kernel)
    assert windows({}, (9, 12), kernel) == convolved({}, kernel)
    none = {"pads": None, "strides": None, "dilations": None, "auto_pad": "NOTSET"}
    assert windows(none, (9, 12), kernel) == convolved({}, kernel)


def test_windows_of_named_sizes_and_of_other_ranks() -> None:
    height, width = symbol("H"), symbol("W")
    settings = {"pads": [1, 0, 0, 2], "strides": [2, 1], "dilations": [1, 3]}
    assert windows(settings, (height, width), (3, 2)) == ((height - 2) // 2 + 1, width - 1)
    same = {"auto_pad": "SAME_UPPER", "strides": [2, 3]}
    assert windows(same, (height, width), (3, 2)) == ((height + 1) // 2, (width + 2) // 3)
    assert windows({"pads": [1, 2]}, (7,), (3,)) == (8,)
    assert windows({"pads": [1, 0, 2, 0, 3, 1], "strides": [1, 2, 3]}, (4, 5, 6), (2, 3, 4)) == (4, 3, 2)


SHAPES = [
    ((2, 1, 3), (4, 1)),
    ((), (5,)),
    ((1,), (1, 1)),
    ((2, 3), (2, 3), (1, 3)),
    ((7,), (2, 1), (3, 1, 1)),
    ((0,), (1,)),
]


@pytest.mark.parametrize("shapes", SHAPES)
def test_broadcasting_is_numpys(shapes: tuple[tuple[int, ...], ...]) -> None:
    assert broadcast(*shapes) == np.broadcast_shapes(*shapes)


def test_of_names_one_stays_where_nothing_contradicts_it() -> None:
    a, b = symbol("A"), symbol("B")
    assert broadcast((a, 1), (a, b), (1, 1)) == (a, b)
    assert broadcast((a,), (b,), (3,)) == (3,)
    first, second = broadcast((a, a), (b, 1)) or ()
    assert (is_known(first), second) == (False, a)
    assert broadcast((), ()) == ()
    assert broadcast((a,), (b,)) != broadcast((a,), (b,))  # what is not known is equal to itself only


@pytest.mark.parametrize(
    ("fact", "wanted"),
    [
        (Fact(np.dtype(np.int64), (2, 2), (1, 2, 3, 4)), [[1, 2], [3, 4]]),
        (Fact(np.dtype(np.int32), (), (7,)), 7),
        (Fact(np.dtype(np.bool_), (2,), (1, 0)), [True, False]),
        (Fact(np.dtype(np.int64), (0,), ()), []),
        (Fact(None, (1,), (7,)), None),
        (Fact(np.dtype(np.int64), None, (7,)), None),
        (Fact(np.dtype(np.int64), (1,), None), None),
        (Fact(np.dtype(np.int64), (2,), (7, symbol("N"))), None),
        (Fact(np.dtype(np.int64), (symbol("N"),), (7, 8)), None),
        (Fact(np.dtype(np.uint8), (1,), (256,)), None),
        (NOTHING, None),
    ],
)
def test_a_fact_is_an_array_where_all_of_it_is_a_number(fact: Fact, wanted: Any) -> None:
    found = fact.array()
    assert found is None if wanted is None else found is not None
    if found is not None:
        assert (found.dtype, found.tolist()) == (fact.dtype, wanted)


def test_the_rank_is_the_number_of_axes() -> None:
    assert [Fact(shape=shape).rank for shape in (None, (), (2, symbol("N")))] == [None, 0, 2]
