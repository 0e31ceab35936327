"""The operators that are not ONNX's own: one file each, found by :func:`load_operators`; nothing registers anything."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from sdort.graph.domains import IN_DEFAULT_DOMAIN, MICROSOFT

if TYPE_CHECKING:  # a provider's file imports no graph libraries
    import onnx

    from sdort.graph.operator import Category, Operator


@lru_cache(maxsize=1)
def load_operators() -> Mapping[tuple[str, str], Operator]:
    """All operators, by domain and name.

    Raises:
        ValueError: two files state one operator.
    """
    operators: dict[tuple[str, str], Operator] = {}
    for info in pkgutil.iter_modules(__path__):
        operator: Operator = importlib.import_module(f"{__name__}.{info.name}").OPERATOR
        if operators.setdefault((operator.domain, operator.name), operator) is not operator:
            raise ValueError(f"{operator.qualified_name} has a second file, {info.name}.py")
    return operators


def find_operator(domain: str | None, name: str) -> Operator | None:
    """The operator of a node, in memory or in a file; None for a standard or an unknown one."""
    if not domain and name in IN_DEFAULT_DOMAIN:
        domain = MICROSOFT
    return load_operators().get((domain, name)) if domain else None


def of_category(*categories: Category) -> frozenset[str]:
    """The names of the operators of these categories."""
    return frozenset(operator.name for operator in load_operators().values() if operator.category in categories)


def channels_axis(node: onnx.NodeProto) -> int | None:
    """The axis of a node's second input, filters or a matrix, that the channels in are; None if it is no such node.

    Filters are (M, C, kH, kW) in Conv.
    """
    operator = find_operator(node.domain, node.op_type)
    if operator is not None:
        return operator.channels_axis(operator.call_of(node)) if operator.channels_axis else None
    if node.domain not in ("", "ai.onnx"):
        return None
    transposed = node.op_type == "Gemm" and any(
        attribute.name == "transB" and attribute.i for attribute in node.attribute
    )
    return {"Conv": 1, "MatMul": 0, "Gemm": int(transposed)}.get(node.op_type)
