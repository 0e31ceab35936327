"""An example of an operator's file as a model of one node, and values for its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sdort.graph.domains import MICROSOFT, OWN_DOMAIN, file_domain
from sdort.graph.fact import Fact
from sdort.graph.operator import Call, Example, Operator
from sdort.graph.signature import Array
from sdort.graph.symbolic import numbers
from sdort.onnx_io.own_functions import function_of

_OPSET, _IR_VERSION = 18, 10
"""Versions that every provider loads."""


def example_call(operator: Operator, example: Example, dtype: np.dtype[Any]) -> Call:
    """The call that an example is, of floats of ``dtype``."""
    facts = {name: Fact(_float_type(operator, name, dtype), shape) for name, shape in example.inputs.items()}
    facts |= {name: Fact(np.dtype(np.int64), np.shape(values)) for name, values in example.integers.items()}
    facts |= {name: Fact(np.dtype(np.uint8), shape) for name, shape in example.bytes.items()}
    given = [facts.get(name) for name in operator.inputs]
    asked = [not example.outputs or name in example.outputs for name in operator.outputs]
    return operator.call(given, asked, example.attributes)


def example_feeds(operator: Operator, example: Example, dtype: np.dtype[Any]) -> dict[str, Array]:
    """Values for the inputs of an example, always the same: floats of a normal distribution, in ``dtype``."""
    rng = np.random.default_rng(len(example.inputs))
    floats = {
        name: rng.standard_normal(shape).astype(_float_type(operator, name, dtype))
        for name, shape in example.inputs.items()
    }
    integers = {name: np.array(values, np.int64) for name, values in example.integers.items()}
    return {**floats, **integers, **{n: rng.integers(0, 256, s, np.uint8) for n, s in example.bytes.items()}}


def example_model(
    operator: Operator, call: Call, example: Example, constants: Mapping[str, Array] | None = None
) -> onnx.ModelProto:
    """A model of one node, of the form of ``call``; outputs that it does not ask for are left out.

    Args:
        constants: values that the model has itself, by the names of the inputs that they are of.
    """
    domain = file_domain(operator.domain, operator.name)
    given = _without_end([name if name in call.inputs else "" for name in operator.inputs])
    asked = _without_end([name if name in call.outputs else "" for name in operator.outputs])
    own = operator.domain == OWN_DOMAIN
    # A function has no defaults: its calls give all attributes.
    attributes = call.attributes if own else example.attributes
    node = helper.make_node(operator.name, given, asked, "node", domain=domain, **attributes)
    stored = [numpy_helper.from_array(values, name) for name, values in (constants or {}).items()]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(fact.dtype), numbers(fact.shape))
        for name, fact in call.inputs.items()
        if fact.dtype is not None and fact.shape is not None and name not in (constants or {})
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in call.outputs]
    versions = {"": _OPSET, MICROSOFT: 1, **({OWN_DOMAIN: 1} if own else {})}
    return helper.make_model(
        helper.make_graph([node], "example", inputs, outputs, stored),
        functions=[function_of(operator, frozenset(call.inputs), _OPSET)] if own else [],
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in versions.items()],
        ir_version=_IR_VERSION,
    )


def _float_type(operator: Operator, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.float32) if name in operator.float32_inputs else dtype


def _without_end(names: list[str]) -> list[str]:
    """The names up to the last one that is no empty text."""
    while names and not names[-1]:
        names.pop()
    return names
