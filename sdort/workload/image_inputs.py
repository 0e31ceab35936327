"""A UNet's inputs for the images of IP-Adapters."""

from __future__ import annotations

from collections.abc import Iterable

from sdort.families.component_names import IMAGE_SCALE, IMAGE_TOKENS


def is_image_scale(name: str) -> bool:
    """Whether an input says how much an image counts."""
    return name.startswith(f"{IMAGE_SCALE}.")


def is_image_input(name: str) -> bool:
    """Whether an input is for an image."""
    return name.startswith((f"{IMAGE_TOKENS}.", f"{IMAGE_SCALE}."))


def image_inputs(names: Iterable[str]) -> list[str]:
    """The names that are those of inputs for images."""
    return [name for name in names if is_image_input(name)]


def count_images(names: Iterable[str]) -> int:
    """The number of images that a UNet with inputs of these names takes."""
    return sum(name.startswith(f"{IMAGE_TOKENS}.") for name in names)
