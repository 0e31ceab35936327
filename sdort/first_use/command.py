"""Text to image: :func:`sdort.load` and :func:`sdort.run`, which ``sdort run`` calls, of whatever can be drawn with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sdort.console import document
from sdort.first_use.find_pipeline import part_folder, pipeline_folder, plan_folder
from sdort.first_use.making_plan import MakingPlan
from sdort.first_use.unmade import Unmade, check_control
from sdort.generation.command import Pipeline, PlannedRun, load_folder, prepare_run, written_size
from sdort.generation.job import Job, plan_paths
from sdort.generation.requests.request import check_task
from sdort.generation.requests.stages import plan_stages
from sdort.generation.requests.typed_options import GenerationOptions, RunOptions, runtime_options
from sdort.generation.result import Generation
from sdort.generation.resumed_prompts import plan_unfinished
from sdort.machine.phases import phase
from sdort.options.option_types import typed, with_options
from sdort.providers.runtime_options import LoadOptions, RuntimeOptions
from sdort.runtime.probe import choose_provider

if TYPE_CHECKING:
    from typing_extensions import Unpack


@with_options(RuntimeOptions)
@typed
def load(pipeline: str | Path, **options: Unpack[LoadOptions]) -> Pipeline:
    """Load a text-to-image pipeline.

    A checkpoint is exported and optimized once, for the provider that runs it, and kept in the cache. A stage that
    gives NaN or nothing is done again in fp32, as in ``sdort run``.

    Args:
        pipeline: a folder from :func:`sdort.export` or :func:`sdort.optimize`, from optimum, or from diffusers'
            conversion script; a checkpoint: a single file (``.safetensors``), a diffusers folder, a hub id, ``demo``;
            or a name of :func:`add_model`.
        options: where and how the models run.

    Returns:
        The pipeline; :meth:`Pipeline.generate` makes images.

    Raises:
        BadModelError: the folder is no text-to-image pipeline, a component does not load, or a file is not what sdort
            wrote.
        ProviderError: the provider does not load and ``fallback`` is not True, or it cannot run a component.
        UsageError: there is no such provider or option of it, or no such pipeline; or the checkpoint cannot draw by
            itself.
        OutputError: the cache cannot be written.

    Example:
        >>> pipeline = sdort.load("fast", provider="cpu")
        >>> pipeline.generate("a red star on navy", steps=20, seed=7).save("star.png")
        [PosixPath('star.png')]
    """
    runtime = runtime_options(options)
    return load_folder(pipeline_folder(pipeline, runtime), runtime)


@typed
def run(
    pipeline: str | Path, prompt: str | Sequence[str] = (), *, placement: bool = False, **options: Unpack[RunOptions]
) -> Generation:
    """Load a pipeline, generate images and write them to files: :func:`load` and :meth:`Pipeline.generate` in one.

    What can be refused is refused before anything is loaded, or a checkpoint is made ready.

    Args:
        pipeline: as for :func:`load`.
        prompt: as for :meth:`Pipeline.generate`.
        placement: also open each component anew, and measure which operators run on which execution provider.
        options: those of :func:`load` and :class:`GenerationOptions`; ``output`` is by default ``sdort-SEED.png`` in
            the current folder.

    Returns:
        The images, their files, and the record of the generation.

    Raises:
        SdortError: as :func:`load` and :meth:`Pipeline.generate`.

    Example:
        >>> sdort.run("fast", "a red star on navy", provider="cpu", steps=20, output="star.png").images[0].path
        PosixPath('star.png')
    """
    started = time.perf_counter()
    result = _planned(pipeline, prompt, options).execute(placement=placement)
    return replace(result, elapsed=round(time.perf_counter() - started, 4))


@document("run-plan", 1)
@dataclass(frozen=True)
class RunPlan:
    """The plan of a run.

    Attributes:
        model: the checkpoint, or the pipeline's folder where nothing tells.
        files: the images that would be written.
        width: pixels of the first image; None where the checkpoint is to be made ready first, and no size is asked for.
        height: pixels of the first image, likewise.
        steps: denoising steps of the first image; None likewise.
        provider: the execution provider that would run.
        making: what is to be made first; None where it is in the cache, or the pipeline needs nothing.
        seconds: what the run takes, loading included and making not, by the last run of this machine with this pipeline
            at this size; None where there was none.
    """

    model: str
    files: list[Path]
    width: int | None
    height: int | None
    steps: int | None
    provider: str
    making: MakingPlan | None
    seconds: float | None


@typed
def plan_run(pipeline: str | Path, prompt: str | Sequence[str] = (), **options: Unpack[RunOptions]) -> RunPlan:
    """Say what :func:`run` would do and how long that takes; nothing is loaded, made ready, downloaded or written.

    Args:
        pipeline: as for :func:`load`.
        prompt: as for :meth:`Pipeline.generate`.
        options: as for :func:`run`.

    Raises:
        SdortError: as :func:`run`, as far as it is seen before anything is loaded.

    Example:
        >>> sdort.plan_run("fast", "a red star on navy", provider="cpu", steps=20).steps
        20
    """
    runtime, jobs = _jobs(prompt, options)
    paths = plan_paths(jobs)
    folder = plan_folder(pipeline, runtime, partial(_check_tasks, jobs))
    request = jobs[0].requests[0]
    if isinstance(folder, MakingPlan):
        provider, steps = choose_provider(runtime)[0].name, None if jobs[0].unsaid else request.steps
        return RunPlan(folder.name, paths, request.width, request.height, steps, provider, folder, None)
    planned = prepare_run(folder, jobs, paths, runtime)
    request = (planned.jobs or [jobs[0].for_pipeline(planned.folder)])[0].requests[0]
    height, width = written_size(request, plan_stages(planned.folder, request)[-1])
    name = planned.folder.checkpoint
    files = planned.left.paths
    return RunPlan(name, files, width, height, request.steps, planned.provider.name, None, planned.seconds)


def _planned(pipeline: str | Path, prompt: str | Sequence[str], options: RunOptions) -> PlannedRun:
    runtime, jobs = _jobs(prompt, options)
    paths = plan_paths(jobs)
    with phase("the model's folder"):
        folder = pipeline_folder(pipeline, runtime, partial(_check_tasks, jobs))
    part = parts_of(runtime)
    return prepare_run(folder, [with_parts(job, part) for job in jobs], paths, runtime)


def _check_tasks(jobs: Sequence[Job], unmade: Unmade) -> None:
    """Refuse jobs that a pipeline could not do if it was made."""
    for job in jobs:
        with job.named():
            check_task(unmade, job.requests[0])


def _jobs(prompt: str | Sequence[str], options: RunOptions) -> tuple[RuntimeOptions, list[Job]]:
    loading = {name: value for name, value in options.items() if name in LoadOptions.__annotations__}
    generating = {name: value for name, value in options.items() if name not in loading}
    runtime = runtime_options(cast("LoadOptions", loading))
    return runtime, plan_unfinished(prompt, cast("GenerationOptions", generating))


def parts_of(runtime: RuntimeOptions) -> Callable[..., Path]:
    """The finder of refiners and ControlNets, which makes checkpoints ready; each once."""
    return cache(lambda model, *check: part_folder(model, runtime, *check))


def with_parts(job: Job, part: Callable[..., Path]) -> Job:
    """A job whose refiner and ControlNets are folders of ONNX models, as ``part`` makes them of checkpoints."""
    first = job.requests[0]
    refiner = part(first.refiner) if first.refiner else None
    controls = tuple(replace(control, path=part(control.path, check_control)) for control in first.control)
    if (refiner, controls) == (first.refiner, first.control):
        return job
    return replace(job, requests=[replace(request, refiner=refiner, control=controls) for request in job.requests])
