"""Scenes of the demo: one or two flat shapes on a plain background, 64x64 pixels, and the words for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdort.graph.signature import Array

IMAGE_SIDE = 64
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring", "star")
RGB = {
    "red": (220, 30, 30),
    "orange": (255, 140, 0),
    "yellow": (250, 220, 40),
    "green": (30, 160, 60),
    "cyan": (60, 210, 230),
    "blue": (30, 70, 220),
    "purple": (140, 50, 190),
    "pink": (255, 130, 190),
    "white": (255, 255, 255),
    "black": (10, 10, 10),
}
BACKGROUNDS = {
    "white": (255, 255, 255),
    "black": (10, 10, 10),
    "gray": (128, 128, 128),
    "navy": (25, 30, 100),
    "beige": (235, 215, 175),
}
SIZES = {"small": (7, 8), "medium": (10, 11), "large": (13, 15)}
"""Smallest and largest radius in pixels. No caption says medium: a shape without a word for its size has any."""
COLUMNS, ROWS = ("left", "center", "right"), ("top", "center", "bottom")


@dataclass(frozen=True)
class SceneShape:
    """A shape of a scene; ``x`` and ``y`` are its centre's pixel, ``radius`` that of the circle around it."""

    shape: str
    colour: str
    x: int
    y: int
    radius: int


@dataclass(frozen=True)
class Scene:
    """The shapes of an image, the last one in front, on one background."""

    background: str
    shapes: tuple[SceneShape, ...]


def render(scene: Scene) -> Array:
    """The scene as an image [64, 64, 3], uint8, with soft edges."""
    image = np.broadcast_to(np.array(BACKGROUNDS[scene.background], np.float32), (IMAGE_SIDE, IMAGE_SIDE, 3))
    for shape in scene.shapes:
        alpha = coverage(shape.shape, shape.radius, IMAGE_SIDE, (shape.x, shape.y))[..., None]
        image = image * (1 - alpha) + np.array(RGB[shape.colour], np.float32) * alpha
    return np.round(image).astype(np.uint8)


def coverage(shape: str, radius: float, side: int, centre: tuple[float, float]) -> Array:
    """The part of each pixel that a shape covers: [side, side], float32 from 0 to 1, from 8x8 samples a pixel."""
    samples = 8
    line = (np.arange(side * samples) + 0.5) / samples - 0.5
    x, y = (line[None, :] - centre[0]) / radius, (line[:, None] - centre[1]) / radius
    inside = np.broadcast_to(_inside(shape, x, y), (side * samples, side * samples))
    means: Array = inside.reshape(side, samples, side, samples).mean((1, 3), dtype=np.float32)
    return means


def _inside(shape: str, x: Array, y: Array) -> Array:
    """Whether points are inside a shape of radius 1 around 0, with ``y`` pointing down."""
    if shape == "circle":
        return np.asarray(x**2 + y**2 <= 1)
    if shape == "ring":
        return np.asarray((x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.55**2))
    if shape == "square":
        return np.asarray(np.maximum(abs(x), abs(y)) <= 0.85)
    if shape == "diamond":
        return np.asarray(abs(x) + abs(y) <= 1)
    if shape == "cross":
        return np.asarray((np.minimum(abs(x), abs(y)) <= 0.32) & (np.maximum(abs(x), abs(y)) <= 0.95))
    corners = _TRIANGLE if shape == "triangle" else _STAR
    return _inside_polygon(corners, x, y)


def _polygon(radii: Sequence[float]) -> list[tuple[float, float]]:
    """Corners at even angles from the top, clockwise."""
    angles = 2 * np.pi * np.arange(len(radii)) / len(radii)
    return [(float(r * np.sin(a)), float(-r * np.cos(a))) for r, a in zip(radii, angles, strict=True)]


# The triangle is moved down by half of what it lacks below its centre.
_TRIANGLE = [(x * 1.1, y * 1.1 + 0.25) for x, y in _polygon((1, 1, 1))]
_STAR = _polygon((1.05, 0.48) * 5)


def _inside_polygon(corners: Sequence[tuple[float, float]], x: Array, y: Array) -> Array:
    """Even-odd rule: a ray to the right of the point crosses an odd number of edges."""
    inside = np.zeros(np.broadcast_shapes(x.shape, y.shape), bool)
    for (ax, ay), (bx, by) in zip(corners, [*corners[1:], corners[0]], strict=True):
        if ay == by:
            continue
        inside ^= ((ay > y) != (by > y)) & (x < (bx - ax) * (y - ay) / (by - ay) + ax)
    return inside
