"""Safety checkers: whether an image is near to a concept that it must not show, and what becomes of it then.

The decision is that of diffusers (``StableDiffusionSafetyChecker.forward``): scores are cosines less thresholds, an
image that is near to a concept of special care is judged more strictly, and all of it is rounded to three digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sdort.checkpoints.clip_processing import FEATURE_EXTRACTOR, ClipProcessing, read_processing
from sdort.console import say
from sdort.errors import BadModelError, UsageError
from sdort.families.component_names import CLIP_PIXELS, CONCEPT_SCORES, SAFETY_CHECKER, SPECIAL_CARE_SCORES
from sdort.families.safety_signature import FLAGS, IMAGES, SafetyKind, safety_kind
from sdort.generation.pictures.clip_pixels import clip_pixels
from sdort.graph.signature import Array, static_size
from sdort.pipelines.folder import PipelineFolder

ON, OFF, REPLACE = SAFETY = ("on", "off", "replace")
"""The fate of a flagged image: it is not written, it is not looked for, or it is written as a black one."""
STRICTER = 0.01
"""Addition to the score of every concept where an image is near to a concept of special care, as in diffusers."""
_DIGITS = 3
_SCORES = (CONCEPT_SCORES, SPECIAL_CARE_SCORES)


@dataclass(frozen=True)
class Verdict:
    """A safety checker's answer for an image."""

    flagged: bool
    score: float | None
    """The highest score of a concept, above 0 where the image is flagged; None of a checker that gives flags alone."""


def verdict_of(concepts: Array, special_care: Array) -> Verdict:
    """The decision of diffusers by the scores of one image, float32 [concepts] each."""
    stricter = STRICTER if (np.round(special_care, _DIGITS) > 0).any() else 0.0
    scores = np.round(concepts + np.float32(stricter), _DIGITS)
    return Verdict(bool((scores > 0).any()), float(scores.max()))


@dataclass(frozen=True)
class SafetyChecker:
    """The safety checker of a pipeline: what its graph is fed with, and what its outputs mean.

    Raises:
        BadModelError: nothing is known of such a graph, or the settings of its pixels are broken.
    """

    folder: PipelineFolder

    def __post_init__(self) -> None:
        _ = self.kind, self.processing

    @cached_property
    def kind(self) -> SafetyKind:
        """The kind of the graph's output."""
        signature = self.folder.file(SAFETY_CHECKER).signature
        kind = safety_kind(signature.inputs, signature.outputs)
        if kind is None:
            inputs, outputs = (", ".join(names) for names in (signature.inputs, signature.outputs))
            raise BadModelError(
                f"nothing is known of a safety checker that maps {inputs or 'nothing'} to {outputs or 'nothing'}",
                component=SAFETY_CHECKER,
                hint="Export it again: sdort export MODEL OUT. To generate without it: --safety off",
            )
        return kind

    @cached_property
    def processing(self) -> ClipProcessing:
        """The settings of its pixels."""
        shape = self.folder.file(SAFETY_CHECKER).signature.inputs[CLIP_PIXELS].shape
        return read_processing(self.folder.path / FEATURE_EXTRACTOR, static_size(shape, 2))

    def feeds(self, pixels: Array) -> dict[str, Array]:
        """The graph's inputs for one image, uint8 [height, width, 3]."""
        from PIL import Image

        inputs = self.folder.file(SAFETY_CHECKER).signature.inputs
        feeds = {CLIP_PIXELS: clip_pixels(Image.fromarray(pixels), self.processing)}
        if IMAGES in inputs:  # to be made black by the graph, which nobody asks for
            dims = [static_size(inputs[IMAGES].shape, axis) or size for axis, size in enumerate((1, *pixels.shape))]
            feeds[IMAGES] = np.zeros(dims, np.float32)
        return feeds

    def numbers(self, outputs: Mapping[str, Array]) -> list[Array]:
        """The scores of an image in one array; none of a checker that gives flags alone."""
        if self.kind is SafetyKind.FLAGS:
            return []
        return [np.concatenate([np.asarray(outputs[name], np.float32)[0] for name in _SCORES])]

    def verdict(self, outputs: Mapping[str, Array]) -> Verdict:
        """The answer by the graph's outputs for one image."""
        if self.kind is SafetyKind.FLAGS:
            return Verdict(bool(np.asarray(outputs[FLAGS]).reshape(-1)[0]), None)
        concepts, special_care = (np.asarray(outputs[name], np.float32)[0] for name in _SCORES)
        return verdict_of(concepts, special_care)


def choose_safety(folder: PipelineFolder, asked: str | None) -> str | None:
    """The mode of a pipeline for images that its safety checker flags: one of :data:`SAFETY`; None where it has none.

    Args:
        asked: by the caller; None for ``on``.

    Raises:
        BadModelError: it is asked for and not there, or nothing is known of such a graph.
    """
    if SAFETY_CHECKER not in folder.models:
        if asked in (ON, REPLACE):
            raise BadModelError(
                f"{folder.given} has no {SAFETY_CHECKER}, which --safety {asked} asks",
                hint="Export one that has: sdort export DIR OUT, of a diffusers folder with a safety_checker; and "
                "optimize all of it. Without --safety, images are not judged.",
            )
        return None
    if asked != OFF:
        SafetyChecker(folder)
    return asked or ON


def check_safety(asked: str | None) -> None:
    """Refuse a value that ``safety`` does not have.

    Raises:
        UsageError: it is none of :data:`SAFETY`.
    """
    if asked not in (None, *SAFETY):
        raise UsageError(f"--safety {asked!r} is not one of {', '.join(SAFETY)}")


def say_unjudged(folder: PipelineFolder, chosen: Sequence[str | None]) -> None:
    """Say that images are not judged, where a pipeline has a safety checker and it is off."""
    if OFF in chosen:
        say(f"--safety off: the safety checker of {folder.given} does not look at the images")


def is_judged(safety: str | None) -> bool:
    """Whether images are shown to the safety checker."""
    return safety in (ON, REPLACE)
