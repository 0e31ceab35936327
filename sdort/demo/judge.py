"""Does a picture show what its prompt asks for? Colours, shapes, sizes and places, read from the pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sdort.demo.prompts import Wanted
from sdort.demo.scenes import BACKGROUNDS, COLOURS, COLUMNS, ROWS, SHAPES, SIDE, coverage

Array = npt.NDArray[Any]
Colour = tuple[int, int, int]

# Half of the distance between the two closest colours of a shape and a background (white on beige, 91).
_DIFFERENT = 45.0
# A colour further than this from all that have a name is none: more than half of the way to the next one.
_NAMED = 75.0
# Specks of fewer pixels are no shape: the smallest shape, a star of radius 7, has 56.
_SPECK = 16
# The grid on which outlines are compared, and how much of it the outline and its shape must share.
_GRID = 24
_ALIKE = 0.7
_SMALL, _LARGE = 9.2, 12.0


@dataclass(frozen=True)
class Seen:
    """A shape found in a picture; ``shape`` and ``colour`` are None when they are none that has a name."""

    shape: str | None
    colour: str | None
    size: str
    x: float
    y: float


@dataclass(frozen=True)
class Verdict:
    """What is right about a picture; None for what its prompt leaves open."""

    shapes: bool
    """As many shapes as asked for, each of the right kind."""
    colours: bool
    """And each in its colour."""
    relation: bool | None
    position: bool | None
    size: bool | None
    background: bool | None

    @property
    def right(self) -> bool:
        """Shapes, their colours, and where one stands to the other."""
        return self.shapes and self.colours and self.relation is not False


def judge(image: Array, wanted: Wanted) -> Verdict:
    """Compare a picture [height, width, 3], uint8, with what was asked for."""
    background, seen = look(image)
    order = _match(wanted, seen)
    if order is None:
        return Verdict(False, False, *(None if each is None else False for each in _open(wanted)))
    pairs = list(zip(wanted.things, order, strict=True))
    sizes = [asked.size == found.size for asked, found in pairs if asked.size]
    return Verdict(
        shapes=all(asked.shape == found.shape for asked, found in pairs),
        colours=all(asked.colour == found.colour for asked, found in pairs),
        relation=None if wanted.relation is None else _relation(*order) == wanted.relation,
        position=None if wanted.position is None else _place(order[0]) == wanted.position,
        size=all(sizes) if sizes else None,
        background=None if wanted.background is None else background == wanted.background,
    )


def wrong(verdict: Verdict) -> list[str]:
    """The words for what is not right, of that which :attr:`Verdict.right` is made of."""
    words = {"shapes": verdict.shapes, "colours": verdict.colours, "relation": verdict.relation is not False}
    return [word for word, right in words.items() if not right]


def describe(image: Array) -> str:
    """What is in a picture [height, width, 3], uint8, as its prompt would say it, the largest shape first."""
    background, seen = look(image)
    things = [f"{each.size} {each.colour or 'oddly coloured'} {each.shape or 'unknown shape'}" for each in seen]
    return f"{' and '.join(things) or 'nothing'} on {background or 'an unknown background'}"


def _open(wanted: Wanted) -> tuple[Any, Any, Any, Any]:
    size = next((thing.size for thing in wanted.things if thing.size), None)
    return wanted.relation, wanted.position, size, wanted.background


def _match(wanted: Wanted, seen: Sequence[Seen]) -> list[Seen] | None:
    """What is seen, in the order of what was asked for; None when the numbers differ."""
    if len(wanted.things) != len(seen):
        return None

    def alike(order: list[Seen]) -> tuple[int, int, bool]:
        shapes = sum(asked.shape == found.shape for asked, found in zip(wanted.things, order, strict=True))
        colours = sum(asked.colour == found.colour for asked, found in zip(wanted.things, order, strict=True))
        # In doubt it is the colours that are wrong, and two of a kind stand as they were asked to.
        return shapes + colours, shapes, len(order) == 2 and _relation(*order) == wanted.relation

    return max([list(seen), list(reversed(seen))], key=alike)


def _relation(first: Seen, second: Seen) -> str:
    dx, dy = first.x - second.x, first.y - second.y
    if abs(dx) > abs(dy):
        return "left of" if dx < 0 else "right of"
    return "above" if dy < 0 else "below"


def _place(found: Seen) -> tuple[str, str]:
    """Row and column in thirds of the picture, a little less than a third in the middle."""

    def third(value: float, names: Sequence[str]) -> str:
        return names[0] if value < 0.39 else names[2] if value > 0.61 else names[1]

    return third(found.y, ROWS), third(found.x, COLUMNS)


def look(image: Array) -> tuple[str | None, list[Seen]]:
    """The background's colour and the shapes in a picture [height, width, 3], uint8, the largest first."""
    pixels = np.asarray(image, np.float32)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    background = np.median(border, axis=0)
    distance = np.linalg.norm(pixels - background, axis=-1)
    labels, count = components(distance > _DIFFERENT)
    masks = [labels == label for label in range(1, count + 1)]
    speck = _SPECK * image.shape[0] * image.shape[1] / SIDE**2
    found = sorted((mask for mask in masks if mask.sum() >= speck), key=np.sum, reverse=True)
    return _name(background, BACKGROUNDS), [_see(pixels, distance, mask) for mask in found]


def components(mask: Array) -> tuple[Array, int]:
    """Label the connected parts of a mask [height, width] from 1 on, corners touching; 0 is the rest."""
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        padded = np.pad(labels, 1)
        height, width = mask.shape
        around = [padded[y : y + height, x : x + width] for y in range(3) for x in range(3)]
        spread = np.where(mask, np.maximum.reduce(around), 0)
        if np.array_equal(spread, labels):
            break
        labels = spread
    names, numbered = np.unique(labels, return_inverse=True)
    numbered = numbered.reshape(mask.shape)
    return (numbered, len(names) - 1) if names[0] == 0 else (numbered + 1, len(names))


def _see(pixels: Array, distance: Array, mask: Array) -> Seen:
    """Name the shape that a mask covers."""
    # The half that differs most from the background has no pixels of soft edges in it.
    solid = mask & (distance >= np.median(distance[mask]))
    colour = np.median(pixels[solid], axis=0)
    height, width = mask.shape
    shape, radius = _outline(np.where(mask, distance / max(float(np.median(distance[solid])), 1.0), 0).clip(0, 1))
    radius *= SIDE / np.sqrt(height * width)
    size = "small" if radius < _SMALL else "large" if radius > _LARGE else "medium"
    y, x = np.nonzero(mask)
    middle = (float(x.min() + x.max() + 1) / 2 / width, float(y.min() + y.max() + 1) / 2 / height)
    return Seen(shape, _name(colour, COLOURS), size, *middle)


def _name(colour: Array, names: Mapping[str, Colour]) -> str | None:
    distances = {name: float(np.linalg.norm(colour - np.array(value, np.float32))) for name, value in names.items()}
    nearest = min(distances, key=distances.__getitem__)
    return nearest if distances[nearest] < _NAMED else None


def _outline(alpha: Array) -> tuple[str | None, float]:
    """The shape that a coverage [height, width] is most like, and its radius in pixels."""
    normal = _fit(alpha)
    shares = {
        shape: float(np.minimum(normal, each).sum() / np.maximum(normal, each).sum())
        for shape, each in _shapes().items()
    }
    best = max(shares, key=shares.__getitem__)
    radius = float(np.sqrt(alpha.sum() / _area(best)))
    return (best if shares[best] >= _ALIKE else None), radius


def _overlap(one: Array, other: Array) -> float:
    """Intersection over union of two coverages."""
    return float(np.minimum(one, other).sum() / np.maximum(one, other).sum())


@cache
def _shapes() -> dict[str, Array]:
    return {shape: _fit(coverage(shape, 20.0, 51, (25.0, 25.0))) for shape in SHAPES}


@cache
def _area(shape: str) -> float:
    """Of the shape of radius 1."""
    return float(coverage(shape, 20.0, 51, (25.0, 25.0)).sum()) / 400


def _fit(alpha: Array) -> Array:
    """What lies in the bounding box of a coverage, on a grid [24, 24], between the pixels' values."""
    rows, columns = alpha.max(1), alpha.max(0)
    return _resample(_resample(alpha, *_extent(rows)).T, *_extent(columns)).T


def _extent(profile: Array) -> tuple[float, float]:
    """Where something begins and ends along one side, to fractions of a pixel; pixel ``i`` is from i to i + 1."""
    inside = np.nonzero(profile >= 0.5)[0]
    first, last = (int(inside[0]), int(inside[-1])) if len(inside) else (0, len(profile) - 1)
    before = float(profile[first - 1]) if first else 0.0
    after = float(profile[last + 1]) if last + 1 < len(profile) else 0.0
    # A whole pixel at the edge may be followed by part of one; else the last one may itself be a part.
    start = first - before if before > 0.1 else first + 1 - float(profile[first])
    end = last + 1 + after if after > 0.1 else last + float(profile[last])
    return start, end


def _resample(values: Array, start: float, end: float) -> Array:
    """Rows of ``values`` at the middles of 24 equal parts from ``start`` to ``end``, linear between them."""
    places = start + (np.arange(_GRID) + 0.5) * (end - start) / _GRID - 0.5
    low = np.clip(np.floor(places).astype(int), 0, len(values) - 1)
    high = np.clip(low + 1, 0, len(values) - 1)
    part = np.clip(places - low, 0, 1)[:, None]
    return np.asarray(values[low] * (1 - part) + values[high] * part)
