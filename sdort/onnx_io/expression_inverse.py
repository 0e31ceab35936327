"""The values of parameters, read back from a weight that was made of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sdort.graph.half_conversion import convert
from sdort.graph.signature import Array
from sdort.graph.weights import Absent, Cast, Combined, Concatenated, Reshaped, Scaled, Transposed, Weight


def parameter_values(weight: Weight, values: Array) -> Iterator[tuple[str, Array]]:
    """Each parameter of an expression with its values in fp32, as far as ``values`` still have them.

    What a cast rounded stays rounded, so that the weight computed from them again is ``values``. Of a
    :class:`sdort.graph.weights.Combined`, whose sums were rounded each, the parameters are those whose sums come
    nearest to ``values`` (least squares).

    Args:
        weight: an expression over :class:`sdort.graph.weights.Absent`.
        values: of the weight.

    Raises:
        ValueError: a part of the expression is no parameter.
    """
    match weight:
        case Absent():
            yield weight.name, convert(values, np.float32)
        case Transposed():
            yield from parameter_values(weight.operand, values.transpose(np.argsort(weight.perm)))
        case Reshaped():
            yield from parameter_values(weight.operand, values.reshape(weight.operand.shape))
        case Cast():
            yield from parameter_values(weight.operand, convert(values, np.float32))
        case Scaled():
            yield from parameter_values(weight.operand, convert(values, np.float32) / np.float32(weight.factor))
        case Combined():
            inverse = np.linalg.pinv(np.array(weight.matrix))
            solved = np.tensordot(inverse, convert(values, np.float64), (1, weight.axis))
            yield from parameter_values(weight.operand, np.moveaxis(solved, 0, weight.axis))
        case Concatenated():
            starts = np.cumsum([part.shape[weight.axis] for part in weight.parts])[:-1]
            for part, part_values in zip(weight.parts, np.split(values, starts, axis=weight.axis), strict=True):
                yield from parameter_values(part, part_values)
        case _:
            raise ValueError(f"{weight} is no parameter")
