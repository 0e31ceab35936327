"""Forms of standard operators that ONNX Runtime's kernels take, read from its source; shared by the targets.

Forms of the other operators are in their files (:mod:`sdort.operators`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a provider's file imports no graph libraries
    from sdort.graph.operator import Call


def argmax_of_floats(call: Call) -> str | None:
    """The reason against an ArgMax: no GPU provider has one of integers, and none takes the last of equal ones."""
    dtype = call.dtype("data")
    if dtype is not None and dtype.kind in "iu" and not call.attributes.get("select_last_index"):
        return f"ArgMax takes floats only, these are {dtype}"
    return None
