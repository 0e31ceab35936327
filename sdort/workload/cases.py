"""Cases: a component or the pipeline at a batch and a size, and the inputs that it gets."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import CONTROLNET, ENCODER, IMAGE_ENCODER, SAFETY_CHECKER, T2I_ADAPTER
from sdort.families.denoiser_arguments import timestep_shape
from sdort.families.family import CHUNK
from sdort.families.known_families import DENOISERS, FAMILIES
from sdort.graph.signature import Array, TensorSpec, static_size
from sdort.workload.samples import (
    CONTEXT,
    GUIDANCE,
    SAMPLE,
    SIZES,
    TIMESTEP,
    Input,
    Sample,
    fill_inputs,
    follows,
    random_guidance,
    sample_sizes,
)
from sdort.workload.steering_inputs import IMAGE, SCALES, image_inputs, is_image_scale, is_residual

WHOLE_PIPELINE = "pipeline"
IMAGES_AT_ONCE = 4
SEED = 1234


@dataclass(frozen=True)
class Case:
    """A component or the whole ``pipeline`` at a batch and a size; height and width are pixels."""

    component: str
    batch: int
    height: int
    width: int
    seed: int = SEED
    """Seed of the pipeline's first image."""
    prompt: str = ""
    """The pipeline's; components do without."""

    def __str__(self) -> str:
        return f"{self.component}, batch {self.batch}, {self.width}x{self.height}"


def further_cases(case: Case, images: int) -> list[Case]:
    """Cases for the images after a pipeline case's own, until there are at least ``images`` with them."""
    return [replace(case, seed=case.seed + first) for first in range(case.batch, images, case.batch)]


def cases(
    components: Sequence[str], batches: Sequence[int], sizes: Sequence[tuple[int, int]], prompt: str = ""
) -> list[Case]:
    """Every combination once; text encoders and what looks at images through CLIP do not depend on the size: at the
    first one only."""
    return [
        Case(component, batch, height, width, prompt=prompt if component == WHOLE_PIPELINE else "")
        for component in components
        for batch in batches
        for height, width in (sizes[:1] if _has_own_size(component) else sizes)
    ]


_CLIP_VISION = (IMAGE_ENCODER, SAFETY_CHECKER)
"""Components that look at an image of one size."""


_SIZE_NUMBERS = next(len(family.sizes) for family in FAMILIES.values() if family.sizes)
"""Where a model does not say how many numbers of sizes it takes."""


def _has_own_size(component: str) -> bool:
    """Whether a component runs at one size, whatever the size that is generated."""
    return component.startswith("text_encoder") or component in _CLIP_VISION


@dataclass(frozen=True)
class CaseNumbers:
    """Values of the kind that a pipeline feeds, of a generator per input: equal for every export of one model.

    Latents and embeddings are normal, images uniform in [-1, 1], both float32; token ids are those of bytes, with which
    any CLIP vocabulary starts; the timestep is 500; SDXL's ``time_ids`` say the case's size, without a crop; embeddings
    of the guidance scale are those of :class:`sdort.workload.samples.RandomNumbers`.
    """

    case: Case

    def __call__(self, item: Input, shape: tuple[int, ...]) -> Array:
        # A seed per input: two of one shape must not be equal. Exporters disagree on the names of images alone.
        if is_residual(item.name) or is_image_scale(item.name):
            return np.zeros(shape, item.dtype)  # a UNet that nothing steers, as torch runs it
        key = "sample" if len(shape) == 4 and item.name != IMAGE else item.name
        generator = np.random.default_rng([SEED, zlib.crc32(key.encode())])
        if item.name == SCALES:
            return np.ones(shape, np.float32)
        if item.name == IMAGE or self.case.component == T2I_ADAPTER:
            return generator.uniform(0, 1, shape).astype(np.float32)
        if item.name in TIMESTEP:
            return np.full(shape, 500, item.dtype)
        if item.name == "input_ids":
            return generator.integers(0, 256, shape)
        if item.name in SIZES:
            size = [self.case.height, self.case.width]
            return np.tile(np.asarray([*size, 0, 0, *size][: shape[1]], np.float32), (shape[0], 1))
        if item.name in GUIDANCE:
            return random_guidance(generator, shape).astype(np.float32)
        if len(shape) == 4 and self.case.component == ENCODER:
            return generator.uniform(-1, 1, shape).astype(np.float32)
        return generator.standard_normal(shape, np.float32)


def make_feeds(
    case: Case,
    inputs: Mapping[str, TensorSpec],
    factor: int,
    channels: int | None = None,
    tokens: int = CHUNK,
) -> dict[str, Array]:
    """:class:`CaseNumbers` for every input of a component.

    Args:
        inputs: as the model declares them; their dtypes are cast to later, their static sizes must fit.
        factor: pixels a latent.
        channels: of the image or latent, where the model leaves them open; None for Stable Diffusion's.
        tokens: of a prompt, as the component takes them.

    Raises:
        UsageError: the model is static and was exported for another batch or size.
        BadModelError: an input that no Stable Diffusion component has.
    """
    pictures = case.component in (ENCODER, T2I_ADAPTER, *_CLIP_VISION)
    scale = 1 if pictures else factor
    sample = Sample(case.batch, case.height // scale, case.width // scale, tokens)
    if case.component in _CLIP_VISION:
        fixed = next(iter(inputs.values())).shape
        sample = replace(sample, height=static_size(fixed, 2) or 224, width=static_size(fixed, 3) or 224)
    image = channels or (3 if pictures else 4)
    items = [_input(case, spec, inputs, image) for spec in inputs.values()]
    for item, spec in zip(items, inputs.values(), strict=True):
        if item.name in SAMPLE or not follows(item.name):
            _refuse_other_size(case, item, spec, sample)
    return fill_inputs(items, sample, case.component, CaseNumbers(case))


def _input(case: Case, spec: TensorSpec, inputs: Mapping[str, TensorSpec], channels: int) -> Input:
    """An input with the dims that every Stable Diffusion has filled in where the model leaves them open."""
    rank = len(spec.shape)
    known = ("input_ids", *TIMESTEP, *SIZES, *CONTEXT, *GUIDANCE, SCALES, *image_inputs(inputs))
    named = spec.name in known
    if not (named or rank == 4 or (rank == 2 and spec.dtype.kind == "f")):
        raise BadModelError(f"it is not known what to feed the input {spec.name!r}", component=case.component)
    shape = [size if isinstance(size, int) else None for size in spec.shape]
    if rank == 4:
        shape[1] = shape[1] or channels
    if spec.name in SIZES:
        shape[1] = shape[1] or _SIZE_NUMBERS
    each = spec.name in GUIDANCE or (spec.name in TIMESTEP and timestep_shape(inputs, 2) == (2,))
    per_sample = each and rank == 1
    names = tuple(size if isinstance(size, str) else None for size in spec.shape) if follows(spec.name) else ()
    return Input(spec.name, spec.dtype, tuple(shape), per_sample=per_sample, names=names)


def _refuse_other_size(case: Case, item: Input, spec: TensorSpec, sample: Sample) -> None:
    """Raise UsageError if a static model is of another batch or size than the case."""
    if len(item.shape) < 2:
        return
    asked = [size or declared for size, declared in zip(sample_sizes(item, sample) or [], item.shape, strict=True)]
    if len(asked) in (2, 3):
        asked[1] = item.shape[1] or asked[1]
    fixed = [size if isinstance(size, int) else actual for size, actual in zip(spec.shape, asked, strict=True)]
    if asked != fixed:
        raise UsageError(
            f"the model is static: {spec.name!r} is {fixed}, not {asked}",
            component=case.component,
            hint="Give the batch and size that it was exported for, or export again without --static.",
        )


InputSpecs = Mapping[str, TensorSpec]


def generation_cases(
    component: str,
    inputs: InputSpecs,
    images: int,
    size: tuple[int, int],
    *,
    copies: int,
    at_once: int = IMAGES_AT_ONCE,
) -> list[Case]:
    """The cases that a component runs on while ``images`` are generated.

    Args:
        size: height and width in pixels.
        copies: samples of an image that a UNet takes: two with classifier-free guidance.
    """
    static = next((static_size(spec.shape, 0) for spec in inputs.values() if len(spec.shape) > 1), None)
    if _has_own_size(component):
        # One prompt, or one image, after the other.
        return [Case(component, static or 1, *size)]
    parts = {min(at_once, images - first) for first in range(0, images, at_once)}
    embedded = copies == 2 and not GUIDANCE.isdisjoint(inputs)  # one prompt, without the negative one
    samples = copies if component in (*DENOISERS, CONTROLNET) and not embedded else 1
    batches = {static or samples * part for part in parts}
    return [Case(component, batch, *size) for batch in sorted(batches)]


def feed_shapes(feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """The dimensions of every input."""
    return {name: np.shape(value) for name, value in feeds.items()}
