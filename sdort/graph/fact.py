"""Facts of a tensor (dtype, symbolic shape, small values), and the arithmetic of shapes that operators share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sdort.graph.signature import Array
from sdort.graph.symbolic import Dim, Shape, numbers, unknown

MAX_VALUE = 64
"""Integer tensors up to this many elements are followed as values."""

Elements = tuple[Dim, ...]


@dataclass(frozen=True)
class Fact:
    """Dtype, shape (a tuple of dims) and, for small integer tensors, elements of a tensor; None where not known."""

    dtype: np.dtype[Any] | None = None
    shape: Shape | None = None
    value: Elements | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    def array(self) -> Array | None:
        """The tensor, where every element is a known number."""
        if self.value is None or self.shape is None or self.dtype is None:
            return None
        values, shape = numbers(self.value), numbers(self.shape)
        if values is None or shape is None:
            return None
        try:
            return np.array(values, self.dtype).reshape(shape)
        except OverflowError:  # the dtype wraps around where Python's integers do not
            return None


NOTHING = Fact()
INT64 = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)


def broadcast(*shapes: Shape | None) -> Shape | None:
    """Numpy broadcasting; of two different symbolic dims the result is unknown."""
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes):
        return None
    rank = max(len(s) for s in known)
    out: list[Dim] = []
    for axis in range(-rank, 0):
        dims = {s[axis] for s in known if len(s) >= -axis} - {1}
        # A known size beats a symbol: they must agree at run time, or the symbol is 1.
        fixed = [d for d in dims if isinstance(d, int)]
        out.append(1 if not dims else fixed[0] if fixed else next(iter(dims)) if len(dims) == 1 else unknown())
    return tuple(out)


def windows(attributes: Mapping[str, Any], sizes: Shape, kernel: Shape) -> Shape:
    """The spatial sizes that a convolution leaves of ``sizes``."""
    axes, mode = len(sizes), attributes.get("auto_pad", "NOTSET")
    strides: list[int] = attributes.get("strides") or [1] * axes
    if mode.startswith("SAME"):
        return tuple((size + stride - 1) // stride for size, stride in zip(sizes, strides, strict=True))
    pads: list[int] = (mode == "NOTSET" and attributes.get("pads")) or [0] * (2 * axes)
    dilations: list[int] = attributes.get("dilations") or [1] * axes
    reach = [dilations[i] * (kernel[i] - 1) + 1 for i in range(axes)]
    return tuple((sizes[i] + pads[i] + pads[i + axes] - reach[i]) // strides[i] + 1 for i in range(axes))
