"""Facts that the shapes of a component's tensors tell."""

from __future__ import annotations

import re

from sdort.errors import BadModelError
from sdort.families.family import Shapes

TIME_WIDTH = 256
"""Width of the embedding of each of SDXL's numbers of sizes and crops."""


def shape_of(shapes: Shapes, name: str) -> tuple[int, ...]:
    """The shape of a weight that every model of its kind has: a matrix, or more axes.

    Raises:
        BadModelError: it is missing, has fewer axes, or no values.
    """
    if name not in shapes:
        raise BadModelError(f"its tensor {name!r} is missing", hint="The file is incomplete: download it again.")
    shape = shapes[name]
    if len(shape) < 2 or 0 in shape:
        raise BadModelError(
            f"its tensor {name!r} has the shape {list(shape)}, which is none of such a weight",
            hint="It is damaged, or of another kind: get another version of it.",
        )
    return shape


def count_of(shapes: Shapes, pattern: str) -> int:
    """The number of different numbers that the pattern finds at the beginning of names."""
    match = re.compile(pattern).match
    return len({found[1] for name in shapes if (found := match(name))})


def head_size(shapes: Shapes, norm: str, width: int, usual: int) -> int:
    """The size of a head of attention.

    Args:
        norm: the weight of the norm of a head's queries.
        width: of all heads together.
        usual: the size where they have no norm.

    Raises:
        BadModelError: heads of this size do not make up the width.
    """
    size = (shapes[norm] or (0,))[0] if norm in shapes else usual
    if not size or width % size:
        raise BadModelError(
            f"its attentions are {width} wide, which are no heads of {size}: see its tensor {norm!r}",
            hint="It is damaged, or of another kind: get another version of it.",
        )
    return size


def context_width(shapes: Shapes) -> int:
    """The width of the text embeddings that a UNet attends to.

    Raises:
        BadModelError: it attends to none.
    """
    name = next((name for name in shapes if name.endswith(".attn2.to_k.weight")), "attn2.to_k.weight")
    return shape_of(shapes, name)[-1]


def pooled_width(shapes: Shapes, numbers: int) -> int:
    """The width of the pooled text embedding that an SDXL UNet takes beside ``numbers`` of sizes."""
    return shape_of(shapes, "add_embedding.linear_1.weight")[1] - numbers * TIME_WIDTH
