"""What is measured: a component or the pipeline at a batch and a size, and the inputs it gets."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sdort.errors import BadModelError, UsageError
from sdort.model.signature import Array, TensorSpec, static_size, timestep_shape

PIPELINE = "pipeline"
TOKENS = 77
IMAGES_AT_ONCE = 4
SEED = 1234

PROMPT = "a photo of an astronaut riding a horse on mars"


@dataclass(frozen=True)
class Case:
    """One row to be: ``component`` is a component's name or ``pipeline``; height and width are pixels."""

    component: str
    batch: int
    height: int
    width: int
    seed: int = SEED
    """Of the pipeline's first image."""

    def __str__(self) -> str:
        return f"{self.component}, batch {self.batch}, {self.height}x{self.width}"


def further(case: Case, images: int) -> list[Case]:
    """Cases that draw the images after a pipeline case's own, as many as there are ``images`` with them at least."""
    return [replace(case, seed=case.seed + first) for first in range(case.batch, images, case.batch)]


def cases(components: Sequence[str], batches: Sequence[int], sizes: Sequence[tuple[int, int]]) -> list[Case]:
    """Every combination once; text encoders do not depend on the size and are measured at the first one only."""
    return [
        Case(component, batch, height, width)
        for component in components
        for batch in batches
        for height, width in (sizes[:1] if component.startswith("text_encoder") else sizes)
    ]


def make_feeds(
    case: Case, inputs: Mapping[str, TensorSpec], factor: int, channels: int | None = None
) -> dict[str, Array]:
    """Seeded inputs of a component, of the kind that a pipeline feeds; equal for every export of one model.

    Args:
        inputs: as the model declares them; their dtypes are cast to later, their static sizes must fit.
        factor: pixels a latent.
        channels: of the image or latent, where the model leaves them open; None for Stable Diffusion's.

    Raises:
        UsageError: the model is static and was exported for another batch or size.
        BadModelError: an input that no Stable Diffusion component has.
    """
    feeds = {}
    for name, spec in inputs.items():
        # A seed per input: two of one shape must not be equal. Exporters disagree on the names of images alone.
        key = "sample" if len(spec.shape) == 4 else name
        draw = np.random.default_rng([SEED, zlib.crc32(key.encode())])
        if name == "timestep":
            value: Array = np.full(timestep_shape(inputs, case.batch), 500, spec.dtype)
        else:
            value = _draw(case, name, spec, factor, channels, draw)
        _check_static(case, spec, value)
        feeds[name] = value
    return feeds


def _draw(
    case: Case, name: str, spec: TensorSpec, factor: int, channels: int | None, draw: np.random.Generator
) -> Array:
    batch, rank = case.batch, len(spec.shape)
    if name == "input_ids":
        # Any CLIP vocabulary starts with the 256 bytes.
        return draw.integers(0, 256, (batch, _size(case, spec, 1, TOKENS)))
    if name == "time_ids":
        numbers = [case.height, case.width, 0, 0, case.height, case.width][: _size(case, spec, 1, 6)]
        return np.tile(np.asarray(numbers, np.float32), (batch, 1))
    if rank == 4 and case.component == "vae_encoder":
        shape = (batch, _size(case, spec, 1, channels or 3), case.height, case.width)
        return draw.uniform(-1, 1, shape).astype(np.float32)
    if rank == 4:
        latent = (case.height // factor, case.width // factor)
        return draw.standard_normal((batch, _size(case, spec, 1, channels or 4), *latent), np.float32)
    if name == "encoder_hidden_states" or (rank == 2 and spec.dtype.kind == "f"):
        tokens = (_size(case, spec, 1, TOKENS),) if rank == 3 else ()
        return draw.standard_normal((batch, *tokens, _size(case, spec, rank - 1, None)), np.float32)
    raise BadModelError(f"it is not known what to feed the input {name!r}", component=case.component)


def _size(case: Case, spec: TensorSpec, axis: int, default: int | None) -> int:
    size = static_size(spec.shape, axis) or default
    if size is None:
        raise BadModelError(f"the width of the input {spec.name!r} is not in the model", component=case.component)
    return size


def _check_static(case: Case, spec: TensorSpec, value: Array) -> None:
    wanted = [size if isinstance(size, int) else actual for size, actual in zip(spec.shape, value.shape, strict=True)]
    if list(value.shape) != wanted:
        raise UsageError(
            f"the model is static: {spec.name!r} is {wanted}, not {list(value.shape)}",
            component=case.component,
            hint="Give the batch and size that it was exported for, or export again without --static.",
        )


Inputs = Mapping[str, TensorSpec]


def drawing_cases(
    component: str, inputs: Inputs, images: int, size: tuple[int, int], *, guided: bool, at_once: int = IMAGES_AT_ONCE
) -> list[Case]:
    """What a component runs on while ``images`` are drawn.

    Args:
        size: height and width in pixels.
        guided: whether there is classifier-free guidance: a UNet then takes two samples an image.
    """
    static = next((static_size(spec.shape, 0) for spec in inputs.values() if len(spec.shape) > 1), None)
    if component.startswith("text_encoder"):
        # One prompt after the other.
        return [Case(component, static or 1, *size)]
    parts = {min(at_once, images - first) for first in range(0, images, at_once)}
    samples = 2 if component == "unet" and guided and "timestep_cond" not in inputs else 1
    batches = {static or samples * part for part in parts}
    return [Case(component, batch, *size) for batch in sorted(batches)]


def feed_shapes(feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """The dimensions of every input."""
    return {name: np.shape(value) for name, value in feeds.items()}
