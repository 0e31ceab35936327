"""Inputs of components: random numbers, and those recorded while the original generates images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sdort.families.component_names import DECODER, ENCODER, SAFETY_CHECKER, T2I_ADAPTER
from sdort.generation.pictures.images import Generated
from sdort.generation.pictures.safety import SafetyChecker
from sdort.generation.recorded import Recording, encoder_input
from sdort.generation.requests.request import Request
from sdort.graph.signature import Feeds
from sdort.onnx_io.component_file import read_component
from sdort.pipelines.folder import PipelineFolder
from sdort.verification.runners import RunConfiguration, open_text_to_image
from sdort.workload.samples import Sample, SampleDim, declared_inputs, make_inputs

RANDOM, RECORDED = "random", "recorded"
RECORDED_TIMESTEPS = 4
"""Timesteps of a denoising run whose inputs are inputs: the first, the last and two between."""
LARGEST_LATENT_SIDE = 64
"""Latent sides of random inputs are not longer: attention without fusions takes memory with their fourth power."""
RECORDED_PROMPTS = 2
"""Prompts whose run is recorded; their inputs differ less than a run's timesteps do."""


@dataclass(frozen=True)
class Inputs:
    """Feeds of one component and their description."""

    kind: str
    label: str
    feeds: Feeds
    timestep: float | None = None
    """Timestep of the denoising run that fed them; None for what is fed once."""


def random_inputs(
    path: Path, component: str, factor: int, size: tuple[int, int], seed: int = 0, candidate: Path | None = None
) -> list[Inputs]:
    """Batches of one and two: the model's own size, up to :data:`LARGEST_LATENT_SIDE`, and one that is not square.

    A static model has one.

    Args:
        factor: pixels a latent.
        size: height and width of the model's own latent.
        candidate: a model made of this one, whose sizes may be fixed where its are not.
    """
    inputs = declared_inputs(read_component(path, component).graph, component)
    if candidate is not None:
        fixed = {
            each.name: each.shape for each in declared_inputs(read_component(candidate, component).graph, component)
        }
        inputs = [replace(each, shape=_both(each.shape, fixed.get(each.name, ()))) for each in inputs]
    scale = factor if component in (ENCODER, T2I_ADAPTER) else 1
    first = (min(size[0], LARGEST_LATENT_SIDE), min(size[1], LARGEST_LATENT_SIDE))
    sides = [first, tuple(max(side * part // 64, 1) * 8 for side, part in zip(first, (5, 7), strict=True))]
    by_shapes: dict[tuple[Any, ...], Inputs] = {}
    for batch, (height, width) in enumerate(sides, 1):
        feeds = make_inputs(inputs, Sample(batch, height * scale, width * scale), component, seed)
        shapes = ", ".join("x".join(map(str, value.shape)) or "scalar" for value in feeds.values())
        by_shapes.setdefault(tuple(value.shape for value in feeds.values()), Inputs(RANDOM, shapes, feeds))
    return list(by_shapes.values())


def _both(shape: tuple[SampleDim, ...], other: tuple[SampleDim, ...]) -> tuple[SampleDim, ...]:
    """The dims of a shape, and of another where it leaves them open."""
    return tuple(own or size for own, size in zip(shape, other, strict=True)) if len(shape) == len(other) else shape


def in_batches(inputs: Inputs, path: Path, component: str) -> list[Inputs]:
    """Inputs in parts of the batch that a model has fixed; as they are where it has none or another part of it."""
    declared = declared_inputs(read_component(path, component).graph, component)
    fixed = next((each.shape[0] for each in declared if len(each.shape) > 1), None)
    rows = {len(value) for value in inputs.feeds.values() if value.ndim > 1}
    whole = max(rows, default=0)
    if not fixed or len(rows) != 1 or whole <= fixed or whole % fixed:
        return [inputs]
    return [
        replace(
            inputs,
            label=f"{inputs.label}, sample {start // fixed + 1} of {whole // fixed}",
            feeds={
                name: value[start : start + fixed] if value.ndim and len(value) == whole else value
                for name, value in inputs.feeds.items()
            },
        )
        for start in range(0, whole, fixed)
    ]


@dataclass
class RecordedRun:
    """Images of a run and the inputs of its components."""

    images: dict[tuple[str, int], Generated] = field(default_factory=dict)
    """By prompt and seed."""
    inputs: dict[str, list[Inputs]] = field(default_factory=dict)
    """By component."""


def record_run(
    folder: PipelineFolder,
    configuration: RunConfiguration,
    requests: Sequence[Request],
    on_step: Callable[[float], None],
    *,
    images: bool = True,
) -> RecordedRun:
    """Generate with a pipeline and record the inputs of its components.

    Args:
        images: generate every image of every request; else only the first one of the recorded prompts.

    Raises:
        SdortError: the pipeline does not make images from text, or a run failed.
    """
    recording = Recording(open_text_to_image(folder, configuration))
    run = RecordedRun()
    for number, request in enumerate(requests if images else requests[:RECORDED_PROMPTS], 1):
        generated = recording.generate(request, on_step)
        first = next(generated)
        run.images[request.prompt, first.seed] = first
        if number <= RECORDED_PROMPTS:
            _collect(run.inputs, recording.fed, first, f"prompt {number}", folder)
        if images:
            run.images.update({(request.prompt, image.seed): image for image in generated})
    return run


def _collect(
    inputs: dict[str, list[Inputs]],
    fed: Mapping[str, Sequence[Feeds]],
    image: Generated,
    label: str,
    folder: PipelineFolder,
) -> None:
    """Sort the inputs that were recorded for one image by component."""
    steps = fed[folder.denoiser]
    last = len(steps) - 1
    for index in sorted({round(part * last / (RECORDED_TIMESTEPS - 1)) for part in range(RECORDED_TIMESTEPS)}):
        timestep = float(np.asarray(steps[index][folder.family.denoiser.roles.timestep]).flat[0])
        what = f"{label}, step {index + 1} of {len(steps)}, timestep {timestep:g}"
        inputs.setdefault(folder.denoiser, []).append(Inputs(RECORDED, what, steps[index], timestep))
    for encoder in folder.family.encoders:
        prompts = fed[encoder.component]
        for index, feeds in enumerate(prompts):
            what = f"{label}{'' if index else ', the negative one' if len(prompts) > 1 else ''}"
            inputs.setdefault(encoder.component, []).append(Inputs(RECORDED, what, feeds))
    for feeds in fed[DECODER][:1]:
        inputs.setdefault(DECODER, []).append(Inputs(RECORDED, f"{label}, its latent", feeds))
    if SAFETY_CHECKER in folder.compared and image.problem is None:
        feeds = SafetyChecker(folder).feeds(image.pixels)
        inputs.setdefault(SAFETY_CHECKER, []).append(Inputs(RECORDED, f"{label}, its image", feeds))
    if ENCODER in folder.models and image.problem is None:
        name = next(iter(folder.file(ENCODER).signature.inputs))
        feeds = {name: encoder_input(image)}
        inputs.setdefault(ENCODER, []).append(Inputs(RECORDED, f"{label}, its image", feeds))
