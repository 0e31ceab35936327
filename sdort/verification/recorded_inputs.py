"""What components are fed with: random numbers, and what flows between them while the original draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sdort.generation.images import Generated
from sdort.generation.recorded import Recording, encoder_input
from sdort.generation.request import Request
from sdort.model.component_names import DECODER
from sdort.onnx_io.component_file import read_component
from sdort.pipelines.folder import PipelineFolder
from sdort.verification.runners import Feeds, Place, open_drawer
from sdort.workload.samples import Sample, declared_inputs, make_inputs

RANDOM, REAL = "random", "real"
RECORDED_TIMESTEPS = 4
"""Timesteps of a denoising run whose inputs are kept: the first, the last and two between."""
LARGEST_SIDE = 64
"""Latent sides of random inputs are not longer: attention without fusions takes memory with their fourth power."""
RECORDED_PROMPTS = 2
"""Prompts whose run is watched; their inputs differ less than a run's timesteps do."""


@dataclass(frozen=True)
class Inputs:
    """Feeds of one component and what they are."""

    kind: str
    label: str
    feeds: Feeds
    timestep: float | None = None
    """Where in a denoising run they were fed; None for what is fed once."""


def random_inputs(path: Path, component: str, factor: int, size: tuple[int, int], seed: int = 0) -> list[Inputs]:
    """Batches of one and two: the model's own size, up to :data:`LARGEST_SIDE`, and one that is not square.

    A static model has one.

    Args:
        factor: pixels a latent.
        size: height and width of the model's own latent.
    """
    inputs = declared_inputs(read_component(path, component).graph, component)
    scale = factor if component == "vae_encoder" else 1
    first = (min(size[0], LARGEST_SIDE), min(size[1], LARGEST_SIDE))
    sides = [first, tuple(max(side * part // 64, 1) * 8 for side, part in zip(first, (5, 7), strict=True))]
    found: dict[tuple[Any, ...], Inputs] = {}
    for batch, (height, width) in enumerate(sides, 1):
        feeds = make_inputs(inputs, Sample(batch, height * scale, width * scale), component, seed)
        shapes = ", ".join("x".join(map(str, value.shape)) or "scalar" for value in feeds.values())
        found.setdefault(tuple(value.shape for value in feeds.values()), Inputs(RANDOM, shapes, feeds))
    return list(found.values())


@dataclass
class RecordedRun:
    """A drawing run: its images, and what its components were fed with."""

    images: dict[tuple[str, int], Generated] = field(default_factory=dict)
    """By prompt and seed."""
    inputs: dict[str, list[Inputs]] = field(default_factory=dict)
    """By component."""


def record_run(
    folder: PipelineFolder,
    place: Place,
    requests: Sequence[Request],
    on_step: Callable[[float], None],
    *,
    images: bool = True,
) -> RecordedRun:
    """Draw with a pipeline and keep what its components were fed with.

    Args:
        images: draw every image of every request; else only the first one of those that are watched.

    Raises:
        SdortError: the pipeline does not draw from text, or a run failed.
    """
    recording = Recording(open_drawer(folder, place))
    watched = RecordedRun()
    for number, request in enumerate(requests if images else requests[:RECORDED_PROMPTS], 1):
        generated = recording.generate(request, on_step)
        first = next(generated)
        watched.images[request.prompt, first.seed] = first
        if number <= RECORDED_PROMPTS:
            _collect(watched.inputs, recording.fed, first, f"prompt {number}", folder)
        if images:
            watched.images.update({(request.prompt, image.seed): image for image in generated})
    return watched


def _collect(
    kept: dict[str, list[Inputs]],
    fed: Mapping[str, Sequence[Feeds]],
    image: Generated,
    label: str,
    folder: PipelineFolder,
) -> None:
    """Sort what was fed while one image was drawn."""
    steps = fed["unet"]
    for index in sorted(
        {round(part * (len(steps) - 1) / (RECORDED_TIMESTEPS - 1)) for part in range(RECORDED_TIMESTEPS)}
    ):
        moment = float(np.asarray(steps[index]["timestep"]).flat[0])
        what = f"{label}, step {index + 1} of {len(steps)}, timestep {moment:g}"
        kept.setdefault("unet", []).append(Inputs(REAL, what, steps[index], moment))
    for encoder in folder.family.encoders:
        prompts = fed[encoder.component]
        for index, feeds in enumerate(prompts):
            what = f"{label}{'' if index else ', the negative one' if len(prompts) > 1 else ''}"
            kept.setdefault(encoder.component, []).append(Inputs(REAL, what, feeds))
    for feeds in fed[DECODER][:1]:
        kept.setdefault(DECODER, []).append(Inputs(REAL, f"{label}, its latent", feeds))
    if "vae_encoder" in folder.models and image.problem is None:
        name = next(iter(folder.file("vae_encoder").signature.inputs))
        feeds = {name: encoder_input(image)}
        kept.setdefault("vae_encoder", []).append(Inputs(REAL, f"{label}, its image", feeds))
