"""The judge of the demo's images: colours, shapes, sizes and positions, read from the pixels, against the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sdort.demo.prompt_language import ExpectedScene
from sdort.demo.scenes import BACKGROUNDS, COLUMNS, IMAGE_SIDE, RGB, ROWS, SHAPES, coverage
from sdort.graph.signature import Array

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
class DetectedShape:
    """A shape detected in an image, with its centre as fractions of width and height.

    ``shape`` and ``colour`` are None when they are none that has a name.
    """

    shape: str | None
    colour: str | None
    size: str
    x: float
    y: float


@dataclass(frozen=True)
class PromptVerdict:
    """The correct and the wrong properties of an image; None for those that its prompt leaves open."""

    shapes: bool
    """As many shapes as the prompt asks for, each of the right kind."""
    colours: bool
    """Each of them in its colour."""
    relation: bool | None
    position: bool | None
    size: bool | None
    background: bool | None

    @property
    def right(self) -> bool:
        """Shapes, their colours, and where one stands to the other."""
        return self.shapes and self.colours and self.relation is not False


def judge_scene(image: Array, expected: ExpectedScene) -> PromptVerdict:
    """Compare an image [height, width, 3], uint8, with the scene that its prompt asks for."""
    background, seen = detect_shapes(image)
    order = _match(expected, seen)
    if order is None:
        return PromptVerdict(False, False, *(None if value is None else False for value in _optional(expected)))
    pairs = list(zip(expected.shapes, order, strict=True))
    sizes = [shape.size == detected.size for shape, detected in pairs if shape.size]
    return PromptVerdict(
        shapes=all(shape.shape == detected.shape for shape, detected in pairs),
        colours=all(shape.colour == detected.colour for shape, detected in pairs),
        relation=None if expected.relation is None else _relation(*order) == expected.relation,
        position=None if expected.position is None else _position(order[0]) == expected.position,
        size=all(sizes) if sizes else None,
        background=None if expected.background is None else background == expected.background,
    )


def wrong(verdict: PromptVerdict) -> list[str]:
    """The names of the properties that are wrong, of those that :attr:`PromptVerdict.right` depends on."""
    words = {"shapes": verdict.shapes, "colours": verdict.colours, "relation": verdict.relation is not False}
    return [word for word, right in words.items() if not right]


def describe_image(image: Array) -> str:
    """The content of an image [height, width, 3], uint8, in the words of a prompt, the largest shape first."""
    background, seen = detect_shapes(image)
    shapes = [f"{it.size} {it.colour or 'oddly coloured'} {it.shape or 'unknown shape'}" for it in seen]
    return f"{' and '.join(shapes) or 'nothing'} on {background or 'an unknown background'}"


def _optional(scene: ExpectedScene) -> tuple[Any, Any, Any, Any]:
    """The properties that a prompt may leave open, in the order of :class:`PromptVerdict`."""
    size = next((shape.size for shape in scene.shapes if shape.size), None)
    return scene.relation, scene.position, size, scene.background


def _match(expected: ExpectedScene, seen: Sequence[DetectedShape]) -> list[DetectedShape] | None:
    """The detected shapes in the order of the expected ones; None when their numbers differ."""
    if len(expected.shapes) != len(seen):
        return None

    def alike(order: list[DetectedShape]) -> tuple[int, int, bool]:
        pairs = list(zip(expected.shapes, order, strict=True))
        shapes = sum(shape.shape == detected.shape for shape, detected in pairs)
        colours = sum(shape.colour == detected.colour for shape, detected in pairs)
        # In doubt it is the colours that are wrong, and two of a kind stand as they were asked to.
        return shapes + colours, shapes, len(order) == 2 and _relation(*order) == expected.relation

    return max([list(seen), list(reversed(seen))], key=alike)


def _relation(first: DetectedShape, second: DetectedShape) -> str:
    dx, dy = first.x - second.x, first.y - second.y
    if abs(dx) > abs(dy):
        return "left of" if dx < 0 else "right of"
    return "above" if dy < 0 else "below"


def _position(shape: DetectedShape) -> tuple[str, str]:
    """Row and column in thirds of the picture, a little less than a third in the middle."""

    def third(value: float, names: Sequence[str]) -> str:
        return names[0] if value < 0.39 else names[2] if value > 0.61 else names[1]

    return third(shape.y, ROWS), third(shape.x, COLUMNS)


def detect_shapes(image: Array) -> tuple[str | None, list[DetectedShape]]:
    """The background's colour and the shapes in an image [height, width, 3], uint8, the largest first."""
    pixels = np.asarray(image, np.float32)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    background = np.median(border, axis=0)
    distance = np.linalg.norm(pixels - background, axis=-1)
    labels, count = connected_parts(distance > _DIFFERENT)
    masks = [labels == label for label in range(1, count + 1)]
    speck = _SPECK * image.shape[0] * image.shape[1] / IMAGE_SIDE**2
    parts = sorted((mask for mask in masks if mask.sum() >= speck), key=np.sum, reverse=True)
    return _name(background, BACKGROUNDS), [_see(pixels, distance, mask) for mask in parts]


def connected_parts(mask: Array) -> tuple[Array, int]:
    """Label the connected parts of a mask [height, width] from 1 on, corners touching; 0 is the rest."""
    labels = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        padded = np.pad(labels, 1)
        height, width = mask.shape
        around = [padded[y : y + height, x : x + width] for y in range(3) for x in range(3)]
        grown = np.where(mask, np.maximum.reduce(around), 0)
        if np.array_equal(grown, labels):
            break
        labels = grown
    names, numbered = np.unique(labels, return_inverse=True)
    numbered = numbered.reshape(mask.shape)
    return (numbered, len(names) - 1) if names[0] == 0 else (numbered + 1, len(names))


def _see(pixels: Array, distance: Array, mask: Array) -> DetectedShape:
    """Name the shape that a mask covers."""
    # The half that differs most from the background has no pixels of soft edges in it.
    solid = mask & (distance >= np.median(distance[mask]))
    colour = np.median(pixels[solid], axis=0)
    height, width = mask.shape
    shape, radius = _outline(np.where(mask, distance / max(float(np.median(distance[solid])), 1.0), 0).clip(0, 1))
    radius *= IMAGE_SIDE / np.sqrt(height * width)
    size = "small" if radius < _SMALL else "large" if radius > _LARGE else "medium"
    y, x = np.nonzero(mask)
    middle = (float(x.min() + x.max() + 1) / 2 / width, float(y.min() + y.max() + 1) / 2 / height)
    return DetectedShape(shape, _name(colour, RGB), size, *middle)


def _name(colour: Array, names: Mapping[str, Colour]) -> str | None:
    distances = {name: float(np.linalg.norm(colour - np.array(value, np.float32))) for name, value in names.items()}
    nearest = min(distances, key=distances.__getitem__)
    return nearest if distances[nearest] < _NAMED else None


def _outline(alpha: Array) -> tuple[str | None, float]:
    """The shape that a coverage [height, width] resembles most, and its radius in pixels."""
    normal = _fit(alpha)
    shares = {shape: _overlap(normal, outline) for shape, outline in _shapes().items()}
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
    """The area of the shape of radius 1."""
    return float(coverage(shape, 20.0, 51, (25.0, 25.0)).sum()) / 400


def _fit(alpha: Array) -> Array:
    """The bounding box of a coverage, resampled to a grid [24, 24], linear between the pixels."""
    rows, columns = alpha.max(1), alpha.max(0)
    return _resample(_resample(alpha, *_extent(rows)).T, *_extent(columns)).T


def _extent(profile: Array) -> tuple[float, float]:
    """Start and end of a part along one side, to fractions of a pixel; pixel ``i`` is from i to i + 1."""
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
