"""The rule of an operator: from a node and the facts of its inputs to the facts of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
from onnx import helper

from sdort.graph.fact import Fact

InferenceRule = Callable[[gs.Node, list[Fact]], "Sequence[Fact] | None"]
"""The outputs that it knows; None leaves the node to ONNX's own inference."""


class Rules(dict[str, InferenceRule]):
    """Rules of standard operators by name."""

    def rule(self, *ops: str) -> Callable[[InferenceRule], InferenceRule]:
        """A decorator that makes a function the rule of ``ops``."""

        def register(function: InferenceRule) -> InferenceRule:
            self.update(dict.fromkeys(ops, function))
            return function

        return register


def as_dtype(dtype: Any) -> np.dtype[Any] | None:
    """The numpy dtype of what a graph states: a number of ONNX's ``TensorProto``, or a dtype."""
    if isinstance(dtype, int):
        return np.dtype(helper.tensor_dtype_to_np_dtype(dtype))
    return None if dtype is None else np.dtype(dtype)
